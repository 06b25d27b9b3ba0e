"""Keys of periods: the rows that store which job has taken a key, and until when, by the database's clock."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

from django_delayq.exceptions import StoreUnavailable
from django_delayq.models import PeriodKey, database
from django_delayq.producer.outbox import agreed_clock
from django_delayq.producer.outbox.agreed_clock import ClocksDiffer
from django_delayq.producer.outbox.far_rows import TRIES, in_time
from django_delayq.producer.outbox.shapes import Once, TakenKey
from django_delayq.store.connection.link import Link

INSERT: Final = {
    "mysql": "INSERT IGNORE INTO delayq_period_key (digest, job, until) VALUES (%s, %s, %s)",
    "": "INSERT INTO delayq_period_key (digest, job, until) VALUES (%s, %s, %s) ON CONFLICT DO NOTHING",
}


def take(once: Once, job: UUID, redis: Link) -> UUID | None:
    """Writes the row, or takes over a row whose period has ended. Returns None on success, otherwise the job that has the key.

    Raises:
        StoreUnavailable: another transaction that takes the key is open for more than two seconds.
    """
    connection, rows = database.connection(), PeriodKey.objects.filter(digest=once.digest)
    with in_time(once.digest, "period_key_locked"):
        for _ in range(TRIES):
            now = database.now()
            until = now + timedelta(milliseconds=once.ms)
            id = job if connection.features.has_native_uuid_field else job.hex
            with connection.cursor() as cursor:
                statement = INSERT.get(connection.vendor, INSERT[""])
                cursor.execute(statement, [once.digest, id, connection.ops.adapt_datetimefield_value(until)])
                if cursor.rowcount == 1:
                    return None
            found = rows.first()
            if found is None:
                continue
            if not _has_ended(found, now, redis):
                return found.job
            if rows.filter(until=found.until).update(job=job, until=until):
                return None
    raise StoreUnavailable(code="period_key_locked", what=once.digest)


def find(once: Once, redis: Link) -> TakenKey | None:
    """The job that has the key, and for how long it has had it."""
    now = database.now()
    found = PeriodKey.objects.filter(digest=once.digest).first()
    if found is None or _has_ended(found, now, redis):
        return None
    left = once.ms if found.until is None else (found.until - now) / timedelta(milliseconds=1)
    return TakenKey(found.job, once.ms - left)


def _has_ended(found: PeriodKey, now: datetime, redis: Link) -> bool:
    """Whether its period has ended. If the clocks of the database and of Redis differ, or Redis does not answer, the answer is no:
    taking the key over schedules a second job.
    """
    if found.until is None or found.until > now:
        return False
    try:
        return found.until <= agreed_clock.now([redis])
    except (ClocksDiffer, StoreUnavailable):
        return False


def release(once: Once, job: UUID) -> None:
    """Deletes the row, because the job was refused."""
    PeriodKey.objects.filter(digest=once.digest, job=job).delete()


def prune(now: datetime, limit: int) -> int:
    """Deletes rows whose period has ended by `now`, up to a limit. Returns how many."""
    old = PeriodKey.objects.filter(until__lt=now)
    gone = list(old.order_by("until").values_list("pk", flat=True)[:limit])
    return old.filter(pk__in=gone).delete()[0] if gone else 0
