"""The tasks that the contract runs on a backend. They are declared as in a project, so that workers find them by name. Import this
module while the settings name the backend.
"""

from __future__ import annotations

from typing import Any, Final

try:
    from django.tasks import task
except ImportError:  # Django 5.2
    from django_tasks import task

RUN: Final[list[Any]] = []  # the tasks that have run in this process


@task
def give(*args: Any, **kwargs: Any) -> Any:
    """Returns its arguments."""
    RUN.append(args)
    return [list(args), kwargs]


@task
def give_nothing() -> None:
    """Returns None."""


@task
def give_pair() -> Any:
    """Returns a value that JSON converts to a list."""
    return (1, b"two")


@task
def give_function() -> Any:
    """Returns a value that JSON cannot represent."""
    return lambda: True


@task
def fail() -> None:
    """Raises an error."""
    raise ValueError("it was to be expected")


@task
def fail_within() -> None:
    """Raises an error whose argument neither JSON nor pickle can serialize."""
    raise ValueError(ValueError(lambda: True))


@task
def leave() -> None:
    """Tries to end the worker."""
    raise SystemExit("no more of this")


@task(takes_context=True)
def look(context: Any, *args: Any) -> dict[str, Any]:
    """Returns the fields of its context."""
    result = context.task_result
    return {
        "kind": type(context).__name__,
        "attempt": context.attempt,
        "id": result.id,
        "status": str(result.status),
        "args": result.args,
        "path": result.task.module_path,
        "backend": result.backend,
        "workers": len(result.worker_ids),
        "started": result.started_at is not None and result.started_at == result.last_attempted_at,
        "finished": result.finished_at is not None,
        "errors": len(result.errors),
    }
