"""Putting jobs in: `schedule` and `schedule_many`.

With outbox durability a job is a row in the caller's transaction first; when that commits it is published to Redis. If Redis is away
then, the row waits and the relay publishes it later: the request does not notice. With redis durability the commit publishes, and
a Redis that is away raises.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any, Final, TypeVar
from uuid import UUID

from django.db import transaction

from django_delayq import clock, conf, ids, outbox, signals
from django_delayq import plan as plans
from django_delayq.changes import Job
from django_delayq.exceptions import ConfigError, KeyTaken, StoreUnavailable
from django_delayq.failpoints import failpoint
from django_delayq.plan import Plan
from django_delayq.states import UNFINISHED
from django_delayq.store.queue import MOST, ScheduleReply
from django_delayq.stores import stores
from django_delayq.task import OPTIONS, Binding, Bound, Options, Task, install, registry

logger = logging.getLogger("django_delayq.producer")

LATE_PUBLISH: Final = 600.0  # seconds; a commit later than that is left to the relay, since tombstones may be gone
SURE: Final = 600.0  # seconds for which a job that has ended surely has its tombstone still
T = TypeVar("T")
K = TypeVar("K")


class _Put:
    """A plan under way, and the handle that its caller holds."""

    __slots__ = ("handle", "plan")

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.handle = Job(
            id=plan.id,
            queue=plan.queue.name,
            task=plan.record.task,
            key=plan.record.key,
            due_ms=plan.due_ms,
        )


def schedule(task: Task[Any, Any] | Bound[Any, Any], *args: Any, **kwargs: Any) -> Job:
    """Puts one job in: `schedule(task, *arguments, delay="30m", key="…", **keyword_arguments)`.

    Options: delay (timedelta, seconds, text) or run_at (aware datetime), key, on_conflict, queue, priority, max_attempts, backoff,
    timeout, expires, meta, using (database alias of the transaction), durability. All else is the task's own.

    Raises:
        PayloadError, PayloadTooLarge: arguments that JSON cannot hold, or that the function does not take.
        QueueUnknown, ConfigError: a queue or an option that cannot work.
        KeyTaken: on_conflict="error" and an unfinished job holds the key; on_conflict="replace" and the holder runs. Where a
            transaction is open this is only known at its commit: then it is logged, and the job's row ends as cancelled.
        StoreUnavailable: redis durability only: Redis is away, or refuses (no memory, a mirror too far behind).
    """
    if not isinstance(task, (Task, Bound)):
        raise ConfigError(
            f"schedule() was given {task!r}, which is no task. "
            "Decorate the function with @delayq.task, and pass the function itself, not a call of it."
        )
    given = {name: kwargs.pop(name) for name in OPTIONS if name in kwargs}
    bound = task.using(**given) if isinstance(task, Bound) else Bound(task, Options(**given))
    return put(Binding(bound.task, bound.options, args, kwargs))


def schedule_many(bindings: Iterable[Binding], *, using: str | None = None) -> list[Job]:
    """Puts many jobs in: `schedule_many(task.using(delay="30m").bind(pk) for pk in pks)`. Rows and calls go in batches; in a
    transaction all of them are published by its commit.

    Raises:
        As `schedule`. Nothing is scheduled of a batch (200 jobs) in which one job is refused.
    """
    jobs: list[Job] = []
    with _Flight() as flight:
        for batch in _batches(bindings, MOST):
            jobs += _put_all([plans.plan(binding, using) for binding in batch], flight)
    return jobs


def put(binding: Binding) -> Job:
    """Puts in what `bind` made."""
    return _put_all([plans.plan(binding, None)])[0]


class _Flight:
    """A call of `schedule_many` that is on its way to Redis while the next batch is made: one at a time."""

    def __init__(self) -> None:
        self.open = True
        self._under_way: tuple[Sequence[_Put], Callable[[], list[ScheduleReply]]] | None = None
        self._refused: KeyTaken | None = None

    def __enter__(self) -> _Flight:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        self.open = False  # what a commit publishes later waits for its replies
        try:
            self.land()
        except (StoreUnavailable, KeyTaken) as other:
            if error is None:
                raise
            logger.warning("the batch before the one that failed was not taken either: %s", other)

    def launch(self, name: str, batch: Sequence[_Put]) -> None:
        self._read()
        with stores.guarded(answers=False):
            answer = stores.queue(name).start_schedule([put.plan.item() for put in batch], max_events=_most_events())
        self._under_way = batch, answer

    def land(self) -> None:
        self._read()
        refused, self._refused = self._refused, None
        if refused is not None:
            raise refused

    def _read(self) -> None:
        if self._under_way is not None:
            (batch, answer), self._under_way = self._under_way, None
            with stores.guarded(asks=False):
                replies = answer()
            self._refused = _answered(batch, replies) or self._refused


def _put_all(planned: Sequence[Plan], flight: _Flight | None = None) -> list[Job]:
    puts = [_Put(plan) for plan in planned]
    if flight is not None and any(plan.record.key for plan in planned):
        flight.land()  # only then is it known who holds a key
    fresh = [put for put in puts if not _held(put)]
    for (using, durable), group in _by(fresh, lambda put: (put.plan.using, put.plan.durable)):
        if durable:
            if flight is not None:
                flight.land()  # what was given first goes in first
            connection = transaction.get_connection(using)
            alone = not connection.in_atomic_block
            if alone and len(group) == 1 and connection.get_autocommit():
                # One statement commits itself, which saves the round trips of BEGIN and COMMIT.
                failpoint("producer.commit")
                outbox.need().add([group[0].plan.outbox_item()], using)
                _publish_rows(group, alone)
                continue
            with transaction.atomic(using=using, savepoint=False):
                outbox.need().add([put.plan.outbox_item() for put in group], using)
                transaction.on_commit(partial(_publish_rows, group, alone), using=using)
                failpoint("producer.commit")
        else:
            transaction.on_commit(partial(_publish, group, flight), using=using)
    return [put.handle for put in puts]


def _held(put: _Put) -> bool:
    """Whether an unfinished job is known to hold the key, so that nothing needs to be put in; points the handle to it."""
    plan = put.plan
    if not plan.record.key or plan.on_conflict not in ("keep", "error"):
        return False
    try:
        with stores.guarded():
            holder = stores.inspector().find(plan.queue.name, plan.record.key) or _unpublished_holder(plan)
    except StoreUnavailable:
        return False  # it goes in, and the script decides when it is published
    if holder is None:
        return False
    if plan.on_conflict == "error":
        raise KeyTaken(holder=holder)
    put.handle.id, put.handle.created, put.handle.due_ms = holder, False, None
    return True


def _unpublished_holder(plan: Plan) -> UUID | None:
    """A committed row of that key which Redis does not have yet. One that Redis has ended merely looks so until it is mirrored, and
    when its tombstone is gone nobody can tell the two apart: so an old row holds nothing. If it is published after all, the
    script merges it into the newer job.
    """
    if not plan.durable:
        return None
    found = outbox.need().find_unpublished(plan.queue.name, plan.record.key, plan.using)
    if found is None:
        return None
    view = stores.inspector().job(plan.queue.name, found)
    if view is None:
        return found if clock.wall_ms() - ids.created_ms(found) < SURE * 1000 else None
    return found if view.state in UNFINISHED else None


def _publish(puts: Sequence[_Put], flight: _Flight | None = None) -> None:
    calls = [
        (name, batch) for name, group in _by(puts, lambda put: put.plan.queue.name) for batch in _batches(group, MOST)
    ]
    if flight is not None and flight.open:
        flight.land()
        for name, batch in calls:
            flight.launch(name, batch)
        return
    refused: KeyTaken | None = None
    for name, batch in calls:
        with stores.guarded():
            replies = stores.queue(name).schedule([put.plan.item() for put in batch], max_events=_most_events())
        refused = _answered(batch, replies) or refused
    if refused is not None:
        raise refused


def _answered(puts: Sequence[_Put], replies: Sequence[ScheduleReply]) -> KeyTaken | None:
    refused = None
    for put, reply in zip(puts, replies, strict=True):
        refused = _answer(put, reply) or refused
    return refused


def _answer(put: _Put, reply: ScheduleReply) -> KeyTaken | None:
    handle, record = put.handle, put.plan.record
    handle.id, handle.created = reply.id, reply.created
    if not reply.created:
        handle.due_ms = None
    elif reply.due_ms:
        handle.due_ms = reply.due_ms
    if reply.created and signals.job_scheduled.receivers:
        signals.job_scheduled.send_robust(sender=registry.get(record.task), job=handle)
    if reply.status in ("taken", "running"):
        why = "runs and cannot be replaced now" if reply.status == "running" else "is unfinished"
        return KeyTaken(f"The key {record.key!r} is held by the job {reply.id}, which {why}.", holder=reply.id)
    return None


def _publish_rows(puts: Sequence[_Put], alone: bool) -> None:
    """After the commit: what fails here is left to the relay, and must not break the request."""
    failpoint("producer.committed")
    late = {put for put in puts if clock.monotonic() - put.plan.started > LATE_PUBLISH}
    if late:
        logger.warning(
            "%d jobs were committed after more than %.0f s; the relay publishes them", len(late), LATE_PUBLISH
        )
    try:
        _publish([put for put in puts if put not in late])
    except StoreUnavailable as error:
        logger.warning("Redis did not take %d committed jobs; the relay publishes them: %s", len(puts), error)
        signals.store_unavailable.send_robust(sender=None, error=error)
    except KeyTaken as error:
        if alone:
            raise
        logger.warning("A committed job was not scheduled, its row ends as cancelled: %s", error)


def _most_events() -> int:
    config = conf.get()
    return config.mirror_max_events if config.mirror_full == "block" else 0


def _by(puts: Iterable[_Put], trait: Callable[[_Put], K]) -> Iterable[tuple[K, list[_Put]]]:
    groups: dict[K, list[_Put]] = {}
    for put in puts:
        groups.setdefault(trait(put), []).append(put)
    return groups.items()


def _batches(items: Iterable[T], size: int) -> Iterator[list[T]]:
    rest = iter(items)
    while batch := list(islice(rest, size)):
        yield batch


install(put)
