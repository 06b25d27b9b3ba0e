"""A task of Django as it was declared, as it was enqueued, and how the meta of a job tells the one from the other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from datetime import datetime
from typing import Any, Final, NamedTuple, TypeVar
from uuid import UUID

from django_delayq import clock, ids
from django_delayq.contrib.tasks.api import Task, TaskError
from django_delayq.producer.task import Task as Registered

T = TypeVar("T", bound=Task)

CARRIED: Final = "_task"  # the key of a job's meta under which stands what differs from the declaration of its task
DIFFERS: Final = ("backend", "priority", "run_after")


class Earlier(NamedTuple):
    """The attempts before one: when the first began, what they raised, who ran them."""

    started_at: datetime | None
    errors: list[TaskError]
    worker_ids: list[str]


class DjangoTask(Registered[..., Any]):
    """A task of Django in the registry. `declared`: as the project has declared it."""

    raises_inline = False  # the result has the error

    declared: Task


def altered(task: T, **changes: Any) -> T:
    """A copy with other values, which nobody validates again: what has been enqueued was valid then, and runs."""
    made = object.__new__(type(task))
    for one in fields(task):
        object.__setattr__(made, one.name, changes.get(one.name, getattr(task, one.name)))
    return made


def carried(declared: Task, task: Task) -> dict[str, Any]:
    """What the meta of a job says of the task by which it was enqueued; empty for a task as it was declared."""
    found = {name: getattr(task, name) for name in DIFFERS if getattr(task, name) != getattr(declared, name)}
    if found.get("run_after") is not None:
        found["run_after"] = found["run_after"].isoformat()
    return found


def as_enqueued(task: DjangoTask, queue: str, meta: Mapping[str, Any]) -> Task:
    """The task of Django by which a job was enqueued."""
    told = meta.get(CARRIED)
    found = {name: told[name] for name in DIFFERS if name in told} if isinstance(told, Mapping) else {}
    if isinstance(found.get("run_after"), str):
        found["run_after"] = datetime.fromisoformat(found["run_after"])
    return altered(task.declared, queue_name=queue, **found)


def enqueued_at(id: UUID) -> datetime:
    """When a job was made, as its id says: so a result says the same whoever asks, and before any row is read."""
    return clock.from_ms(ids.created_ms(id))
