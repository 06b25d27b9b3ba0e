"""Which deployed code declares which schedules.

Each worker that writes ticks notes what its code declares. So only one of two versions that run side by side writes ticks, and a
schedule that no code declares any more is retired.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final

from django_delayq import clock
from django_delayq.logger import Logger
from django_delayq.models import Periodic, SeenDeclaration, database
from django_delayq.periodic import schedule_rows
from django_delayq.periodic.declarations import Declaration, Declarations
from django_delayq.periodic.schedule_rows import begin, dates_of, locked, note, withdraw

logger = Logger("django_delayq.periodic")

NOTED: Final = timedelta(seconds=15)  # a note of another worker that is younger needs no second one
ALIVE: Final = timedelta(minutes=2)  # a declaration that was not seen for so long counts as new when it is seen again
RETIRED: Final = timedelta(hours=1)  # a schedule that no code has declared for so long is retired
KEPT: Final = timedelta(days=1)
BUDGET: Final = 1.0  # seconds of one pass, about, for changes of schedules; mirror, relay and writer wait meanwhile
WORKERS: Final = ("", "")  # this row says since when workers note declarations
Seen = dict[tuple[str, str], SeenDeclaration]


class Deployments:
    """1. Notes what this code declares, unless another worker just has. 2. Puts declarations of this code in force if they came last.
    3. Retires schedules that no code has declared for an hour, if workers have taken notes for as long. If there are many changes, one
    pass does some of them and is called again, so its own notes never become too old.

    If several declarations of a name were seen within two minutes, the newest one is in force. So a deploy takes
    over at once, and a rollback too. If none was seen, the last one stays in force.
    """

    def __init__(self, *, declared: Declarations) -> None:
        self._declared = declared
        self._unkept: set[str] = set()  # names that the database treats as equal to others; logged

    def look(self, now: datetime) -> bool:
        """One pass. Returns whether something may be left for the next one.

        Raises:
            DatabaseError: call again later.
        """
        declared = self._declared.all()
        seen = self._note([WORKERS, *((one.name, one.fingerprint) for one in declared)], now)
        rows = {row.name: row for row in self._rows().only("name", "owner", "fingerprint", "retired_at")}
        by_name: dict[str, list[SeenDeclaration]] = {}
        for seen_one in seen.values():
            by_name.setdefault(seen_one.name, []).append(seen_one)
        changed = [one for one in declared if not _is_in_force(rows.get(one.name), one) and came_last(one, by_name[one.name], now)]
        for one in self._created([one for one in changed if one.name not in rows], now):
            logger.info("schedule %s is new: %s", one.name, one.dates.text)
        acts = [partial(self._put_in_force, one) for one in changed if one.name in rows]
        acts += [partial(self._retire_one, name, now) for name in _orphans(rows.values(), seen, now)]
        until = clock.monotonic() + BUDGET
        for act in acts:
            act()
            if clock.monotonic() >= until:
                return True
        if any(seen_one.last_seen < now - KEPT for seen_one in seen.values()):
            SeenDeclaration.objects.filter(last_seen__lt=now - KEPT).delete()
        return False

    def _rows(self) -> Any:
        return Periodic.objects

    def _note(self, mine: Iterable[tuple[str, str]], now: datetime) -> Seen:
        """Notes these pairs of name and fingerprint. Returns all rows as they are then."""
        seen = {(one.name, one.fingerprint): one for one in SeenDeclaration.objects.all()}
        fresh, old, new = [], [], []
        for key in mine:
            seen_one = seen.get(key)
            if seen_one is None:
                seen_one = seen[key] = SeenDeclaration(name=key[0], fingerprint=key[1], first_seen=now, last_seen=now)
                fresh.append(seen_one)
            elif not alive(seen_one, now):
                seen_one.first_seen = seen_one.last_seen = now
                new.append(seen_one.pk)
            elif seen_one.last_seen < now - NOTED:
                seen_one.last_seen = now
                old.append(seen_one.pk)
        known = SeenDeclaration.objects
        if fresh:
            known.bulk_create(fresh, ignore_conflicts=True)
        if new:
            known.filter(pk__in=new).update(first_seen=now, last_seen=now)
        if old:
            known.filter(pk__in=old).update(last_seen=now)
        return seen

    def _created(self, new: list[Declaration], now: datetime) -> list[Declaration]:
        """Creates rows for new schedules. They begin now, so no tick in the past counts as missed."""
        if not new:
            return []
        made = [
            Periodic(name=one.name, created_at=now, decided_to=now, write_at=now, owner=Periodic.Owner.CODE, **_columns(one))
            for one in new
        ]
        self._rows().bulk_create(made, ignore_conflicts=True)
        there = set(self._rows().filter(name__in=[one.name for one in new]).values_list("name", flat=True))
        for one in new:
            if one.name not in there and one.name not in self._unkept:
                self._unkept.add(one.name)
                logger.error(
                    "schedule %s has no row: the database treats its name as equal to that of another schedule. Rename it", one.name
                )
        return [one for one in new if one.name in there]

    def _put_in_force(self, one: Declaration) -> None:
        """Puts a declaration in force, unless another version has come meanwhile."""
        with locked(name=one.name) as row:
            now = schedule_rows.now()
            rivals = SeenDeclaration.objects.filter(name=one.name)
            if row is None or _is_in_force(row, one) or not came_last(one, rivals, now):
                return
            came_back, before = row.retired_at is not None, dates_of(row)
            for name, value in _columns(one).items():
                setattr(row, name, value)
            row.owner, row.retired_at = Periodic.Owner.CODE, None
            withdraw(row, now)
            # With the same dates, ticks that passed during the deploy still count as missed.
            begin(row, min(row.decided_to, now) if dates_of(row) == before and not came_back else now, now)
            row.save(using=database.alias())
            what = "declared again" if came_back else "declared otherwise"
            note(row, "periodic_declared", now, reason=what, dates=one.dates.text)
        logger.info("schedule %s is %s: %s", one.name, what, one.dates.text)

    def _retire_one(self, name: str, now: datetime) -> None:
        with locked(name=name) as row:
            lately = SeenDeclaration.objects.filter(name=name, last_seen__gte=now - RETIRED)
            if row is None or row.retired_at is not None or row.owner != Periodic.Owner.CODE or lately.exists():
                return
            row.retired_at = now
            withdraw(row, now)
            begin(row, now, now)
            row.save(using=database.alias())
            note(row, "periodic_retired", now, reason="no code has declared it for an hour")
        logger.warning("schedule %s is retired: no code has declared it for an hour. Its waiting jobs are cancelled", name)


def alive(seen_one: SeenDeclaration, now: datetime) -> bool:
    """Whether it was seen lately. A date in the future comes from before the database's clock was put back, and does not count."""
    return now - ALIVE <= seen_one.last_seen <= now + NOTED


