"""Prints the tests that another database, another server or other versions can change: `scripts/select_tests.py database`."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def paths(pattern: str, *, without: tuple[str, ...] = ()) -> list[str]:
    """The paths that match a pattern below tests/. If there are none, the pattern itself, which pytest reports as missing."""
    found = [path for path in sorted(ROOT.glob(f"tests/{pattern}")) if path.name not in without]
    return [str(path.relative_to(ROOT)) for path in found] or [f"tests/{pattern}"]


def named(folder: str, *names: str) -> list[str]:
    """Test files of a folder."""
    return [path for name in names for path in paths(f"{folder}/test_{name}.py")]


def folders(*names: str) -> list[str]:
    """Whole folders of tests."""
    return [path for name in names for path in paths(name)]


# Whatever uses the database.
DATABASE = [
    *folders("mirror", "producer", "testing", "contrib", "management", "admin", "console", "formats"),
    *named("worker", "sides", "effects", "database_down", "pools"),
    *paths("test_checks.py"),
    *folders("acceptance"),
]
# Whatever uses the server. The servers from wheels have no TLS.
SERVER = [
    *folders("store", "worker", "mirror", "producer", "formats", "acceptance"),
    *paths("security/test_*.py", without=("test_tls.py", "test_tls_cluster.py")),
]
REDIS8 = [*folders("store"), *named("worker", "cluster", "half_moves")]
# What a version of Django, Python, redis-py, the database or the server can change: scripts and how their replies are parsed, tables,
# transactions and locks, also those that SQLite does not have, pages with Django's forms and lists, a whole worker. Long files are left
# out if other tests run the same scripts, statements and pages.
VERSIONS = [
    *paths("store/test_*.py", without=("test_partition_health.py",)),
    *paths("mirror/test_*.py", without=("test_partitions.py", "test_table.py", "test_token_limits.py")),
    *folders("producer", "nouns", "formats"),
    *paths("test_packaging.py"),
    *named("admin", "actions", "job_page", "list", "policy"),
    *named("console", "search", "search_language"),
    *named("contrib", "tasks", "contract"),
    *named("contrib/gateway", "gateway_jobs", "gateway_messages", "idempotency"),
    *named("periodic", "at_once", "overlap", "due_ticks"),
    *named("security", "acl", "writer"),
    *folders("worker/process"),
    *named("worker/supervisor", "fork"),
    *named("worker", "loops", "pools", "worker"),
]
# What versions, databases and servers together can change: not the model, the crash points, the tools and random input. Only those
# tests of workers and integrations that depend on the server, the database, threads and processes. `make test-all` runs the others on
# each database and each server.
LEFT_OUT = {
    *folders("worker", "contrib", "formats"),
    *paths("test_checks.py"),
    *named("security", "absurd", "bad_input", "differential"),
}
DIAGONAL = [
    *sorted({*DATABASE, *SERVER} - LEFT_OUT),
    *folders("nouns", "periodic"),
    *paths("test_packaging.py"),
    *named("formats", "migrations", "newer"),
    *folders("contrib/gateway"),
    *named("contrib", "tasks", "contract"),
    *named("worker", "worker", "crashes", "restore", "abort"),
    *folders("worker/process"),
]
SELECTIONS = {"database": DATABASE, "server": SERVER, "redis8": REDIS8, "versions": VERSIONS, "diagonal": DIAGONAL}

if __name__ == "__main__":
    print(*SELECTIONS[sys.argv[1]])
