"""Keys of periods: the rows that store which job has taken a key, and until when, by the database's clock.

The mirror writes `until` when it folds the end of a job, since the job may have no row. Before that, a job's row decides if there is
one: the key of a cancelled job is free, and somebody may have ended the job without an event.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

from django.db.models import Exists, OuterRef

from django_delayq.exceptions import StoreUnavailable
from django_delayq.models import Job, PeriodKey, database
from django_delayq.producer.outbox import agreed_clock, rows
from django_delayq.producer.outbox.agreed_clock import ClocksDiffer
from django_delayq.producer.outbox.far_rows import TRIES, in_time
from django_delayq.producer.outbox.shapes import Once, TakenKey, WantedKey
from django_delayq.states import FINISHED, State
from django_delayq.store.connection.link import Link

INSERT: Final = {
    "mysql": "INSERT IGNORE INTO delayq_period_key (digest, job, until, period_ms, at, queue, task) VALUES {rows}",
    "": "INSERT INTO delayq_period_key (digest, job, until, period_ms, at, queue, task) VALUES {rows} ON CONFLICT DO NOTHING",
}
ROW: Final = "(%s, %s, %s, %s, %s, %s, %s)"
WAITS: Final = "EXISTS (SELECT 1 FROM delayq_period_key WHERE until IS NULL)"  # whether the end of a job may begin a period
CHUNK: Final = 500
FORGOT: Final = "forgot"  # an event that no script writes: a person has freed the key
LOST_AFTER: Final = timedelta(days=1)  # a job without a row that Redis does not know after this time is lost


def take(wanted: Sequence[WantedKey], redis: Link) -> dict[str, TakenKey]:
    """Writes the rows of these keys, which differ, or takes over rows whose period has ended. Returns the other keys by digest, with
    the jobs that have them. Rows are locked in the order of their digests, so two batches do not wait for each other.

    Raises:
        StoreUnavailable: another transaction that takes a key is open for more than two seconds.
    """
    rest = sorted(wanted)
    found = _find(rest, redis)
    held: dict[str, TakenKey] = {}
    if all(one.once.digest in found and found[one.once.digest][1] for one in rest):
        return {digest: key for digest, (_, key) in found.items() if key}  # without a lock, for which the mirror would have to wait
    with in_time(rest[0].once.digest, "period_key_locked"):
        inserted: set[str] = set()  # by one statement, which does not tell which of the rows were new
        for _ in range(TRIES):
            left = []
            for one in rest:
                row, key = found.get(one.once.digest, (None, None))
                if key is not None and not (one.once.digest in inserted and key.job == one.job):
                    held[one.once.digest] = key
                elif key is None and (row is None or not _take_over(row, one)):
                    left.append(one)
            lacking = [one for one in left if one.once.digest not in found]
            if lacking and _insert(lacking) == len(lacking):
                left = [one for one in left if one.once.digest in found]
            elif len(lacking) > 1:
                inserted.update(one.once.digest for one in lacking)
            if not left:
                return held
            rest, found = left, _find(left, redis)
    raise StoreUnavailable(code="period_key_locked", what=rest[0].once.digest)


def find(once: Once, redis: Link) -> TakenKey | None:
    """The job that has the key; None if the key is free."""
    _, key = _find([WantedKey(once, UUID(int=0), "", "")], redis).get(once.digest, (None, None))
    return key


def of_job(job: UUID) -> PeriodKey | None:
    """The key that a job got by `once_for`, if no other job has taken it since."""
    return PeriodKey.objects.filter(job=job, period_ms__isnull=False).first()


def _find(wanted: Sequence[WantedKey], redis: Link) -> dict[str, tuple[PeriodKey, TakenKey | None]]:
    """The rows of these keys by digest, and the jobs that have them. None: the key is free."""
    there = list(PeriodKey.objects.filter(digest__in=[one.once.digest for one in wanted]))
    if not there:
        return {}
    now, ends = database.now(), _ends([row.job for row in there if row.until is None])
    found: dict[str, tuple[PeriodKey, TakenKey | None]] = {}
    for row in there:
        free, until = row.job in ends, row.until
        if free:
            until = _until(row, *ends[row.job])
        if until is not None:
            free = _has_ended(until, now, redis)
        age_ms = (now - row.at) / timedelta(milliseconds=1)
        found[row.digest] = row, None if free else TakenKey(row.job, row.task, age_ms, until)
    return found


def _ends(jobs: Collection[UUID]) -> dict[UUID, tuple[str, datetime | None]]:
    """The state and the end of those of these jobs whose rows have ended."""
    if not jobs:
        return {}
    found = Job.objects.filter(pk__in=jobs, state__in=FINISHED).values_list("pk", "state", "finished_at")
    return {id: (state, at) for id, state, at in found}


def _until(row: PeriodKey, state: str, finished_at: datetime | None) -> datetime | None:
    """The end of the period of an ended job; None if the job was cancelled, so that the key is free."""
    if state == State.CANCELLED or row.period_ms is None:
        return None
    return database.later(finished_at or row.at, row.period_ms)


def _has_ended(until: datetime, now: datetime, redis: Link) -> bool:
    """Whether that time has passed. If the clocks of the database and of Redis differ, or Redis does not answer, the answer is no:
    taking the key over schedules a second job.
    """
    if until > now:
        return False
    try:
        return until <= agreed_clock.now([redis])
    except (ClocksDiffer, StoreUnavailable):
        return False


def _insert(wanted: Sequence[WantedKey]) -> int:
    """Writes rows, except those that another transaction has written. Returns how many."""
    connection, now = database.connection(), database.now()
    moment, native = connection.ops.adapt_datetimefield_value, connection.features.has_native_uuid_field
    values: list[object] = []
    for once, job, queue, task in wanted:
        until, period = _dates(once, now)
        values += (once.digest, job if native else job.hex, until and moment(until), period, moment(now), queue, task)
    with connection.cursor() as cursor:
        text = INSERT.get(connection.vendor, INSERT[""])
        cursor.execute(text.format(rows=", ".join([ROW] * len(wanted))), values)
        count: int = cursor.rowcount
    return count


def _take_over(row: PeriodKey, one: WantedKey) -> bool:
    now = database.now()
    until, period = _dates(one.once, now)
    same = {"until__isnull": True} if row.until is None else {"until": row.until}
    mine = PeriodKey.objects.filter(digest=row.digest, job=row.job, **same)
    return bool(mine.update(job=one.job, until=until, period_ms=period, at=now, queue=one.queue, task=one.task))


def _dates(once: Once, now: datetime) -> tuple[datetime | None, int | None]:
    return (None, once.ms) if once.after_end else (database.later(now, once.ms), None)


def release(once: Once, job: UUID) -> None:
    """Deletes the row, because the job was refused."""
    PeriodKey.objects.filter(digest=once.digest, job=job).delete()


def rename(once: Once, job: UUID, other: UUID) -> None:
    """The job was sent again under another id."""
    PeriodKey.objects.filter(digest=once.digest, job=job).update(job=other)


def ended(jobs: Collection[UUID], cancelled: Collection[UUID] = ()) -> None:
    """Begins the periods of jobs that have succeeded or failed, and deletes the keys of cancelled jobs that have no row."""
    waiting = PeriodKey.objects.filter(until__isnull=True, period_ms__isnull=False)
    with database.atomic(savepoint=False):
        periods: dict[int, list[str]] = {}
        for digest, ms in _unlocked(waiting, jobs):
            periods.setdefault(ms, []).append(digest)
        for ms, digests in periods.items():
            PeriodKey.objects.filter(pk__in=digests).update(until=database.ago(-ms / 1000))
        if gone := [digest for digest, _ in _unlocked(waiting, cancelled)]:
            PeriodKey.objects.filter(pk__in=gone).delete()


def reopen(jobs: Collection[UUID]) -> None:
    """These jobs have ended, and are put back: they have their keys until they end again."""
    ours = PeriodKey.objects.filter(period_ms__isnull=False)
    PeriodKey.objects.filter(pk__in=[digest for digest, _ in _unlocked(ours, jobs)]).update(until=None)


def _unlocked(among: Any, jobs: Collection[UUID]) -> Iterator[tuple[str, int]]:
    """The digests and periods of the keys of these jobs, locked. It skips keys that other transactions take over or delete: the mirror
    must not wait for transactions of callers.
    """
    given = list(jobs)
    if database.connection().features.has_select_for_update_skip_locked:
        among = among.select_for_update(skip_locked=True)
    for start in range(0, len(given), CHUNK):
        yield from among.filter(job__in=given[start : start + CHUNK]).values_list("digest", "period_ms")


def keep_ends(jobs: Collection[UUID]) -> None:
    """Writes the ends that only the rows of these jobs show, since the rows are about to be deleted."""
    for row in PeriodKey.objects.filter(job__in=jobs, until__isnull=True):
        state = _ends([row.job]).get(row.job)
        until = None if state is None else _until(row, *state)
        mine = PeriodKey.objects.filter(digest=row.digest, job=row.job)
        if until is None:
            mine.delete()
        else:
            mine.update(until=until)


def forget(digest: str, job: UUID, queue: str, actor: str, reason: str) -> bool:
    """Deletes the row of a key that the job has, and writes an event. Returns False if the job does not have the key."""
    with database.atomic():
        if not PeriodKey.objects.filter(digest=digest, job=job).delete()[0]:
            return False
        rows.note(job, queue, FORGOT, actor, reason)
    return True


def prune(now: datetime, limit: int) -> int:
    """Deletes rows whose period has ended by `now`, up to a limit. Returns how many. A failed job may be put back, so it keeps its key
    as long as its row.
    """
    failed = Job.objects.filter(pk=OuterRef("job"), state=State.FAILED)
    old = PeriodKey.objects.filter(until__lt=now).exclude(Exists(failed), period_ms__isnull=False)
    gone = list(old.order_by("until").values_list("pk", flat=True)[:limit])
    return PeriodKey.objects.filter(pk__in=gone, until__lt=now).delete()[0] if gone else 0


def end_lost(queue: str, now: datetime, lost: Callable[[list[UUID]], Collection[UUID]], size: int) -> None:
    """Begins the periods of jobs that got their keys a day ago, and have no row. `lost`: returns those of some jobs that Redis does
    not know. Their process died before it sent them, or Redis has lost them.
    """
    there = Job.objects.filter(pk=OuterRef("job"))
    old = PeriodKey.objects.filter(queue=queue, until__isnull=True, period_ms__isnull=False, at__lt=now - LOST_AFTER)
    old, after = old.exclude(Exists(there)).order_by("digest"), ""
    while page := list(old.filter(digest__gt=after)[:size]):
        unknown = set(lost([row.job for row in page]))
        for row in page:
            if row.job in unknown:
                mine = PeriodKey.objects.filter(digest=row.digest, job=row.job, until__isnull=True)
                mine.update(until=database.later(row.at, row.period_ms or 0))
        after = page[-1].digest
