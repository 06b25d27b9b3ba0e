"""Planned jobs go in. With outbox durability a job is a row in the caller's transaction first; when that commits it is published to
Redis. If Redis is away then, the row waits and the relay publishes it later: the request does not notice. With redis durability the
commit publishes; a Redis that is away raises, or is logged where a transaction of the caller's has been committed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Final, TypeVar
from uuid import UUID

from django.db import Error, transaction

from django_delayq import clock, conf, signals
from django_delayq.exceptions import KeyTaken, StoreUnavailable
from django_delayq.failpoints import failpoint
from django_delayq.logger import Logger
from django_delayq.producer import changes, database
from django_delayq.producer.changes import Move
from django_delayq.producer.commit import Publication, Put
from django_delayq.producer.job import Job
from django_delayq.producer.plan import Plan
from django_delayq.producer.publish import Publisher, Sent
from django_delayq.producer.stores import StoreResting, stores
from django_delayq.states import Change
from django_delayq.store.connection import StoreRefused
from django_delayq.store.items import ScheduleItem, ScheduleReply
from django_delayq.store.queue import MOST

logger = Logger("django_delayq.producer")

LATE_PUBLISH: Final = 30.0  # seconds; a commit later than that is left to the relay
T = TypeVar("T")
K = TypeVar("K")


class Flight:
    """A call of `schedule_many` that is on its way to Redis while the next batch is made: one at a time."""

    def __init__(self) -> None:
        self.open = True
        self._under_way: tuple[Publisher, Sequence[Put], Sequence[ScheduleItem], Callable[[], Sent]] | None = None
        self._refused: list[KeyTaken] = []

    def __enter__(self) -> Flight:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        self.open = False  # what a commit publishes later waits for its replies
        try:
            self.land()
        except (StoreUnavailable, KeyTaken) as other:
            if error is None:
                raise
            logger.warning("the batch before the one that failed was not taken either: %s", other)

    def launch(self, publisher: Publisher, batch: Sequence[Put]) -> None:
        self._read()
        items = [put.plan.item() for put in batch]
        try:
            with stores.guarded(schedules=True, answers=False):
                answer = publisher.send(items, "")
        except StoreUnavailable as error:
            raise _unsure(error, batch) from error
        self._under_way = publisher, batch, items, answer

    def land(self) -> None:
        self._read()
        refused, self._refused = self._refused, []
        _tell_refused(refused, alone=True)

    def _read(self) -> None:
        if self._under_way is not None:
            (publisher, batch, items, answer), self._under_way = self._under_way, None
            sent = _sure(publisher, batch, items, answer)
            self._refused += _answered(batch, sent)


def put_all(planned: Sequence[Plan], flight: Flight | None = None) -> list[Job]:
    jobs = [_handle(plan) for plan in planned]
    puts = [Put(plan, job) for plan, job in zip(planned, jobs, strict=True)]
    if len(planned) > 1:
        _refuse_twice(planned)
    if flight is not None and any(plan.record.key for plan in planned):
        flight.land()  # only then is it known who holds a key
    fresh = _unmerged(puts)
    for (using, durable), group in _by(fresh, lambda put: (put.plan.using, put.plan.durable)):
        connection = transaction.get_connection(using)
        alone = not connection.in_atomic_block
        if not durable:
            publish = partial(_publish, flight=flight, alone=alone)
            connection.on_commit(Publication(group, publish), robust=not alone)
            continue
        if flight is not None:
            flight.land()  # what was given first goes in first
        if alone and len(group) == 1 and connection.get_autocommit():
            # One statement commits itself, which saves the round trips of BEGIN and COMMIT.
            failpoint("producer.commit")
            database.need().add([group[0].plan.outbox_item()], using)
            _publish_rows(group, alone=alone)
            continue
        with transaction.atomic(using=using, savepoint=False):
            database.need().add([put.plan.outbox_item() for put in group], using)
            publish = partial(_publish_rows, alone=alone)
            connection.on_commit(Publication(group, publish), robust=not alone)
            failpoint("producer.commit")
    return jobs


def _handle(plan: Plan) -> Job:
    return Job(
        id=plan.id,
        queue=plan.queue.name,
        task=plan.record.task,
        key=plan.record.key,
        due_ms=plan.due_ms,
    )


def _refuse_twice(planned: Sequence[Plan]) -> None:
    """Two jobs of one key in one batch, of which the second wants the key to be free."""
    first: dict[tuple[str, str], Plan] = {}
    for plan in planned:
        if plan.record.key:
            other = first.setdefault((plan.queue.name, plan.record.key), plan)
            if other is not plan and plan.on_conflict == "error":
                raise KeyTaken(
                    f"Another job of the same batch has the key {plan.record.key!r}, so none of them was scheduled.",
                    holder=other.id,
                )


def _unmerged(puts: Sequence[Put]) -> list[Put]:
    """Those that no unfinished job has taken in; the handles of the others point to it. Nothing is changed before it is known that
    none is refused. In a transaction nobody knows yet: the holder may end before the commit, and the script decides then.
    """
    if not any(put.plan.record.key for put in puts):
        return list(puts)
    replies = {put: reply for put in puts if (reply := _held(put)) is not None}
    for put, reply in replies.items():
        if reply.status in ("taken", "running"):
            raise _refused(put, reply)
    merged = [put for put, reply in replies.items() if reply.status != "moved" or _moved(put, reply.id)]
    for put in merged:
        _answer(put, replies[put])
    return [put for put in puts if put not in merged]


def _held(put: Put) -> ScheduleReply | None:
    """What becomes of a job whose key another one holds; None if it is to be put in. Redis is asked before a row is written."""
    plan = put.plan
    if not plan.record.key or transaction.get_connection(plan.using).in_atomic_block:
        return None
    try:
        with stores.guarded(schedules=True):
            reply = _publisher(plan.queue.name, plan.using).ask(plan.item())
    except StoreUnavailable:
        if not plan.durable or plan.on_conflict not in ("keep", "error"):
            return None
        # Rows that wait like this one decide; one that Redis had may have ended there, and must not swallow a call.
        waiting = database.need().waiting(plan.queue.name, [plan.record.key], plan.using)
        return ScheduleReply("taken" if plan.on_conflict == "error" else "kept", waiting[0][0], 0) if waiting else None
    return None if reply.id == plan.id or reply.status in ("behind", "asked") else reply


def _moved(put: Put, holder: UUID) -> bool:
    """Gives the holder this date, as any other change does. False if that cannot be now: the script decides when this one is put in."""
    plan, item = put.plan, put.plan.item()
    try:
        move = Move("schedule", plan.on_conflict, item.delay_ms, item.due_ms or 0, plan.on_conflict)
        return changes.one(move, holder, plan.queue.name) in (Change.DONE, Change.RUNNING)
    except (StoreUnavailable, Error):
        return False


def _publisher(queue: str, using: str) -> Publisher:
    return Publisher(stores.queue(queue), using, conf.get().most_events)


def _publish(puts: Sequence[Put], flight: Flight | None = None, *, alone: bool) -> None:
    """Redis durability: nobody else publishes these."""
    refused: list[KeyTaken] = []
    if flight is not None and flight.open:
        flight.land()
    for (name, using), group in _by(puts, lambda put: (put.plan.queue.name, put.plan.using)):
        publisher = _publisher(name, using)
        for start in range(0, len(group), MOST):
            batch = group[start : start + MOST]
            if flight is not None and flight.open:
                flight.launch(publisher, batch)
                continue
            try:
                refused += _answered(batch, _sure(publisher, batch, [put.plan.item() for put in batch], None))
            except StoreUnavailable as error:
                if alone:
                    raise
                lost = ", ".join(str(put.plan.id) for put in batch)
                logger.error(
                    "Redis did not take committed jobs of redis durability, and nobody sends them again: %s: %s",
                    lost,
                    error,
                )
                signals.store_unavailable.send_robust(sender=None, error=error)
    _tell_refused(refused, alone=alone)


def _tell_refused(refused: Sequence[KeyTaken], *, alone: bool) -> None:
    """Behind a commit of the caller's nothing is raised: Django would drop the hooks that follow."""
    if alone and refused:
        raise refused[-1]
    for one in refused:
        logger.warning("A committed job was not scheduled: %s", one)


