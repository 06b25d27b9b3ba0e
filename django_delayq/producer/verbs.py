"""A job after it was scheduled: find it, cancel, reschedule, run now, requeue; pause, resume and purge a queue.

These act at once, not at commit: the answer, a `Change`, is the truth at that moment. In a transaction that may roll back, call them
by `transaction.on_commit`. Only a change of a job that the same open transaction schedules is part of that transaction.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from uuid import UUID

from django.db import transaction

from django_delayq import clock, conf, ids
from django_delayq.exceptions import ConfigError, PayloadError, StoreUnavailable
from django_delayq.logger import Logger
from django_delayq.producer import changes, database, plan
from django_delayq.producer.changes import Cancel, Move
from django_delayq.producer.commit import Pending
from django_delayq.producer.publish import Publisher
from django_delayq.producer.stores import stores
from django_delayq.producer.task import Options
from django_delayq.record import JobRecord, validate_key
from django_delayq.states import FINISHED, UNFINISHED, Change, State
from django_delayq.store.queue import MOST

logger = Logger("django_delayq")


class Job:
    """A handle on one job. `created`: False when another job holds the key and this handle points to that one; None while a
    transaction that decides it is open.
    """

    __slots__ = ("created", "due_ms", "id", "key", "queue", "task")

    def __init__(
        self,
        *,
        id: UUID,
        queue: str,
        task: str = "",
        key: str = "",
        due_ms: int | None = None,
        created: bool | None = None,
    ) -> None:
        self.id = id
        self.queue = queue
        self.task = task
        self.key = key
        self.due_ms = due_ms
        self.created = created

    def __repr__(self) -> str:
        return f"<Job {self.id} {self.task} on {self.queue}>"

    @property
    def run_at(self) -> datetime | None:
        """The date it is scheduled for, as far as this handle knows."""
        return None if self.due_ms is None else clock.from_ms(self.due_ms)

    @property
    def state(self) -> State | None:
        """Where it stands now, asked anew each time; None if nobody knows it: not committed yet, or ended and not mirrored."""
        return _state(self.id, self.queue)

    def cancel(self, *, actor: str = "", reason: str = "") -> Change:
        """See `delayq.cancel`."""
        return cancel(self, actor=actor, reason=reason)

    def reschedule(
        self, *, delay: clock.Delay | None = None, run_at: datetime | None = None, actor: str = "", reason: str = ""
    ) -> Change:
        """See `delayq.reschedule`."""
        return reschedule(self, delay=delay, run_at=run_at, actor=actor, reason=reason)

    def run_now(self, *, actor: str = "", reason: str = "") -> Change:
        """See `delayq.run_now`."""
        return run_now(self, actor=actor, reason=reason)

    def requeue(self, *, actor: str = "", reason: str = "") -> Change:
        """See `delayq.requeue`."""
        return requeue(self, actor=actor, reason=reason)


def get(job: Job | UUID | str | None = None, *, key: str | None = None, queue: str | None = None) -> Job | None:
    """A handle on a job; None if neither Redis nor the database knows it. By job, by id, or by `key` and `queue`: the unfinished job
    that holds the key. With an id, `queue` is where to look in Redis.

    Raises:
        StoreUnavailable: Redis cannot be asked, and the database does not know the id, or a key is given: who holds it, Redis says.
    """
    if key is not None:
        named = _named(key, queue, job)
        with stores.guarded():
            holder = stores.inspector().find(named, key)
        if (
            holder is None
        ):  # a row that Redis does not have; of others it is merely not mirrored that they came and went
            holder = next((id for id in changes.keyed(named, key) if _state(id, named) in UNFINISHED), None)
        return None if holder is None else _find(holder, named)
    return _find(*_target(job, queue))


def cancel(
    job: Job | UUID | str | None = None,
    *,
    key: str | None = None,
    queue: str | None = None,
    actor: str = "",
    reason: str = "",
) -> Change:
    """Cancels a scheduled job, at once: after `done` it does not run. A running one gets a request (`running`): the task may look at
    `current().cancel_requested`, and is not retried when it fails. By job, by id, or by `key` and `queue`: then all jobs of that key
    that are not finished, also those that Redis does not have yet. A job that was merged into another stands for that one.

    Raises:
        StoreUnavailable: Redis cannot be asked, so nothing is known. It may be repeated: a job that is cancelled answers `done` again.
        DatabaseError: nothing is known: either its row could not be read, and nothing has happened, or it is cancelled in Redis and
            its row could not be told, so that a failover might undo it. It may be repeated.
    """
    _check_words("cancel()", actor, reason)
    if key is not None:
        return changes.of_key(Cancel(actor, reason), _named(key, queue, job), key)
    return changes.one(Cancel(actor, reason), *_target(job, queue))


def reschedule(
    job: Job | UUID | str | None = None,
    *,
    delay: clock.Delay | None = None,
    run_at: datetime | None = None,
    key: str | None = None,
    queue: str | None = None,
    actor: str = "",
    reason: str = "",
) -> Change:
    """Gives a scheduled job another date, at once: `delay` from now, or `run_at`. By `key` and `queue`: all jobs of that key that wait,
    also those that Redis does not have yet.

    Raises:
        ConfigError: neither or both given, or a naive datetime.
        StoreUnavailable, DatabaseError: as for `cancel`.
    """
    _check_words("reschedule()", actor, reason)
    if (delay is None) == (run_at is None):
        raise ConfigError("reschedule(): give either delay or run_at.")
    delay_ms, due_ms = plan.date(Options(delay=delay, run_at=run_at), clock.wall_ms(), "reschedule()")
    move = Move(actor, reason, delay_ms, due_ms)
    if key is not None:
        return changes.of_key(move, _named(key, queue, job), key)
    return changes.one(move, *_target(job, queue))


def run_now(
    job: Job | UUID | str | None = None,
    *,
    key: str | None = None,
    queue: str | None = None,
    actor: str = "",
    reason: str = "",
) -> Change:
    """Makes a scheduled job due at once.

    Raises:
        StoreUnavailable: as for `cancel`.
    """
    return reschedule(job, delay=0, key=key, queue=queue, actor=actor, reason=reason)


def requeue(
    job: Job | UUID | str | None = None,
    *,
    key: str | None = None,
    queue: str | None = None,
    actor: str = "",
    reason: str = "",
) -> Change:
    """Puts a failed or cancelled job back, due now, with a fresh ladder. `conflict`: it is scheduled already, or succeeded, or its key
    is held by another job, or the open transaction has scheduled it and must be committed first. If its expiry has passed it has none
    any more. By job, by id, or by `key` and `queue`: the latest job of that key, however it stands, so that nothing older runs after
    one that succeeded. Only the database knows which that is.

    With SIGNING it is noted in the database before Redis is asked. In an open transaction it happens at the commit, if that comes;
    `done` then says that nothing stood against it at the call.

    Raises:
        StoreUnavailable: as for `cancel`; or Redis was rolled back, and the rows that end jobs again are still being compared.
        ConfigError: with SIGNING, where `django_delayq` is not in INSTALLED_APPS.
    """
    _check_words("requeue()", actor, reason)
    if key is not None:
        named, found = _named(key, queue, job), database.installed()
        latest = None if found is None else found.find_latest(named, key, conf.get().database)
        return Change.UNKNOWN if latest is None else requeue(latest, queue=named, actor=actor, reason=reason)
    id, name = _target(job, queue)
    using = conf.get().database
    if Pending.find(id) is not None:
        return Change.CONFLICT
    row = changes.row_of(id)
    if row is not None and name not in (None, row.queue):
        return Change.UNKNOWN  # in that queue; its row must not be taken for one that Redis lacks
    name = row.queue if row else name
    if name is None:
        return changes.everywhere(lambda other: requeue(id, queue=other, actor=actor, reason=reason))
    if row is not None and row.state is State.SUCCEEDED:
        return Change.CONFLICT
    record = row.record if row is not None else None
    if record is not None and 0 < record.expires_ms <= clock.wall_ms():
        record = replace(record, expires_ms=0)  # else it would expire again at once
    if changes.waits_for_commit():
        return _requeue_at_commit(id, name, record, actor, reason)
    vouched = row is not None and row.state in (State.FAILED, State.CANCELLED)
    if row is not None and row.state is State.CANCELLED:
        _forget_cancel(id)

    def act() -> Change:
        with stores.guarded():
            return stores.queue(name).requeue(id, record, vouched=vouched, actor=actor, reason=reason)[0]

    if record is not None and record.key:
        with stores.guarded():
            Publisher(stores.queue(name), using, actor=actor).complete(record.key)  # whoever holds it by its row
    change = changes.put_back(id, name, actor, reason, act)
    return Change.CONFLICT if change is Change.UNKNOWN and row is not None else change


def _requeue_at_commit(id: UUID, queue: str, record: JobRecord | None, actor: str, reason: str) -> Change:
    with stores.guarded():
        view = stores.inspector().job(queue, id)
        holder = stores.inspector().find(queue, record.key) if record is not None and record.key else None
    if view is None and record is None:
        return Change.UNKNOWN
    if view is not None and view.state in ("scheduled", "running"):
        return Change.RUNNING if view.state == "running" else Change.CONFLICT
    if holder not in (None, id):
        return Change.CONFLICT

    def carry_out() -> None:
        change = requeue(id, queue=queue, actor=actor, reason=reason)
        if change is not Change.DONE:
            logger.warning("job %s of %s was not requeued at the commit: %s", id, queue, change)

    transaction.on_commit(carry_out, using=conf.get().database, robust=True)
    return Change.DONE


def pause(queue: str, *, actor: str = "", reason: str = "") -> bool:
    """Stops claims of a queue; running jobs go on. False when it was paused already. A row notes it, so that the queue stays paused
    when Redis loses its contents; if the database is away, Redis alone knows it.

    Raises:
        QueueUnknown, StoreUnavailable.
    """
    _check_words("pause()", actor, reason)
    with stores.guarded():
        changed = stores.queue(queue).pause(actor=actor, reason=reason)
    found, using = database.installed(), conf.get().database
    if found is not None:  # after a lost reply, too, when the queue is paused already
        found.note_pause(queue, actor, reason, using, first=changed)
    return changed


def resume(queue: str, *, actor: str = "", reason: str = "") -> bool:
    """Lets a paused queue go on. False when it was not paused. The row first: who brings pauses back after a loss waits for it.

    Raises:
        QueueUnknown, StoreUnavailable.
    """
    _check_words("resume()", actor, reason)
    named, found, using = conf.get().queue(queue).name, database.installed(), conf.get().database
    if found is not None:
        found.forget_pause(named, using)
    with stores.guarded():
        return stores.queue(named).resume(actor=actor, reason=reason)


def purge(queue: str, *, actor: str = "", reason: str = "") -> Iterator[int]:
    """Cancels all scheduled jobs of a queue, also committed ones that Redis does not have; running jobs go on. Yields how many,
    after every step of at most 200.

    Raises:
        QueueUnknown, StoreUnavailable.
    """
    _check_words("purge()", actor, reason)
    named = conf.get().queue(queue).name
    yield from _purge_rows(named, actor, reason)  # first: what the relay publishes meanwhile is in Redis afterwards
    left = 1
    while left:
        with stores.guarded():
            cancelled, left = stores.queue(named).purge(actor=actor, reason=reason)
        yield cancelled
        if not cancelled:
            return


def _purge_rows(queue: str, actor: str, reason: str) -> Iterator[int]:
    found, using, last = database.installed(), conf.get().database, None
    while found is not None and (rows := found.unpublished(queue, last, MOST, using)):
        last = rows[-1]
        with stores.guarded():  # most rows are merely not mirrored yet: Redis has them
            views = stores.inspector().jobs(queue, rows)
        lacking = [id for id, view in zip(rows, views, strict=True) if view is None]
        yield [cancel(id, queue=queue, actor=actor, reason=reason) for id in lacking].count(Change.DONE)


def _check_words(where: str, actor: str, reason: str) -> None:
    for name, value in (("actor", actor), ("reason", reason)):
        if not isinstance(value, str):
            raise ConfigError(f"{where}: {name}={value!r} must be text. For an object pass str() of it, or nothing.")


def _id(job: UUID | str) -> UUID:
    try:
        return ids.parse(job)
    except (ValueError, TypeError) as error:
        raise PayloadError(str(error)) from None


def _target(job: Job | UUID | str | None, queue: str | None) -> tuple[UUID, str | None]:
    if job is None:
        raise ConfigError("Name the job: a handle, an id, or key= and queue=.")
    if queue is not None:
        conf.get().queue(queue)
    return (job.id, job.queue) if isinstance(job, Job) else (_id(job), queue)


def _named(key: str, queue: str | None, job: Job | UUID | str | None) -> str:
    if job is not None:
        raise ConfigError(
            f"A job and key={key!r} are two ways to name one: pass a handle or an id, or key= and queue=."
        )
    if queue is None:
        raise ConfigError(f"key={key!r} names a job within a queue: pass queue= as well.")
    if not validate_key(key):
        raise ConfigError("key='' names no job: most jobs have no key, and one of them would be taken for it.")
    return conf.get().queue(queue).name


def _forget_cancel(id: UUID) -> None:
    using = conf.get().database
    transaction.on_commit(lambda: database.need().forget_cancel(id, using), using=using, robust=True)


def _find(id: UUID, queue: str | None) -> Job | None:
    row = changes.row_of(id)
    if row is not None:
        record: JobRecord | None = row.record
        return Job(
            id=id,
            queue=row.queue,
            task=row.record.task,
            key=row.record.key,
            due_ms=row.run_at_ms,
            created=True,
        )
    names = [queue] if queue else list(conf.get().queues)
    for name in names:
        with stores.guarded():
            view = stores.inspector().job(name, id)
        if view is not None:
            record = view.record
            return Job(
                id=id,
                queue=name,
                task=record.task if record else "",
                key=record.key if record else "",
                due_ms=view.date_ms if view.state == "scheduled" else None,
                created=True,
            )
    return None


def _state(id: UUID, queue: str) -> State | None:
    row = changes.row_of(id)
    try:
        with stores.guarded():
            view = stores.inspector().job(queue, id)
    except StoreUnavailable:
        view = None
        if row is None:
            raise
    if view is None:
        return row.state if row is not None else None
    if view.state != "finished":
        return State(view.state)
    return row.state if row is not None and row.state in FINISHED else None
