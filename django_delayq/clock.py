"""Time: the only module of the package that reads a clock or sleeps, and the one that converts times.

Two clocks, two names: `wall_ms` and `now` are for what is stored and shown, `monotonic` is for measuring how long.
Redis keeps whole milliseconds since 1970; Python keeps aware datetimes and float seconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Final

MAX_MS: Final = 253_402_300_799_999  # the last millisecond of the year 9999, the last that a datetime can hold
LAST_MS: Final = MAX_MS - 86_400_000  # without the last day: shown in a time zone of the east, it overflows

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)
_AWARE: Final = "django.utils.timezone.now() + timedelta(...)"


def now() -> datetime:
    """The current time as an aware datetime in UTC."""
    return datetime.now(UTC)


def wall_ms() -> int:
    """The present in whole milliseconds since 1970. For what is stored; it may jump, so it measures nothing."""
    return time.time_ns() // 1_000_000


# Seconds from an arbitrary start that never run backwards, for deadlines and durations within this process. They continue while the
# machine is suspended, if the system has such a clock, because leases do too. A Python function would cost each job more.
monotonic: Final[Callable[[], float]] = (
    partial(time.clock_gettime, time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic
)
# Like `monotonic`, for network waits: it continues while a test stops the time of jobs.
uptime: Final = monotonic


def sleep(seconds: float) -> None:
    """Block this thread for `seconds` (nothing happens for zero or less)."""
    if seconds > 0:
        time.sleep(seconds)


def to_ms(moment: datetime) -> int:
    """Milliseconds since 1970 of an aware datetime; ValueError for a naive one, or none.

    Rounded up, never down: a job due at .0004 s must not be claimed at .000 s, which would be before its date.
    """
    try:
        return -((_EPOCH - moment) // _MILLISECOND)
    except TypeError:
        given: object = moment
        if not isinstance(given, datetime):
            raise ValueError(f"{given!r} is not a datetime. Pass an aware datetime, such as {_AWARE}") from None
        if moment.utcoffset() is not None:  # not looked at before, since that takes half as long as the rest
            raise
        raise ValueError(
            f"{moment.isoformat()} is a naive datetime, which has no time zone; pass an aware one, such as {_AWARE}"
        ) from None


def from_ms(ms: int) -> datetime:
    """The aware UTC datetime of `ms` milliseconds since 1970; ValueError beyond the years a datetime holds in every time zone."""
    try:
        if ms <= LAST_MS:
            return _EPOCH + ms * _MILLISECOND  # timedelta(milliseconds=…) takes twice as long
    except OverflowError:
        pass
    raise ValueError(
        f"{ms} ms since 1970 is not a date between the years 1 and 9999. Check whether the value is in seconds or microseconds"
    )
