"""Errors of tasks in the form of Django: the class of an exception, and a traceback."""

from __future__ import annotations

import builtins
from typing import Any, Final

from django_delayq import codec
from django_delayq.contrib.tasks.api import TaskApi, TaskError
from django_delayq.exceptions import PayloadError, Retry


class TaskCancelled(Exception):
    """The task was cancelled."""


class TaskExpired(Exception):
    """The task expired before it ran."""


class TaskCrashed(Exception):
    """The worker crashed too many times while running the task."""


class TaskTimedOut(Exception):
    """The task didn't end at its timeout, and its process was killed."""


class TaskNotRun(Exception):
    """The task couldn't run. It isn't registered, or its arguments can't be read."""


# By the names that workers use for ends without an exception of the task.
OURS: Final = {"HardTimeout": TaskTimedOut, "Poison": TaskNotRun, "Expired": TaskExpired}


def of_ours(api: TaskApi, kind: type[Exception], reason: str) -> TaskError:
    """The error of a task that ended without an exception of the task."""
    path = f"{kind.__module__}.{kind.__qualname__}"
    error: TaskError = api.TaskError(exception_class_path=path, traceback=f"{path}: {reason}\n")
    return error


def of_attempt(api: TaskApi, name: str, text: str, traceback: str) -> TaskError:
    """The error of an attempt. `name`: the class, for builtins without the module; empty if the task asked for another run."""
    if name in OURS:
        return of_ours(api, OURS[name], text)
    path = name or f"{Retry.__module__}.{Retry.__qualname__}"
    if "." not in path and hasattr(builtins, path):
        path = f"builtins.{path}"
    error: TaskError = api.TaskError(exception_class_path=path, traceback=traceback or f"{path}: {text}\n")
    return error


def of_detail(api: TaskApi, raw: bytes) -> TaskError:
    """The error in the detail of an outcome."""
    try:
        found: Any = codec.loads(raw) if raw else {}
    except PayloadError:
        found = {}
    return of_attempt(api, found.get("c", ""), found.get("m") or found.get("d") or "", found.get("t", ""))
