"""The tasks of the contract that are coroutines. They are in a separate module, because not every backend accepts coroutines."""

from __future__ import annotations

from typing import Any

try:
    from django.tasks import task
except ImportError:  # Django 5.2
    from django_tasks import task


@task
async def give_later(*args: Any) -> list[Any]:
    """Returns its arguments."""
    return list(args)


@task(takes_context=True)
async def look_later(context: Any) -> str:
    """Returns the id of its result."""
    return str(context.task_result.id)


@task
async def fail_later() -> None:
    """Raises an error."""
    raise KeyError("nobody has it")
