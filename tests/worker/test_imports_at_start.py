"""The modules in memory after a web process or a worker has started: none that they do not need yet."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

import django_delayq
from tests.stage import ROOT
from tests.worker.conftest import Shop

SET_UP = """
import json, sys
from django.conf import settings
apps = ["django.contrib.contenttypes", "django.contrib.auth", "django_delayq"]
database = {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}
settings.configure(INSTALLED_APPS=apps, DATABASES={"default": database}, USE_TZ=True)
import django, django_delayq
django.setup()
"""
WORKER = "import django_delayq.management.commands.delayq_worker\n"
# Pages, what joins others, what a project has not set up or does not call.
NEITHER = ("admin", "contrib", "messages", "targets", "templatetags", "testing")
LATER = {f"django_delayq.{name}" for name in ("messages.pull", "messages.push", "targets.delivery", "targets.offering")}
LOOPS = ("mirror.service", "mirror.mirror_loop", "mirror.relay", "mirror.restore")
KEEPERS = ("console.operation_loop", "management.record_keepers", "periodic.due_ticks", *LOOPS)
RUN = """
import json, sys
from django.core.management import execute_from_command_line
execute_from_command_line(["", "delayq_worker", "--burst", "--roles", sys.argv[1]])
print(json.dumps(sorted(sys.modules)))
"""
# The modules of the package that a web process has in memory, by room. Each costs time at its start, so the list may only get shorter.
WEB = {
    "": (
        "apps clock codec conf durations exceptions failpoints ids job_meta ladder locks logger mirror "
        "models periodic producer setting_readers signals signing spread states store text under_test worker"
    ),
    "locks": "lock",
    "mirror": "atomic_runs site_row",
    "models": "database internal periodic state_queries",
    "periodic": "dates declarations",
    "producer": (
        "acts async_api breaker carriers changes commit commit_requests homes horizon job lookup "
        "name_format options outbox publish put put_back queues schedule stores task "
        "worker_modules"
    ),
    "producer.outbox": "agreed_clock far_rows follow_ups jobs pauses period_keys requests rows shapes",
    "store": "keys connection reads scripts",
    "store.connection": ("address commands connection_options embedded error_replies link places sentinels wake"),
    "store.reads": "reach",
    "store.scripts": ("decode formats limits loader lock_store queue record replicas site"),
    "worker": "current",
}
THEIRS = ("cronsim", "django.contrib.admin", "prometheus_client", "rich", "urllib3")


def loaded(code: str, set_up: str = SET_UP) -> set[str]:
    """The modules in memory after that code, in a new process."""
    command = [sys.executable, "-c", f"{set_up}{code}print(json.dumps(sorted(sys.modules)))"]
    return set(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))


def within(names: set[str], *packages: str) -> list[str]:
    """Those that are one of these modules, or in one of these packages."""
    return sorted(name for name in names if any(name == one or name.startswith(f"{one}.") for one in packages))


@pytest.mark.parametrize("code", ["", WORKER], ids=["web", "worker"])
def test_neither_has_pages_or_what_joins_others_in_memory(code):
    assert within(loaded(code), *(f"django_delayq.{room}" for room in NEITHER), *THEIRS) == []


def test_a_web_process_has_neither_commands_nor_loops_nor_the_worker_in_memory():
    rooms = ["management", "worker.process", "worker.supervisor", *LOOPS]
    found = loaded("")
    assert within(found, *(f"django_delayq.{room}" for room in rooms)) == []
    assert within(found, "django_delayq.console") == []


def test_a_web_process_has_no_other_modules_in_memory_than_these():
    listed = {f"django_delayq.{room}.{name}".replace("..", ".") for room, names in WEB.items() for name in names.split()}
    assert {name for name in loaded("") if name.startswith("django_delayq.")} == listed


@pytest.mark.parametrize(
    "module",
    [
        "checks",
        "findings",
        "producer.batch",
        "producer.outbox.batches",
        "store.connection.cluster",
        "store.reads.figures",
        "store.reads.inspector",
        "store.scripts.events",
        "store.scripts.recovery",
    ],
)
def test_what_a_web_process_loads_when_it_is_asked_for_a_worker_has_before_it_forks(module):
    assert f"django_delayq.{module}" not in loaded("")
    assert f"django_delayq.{module}" in loaded(WORKER)


def test_of_the_commands_a_worker_has_its_own_in_memory():
    own = ["", ".commands", ".commands.delayq_worker", ".left_partitions"]
    assert within(loaded(WORKER), "django_delayq.management") == [f"django_delayq.management{name}" for name in own]


def test_what_is_loaded_later_is_there_when_it_is_asked_for():
    assert LATER.isdisjoint(loaded(""))
    found = loaded("for name in django_delayq.__all__: assert getattr(django_delayq, name).__name__\n")
    assert found >= LATER


@pytest.mark.parametrize(
    ("settings", "loads"),
    [
        ('QUEUES={"mail": {"CONSUMER": "pull"}}', {"messages.pull", "messages.push"}),
        ("HTTP={}", {"targets.delivery"}),
        ('TARGETS={"t": {}}', {"targets.offering"}),
        ("QUEUES=5", set()),
        ('QUEUES={"mail": 5, "orders": {}}', set()),
    ],
)
def test_what_tasks_may_call_is_loaded_before_a_worker_forks_where_the_settings_have_it(settings, loads):
    set_up = SET_UP.replace("USE_TZ=True", f"USE_TZ=True, DELAYQ=dict({settings})")
    assert LATER & loaded("", set_up) == {f"django_delayq.{name}" for name in loads}


def ran(shop: Shop, roles: str) -> set[str]:
    """The modules that the supervisor of a worker has in memory when it has run what is due."""
    command, environment = [sys.executable, "-W", "error", "-c", RUN, roles], {**os.environ, **shop.project}
    done = subprocess.run(command, cwd=ROOT, env=environment, check=True, capture_output=True, text=True)
    return set(json.loads(done.stdout.splitlines()[-1]))


def test_a_worker_that_has_run_jobs_and_keeps_no_records_has_nothing_of_that_in_memory(shop: Shop) -> None:
    shop.keep_rows()
    names = [f"django_delayq.{name}" for name in (*KEEPERS, "messages", "targets")]
    id = shop.put("in_memory", *names)
    assert within(ran(shop, "move"), *names) == []
    assert shop.detail(id, "succeeded")["r"] == []  # in its task process


@pytest.mark.parametrize("role", ["mirror", "relay"])
def test_a_worker_that_keeps_records_has_that_in_memory_before_it_forks(shop: Shop, role: str) -> None:
    shop.keep_rows()
    names = {f"django_delayq.{name}" for name in KEEPERS}
    assert names <= ran(shop, f"move,{role}")


def test_what_is_loaded_later_is_listed_before_it_is_loaded():
    loaded("assert set(django_delayq.__all__) <= set(dir(django_delayq))\n")


@pytest.mark.parametrize(("typo", "meant"), [("scheduel", "schedule"), ("delivr", "deliver")])
def test_a_name_that_is_none_is_told_with_the_one_that_was_meant(typo, meant):
    done = subprocess.run([sys.executable, "-c", f"{SET_UP}django_delayq.{typo}"], check=False, capture_output=True, text=True)
    assert done.stderr.endswith(f"has no attribute '{typo}'. Did you mean: '{meant}'?\n")


def test_a_name_of_another_library_is_told_with_its_equivalent():
    with pytest.raises(AttributeError, match=r"'enqueue'\. Here it is schedule: close_order\.schedule\(1\)"):
        django_delayq.enqueue  # noqa: B018  # reading it raises


def test_a_name_of_the_current_job_is_told_with_where_it_is():
    with pytest.raises(AttributeError, match=r"'progress'; inside a task, use delayq\.current\(\)\.progress$"):
        django_delayq.progress  # noqa: B018  # reading it raises
