"""Which code declares what: noted by all workers that write ticks, so that of two versions side by side one fires, and that a schedule
which no code declares any more is retired.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final

from django_delayq import clock
from django_delayq.logger import Logger
from django_delayq.models import Periodic, Sighting
from django_delayq.periodic import schedule_rows
from django_delayq.periodic.declarations import Declaration, Declarations
from django_delayq.periodic.schedule_rows import begin, dates_of, locked, note, withdraw

logger = Logger("django_delayq.periodic")

NOTED: Final = timedelta(seconds=15)  # what another worker has noted within this time needs no second note
ALIVE: Final = timedelta(minutes=2)  # a declaration that was not seen for so long is a new one when it is seen again
RETIRED: Final = timedelta(hours=1)  # a schedule that nobody has declared for so long is retired
KEPT: Final = timedelta(days=1)
BUDGET: Final = 1.0  # seconds of a look, about, in which schedules are changed: mirror, relay and writer wait meanwhile
WORKERS: Final = ("", "")  # the sighting that says since when workers look at all
Seen = dict[tuple[str, str], Sighting]


class Sightings:
    """1. Notes what this code declares, unless another worker just has. 2. Makes the declarations in force those of this code that have
    come last. 3. Retires schedules that nobody has declared for an hour, if workers have looked for as long. Where there are many to
    change it does a portion, and is called again: so what it declares is noted again too, and never too old in its own eyes.

    In force is, of the declarations of a name that were seen within two minutes, the one that has been seen for the shortest time: so a
    deploy takes over at once, and so does one that brings back what was there before. Where none was seen, the last one stays in force.
    """

    def __init__(self, *, using: str, declared: Declarations) -> None:
        self.using = using
        self._declared = declared
        self._unkept: set[str] = set()  # names that the database takes for others, told in the log

    def look(self, now: datetime) -> bool:
        """One pass. Returns whether it may be that something is left: look again soon.

        Raises:
            DatabaseError: call again later.
        """
        declared = self._declared.all()
        seen = self._note([WORKERS, *((one.name, one.fingerprint) for one in declared)], now)
        rows = {row.name: row for row in self._rows().only("name", "owner", "fingerprint", "retired_at")}
        by_name: dict[str, list[Sighting]] = {}
        for sighting in seen.values():
            by_name.setdefault(sighting.name, []).append(sighting)
        changed = [one for one in declared if not _stands(rows.get(one.name), one) and in_force(one, by_name[one.name], now)]
        for one in self._created([one for one in changed if one.name not in rows], now):
            logger.info("schedule %s is new: %s", one.name, one.dates.text)
        acts = [partial(self._adopt, one) for one in changed if one.name in rows]
        acts += [partial(self._retire_one, name, now) for name in _orphans(rows.values(), seen, now)]
        until = clock.monotonic() + BUDGET
        for act in acts:
            act()
            if clock.monotonic() >= until:
                return True
        if any(sighting.last_seen < now - KEPT for sighting in seen.values()):
            Sighting.objects.using(self.using).filter(last_seen__lt=now - KEPT).delete()
        return False

    def _rows(self) -> Any:
        return Periodic.objects.using(self.using)

    def _note(self, mine: Iterable[tuple[str, str]], now: datetime) -> Seen:
        """Notes these (name, fingerprint), and returns all sightings as they are then."""
        seen = {(one.name, one.fingerprint): one for one in Sighting.objects.using(self.using).all()}
        fresh, old, new = [], [], []
        for key in mine:
            sighting = seen.get(key)
            if sighting is None:
                sighting = seen[key] = Sighting(name=key[0], fingerprint=key[1], first_seen=now, last_seen=now)
                fresh.append(sighting)
            elif not alive(sighting, now):
                sighting.first_seen = sighting.last_seen = now
                new.append(sighting.pk)
            elif sighting.last_seen < now - NOTED:
                sighting.last_seen = now
                old.append(sighting.pk)
        known = Sighting.objects.using(self.using)
        if fresh:
            known.bulk_create(fresh, ignore_conflicts=True)
        if new:
            known.filter(pk__in=new).update(first_seen=now, last_seen=now)
        if old:
            known.filter(pk__in=old).update(last_seen=now)
        return seen

    def _created(self, new: list[Declaration], now: datetime) -> list[Declaration]:
        """Rows for schedules that have none. They begin now: nothing in the past of them is missed."""
        if not new:
            return []
        made = [
            Periodic(name=one.name, created_at=now, decided_to=now, write_at=now, owner=Periodic.Owner.CODE, **_said(one))
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

    def _adopt(self, one: Declaration) -> None:
        """Puts a declaration in force, if it is the one, still: another version may have come since this one looked."""
        with locked(self.using, name=one.name) as row:
            now = schedule_rows.now(self.using)
            if row is None or _stands(row, one) or not in_force(one, Sighting.objects.using(self.using).filter(name=one.name), now):
                return
            came_back, before = row.retired_at is not None, dates_of(row)
            for name, value in _said(one).items():
                setattr(row, name, value)
            row.owner, row.retired_at = Periodic.Owner.CODE, None
            withdraw(row, now, self.using)
            # With the same dates what was missed is missed still, as when all workers were away for the deploy.
            begin(row, min(row.decided_to, now) if dates_of(row) == before and not came_back else now, now)
            row.save(using=self.using)
            what = "declared again" if came_back else "declared otherwise"
            note(row, "periodic_declared", now, self.using, reason=what, dates=one.dates.text)
        logger.info("schedule %s is %s: %s", one.name, what, one.dates.text)

    def _retire_one(self, name: str, now: datetime) -> None:
        with locked(self.using, name=name) as row:
            lately = Sighting.objects.using(self.using).filter(name=name, last_seen__gte=now - RETIRED)
            if row is None or row.retired_at is not None or row.owner != Periodic.Owner.CODE or lately.exists():
                return
            row.retired_at = now
            withdraw(row, now, self.using)
            begin(row, now, now)
            row.save(using=self.using)
            note(row, "periodic_retired", now, self.using, reason="no code has declared it for an hour")
        logger.warning("schedule %s is retired: no code has declared it for an hour. Its waiting jobs are cancelled", name)


def alive(sighting: Sighting, now: datetime) -> bool:
    """Whether it was seen lately. One from the future was noted before the database's clock was put back, and says nothing."""
    return now - ALIVE <= sighting.last_seen <= now + NOTED


def in_force(one: Declaration, seen: Iterable[Sighting], now: datetime) -> bool:
    """Whether that declaration is the last one that has come, among the sightings of its name."""
    rivals = [sighting for sighting in seen if alive(sighting, now)]
    last = max(rivals, key=lambda sighting: (sighting.first_seen, sighting.fingerprint), default=None)
    return last is not None and last.fingerprint == one.fingerprint


def _orphans(rows: Iterable[Periodic], seen: Seen, now: datetime) -> list[str]:
    """The schedules of code that nobody has declared for an hour."""
    if seen[WORKERS].first_seen > now - RETIRED:
        return []  # who would have declared it may not have been here
    last: dict[str, datetime] = {}
    for sighting in seen.values():
        last[sighting.name] = max(sighting.last_seen, last.get(sighting.name, sighting.last_seen))
    lives = [row.name for row in rows if row.retired_at is None and row.owner == Periodic.Owner.CODE]
    return [name for name in lives if name not in last or last[name] < now - RETIRED]


def _stands(row: Periodic | None, one: Declaration) -> bool:
    return row is not None and row.fingerprint == one.fingerprint and row.retired_at is None and row.owner == Periodic.Owner.CODE


def _said(one: Declaration) -> dict[str, Any]:
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
