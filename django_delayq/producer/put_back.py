"""Requeue: a failed or cancelled job is put back, as it was or with other arguments."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from uuid import UUID

from django.db import transaction

from django_delayq import conf, ids
from django_delayq.exceptions import ConfigError
from django_delayq.logger import Logger
from django_delayq.producer import homes, horizon, lookup, outbox
from django_delayq.producer.commit import Pending
from django_delayq.producer.publish import Publisher
from django_delayq.producer.stores import stores
from django_delayq.states import REQUEUEABLE, UNFINISHED, Change, State
from django_delayq.store.scripts.record import JobRecord

logger = Logger("django_delayq")


def revived(record: JobRecord, queue: str) -> JobRecord:
    """The record as it is put back, by the time that it is in that queue."""
    return record.revived(stores.now_ms(queue)) if record.expires_ms else record


def requeue(job: UUID, queue: str | None, actor: str, reason: str, *, by_person: bool) -> Change:
    """See `acts.requeue` and `acts.requeue_by_person`. `queue`: where it must be, if that is known."""
    if Pending.find(job) is not None:
        return Change.CONFLICT
    row = lookup.row_of(job)
    if row is not None and queue not in (None, row.queue):
        return Change.UNKNOWN  # the caller named another queue
    name = queue if row is None else row.queue
    if name is None:
        return lookup.everywhere(job, lambda other: requeue(job, other, actor, reason, by_person=by_person))
    if row is not None and (row.state is State.SUCCEEDED or row.far or (row.unresolved and not by_person)):
        return Change.CONFLICT
    record = None if row is None else revived(row.record, name)
    if record is not None and row_holds(name, record.key, job):
        return Change.CONFLICT
    if taken_elsewhere(job, name, record):
        return Change.CONFLICT
    if waits_for_commit():
        return _requeue_at_commit(job, name, record, actor, reason, by_person=by_person)
    vouched, unresolved = row is not None and row.state in REQUEUEABLE, row is not None and row.unresolved

    store = stores.with_job(name, job)

    def act() -> Change:
        with stores.guarded(name, store.partition):
            return store.requeue(job, record, vouched=vouched, unresolved=unresolved, actor=actor, reason=reason)[0]

    if record is not None and record.key:
        with stores.guarded(name, store.partition):
            Publisher(store, actor=actor).complete(record.key)  # publishes the row that holds the key
    change = noted(job, name, actor, reason, act)
    if change is Change.DONE:
        warn_unserved(job, name)
    if change is Change.DONE and record is not None and record.key:
        horizon.meet_key(name, record.key)
    return Change.CONFLICT if change is Change.UNKNOWN and row is not None else change


def row_holds(queue: str, key: str, job: UUID) -> bool:
    """Whether the row of another job holds that key, and Redis does not know: a far or an unresolved one. A far row that comes later
    meets the job that is back, see `horizon`.
    """
    if not key:
        return False
    unresolved = any(row.unresolved and row.id != job for row in outbox.jobs.waiting(queue, [key]))
    return unresolved or outbox.far_rows.of_key(queue, key) is not None


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


def _requeue_at_commit(id: UUID, queue: str, record: JobRecord | None, actor: str, reason: str, *, by_person: bool) -> Change:
    view = stores.view_of(id, queue)
    holder = lookup.holder(queue, record.key) if record is not None and record.key else None
    if view is None and record is None:
        return Change.UNKNOWN
    if view is not None and view.state in UNFINISHED:
        return Change.RUNNING if view.state == "running" else Change.CONFLICT
    if holder not in (None, id):
        return Change.CONFLICT

    return at_commit("requeued", id, queue, partial(requeue, id, queue, actor, reason, by_person=by_person))


def at_commit(done: str, job: UUID, queue: str, act: Callable[[], Change]) -> Change:
    """Carries out a change at the commit. If it does not happen then, a warning says that the job was not `done`."""

    def carry_out() -> None:
        change = act()
        if change is not Change.DONE:
            logger.warning("job %s of %s was not %s at the commit: %s", job, queue, done, change)

    transaction.on_commit(carry_out, using=conf.get().database, robust=True)
    return Change.DONE


def noted(id: UUID, queue: str, actor: str, reason: str, act: Callable[[], Change]) -> Change:
    """Asks Redis for a requeue. With SIGNING, a note of it is committed first: without a note, no event can reopen a finished row,
    since events have no signature. If the answer of Redis is lost, the note stays.

    Raises:
        ConfigError: with SIGNING, if the database side is not installed.
    """
    config = conf.get()
    if config.signer is None:
        return act()
    outbox.check_installed()
    note = outbox.jobs.note_requeue(id, queue, actor, reason)
    change = act()
    if change is not Change.DONE:
        outbox.jobs.forget_requeue(note)
    return change


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
