"""Tasks of Django, run by a real worker, which knows them by import alone."""

from __future__ import annotations

import json

import pytest

from tests.conftest import missing
from tests.worker.conftest import Shop, eventually

try:
    import django.tasks as api
except ImportError:  # Django 5.2
    try:
        import django_tasks as api
    except ImportError:
        api = None

ENQUEUE = """
from tests.contrib import tasks
for one, args in ((tasks.send, [1]), (tasks.later, [1]), (tasks.look, [1]), (tasks.fail, [])):
    print(one.using(backend="delayq").enqueue(*args).id)
"""
LOOK = """
import json
try:
    from django.tasks import task_backends
except ImportError:
    from django_tasks import task_backends
for id in {ids!r}:
    result = task_backends["delayq"].get_result(id)
    errors = [error.exception_class_path for error in result.errors]
    print(json.dumps([result.status, result._return_value, result.attempts, errors, result.backend]))
"""


OF_THE_PACKAGE = """
import json
from django_tasks import exceptions, task_backends
from django_tasks.base import Task, TaskError, TaskResult
from tests.contrib.cms import tasks
from django_delayq.contrib.tasks import using
backend = task_backends["delayq"]
invalid = getattr(exceptions, "InvalidTask", None) or exceptions.InvalidTaskError
try:
    tasks.index.using(backend="delayq", priority=1000)
except invalid as error:
    wrong = str(error)
try:
    backend.get_result("nobody")
except exceptions.TaskResultDoesNotExist as error:
    gone = str(error)
results = [tasks.index.using(backend="delayq").enqueue(7), using(tasks.fail, key="f").using(backend="delayq").enqueue()]
print(json.dumps([[one.id for one in results], [isinstance(one, TaskResult) for one in results], wrong, gone]))
"""
LOOK_AT_THE_PACKAGE = """
import json
from django_tasks import task_backends
from django_tasks.base import Task, TaskError, TaskResult
from django_tasks.backends.base import BaseTaskBackend
backend = task_backends["delayq"]
for id in {ids!r}:
    result = backend.get_result(id)
    ours = [isinstance(result, TaskResult), isinstance(result.task, Task), isinstance(backend, BaseTaskBackend)]
    ours += [isinstance(error, TaskError) for error in result.errors]
    print(json.dumps([result.status, result._return_value, all(ours), len(result.errors)]))
"""


@pytest.mark.parametrize("default", ["django_tasks.backends.immediate.ImmediateBackend", "django_delayq.contrib.tasks.DelayqBackend"])
def test_tasks_of_the_package_are_of_its_classes_in_every_process_whatever_django_has(durable: Shop, default: str) -> None:
    pytest.importorskip("django_tasks")
    ours = {"BACKEND": "django_delayq.contrib.tasks.DelayqBackend"}
    durable.environment = {"APP_APPS": "tests.contrib.cms", "APP_TASKS": json.dumps({"default": {"BACKEND": default}, "delayq": ours})}
    ids, of_its_class, wrong, gone = json.loads(durable.manage("shell", "-v", "0", "-c", OF_THE_PACKAGE))
    assert of_its_class == [True, True]
    assert wrong == "priority must be a whole number between -100 and 100."
    assert gone == "nobody"
    durable.work("--roles", "move,mirror,relay", "--burst").wait()
    said = durable.manage("shell", "-v", "0", "-c", LOOK_AT_THE_PACKAGE.format(ids=ids)).splitlines()
    assert list(map(json.loads, said)) == [["SUCCESSFUL", [7, True, True], True, 0], ["FAILED", None, True, 1]]
    told = sorted((durable.folder / "told.txt").read_text().splitlines())
    ends = {ids[0]: "SUCCESSFUL", ids[1]: "FAILED"}
    wanted = [("task_enqueued", "READY"), ("task_started", "RUNNING"), ("task_finished", "")]
    assert told == sorted(f"{id} {name} {status or ends[id]} True" for id in ids for name, status in wanted)


ENQUEUE_MANY = """
import time
from django.contrib.auth.models import Group
from django_tasks import signals
from tests.contrib.cms import tasks


def doubles(task_result=None, **_):
    Group.objects.create(name=task_result.id)
    time.sleep(0.005)


signals.task_enqueued.disconnect(tasks.note)
signals.task_enqueued.connect(doubles)
signals.task_enqueued.connect(tasks.note)
for number in range(100):
    tasks.index.using(backend="delayq").enqueue(number)
"""


@pytest.mark.slow
def test_no_worker_starts_a_task_before_receivers_have_heard_that_it_was_enqueued(durable: Shop) -> None:
    pytest.importorskip("django_tasks")
    ours = {"BACKEND": "django_delayq.contrib.tasks.DelayqBackend"}
    durable.environment = {"APP_APPS": "tests.contrib.cms", "APP_TASKS": json.dumps({"default": ours, "delayq": ours})}
    durable.work("--roles", "move,mirror,relay")
    durable.manage("shell", "-v", "0", "-c", ENQUEUE_MANY)

    def told() -> list[list[str]]:
        return [line.split() for line in (durable.folder / "told.txt").read_text().splitlines()]

    eventually(lambda: sum(name == "task_finished" for _, name, *_ in told()) == 100)
    order: dict[str, list[str]] = {}
    for id, name, *_ in told():
        order.setdefault(id, []).append(name)
    assert set(map(tuple, order.values())) == {("task_enqueued", "task_started", "task_finished")}


def test_a_worker_runs_tasks_that_were_declared_for_another_backend(durable: Shop) -> None:
    if api is None:
        missing("Neither Django's tasks nor the package django-tasks are installed")
    dummy = f"{api.__name__}.backends.dummy.DummyBackend"
    durable.settings["BACKOFF"] = "100ms"
    durable.environment = {
        "APP_APPS": "tests.contrib",
        "APP_TASKS": json.dumps(
            {
                "default": {"BACKEND": dummy, "QUEUES": []},
                "delayq": {"BACKEND": "django_delayq.contrib.tasks.DelayqBackend", "OPTIONS": {"backoff": "100ms"}},
            }
        ),
    }
    ids = durable.manage("shell", "-v", "0", "-c", ENQUEUE).split()
    assert len(ids) == 4
    durable.work("--roles", "move,mirror,relay", "--burst").wait()
    send, later, look, fail = map(json.loads, durable.manage("shell", "-v", "0", "-c", LOOK.format(ids=ids)).splitlines())
    assert send == ["SUCCESSFUL", "sent 1", 1, [], "delayq"]
    assert later == ["SUCCESSFUL", 2, 1, [], "delayq"]
    assert fail == ["FAILED", None, 1, ["builtins.ConnectionError"], "delayq"]
    assert look[0] == "READY"  # its ladder has an hour
    assert (look[2], look[3]) == (1, ["builtins.ConnectionError"])
    told = sorted((durable.folder / "told.txt").read_text().splitlines())
    ends = {ids[0]: "SUCCESSFUL", ids[1]: "SUCCESSFUL", ids[3]: "FAILED"}
    assert told == sorted(
        [f"{id} task_started RUNNING" for id in ids] + [f"{id} task_finished {status}" for id, status in ends.items()]
    )
