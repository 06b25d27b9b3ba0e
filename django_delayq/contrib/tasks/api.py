"""The API of `django.tasks`: from Django 6.0 or later, otherwise from the package django-tasks.

A process may contain both, because some apps always use the package. `packages` returns both. The class of a task decides which
signals, results and contexts belong to it.
"""

from __future__ import annotations

import sys
from collections import ChainMap, namedtuple
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

PACKAGE: Final = "django_tasks"


# The API of one of the two packages.
TaskApi = namedtuple(
    "TaskApi",
    "Task TaskContext TaskError TaskResult TaskResultStatus BaseTaskBackend InvalidTask TaskResultDoesNotExist "
    "task_backends task_enqueued task_started task_finished",
)


_both: tuple[TaskApi, ...] = ()
_joined: dict[str, type[Exception]] = {}


def _api(package: str) -> TaskApi:
    modules = [import_module(f"{package}{name}") for name in ("", ".base", ".backends.base", ".exceptions", ".signals")]
    known: ChainMap[str, Any] = ChainMap(*map(vars, modules))
    # Releases of the package up to 0.12 call InvalidTask InvalidTaskError.
    return TaskApi(**{name: known.get(name) or known[f"{name}Error"] for name in TaskApi._fields})


try:
    from django.utils.json import normalize_json

    OURS: Final = _api("django.tasks")
except ImportError:  # Django 5.2
    from django_tasks.utils import normalize_json

    OURS: Final = _api(PACKAGE)

if TYPE_CHECKING:
    from django.tasks import Task, TaskContext, TaskResult, TaskResultStatus
    from django.tasks.backends.base import BaseTaskBackend
    from django.tasks.base import TaskError
    from django.tasks.exceptions import InvalidTask
else:
    Task, TaskContext, TaskError, TaskResult, TaskResultStatus, BaseTaskBackend, InvalidTask, *_ = OURS

__all__ = ["OURS", "BaseTaskBackend", "InvalidTask", "Task", "TaskContext", "TaskError", "TaskResult", "TaskResultStatus"]
__all__ += ["TaskApi", "api_of", "error_class", "normalize_json", "packages", "task_classes"]


def packages() -> tuple[TaskApi, ...]:
    """The APIs that tasks of this process use: the one above first, then that of the package if Django has its own and some app has
    imported the package. If no app has imported it, no task uses it.
    """
    global _both
    if not _both and f"{PACKAGE}.backends.base" in sys.modules and Task.__module__ != f"{PACKAGE}.base":
        _both = (OURS, _api(PACKAGE))
    return _both or (OURS,)


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
