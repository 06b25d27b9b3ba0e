"""Tasks that a worker would not find."""

from __future__ import annotations

import sys

import pytest

import django_delayq as delayq
from django_delayq.exceptions import ConfigError
from django_delayq.producer import worker_modules
from django_delayq.producer.task import registry
from tests.producer import outside

ELSEWHERE = "its module tests.producer.outside is neither the tasks module of an installed app nor in DELAYQ['TASK_MODULES']"
pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def apart(monkeypatch):
    """Another test may have been warned already, and registers other tasks."""
    monkeypatch.setattr(worker_modules, "_warned", set())
    monkeypatch.setattr(registry, "_tasks", {**registry._tasks})


def test_a_task_of_a_module_that_workers_do_not_import_is_warned_of_once(caplog):
    for delay in ("1h", "2h"):
        delayq.schedule(outside.send, 1, delay=delay)
        delayq.schedule(outside.send, 1, delay=delay, queue="orders")
    [record] = [record for record in caplog.records if "would not find" in record.message]
    assert ELSEWHERE.replace("'", '"') in record.message.replace("'", '"')
    assert "Add 'tests.producer.outside' to" in record.message


def test_with_debug_it_is_refused_each_time(settings):
    settings.DEBUG = True
    for _ in range(2):
        with pytest.raises(ConfigError, match="A worker would not find the task"):
            delayq.schedule(outside.send, 1)


def test_a_module_that_the_setting_names_is_found(settings, caplog):
    settings.DELAYQ = {**settings.DELAYQ, "TASK_MODULES": ["tests.producer.outside"]}
    settings.DEBUG = True
    delayq.schedule(outside.send, 1)
    assert "would not find" not in caplog.text


def test_a_task_that_a_function_makes_is_warned_of_also_where_workers_import_its_module(settings):
    settings.DELAYQ = {**settings.DELAYQ, "TASK_MODULES": ["tests.producer.outside"]}
    settings.DEBUG = True
    made = outside.make()
    with pytest.raises(ConfigError, match=r"it was made by a function, and tests\.producer\.outside\._function is not a task"):
        delayq.schedule(made, 1)


def test_a_module_with_an_import_that_fails_is_not_passed_over(settings, tmp_path, monkeypatch):
    (tmp_path / "broken_tasks.py").write_text("import nothing_of_that_name\n")
    monkeypatch.syspath_prepend(tmp_path)
    settings.DELAYQ = {**settings.DELAYQ, "TASK_MODULES": ["broken_tasks", "tests.producer.nowhere"]}
    with pytest.raises(ModuleNotFoundError, match="nothing_of_that_name"):
        worker_modules.load()
    assert "broken_tasks" not in sys.modules
