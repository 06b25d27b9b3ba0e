"""The clock that decides whether something is old enough to be deleted: the database's clock, as long as the clock of Redis agrees
with it. Either of them may be wrong, and rows that were deleted because of a wrong clock cannot be recovered.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Final

from django_delayq import clock
from django_delayq.exceptions import DelayqError
from django_delayq.models import database
from django_delayq.store.connection.link import Link
from django_delayq.store.connection.places import Places
from django_delayq.store.scripts import decode

MOST_APART: Final = timedelta(minutes=5)
TEXT: Final = (
    "The clock of the database {database!r} shows {shown}, and the clock of Redis at {redis} shows {of_redis}. Nothing is deleted "
    "while they differ by five minutes or more. Correct the clock that is wrong."
)


class ClocksDiffer(DelayqError):
    """Nothing may be deleted because of its age, since the clocks disagree about the time."""

    code = "clocks_differ"


def now(links: Iterable[Link]) -> datetime:
    """The time of the database's clock, by which the age of rows is measured.

    Raises:
        ClocksDiffer: the clock of one of these servers differs from it by five minutes or more.
        StoreUnavailable, DatabaseError: a server, or the database, cannot be reached.
    """
    shown = database.now()
    for link in links:
        of_redis = clock.from_ms(min(decode.time_ms(link.execute("TIME")), clock.LAST_MS))
        if abs(of_redis - shown) >= MOST_APART:
            raise ClocksDiffer(TEXT.format(database=database.alias(), shown=_shown(shown), redis=link.home, of_redis=_shown(of_redis)))
    return shown


def of_queue(places: Places, queue: str, partitions: Iterable[int]) -> datetime:
    """Like `now`, for all servers of the queue."""
    links = [places.of(queue, partition) for partition in partitions]
    return now({link.server: link for link in links}.values())


def _shown(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%SZ}"