def _sure(
    publisher: Publisher, batch: Sequence[Put], items: Sequence[ScheduleItem], answer: Callable[[], Sent] | None
) -> Sent:
    """Sends jobs, or takes the answer to what was sent. Where it is lost, the same jobs are sent once more, which doubles none."""
    try:
        with stores.guarded(schedules=True, asks=answer is None):
            return publisher.publish(items) if answer is None else publisher.finish(items, answer())
    except (StoreRefused, StoreResting) as error:
        raise _named(error, batch) from error.__cause__
    except StoreUnavailable:
        try:
            with stores.guarded():
                return _pointed(publisher, items, publisher.publish(items))
        except StoreRefused as error:
            raise _named(error, batch) from error.__cause__
        except StoreUnavailable as error:
            raise _unsure(error, batch) from error


def _pointed(publisher: Publisher, items: Sequence[ScheduleItem], sent: Sent) -> Sent:
    """The answer to what was sent a second time: of a job that was merged at the first time only a tombstone tells. So it is asked who
    holds the key now.
    """
    ground, replies = sent
    for n, (item, reply) in enumerate(zip(items, replies, strict=True)):
        if reply.status == "displaced" and item.record.key:
            holder = stores.inspector().find(publisher.store.queue, item.record.key)
            if holder is not None:
                replies[n] = ScheduleReply("taken" if item.on_conflict == "error" else "kept", holder, 0)
    return ground, replies


