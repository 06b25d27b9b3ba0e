"""The database's clock: of rows it says when they were written, and from when a delay counts; the clock of a web host does not matter.
With SQLite the two are one.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, Final

from django.db.models import Q

from django_delayq import clock

SQL: Final = {
    "postgresql": "clock_timestamp()",
    "mysql": "UTC_TIMESTAMP(6)",
}  # the moment of the statement, not of its transaction


def now(connection: Any) -> datetime:
    """What it shows.

    Raises:
        DatabaseError: as any query.
    """
    if connection.vendor not in SQL:
        return clock.now()
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {SQL[connection.vendor]}")
        shown: datetime = cursor.fetchone()[0]
    return shown.replace(tzinfo=UTC) if shown.tzinfo is None else shown


def later(moment: datetime, delay_ms: int) -> datetime:
    """So much later."""
    return moment + timedelta(milliseconds=delay_ms)


def written(since: datetime, now: datetime) -> Q:
    """Rows that were written between then and now. What is dated later than now was dated by another clock, or by one that was put back
    since: whoever waited until it is old might wait for ever.
    """
    return Q(created_at__gte=since, created_at__lte=now)
