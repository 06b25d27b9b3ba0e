"""Django tasks of a small project."""

from __future__ import annotations

from typing import Any

import django_delayq as delayq
from django_delayq.contrib.tasks import options

try:
    from django.tasks import TaskContext, task
except ImportError:  # Django 5.2
    from django_tasks import task
    from django_tasks.base import TaskContext

SEEN: list[Any] = []


@task
def send(number: int, *, note: str = "") -> str:
    SEEN.append(("send", number, note))
    return f"sent {number}"


@task(takes_context=True)
@options(max_attempts=3, backoff="1h 3h")
def look(context: TaskContext, fails: int = 0) -> dict[str, Any]:
    result = context.task_result
    seen = {
        "attempt": context.attempt,
        "workers": result.worker_ids,
        "errors": [error.exception_class_path for error in result.errors],
        "priority": result.task.priority,
        "queue": result.task.queue_name,
        "run_after": result.task.run_after and result.task.run_after.isoformat(),
        "first": result.started_at and result.started_at.isoformat(),
    }
    SEEN.append(seen)
    if context.attempt <= fails:
        raise ConnectionError(f"the server is away, {context.attempt}")
    return seen


@task
def fail() -> None:
    raise ConnectionError("the server is away")


@task
def give(value: Any) -> Any:
    return value


@task
def give_nan() -> float:
    return float("nan")


@task
def give_number_as_key() -> dict[int, int]:
    return {1: 2}


@task
def put_off() -> None:
    raise delayq.Snooze("1m")


@task
def give_much() -> str:
    return "x" * 70_000


@task
@options(atomic=True)
def save() -> str:
    return str(delayq.current().id)


@task
def delay_all(delay: int, key: str, **kwargs: Any) -> list[Any]:
    """Its parameters have the names of delayq options. There is no conflict: Django's tasks keep options and arguments apart."""
    return [delay, key, kwargs]


@task
def send_later(number: int) -> str:
    return str(send.enqueue(number).status)


@task
def interrupted() -> None:
    raise KeyboardInterrupt
