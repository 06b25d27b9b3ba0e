"""What went wrong with a task, as Django tells it: the class of an exception, and a traceback."""

from __future__ import annotations

import builtins
from typing import Any, Final

from django_delayq import codec
from django_delayq.contrib.tasks.api import TaskError, Words
from django_delayq.exceptions import PayloadError, Retry


class TaskCancelled(Exception):
    """The task was cancelled."""


class TaskExpired(Exception):
    """The task has not run before it expired."""


class TaskCrashed(Exception):
    """The worker of the task vanished, too often to try again."""


class TaskTimedOut(Exception):
    """The task did not hear its timeout, and was stopped with its process."""


class TaskNotRun(Exception):
    """The task could not be run: nobody knows it, or its arguments cannot be read."""


# What workers call an end that no exception of a task has brought about.
OURS: Final = {"HardTimeout": TaskTimedOut, "Poison": TaskNotRun, "Expired": TaskExpired}


def of_ours(words: Words, kind: type[Exception], reason: str) -> TaskError:
    """The error of a task that has ended without one of its own."""
    path = f"{kind.__module__}.{kind.__qualname__}"
    error: TaskError = words.TaskError(exception_class_path=path, traceback=f"{path}: {reason}\n")
    return error


def of_attempt(words: Words, name: str, text: str, traceback: str) -> TaskError:
    """The error of an attempt. `name`: of its class, of builtins without the module; "" where the task asked for another run."""
    if name in OURS:
        return of_ours(words, OURS[name], text)
    path = name or f"{Retry.__module__}.{Retry.__qualname__}"
    if "." not in path and hasattr(builtins, path):
        path = f"builtins.{path}"
    error: TaskError = words.TaskError(exception_class_path=path, traceback=traceback or f"{path}: {text}\n")
    return error


def of_detail(words: Words, raw: bytes) -> TaskError:
    """The error of a run that has just failed, from the detail of its outcome."""
    try:
        found: Any = codec.loads(raw) if raw else {}
    except PayloadError:
        found = {}
    return of_attempt(words, found.get("c", ""), found.get("m") or found.get("d") or "", found.get("t", ""))