def came_last(one: Declaration, seen: Iterable[SeenDeclaration], now: datetime) -> bool:
    """Whether that declaration came last among those of its name."""
    rivals = [seen_one for seen_one in seen if alive(seen_one, now)]
    last = max(rivals, key=lambda seen_one: (seen_one.first_seen, seen_one.fingerprint), default=None)
    return last is not None and last.fingerprint == one.fingerprint


def _orphans(rows: Iterable[Periodic], seen: Seen, now: datetime) -> list[str]:
    """The schedules of code that no code has declared for an hour."""
    if seen[WORKERS].first_seen > now - RETIRED:
        return []  # the workers that declare it may have been down
    last: dict[str, datetime] = {}
    for seen_one in seen.values():
        last[seen_one.name] = max(seen_one.last_seen, last.get(seen_one.name, seen_one.last_seen))
    lives = [row.name for row in rows if row.retired_at is None and row.owner == Periodic.Owner.CODE]
    return [name for name in lives if name not in last or last[name] < now - RETIRED]


def _is_in_force(row: Periodic | None, one: Declaration) -> bool:
    return row is not None and row.fingerprint == one.fingerprint and row.retired_at is None and row.owner == Periodic.Owner.CODE


def _columns(one: Declaration) -> dict[str, Any]:
    """A declaration as columns."""
    return {
        "task": one.task,
        "cron": one.dates.cron,
        "every_ms": one.dates.every_ms,
        "timezone": one.dates.timezone,
        "jitter_ms": one.dates.jitter_ms,
        "missed": one.missed,
        "overlap": one.overlap,
        "args": list(one.args),
        "kwargs": dict(one.kwargs),
        "fingerprint": one.fingerprint,
    }
