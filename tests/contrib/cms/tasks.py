"""Its tasks, and the receivers of its signals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from django.conf import settings
from django_tasks import signals, task
from django_tasks.base import TaskContext, TaskResult

NAMES = ("task_enqueued", "task_started", "task_finished")


@task(takes_context=True)
def index(context: TaskContext, page: int) -> list[Any]:
    return [page, isinstance(context, TaskContext), isinstance(context.task_result, TaskResult)]


@task()
def fail() -> None:
    raise ConnectionError("the server is away")


def note(signal: Any = None, task_result: Any = None, **_: Any) -> None:
    name = next(name for name in NAMES if getattr(signals, name) is signal)
    with (Path(settings.APP_FOLDER) / "told.txt").open("a") as file:
        file.write(f"{task_result.id} {name} {task_result.status} {isinstance(task_result, TaskResult)}\n")


if hasattr(settings, "APP_FOLDER"):
    for one in NAMES:
        getattr(signals, one).connect(note)
