"""The words of `django.tasks`: from Django 6.0 and later, else from the package django-tasks.

A process may have both: apps of others take their words from the package on every Django. So `packages` knows both, and a task decides
by its class which signals, results and contexts belong to it.
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

    # Its releases to 0.12 call it otherwise than Django does.
    InvalidTask = getattr(exceptions, "InvalidTask", None) or exceptions.InvalidTaskError

__all__ = (
    "BaseTaskBackend",
    "InvalidTask",
    "Task",
    "TaskContext",
    "TaskError",
    "TaskResult",
    "TaskResultDoesNotExist",
    "TaskResultStatus",
    "Words",
    "error_class",
    "normalize_json",
    "packages",
    "task_backends",
    "task_classes",
    "task_enqueued",
    "task_finished",
    "task_started",
    "words_of",
)


class Words(NamedTuple):
    """The same words of one of the two."""

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


OURS: Final = Words(
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
_both: tuple[Words, ...] = ()
_joined: dict[str, type[Exception]] = {}


def packages() -> tuple[Words, ...]:
    """The words that tasks of this process may have been made by: those above first, then those of the package where Django has its own
    and some app has imported the package. It is not imported here: it has no tasks then.
    """
    global _both
    if not _both and f"{PACKAGE}.backends.base" in sys.modules and Task.__module__ != f"{PACKAGE}.base":
        _both = (OURS, _words(import_module(f"{PACKAGE}.base"), import_module(f"{PACKAGE}.exceptions")))
    return _both or (OURS,)


def _words(base: ModuleType, exceptions: Any) -> Words:
    signals, package = import_module(f"{PACKAGE}.signals"), import_module(PACKAGE)
    return Words(
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
    """The classes of which tasks are."""
    return tuple(words.Task for words in packages())


def words_of(task: Any) -> Words:
    """The words of the package by which that task was made."""
    return next((words for words in packages() if isinstance(task, words.Task)), OURS)


def error_class(name: str) -> type[Exception]:
    """The exception of that name. If both packages are imported, it is a subclass of both: a caller may catch either."""
    kinds: tuple[type[Exception], ...] = tuple(getattr(words, name) for words in packages())
    if len(kinds) == 1:
        return kinds[0]
    if name not in _joined:
        _joined[name] = type(name, kinds, {"__module__": __name__, "__reduce__": lambda error: (kinds[0], error.args)})
    return _joined[name]