def _named(error: StoreUnavailable, batch: Sequence[Put]) -> StoreUnavailable:
    """The same refusal; `jobs` are those that were not taken."""
    error.jobs = tuple(put.plan.id for put in batch)
    return error


def _unsure(error: StoreUnavailable, batch: Sequence[Put]) -> StoreUnavailable:
    jobs = tuple(put.plan.id for put in batch)
    return StoreUnavailable(
        f"{error} Whether {f'the job {jobs[0]} is' if len(jobs) == 1 else f'{len(jobs)} jobs are'} in Redis is not known: "
        "`jobs` of this error has the ids, for delayq.get(id, queue=…). To call schedule() again makes another job.",
        jobs=jobs,
    )


def _answered(puts: Sequence[Put], sent: Sent) -> list[KeyTaken]:
    """Tells the handles. Those that were refused."""
    answers = [_answer(put, reply) for put, reply in zip(puts, sent[1], strict=True)]
    return [refused for refused in answers if refused is not None]


def _answer(put: Put, reply: ScheduleReply) -> KeyTaken | None:
    handle = put.handle
    if reply.status in ("contested", "asked"):
        return None  # the relay comes back to it
    if reply.status == "behind":  # as a row; it runs when the holder has ended
        handle.created = True
        return None
    handle.id, handle.created = reply.id, reply.created
    if not handle.created:
        handle.due_ms = None
    elif reply.due_ms:
        handle.due_ms = reply.due_ms
    if handle.created and signals.job_scheduled.receivers:
        signals.job_scheduled.send_robust(sender=put.plan.task, job=handle)
    return _refused(put, reply) if reply.status in ("taken", "running") else None


def _refused(put: Put, reply: ScheduleReply) -> KeyTaken:
    why = "runs and cannot be replaced now" if reply.status == "running" else "is unfinished"
    return KeyTaken(
        f"The key {put.plan.record.key!r} of the job {put.plan.id} is held by the job {reply.id}, which {why}.",
        holder=reply.id,
    )


def _publish_rows(puts: Sequence[Put], *, alone: bool) -> None:
    """After the commit: what fails here is left to the relay, and must not break the request."""
    failpoint("producer.committed")
    late = {put for put in puts if clock.monotonic() - put.plan.started > LATE_PUBLISH}
    if late:
        logger.warning(
            "%d jobs were committed after more than %.0f s; the relay publishes them", len(late), LATE_PUBLISH
        )
    refused: list[KeyTaken] = []
    try:
        for (name, using), group in _by(puts, lambda put: (put.plan.queue.name, put.plan.using)):
            publisher = _publisher(name, using)
            for batch in batches((put for put in group if put not in late), MOST):
                with stores.guarded(schedules=True):
                    if not alone:  # else Redis has been asked, and has all that was written before
                        publisher.publish_before([put.plan.record for put in batch])
                    refused += _send_rows(publisher, batch)
    except StoreUnavailable as error:
        logger.warning("Redis did not take %d committed jobs; the relay publishes them: %s", len(puts), error)
        signals.store_unavailable.send_robust(sender=None, error=error)
    except Error as error:
        logger.warning("%d committed jobs are left to the relay, the database does not answer: %s", len(puts), error)
    _tell_refused(refused, alone=alone)


def _send_rows(publisher: Publisher, batch: Sequence[Put]) -> list[KeyTaken]:
    ground = batch[0].plan.ground
    if ground and all(put.plan.ground == ground for put in batch):
        sent = publisher.publish([put.plan.item() for put in batch], ground)
        stores.learn(publisher.store.queue, sent[0])
        if sent[1]:
            return _answered(batch, sent)
    # Redis stands elsewhere than when these were planned: somebody may have published, cancelled and lost them since. Rows say.
    rows = publisher.publish_rows([put.plan.id for put in batch])
    stores.learn(publisher.store.queue, rows.ground)
    answers = dict(zip(rows.jobs, rows.replies, strict=True))
    known = [put for put in batch if put.plan.id in answers]
    return _answered(known, ("", [answers[put.plan.id] for put in known]))


def _by(puts: Sequence[Put], trait: Callable[[Put], K]) -> Iterable[tuple[K, list[Put]]]:
    if len(puts) == 1:
        return [(trait(puts[0]), list(puts))]
    groups: dict[K, list[Put]] = {}
    for put in puts:
        groups.setdefault(trait(put), []).append(put)
    return groups.items()


def batches(items: Iterable[T], size: int) -> Iterator[list[T]]:
    rest = iter(items)
    while batch := list(islice(rest, size)):
        yield batch
