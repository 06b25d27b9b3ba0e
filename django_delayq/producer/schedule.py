"""Putting jobs in: `schedule` and `schedule_many`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Generic, ParamSpec, TypeVar

from django_delayq.exceptions import ConfigError
from django_delayq.producer.job import Job
from django_delayq.producer.options import NAMES, Options
from django_delayq.producer.plan import Binding, plan
from django_delayq.producer.put import Flight, batches, put_all, put_one
from django_delayq.store.queue import MOST

P = ParamSpec("P")
R = TypeVar("R")


class Bound(Generic[P, R]):
    """A task with options. The task itself is one without."""

    __slots__ = ("options", "task")

    def __init__(self, task: Any, options: Options) -> None:
        self.task = task
        self.options = options

    def __eq__(self, other: object) -> bool:
        return type(other) is Bound and self.task is other.task and self.options == other.options

    def __hash__(self) -> int:
        return hash((id(self.task), self.options))

    def __repr__(self) -> str:
        return f"Bound({self.task!r}, {self.options!r})"

    def using(self, **options: Any) -> Bound[P, R]:
        """The task with options for its next jobs, in place of those of the same name: `task.using(delay="30m").schedule(...)`.

        Raises:
            ConfigError: an option is unknown.
        """
        return Bound(self.task, self.options.but(options, self.task.name))

    def bind(self, *args: P.args, **kwargs: P.kwargs) -> Binding:
        """A job to be, for `schedule_many`."""
        return Binding(self.task, self.options, args, kwargs)

    def schedule(self, *args: P.args, **kwargs: P.kwargs) -> Job:
        """Puts a job in, with these arguments. See `delayq.schedule`."""
        return put_one(plan(self.task, self.options, args, kwargs, None))


def schedule(task: Bound[Any, Any], *args: Any, **kwargs: Any) -> Job:
    """Puts one job in: `schedule(task, *arguments, delay="30m", key="…", **keyword_arguments)`.

    Options: delay (timedelta, seconds, text) or run_at (aware datetime), key, on_conflict, queue, priority, max_attempts, backoff,
    timeout, expires, meta, using (database alias of the transaction), durability. All else is the task's own.

    Raises:
        PayloadError, PayloadTooLarge: arguments that JSON cannot hold, or that the function does not take.
        QueueUnknown, ConfigError: a queue or an option that cannot work.
        KeyTaken: on_conflict="error" and an unfinished job holds the key; on_conflict="replace" and the holder runs. Where a
            transaction is open this is only known at its commit: then it is logged, and the job's row ends as cancelled.
        StoreUnavailable: redis durability only: Redis is away, or refuses (no memory, a mirror too far behind). At the commit of a
            transaction it is logged, with the ids: whatever a hook raises there drops the hooks of others.
    """
    if not isinstance(task, Bound):
        raise ConfigError(
            f"schedule() was given {task!r}, which is no task. "
            "Decorate the function with @delayq.task, and pass the function itself, not a call of it."
        )
    options = task.options
    if not NAMES.isdisjoint(kwargs):
        options = options.but({name: kwargs.pop(name) for name in NAMES & kwargs.keys()}, task.task.name)
    return put_one(plan(task.task, options, args, kwargs, None))


def schedule_many(bindings: Iterable[Binding], *, using: str | None = None) -> list[Job]:
    """Puts many jobs in: `schedule_many(task.using(delay="30m").bind(pk) for pk in pks)`. Rows and calls go in batches; in a
    transaction all of them are published by its commit.

    Raises:
        As `schedule`. Nothing is scheduled of a batch (200 jobs) in which one job is refused.
    """
    if isinstance(bindings, Binding) or not isinstance(bindings, Iterable):
        raise ConfigError(
            f"schedule_many() was given {bindings!r}, where it wants many jobs: a list, or a generator, of what task.bind(…) makes."
        )
    jobs: list[Job] = []
    with Flight() as flight:
        for batch in batches(bindings, MOST):
            jobs += put_all([plan(*_checked(binding), using) for binding in batch], flight)
    return jobs


def _checked(binding: Binding) -> Binding:
    if not isinstance(binding, Binding):
        raise ConfigError(
            f"schedule_many() was given {binding!r}, which is no job to be. Pass what bind() makes: task.bind(…), or "
            "task.using(delay=…).bind(…)."
        )
    return binding
