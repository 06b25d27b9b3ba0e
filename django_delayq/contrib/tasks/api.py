"""The API of `django.tasks`: from Django 6.0 or later, otherwise from the package django-tasks.

A process may contain both, because some apps always use the package. `packages` returns both. The class of a task decides which
signals,
results and contexts belong to it.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import Any, Final, NamedTuple

try:
    from django.tasks import Task, TaskContext, TaskResult, TaskResultStatus, task_backends
    from django.tasks.backends.base import BaseTaskBackend
    from django.tasks.base import TaskError
    from django.tasks.exceptions import InvalidTask, TaskResultDoesNotExist
    from django.tasks.signals import task_enqueued, task_finished, task_started
    from django.utils.json import normalize_json
except ImportError:  # Django 5.2
    from django_tasks import exceptions, task_backends
    from django_tasks.backends.base import BaseTaskBackend
    from django_tasks.base import Task, TaskContext, TaskError, TaskResult, TaskResultStatus
    from django_tasks.exceptions import TaskResultDoesNotExist
    from django_tasks.signals import task_enqueued, task_finished, task_started
    from django_tasks.utils import normalize_json

    # Releases up to 0.12 have another name than Django.
    InvalidTask = getattr(exceptions, "InvalidTask", None) or exceptions.InvalidTaskError

__all__ = (
    "BaseTaskBackend",
    "InvalidTask",
    "Task",
    "TaskApi",
    "TaskContext",
    "TaskError",
    "TaskResult",
    "TaskResultDoesNotExist",
    "TaskResultStatus",
    "api_of",
    "error_class",
    "normalize_json",
    "packages",
    "task_backends",
    "task_classes",
    "task_enqueued",
    "task_finished",
    "task_started",
)


class TaskApi(NamedTuple):
    """The API of one of the two packages."""

    Task: Any
    TaskContext: Any
    TaskError: Any
    TaskResult: Any
    TaskResultStatus: Any
    BaseTaskBackend: Any
    InvalidTask: Any
    TaskResultDoesNotExist: Any
    task_backends: Any
    task_enqueued: Any
    task_started: Any
    task_finished: Any


OURS: Final = TaskApi(
    Task,
    TaskContext,
    TaskError,
    TaskResult,
    TaskResultStatus,
    BaseTaskBackend,
    InvalidTask,
    TaskResultDoesNotExist,
    task_backends,
    task_enqueued,
    task_started,
    task_finished,
)
PACKAGE: Final = "django_tasks"
_both: tuple[TaskApi, ...] = ()
_joined: dict[str, type[Exception]] = {}


def packages() -> tuple[TaskApi, ...]:
    """The APIs that tasks of this process use: the one above first, then that of the package if Django has its own and some app has
    imported the package. If no app has imported it, no task uses it.
    """
    global _both
    if not _both and f"{PACKAGE}.backends.base" in sys.modules and Task.__module__ != f"{PACKAGE}.base":
        _both = (OURS, _api(import_module(f"{PACKAGE}.base"), import_module(f"{PACKAGE}.exceptions")))
    return _both or (OURS,)


def _api(base: ModuleType, exceptions: Any) -> TaskApi:
    signals, package = import_module(f"{PACKAGE}.signals"), import_module(PACKAGE)
    return TaskApi(
        base.Task,
        base.TaskContext,
        base.TaskError,
        base.TaskResult,
        base.TaskResultStatus,
        import_module(f"{PACKAGE}.backends.base").BaseTaskBackend,
        getattr(exceptions, "InvalidTask", None) or exceptions.InvalidTaskError,
        exceptions.TaskResultDoesNotExist,
        package.task_backends,
        signals.task_enqueued,
        signals.task_started,
        signals.task_finished,
    )


def task_classes() -> tuple[type[Task], ...]:
    """The classes of tasks."""
    return tuple(api.Task for api in packages())


def api_of(task: Any) -> TaskApi:
    """The API to which the task belongs."""
    return next((api for api in packages() if isinstance(task, api.Task)), OURS)


def error_class(name: str) -> type[Exception]:
    """The exception with this name. If both packages are imported, it is a subclass of both, so a caller can catch either."""
    kinds: tuple[type[Exception], ...] = tuple(getattr(api, name) for api in packages())
    if len(kinds) == 1:
        return kinds[0]
    if name not in _joined:
        _joined[name] = type(name, kinds, {"__module__": __name__, "__reduce__": lambda error: (kinds[0], error.args)})
    return _joined[name]
