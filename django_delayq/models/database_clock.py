"""The clock of the database. It dates rows and starts delays. The clock of a web host does not matter. With SQLite the two are one."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, Final

from django.db.models import DateTimeField, Q
from django.db.models.expressions import RawSQL

from django_delayq import clock
from django_delayq.models import database

# By vendor: the time of the statement, not of its transaction; and the time so many seconds before it, in a form for which the
# database can use an index. A database that is not listed has no clock.
SQL: Final = {
    "postgresql": ("clock_timestamp()", "(statement_timestamp() - make_interval(secs => %s))"),
    "mysql": ("UTC_TIMESTAMP(6)", "(UTC_TIMESTAMP(6) - INTERVAL %s SECOND)"),
}


def now() -> datetime:
    """The time of the database's clock.

    Raises:
        DatabaseError: as any query.
    """
    connection = database.connection()
    if connection.vendor not in SQL:
        return clock.now()
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {SQL[connection.vendor][0]}")
        shown: datetime = cursor.fetchone()[0]
    return shown.replace(tzinfo=UTC) if shown.tzinfo is None else shown


def ago(seconds: float = 0.0) -> Any:
    """The time so many seconds ago, as a value for a statement that writes or compares dates. Usually this needs no extra query."""
    connection = database.connection()
    if connection.vendor not in SQL or connection.timezone_name != "UTC":  # MySQL stores dates in the time zone of the connection
        return now() - timedelta(seconds=seconds)
    return RawSQL(SQL[connection.vendor][1], [float(seconds)], output_field=DateTimeField())


def later(moment: datetime, delay_ms: int) -> datetime:
    """The moment `delay_ms` later."""
    return moment + timedelta(milliseconds=delay_ms)


def written(since: datetime, now: datetime) -> Q:
    """Rows that were written between `since` and now. A row dated later was dated by another clock, or by one that was set back:
    waiting until it is old could take forever.
    """
    return Q(created_at__gte=since, created_at__lte=now)
