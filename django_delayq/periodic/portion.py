"""What is to be written of one schedule now: which ticks get a job, and which have passed without. It counts dates, and asks nobody."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from django_delayq.periodic.dates import Dates

LATE: Final = timedelta(seconds=60)  # a tick is missed when its date passed longer ago than this
NEAR: Final = timedelta(seconds=10)  # the ticks of so long ahead have their jobs
FAR: Final = timedelta(seconds=15)  # and are written up to here, so that a schedule is looked at every few seconds only
MOST_MISSED: Final = 100  # ticks of one schedule that get a job behind their date in one go; and that get a row without one
# How far back one looks for ticks that have passed: as far as it takes to find that many, or to what is decided.
WINDOWS: Final = tuple(timedelta(hours=hours) for hours in (1, 24, 24 * 7, 24 * 31, 24 * 366, 24 * 366 * 30))


@dataclass(frozen=True, slots=True, kw_only=True)
class Portion:
    """Ticks of one schedule. `jobs`: those that get one, in order; `missed`: those that have passed and get none, the newest hundred of
    them; `since`: the date from which on nobody has counted them, if there were more.

    `decided_to`: up to where it is decided then; `write_at`: when the next look is due, None for never.
    """

    jobs: Sequence[datetime]
    missed: Sequence[datetime]
    since: datetime | None
    decided_to: datetime
    write_at: datetime | None


def portion(dates: Dates, name: str, missed: str, decided_to: datetime, now: datetime) -> Portion:
    """What is to be written of a schedule of which all is decided up to that moment: what has passed since, by its policy of `missed`;
    the next tick; and further ones if they are near.

    Raises:
        ConfigError: the cron or the zone cannot be read here.
    """
    past, since = _past(dates, decided_to, now)
    late: list[datetime] = []
    over: list[datetime] = []
    for tick in past:
        (late if dates.jittered(name, tick) >= now - LATE else over).append(tick)
    if len(late) > MOST_MISSED:  # by a jitter of hours, say: the rest is as good as missed
        over, late = sorted([*over, *late[:-MOST_MISSED]]), late[-MOST_MISSED:]
    kept = min({"skip": 0, "once": 1, "all": MOST_MISSED}[missed], MOST_MISSED - len(late))
    chosen = over[len(over) - min(kept, len(over)) :]
    dropped = over[: len(over) - len(chosen)]
    if len(dropped) > MOST_MISSED:
        since, dropped = since or dropped[0], dropped[-MOST_MISSED:]
    ahead, following = _ahead(dates, max(decided_to, now), now)
    if ahead:
        end = ahead[-1]
        write_at = None if following is None else min(end, following - NEAR)
    else:
        end, write_at = max(decided_to, now), None
    jobs = sorted([*chosen, *late, *ahead])
    return Portion(jobs=jobs, missed=dropped, since=since, decided_to=end, write_at=write_at)


def _past(dates: Dates, decided_to: datetime, now: datetime) -> tuple[list[datetime], datetime | None]:
    """The ticks after `decided_to` that have passed, the newest few thousand at most; and from when on there were more."""
    found: list[datetime] = []
    for window in WINDOWS:
        begin = max(decided_to, now - window)
        found = []
        for tick in dates.after(begin):
            if tick > now:
                break
            found.append(tick)
        if begin == decided_to:
            return found, None
        if len(found) > 2 * MOST_MISSED:
            break
    return found, decided_to


def _ahead(dates: Dates, after: datetime, now: datetime) -> tuple[list[datetime], datetime | None]:
    """The next tick, with all that are near, and the one behind these."""
    found: list[datetime] = []
    for tick in dates.after(after):
        if found and tick > now + FAR:
            return found, tick
        found.append(tick)
    return found, None
