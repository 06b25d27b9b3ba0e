"""Requeue: failed or cancelled jobs are put back, as they were or with other arguments."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar
from uuid import UUID

from django.db import transaction

from django_delayq import conf, ids
from django_delayq.exceptions import ConfigError, DelayqError
from django_delayq.logger import Logger
from django_delayq.producer import homes, horizon, lookup, outbox
from django_delayq.producer.changes import Answer, ChangeTarget, JobChange, for_caller, one
from django_delayq.producer.outbox.shapes import StoredJob
from django_delayq.producer.publish import Publisher
from django_delayq.producer.stores import stores
from django_delayq.states import REQUEUEABLE, UNFINISHED, Change, State
from django_delayq.store.scripts.queue import QueueStore, Vouch
from django_delayq.store.scripts.record import JobRecord

if TYPE_CHECKING:
    from django_delayq.models import Job

logger = Logger("django_delayq")
MOST_BYTES: Final = 4_000_000  # of the payloads in one write, unless a single one is larger
A = TypeVar("A", bound=Answer)


def revived(record: JobRecord, queue: str) -> JobRecord:
    """The record as it is put back, by the time that it is in that queue."""
    return record.revived(stores.now_ms(queue)) if record.expires_ms else record


@dataclass
class Requeue(JobChange):
    """Puts jobs back, see `acts.requeue`. `by_person`: also unresolved ones, see `acts.requeue_by_person`. `ends`: see `ends`."""

    payloads = True
    by_person: bool = field(kw_only=True)
    ends: Mapping[UUID, str] = field(default_factory=dict, kw_only=True)

    def decided(self, row: StoredJob) -> Change | None:
        return Change.CONFLICT if row.state is State.SUCCEEDED or (row.unresolved and not self.by_person) else None

    def carry_out(self, store: QueueStore, targets: Sequence[ChangeTarget], answers: dict[UUID, Answer]) -> None:
        name = store.queue
        records = {id: revived(row.record, name) for id, _, row in targets if row is not None}
        held = held_by_rows(name, records.values())
        free = []
        for target in targets:
            record = records.get(target.id)
            if target.id in held or taken_elsewhere(target.id, name, record):
                answers[target.id] = Change.CONFLICT
            else:
                free.append((target, record))
        if free and waits_for_commit():
            for target, record in free:
                answers[target.id] = self._at_commit(target, name, record)
        else:
            for some in _portions(free):
                self._put_back(store, some, answers)

    def _put_back(self, store: QueueStore, free: Sequence[tuple[ChangeTarget, JobRecord | None]], answers: dict[UUID, Answer]) -> None:
        name, jobs = store.queue, [target.id for target, _ in free]
        vouched: list[tuple[UUID, JobRecord | None, Vouch]] = [(target.id, record, _vouch(target.row)) for target, record in free]

        def ask() -> list[Answer]:
            with stores.guarded(name, store.partition):
                found = store.requeue_each(vouched, ends=self.ends, actor=self.actor, reason=self.reason)
            return [answer[0] if isinstance(answer, tuple) else answer for answer in found]

        if keys := {record.key for _, record in free if record is not None and record.key}:
            with stores.guarded(name, store.partition):
                Publisher(store, actor=self.actor).complete(keys)  # publishes the rows that hold the keys
        for (target, _), answer in zip(free, noted(jobs, name, self.actor, self.reason, ask), strict=True):
            if answer is Change.DONE:
                warn_unserved(target.id, name)
            answers[target.id] = Change.CONFLICT if answer is Change.UNKNOWN and target.row is not None else for_caller(answer)
        horizon.meet_keys(name, {record.key for target, record in free if record and record.key and answers[target.id] is Change.DONE})

    def _at_commit(self, target: ChangeTarget, queue: str, record: JobRecord | None) -> Change:
        view = stores.view_of(target.id, queue)
        holder = lookup.holder(queue, record.key) if record is not None and record.key else None
        if view is None and record is None:
            return Change.UNKNOWN
        if view is not None and view.state in UNFINISHED:
            return Change.RUNNING if view.state == "running" else Change.CONFLICT
        if holder not in (None, target.id):
            return Change.CONFLICT
        return at_commit("requeued", target.id, queue, partial(one, self, target.id, queue))


def _portions(jobs: Iterable[tuple[ChangeTarget, JobRecord | None]]) -> Iterator[list[tuple[ChangeTarget, JobRecord | None]]]:
    """Divides jobs, in their order, so that the records of a write do not become too large together."""
    some, size = list[tuple[ChangeTarget, JobRecord | None]](), 0
    for target, record in jobs:
        more = len(record.payload) if record else 0
        if some and size + more > MOST_BYTES:
            yield some
            some, size = [], 0
        some.append((target, record))
        size += more
    if some:
        yield some


def ends(jobs: Iterable[Job]) -> dict[UUID, str]:
    """For each of these jobs, at most 200, what identifies its last end. A caller that stores this before a requeue can repeat the
    requeue: a job that has run and ended again in the meantime is not put back twice. Jobs whose server is away are left out.
    """
    parts: dict[tuple[str, int], list[UUID]] = {}
    for job in jobs:
        parts.setdefault((job.queue, ids.partition(job.pk)), []).append(job.pk)
    found: dict[UUID, str] = {}
    for part, some in parts.items():
        with suppress(DelayqError):  # the requeue raises it again
            found |= stores.queue(*part).ends(some)
    return found


def _vouch(row: StoredJob | None) -> Vouch:
    """What the row tells about the end of the job."""
    if row is None:
        return ""
    return "unresolved" if row.unresolved else "1" if row.state in REQUEUEABLE else ""


def held_by_rows(queue: str, records: Iterable[JobRecord]) -> set[UUID]:
    """Those of these jobs whose keys are held by rows that Redis does not know: far or unresolved rows of other jobs. A far row that
    comes later meets the job that is back, see `horizon`.
    """
    keyed = {record.id: record.key for record in records if record.key}
    if not keyed:
        return set()
    keys = {*keyed.values()}
    unresolved = [row for row in outbox.jobs.waiting(queue, keys) if row.unresolved]
    far = outbox.far_rows.of_keys(queue, keys)
    return {id for id, key in keyed.items() if key in far or any(row.key == key and row.id != id for row in unresolved)}


def taken_elsewhere(job: UUID, queue: str, record: JobRecord | None) -> bool:
    """Whether an unfinished job has the key, or the name, of this job in another partition, which the script does not see. `record`:
    None means the record that Redis has.

    Raises:
        StoreUnavailable: a partition cannot be asked.
    """
    config, partition = conf.get().queue(queue), ids.partition(job)
    if not (config.divided or partition):
        return False
    if record is None:
        view = stores.view_of(job, queue)
        record = None if view is None else view.record
    return record is not None and homes.taken_elsewhere(config, record)


def warn_unserved(job: UUID, queue: str) -> None:
    """Logs a warning if no worker may serve the partition that the job is back in."""
    config, partition = conf.get().queue(queue), ids.partition(job)
    if partition not in config.served:
        logger.warning(
            "job %s is back in partition %d of %s, which is not in PARTITIONS or FORMER_PARTITIONS. Workers that start from now on "
            "run it. Add %d to FORMER_PARTITIONS, and deploy.",
            ids.short(job),
            partition,
            queue,
            partition + 1,
        )


def at_commit(done: str, job: UUID, queue: str, act: Callable[[], Change]) -> Change:
    """Carries out a change at the commit. If it does not happen then, a warning says that the job was not `done`."""

    def carry_out() -> None:
        change = act()
        if change is not Change.DONE:
            logger.warning("job %s of %s was not %s at the commit: %s", job, queue, done, change)

    transaction.on_commit(carry_out, using=conf.get().database, robust=True)
    return Change.DONE


def noted(jobs: Sequence[UUID], queue: str, actor: str, reason: str, act: Callable[[], list[A]]) -> list[A]:
    """Asks Redis for requeues. With SIGNING, a note of each is committed first: without a note, no event can reopen a finished row,
    since events have no signature. If the answer of Redis is lost, the notes stay.

    Raises:
        ConfigError: with SIGNING, if the database side is not installed.
    """
    if conf.get().signer is None:
        return act()
    outbox.check_installed()
    notes = outbox.jobs.note_requeues(jobs, queue, actor, reason)
    answers = act()
    refused = [job for job, answer in zip(jobs, answers, strict=True) if isinstance(answer, Change) and answer is not Change.DONE]
    if refused:
        outbox.jobs.forget_requeues({job: notes[job] for job in refused})
    return answers


def waits_for_commit() -> bool:
    """Whether a requeue must wait for the end of the open transaction: other connections must see its note before Redis is asked.

    Raises:
        ConfigError: the code manages transactions by hand, so the end of the transaction triggers no hook.
    """
    config = conf.get()
    connection = transaction.get_connection(config.database)
    if config.signer is None or connection.in_atomic_block:
        return config.signer is not None
    if not connection.get_autocommit():
        raise ConfigError(
            f"With SIGNING, a requeue is first recorded in the database {config.database!r}. Autocommit is off there, so "
            "other connections would not see the record. Call this function in transaction.atomic(), or turn autocommit "
            "on."
        )
    return False
