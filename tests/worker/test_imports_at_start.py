"""What is in memory when a web process or a worker has started: nothing of what neither needs before somebody asks for it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

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
RECORDS = "import django_delayq.management.record_keepers\n"
# Pages, what joins others, what a project has not set up or does not call.
NEITHER = ("admin", "contrib", "locks", "messages", "targets", "templatetags", "testing")
LOOPS = ("mirror.service", "mirror.mirror_loop", "mirror.relay", "mirror.restore")
THEIRS = ("cronsim", "django.contrib.admin", "prometheus_client", "rich", "urllib3")


def loaded(code: str) -> set[str]:
    """The modules in memory behind that, in a process of its own."""
    command = [sys.executable, "-c", f"{SET_UP}{code}print(json.dumps(sorted(sys.modules)))"]
    return set(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))


def within(names: set[str], *packages: str) -> list[str]:
    """Those that are one of these, or stand in one."""
    return sorted(name for name in names if any(name == one or name.startswith(f"{one}.") for one in packages))


@pytest.mark.parametrize("code", ["", WORKER], ids=["web", "worker"])
def test_neither_has_pages_or_what_joins_others_in_memory(code):
    assert within(loaded(code), *(f"django_delayq.{room}" for room in NEITHER), *THEIRS) == []


def test_a_web_process_has_neither_commands_nor_loops_nor_the_worker_in_memory():
    rooms = ["management", "worker.process", "worker.supervisor", *LOOPS]
    found = loaded("")
    assert within(found, *(f"django_delayq.{room}" for room in rooms)) == []
    assert within(found, "django_delayq.console") == ["django_delayq.console", "django_delayq.console.job_links"]  # for its check


def test_of_the_commands_a_worker_has_its_own_in_memory():
    own = ["", ".commands", ".commands.delayq_worker", ".left_partitions"]
    assert within(loaded(WORKER), "django_delayq.management") == [f"django_delayq.management{name}" for name in own]


def test_a_worker_that_keeps_no_records_has_nothing_of_that_in_memory():
    found = loaded(WORKER)
    assert within(found, *(f"django_delayq.{room}" for room in LOOPS)) == []
    assert within(found, "django_delayq.console") == ["django_delayq.console", "django_delayq.console.job_links"]
    assert len(within(loaded(WORKER + RECORDS), *(f"django_delayq.{room}" for room in LOOPS))) == len(LOOPS)


def test_what_is_loaded_later_is_there_when_it_is_asked_for():
    found = loaded("for name in django_delayq.__all__: assert getattr(django_delayq, name).__name__\n")
    assert within(found, "django_delayq.locks.lock", "django_delayq.messages.pull", "django_delayq.targets.offering")
