"""Tasks of Django, run by a real worker, which knows them by import alone."""

from __future__ import annotations

import json

from tests.conftest import missing
from tests.worker.conftest import Shop

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
