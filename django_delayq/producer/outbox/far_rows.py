"""Far rows, which exist only in the database.

A row is far from its insert until one UPDATE makes it near, ends it, or moves it. The condition of each such UPDATE is that the row
is far, so if two come at once, the second changes nothing. `far_key` is set as long as a row with a key is far.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Any, Final
from uuid import UUID

from django.db import IntegrityError, OperationalError
from django.db.models import Exists, OuterRef, Q

from django_delayq import clock
from django_delayq.conf import QueueConfig
from django_delayq.exceptions import StoreUnavailable
from django_delayq.failpoints import failpoint
from django_delayq.job_meta import shown
from django_delayq.models import FAR, Event, Job, UncheckedKey, database
from django_delayq.producer.outbox import rows
from django_delayq.producer.outbox.rows import insert_keyed
from django_delayq.states import EndingKind, EventKind, State
from django_delayq.store.scripts.record import FORBIDDEN, DebouncePolicy, ScheduleItem, ScheduleReply, policy_word

LATE: Final = 4  # a far row is late if it is still far when a quarter of the horizon is left
WAIT: Final = 2  # seconds to wait for a lock of another transaction
TRIES: Final = 5  # the holder of a key may be ended, and another come, between two statements; but not often
ACTOR: Final = "schedule"  # the actor of the event when a call of `schedule` moved the holder of a key
LOCKED: Final = ("55P03", 1205)  # the codes of a lock timeout in PostgreSQL and MySQL
DEADLOCKED: Final = ("40P01", 1213)


def contest(item: ScheduleItem, horizon_ms: int, *, far: bool) -> ScheduleReply | None:
    """Decides about a key under the lock of the row that holds it."""
    taken = far_key(item.queue, item.key)
    if not far and not Job.objects.filter(far_key=taken).exists():
        return None  # the usual case; a far row that is being written must still ask for near holders
    with in_time(item.key):
        for _ in range(TRIES):
            if far and _inserted(item, taken):
                UncheckedKey.objects.bulk_create([UncheckedKey(job_id=item.id, queue=item.queue)])
                return None
            holder = _holder(taken)
            if holder is not None:
                reply = _applied(item, holder, horizon_ms)
                if reply is not None:
                    return reply
            if not far:
                return None
    raise StoreUnavailable(code="far_key_contested", key=shown(item.key), queue=item.queue)


def cancel(jobs: Sequence[UUID], queue: str, actor: str, reason: str) -> list[UUID]:
    """Cancels those of these rows that are far, and returns them: one UPDATE and their event rows, in one transaction."""
    with in_time(jobs[0]):
        failpoint("far.cancel")
        now = database.ago()
        values = {"state": State.CANCELLED.value, "finished_at": now, "published": now, "error": rows.clean(reason)}
        done = _changed(jobs, **values, **_NEAR)
        _note(done, queue, EventKind.CANCELLED, actor, reason)
    failpoint("far.cancelled")
    return done


def move(
    jobs: Sequence[UUID], queue: str, due_ms: int, delay_ms: int | None, horizon_ms: int, actor: str, reason: str
) -> tuple[list[UUID], bool]:
    """Moves those of these rows that are far: one UPDATE and their event rows, in one transaction. A date within the horizon makes the
    rows near in the same UPDATE. Returns the rows, and whether they are near now.
    """
    with in_time(jobs[0]):
        failpoint("far.move")
        now = database.now()
        run_at = clock.from_ms(due_ms) if delay_ms is None else database.later(now, delay_ms)
        near = not horizon_ms or run_at <= now + timedelta(milliseconds=horizon_ms)
        done = _changed(jobs, run_at=run_at, delay_ms=delay_ms, **(_NEAR if near else {}))
        if done and actor == ACTOR:  # several moves by a conflict policy keep only the event of the last one
            Event.objects.filter(job__in=done, kind=EventKind.RESCHEDULED, actor=actor, reason=reason).delete()
        _note(done, queue, EventKind.RESCHEDULED, actor, reason, {"run_at": run_at.isoformat()})
    failpoint("far.moved")
    return done, near


def bring_in(jobs: Sequence[UUID], *, waits: str = "") -> list[UUID]:
    """Makes far rows near by one UPDATE. It skips rows that other transactions are changing. With `waits`, which names the rows, it
    waits for these transactions.

    Raises:
        StoreUnavailable: see `in_time`.
    """
    return _brought(Job.objects.filter(FAR, pk__in=jobs), waits=waits)


def bring_in_keys(queue: str, keys: Collection[str], *, waits: bool = False) -> bool:
    """Like `bring_in`, for the far rows of these keys. Returns whether there were any."""
    wanted = Job.objects.filter(FAR, far_key__in=[far_key(queue, key) for key in keys])
    if not wanted.exists():
        return False  # the usual case
    # Calls lock rows in the order of their keys.
    return bool(_brought(wanted.order_by("scope", "key"), waits=", ".join(map(shown, keys)) if waits else ""))


def of_keys(queue: str, keys: Collection[str]) -> dict[str, UUID]:
    """The far rows that hold these keys."""
    names = {far_key(queue, key): key for key in keys}
    found = dict(Job.objects.filter(FAR, far_key__in=list(names)).values_list("id", "far_key"))
    unknown = set(UncheckedKey.objects.filter(pk__in=list(found)).values_list("pk", flat=True)) if found else set()
    return {names[name]: id for id, name in found.items() if name and id not in unknown}


def mark_checked(job: UUID) -> None:
    """Marks a row as checked: Redis was asked, or the row is no longer far."""
    UncheckedKey.objects.filter(pk=job).delete()


def purge(queue: str, limit: int, actor: str, reason: str) -> int:
    """Cancels far rows, oldest due first."""
    wanted = list(Job.objects.filter(FAR, queue=queue).order_by("run_at").values_list("id", flat=True)[:limit])
    return len(cancel(wanted, queue, actor, reason)) if wanted else 0


def unchecked(queue: str, served: range, young: Q, limit: int, *, away: Collection[int] = ()) -> list[UUID]:
    """Jobs, by id, that were written as far rows and whose keys Redis was not asked about. Far rows that are `young` are left out,
    and rows of partitions that are not served or are away.
    """
    mine = Job.objects.filter(pk=OuterRef("job_id"))
    later = mine.filter(young, far=True) | mine.filter(Q(partition__gt=served[-1]) | Q(partition__in=away))
    found = UncheckedKey.objects.filter(~Exists(later), queue=queue).order_by("job_id")
    return list(found.values_list("job_id", flat=True)[:limit])


def bring_in_due(queue: str, served: range, before: datetime | None, limit: int, *, away: Collection[int] = ()) -> list[UUID]:
    """Makes the first far rows of a queue near, oldest due first. Rows due at or after `before` stay far. Rows of partitions that no
    worker serves, or whose server is away, stay far too. Returns the ids.
    """
    found = Job.objects.filter(far=True, queue=queue)  # also a row that an older relay has published: it is near
    found = found.filter(partition__lte=served[-1])
    if away:
        found = found.exclude(partition__in=away)
    if before is not None:
        found = found.filter(run_at__lt=before)
    return _brought(found.order_by("run_at"), limit)  # rows of the same date come in any order, so the index need not contain the id


def first_far(queue: str) -> datetime | None:
    """The earliest date of a far row of a queue."""
    found = Job.objects.filter(far=True, queue=queue).order_by("run_at")
    return found.values_list("run_at", flat=True).first()


def is_late(first: datetime, at: datetime, queue: QueueConfig) -> bool:
    """Whether a far row with that date should have been brought in by then."""
    return queue.horizon is not None and first <= at + timedelta(seconds=queue.horizon / LATE)


def far_key(queue: str, key: str) -> str:
    """The unique value of a key among far rows. It is a hash, since some databases compare text without case."""
    return sha256(f"{queue}\0{key}".encode()).hexdigest()[:32]


_NEAR: Final[dict[str, Any]] = {"far": False, "far_key": None}


def _changed(jobs: Sequence[UUID], **values: Any) -> list[UUID]:
    """Updates those of these rows that are far, and returns them."""
    mine = Job.objects.filter(FAR, pk__in=jobs)
    if len(jobs) > 1:  # otherwise the UPDATE tells enough. Calls lock rows in the order of their keys
        jobs = list(mine.select_for_update().order_by("scope", "key", "pk").values_list("pk", flat=True))
    return list(jobs) if mine.update(**values) else []


def _note(jobs: Sequence[UUID], queue: str, kind: EventKind, actor: str, reason: str, detail: Any = None) -> None:
    if jobs:
        events = [rows.event_of(job, queue, kind, actor, reason, detail) for job in jobs]
        Event.objects.bulk_create(events, ignore_conflicts=True)


def _brought(wanted: Any, limit: int | None = None, *, waits: str = "") -> list[UUID]:
    skips = not waits and database.connection().features.has_select_for_update_skip_locked
    with in_time(waits) if waits else database.atomic():
        if database.connection().features.has_select_for_update:
            wanted = wanted.select_for_update(skip_locked=skips)
        found = list(wanted.values_list("id", flat=True)[:limit])
        if found:
            failpoint("far.bring_in")
            Job.objects.filter(pk__in=found).update(**_NEAR)
    failpoint("far.brought_in")
    return found


def _inserted(item: ScheduleItem, taken: str) -> bool:
    connection = database.connection()
    if connection.vendor != "mysql":
        return insert_keyed(item, taken, connection)
    try:
        with database.atomic():
            return insert_keyed(item, taken, connection)
    except IntegrityError:
        return False


def _holder(taken: str) -> Job | None:
    """The far row that holds a key, locked. A row that an older relay has published no longer holds the key."""
    mine = Job.objects.filter(far_key=taken)
    found = mine.select_for_update().first()
    if found is not None and (not found.far or found.published is not None or found.last_event or found.state != State.SCHEDULED):
        mine.filter(pk=found.pk).update(**_NEAR)
        return None
    return found


def _applied(item: ScheduleItem, holder: Job, horizon_ms: int) -> ScheduleReply | None:
    """Applies the policy to the waiting holder, as schedule.lua does. Returns None if the key is free."""
    if not item.may_know(holder.task):
        return FORBIDDEN
    policy = policy_word(item.on_conflict)
    if policy in ("keep", "error"):
        return ScheduleReply("kept" if policy == "keep" else "taken", holder.id, 0)
    due_ms, delay_ms, debounce = item.due_ms or 0, item.delay_ms, DebouncePolicy.read(item.on_conflict)
    date = clock.from_ms(due_ms)
    if delay_ms is not None:
        date = database.later(database.now(), delay_ms)
    if debounce:
        debounce = debounce.on(holder.on_conflict, holder.created_at)
        if date > (last := clock.from_ms(debounce.last_ms)):
            date, due_ms, delay_ms = last, debounce.last_ms, None
    moves = date < holder.run_at if policy == "earliest" else date > holder.run_at
    expired = holder.expires_at is not None and holder.expires_at <= date
    if policy in ("replace", "after") or (moves and expired):
        if policy == "after" and holder.run_at < date:
            item.due_ms, item.delay_ms = clock.to_ms(holder.run_at), None
        elif debounce:
            item.due_ms, item.delay_ms, item.on_conflict = due_ms if delay_ms is None else None, delay_ms, str(debounce)
        _changed(
            [holder.id],
            state=State.CANCELLED.value,
            finished_at=database.ago(),
            ending=EndingKind.REPLACED.value,
            merged_into=item.id,
            error=rows.displaced(EndingKind.REPLACED, item.id),
            **_NEAR,
        )
        return None
    if not moves:
        return ScheduleReply("kept", holder.id, 0)
    _, near = move([holder.id], item.queue, due_ms, delay_ms, horizon_ms, ACTOR, policy)
    return ScheduleReply("moved", holder.id, 0 if near else clock.to_ms(date))


@contextmanager
def in_time(what: object, code: str = "far_locked") -> Iterator[None]:
    """A transaction, or a savepoint in the caller's transaction, that waits at most two seconds for a lock. After a timeout the
    caller's transaction is unchanged. After a deadlock the caller must roll it back: the other transaction waits for its locks. MySQL
    has already done so.

    Raises:
        StoreUnavailable: the lock was not acquired in time, or there was a deadlock.
    """
    try:
        within = database.connection().in_atomic_block
        with database.atomic(), _patience(within):
            yield
    except OperationalError as error:
        cause = error.__cause__
        said = {getattr(cause, "sqlstate", None), getattr(cause, "pgcode", None), *getattr(cause, "args", ())[:1]}
        if not said.isdisjoint(DEADLOCKED):
            raise StoreUnavailable(code="deadlock", what=str(what)) from error
        if not said.isdisjoint(LOCKED):
            raise StoreUnavailable(code=code, what=str(what), seconds=WAIT) from error
        raise


@contextmanager
def _patience(within: bool) -> Iterator[None]:
    """Sets how long this connection waits for locks. `within`: inside a transaction of the caller, the setting lasts only for this
    block. SQLite has one lock for the whole database, and its own timeout for it.
    """
    connection = database.connection()
    if connection.vendor == "postgresql":
        ask = "SELECT current_setting('lock_timeout'), set_config('lock_timeout', %s, true)"
        before = _asked(connection, ask, [f"{WAIT}s"])
        yield
        if within:  # otherwise the setting ends with the transaction
            _asked(connection, "SELECT set_config('lock_timeout', %s, true)", [before])
    elif connection.vendor == "mysql":
        before = _asked(connection, "SELECT @@innodb_lock_wait_timeout", [])
        _asked(connection, "SET innodb_lock_wait_timeout = %s", [WAIT])
        try:
            yield
        finally:
            # Not by a cursor of Django, which refuses statements after a deadlock, because MySQL has rolled back the whole transaction.
            with connection.wrap_database_errors, connection.connection.cursor() as cursor:
                cursor.execute("SET innodb_lock_wait_timeout = %s", [before])
    else:
        yield


def _asked(connection: Any, sql: str, values: Sequence[Any]) -> Any:
    with connection.cursor() as cursor:
        cursor.execute(sql, values)
        return cursor.fetchone()[0] if cursor.description else None
