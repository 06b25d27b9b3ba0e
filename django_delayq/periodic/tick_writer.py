"""Writes ticks with their jobs: the rows of both, and how far the schedule is, in one transaction."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from django.db import IntegrityError, connections, transaction
from django.db.models import F

from django_delayq.failpoints import failpoint
from django_delayq.logger import Logger
from django_delayq.mirror import checkpoint
from django_delayq.models import Periodic, Tick
from django_delayq.periodic.declarations import Declaration
from django_delayq.periodic.portion import Portion, portion
from django_delayq.periodic.schedule_rows import dates_of, note
from django_delayq.producer import homes
from django_delayq.producer.options import NONE, templates
from django_delayq.producer.schedule import Binding, schedule_many
from django_delayq.producer.task import registry
from django_delayq.states import PERIODIC

logger = Logger("django_delayq.periodic")

HELD_UP: Final = timedelta(seconds=1)  # after which one looks again whether the former job of a tick is cancelled
LONGEST_HELD: Final = timedelta(hours=1)  # behind its date a tick is given up whose former job cannot be: its queue is no more, say
OPTIONS: Final = NONE._replace(durability="outbox")  # of the job of a tick
LONGEST: Final = datetime.max.replace(tzinfo=UTC)  # no tick takes more room in a payload
Fate = Tick.Fate


@dataclass(slots=True)
class _Batch:
    """What one transaction is about to write. `careful`: rows of ticks may be there already."""

    now: datetime
    careful: bool
    bindings: list[Binding] = field(default_factory=list)
    ticks: list[Tick] = field(default_factory=list)
    retaken: list[Tick] = field(default_factory=list)
    rows: list[Periodic] = field(default_factory=list)
    missed: list[tuple[Periodic, Portion]] = field(default_factory=list)


class TickWriter:
    """1. Locks the rows of schedules for which there is something to do; what another loop has locked it leaves to that. 2. Decides
    which ticks get a job. 3. Inserts ticks, then jobs, and says in the schedules' rows how far they are. 4. Commits; the hook of the
    commit publishes the jobs, or else the relay does.

    A tick that has a row is decided, and gets no second job; only one whose job was cancelled since it was withdrawn gets another.
    Mostly there is none: so nobody looks, and where the unique index says otherwise all is rolled back, and the loop has it done again,
    schedule by schedule, with a look. The index alone makes a tick one job, whatever a database makes of locks.

    It dies at any point without harm: nothing of it is there, or all.
    """

    def __init__(self, *, using: str, mine: Callable[[Periodic], bool]) -> None:
        self.using = using
        self._mine = mine

    def write(self, schedules: Sequence[int], now: datetime) -> int:
        """Writes what is due of these schedules. Returns of how many; the others are in somebody else's hands.

        Raises:
            IntegrityError: it may be that rows of ticks are there already. Nothing is written; write one by one.
            DelayqError: a job cannot be made. Nothing is written.
            DatabaseError: likewise; call again.
        """
        return self._write(schedules, _Batch(now, careful=False))

    def write_one(self, schedule: int, now: datetime) -> int:
        """Writes what is due of this schedule, and looks first which of its ticks are there. Returns 0 if somebody else has it in hand.

        Raises:
            IntegrityError: the database refuses its rows, whoever writes them.
            DelayqError, DatabaseError: as `write`.
        """
        batch = _Batch(now, careful=True)
        try:
            return self._write([schedule], batch)
        except IntegrityError:
            if self._known(schedule, [tick.at for tick in batch.ticks]):
                return 0  # somebody was first, since the look; the next one sees what is left
            raise

    def _write(self, schedules: Sequence[int], batch: _Batch) -> int:
        with transaction.atomic(using=self.using):
            checkpoint.end_if_frozen(connections[self.using])
            for row in self._locked(schedules):
                if row.active and row.write_at is not None and row.write_at <= batch.now and self._mine(row):
                    self._decide(row, batch)
            self._save(batch)
            failpoint("ticks.write")
        failpoint("ticks.written")
        for row, found in batch.missed:
            _tell(row, found)
        return len(batch.rows)

    def _locked(self, schedules: Sequence[int]) -> list[Periodic]:
        found = Periodic.objects.using(self.using).filter(pk__in=schedules).order_by("pk")
        if connections[self.using].features.has_select_for_update_skip_locked:
            return list(found.select_for_update(skip_locked=True))
        found.order_by().update(withdrawing=F("withdrawing"))  # takes the locks on all databases
        return list(found)

    def _decide(self, row: Periodic, batch: _Batch) -> None:
        now, dates = batch.now, dates_of(row)
        found = portion(dates, row.name, row.missed, row.decided_to, now)
        known = self._known(row.pk, [*found.jobs, *found.missed]) if batch.careful else {}
        task = registry.get(row.task)
        found = _before(found, row.decided_to, now, [at for at, tick in known.items() if tick.fate == Fate.WITHDRAWN])
        row.write_at = found.write_at
        for at in found.jobs:
            there = known.get(at)
            if there is None or there.fate == Fate.CANCELLED:
                run_at = dates.jittered(row.name, at)
                options = OPTIONS._replace(run_at=run_at, using=self.using)
                job = homes.drawn(task, options, tuple(row.args), dict(row.kwargs))
                batch.bindings.append(Binding(task, options, tuple(row.args), dict(row.kwargs), job, told(row, at)))
                tick = Tick(schedule_id=row.pk, at=at, run_at=run_at, fate=Fate.SCHEDULED, job_id=job, written_at=now)
                if there is not None:
                    tick.pk = there.pk
                (batch.ticks if there is None else batch.retaken).append(tick)
        for at in found.missed:
            there = known.get(at)
            if there is None or there.fate == Fate.CANCELLED:
                tick = Tick(schedule_id=row.pk, at=at, run_at=dates.jittered(row.name, at), fate=Fate.MISSED, written_at=now)
                if there is not None:
                    tick.pk = there.pk
                (batch.ticks if there is None else batch.retaken).append(tick)
        if found.missed:
            batch.missed.append((row, found))
        row.decided_to, row.problem = found.decided_to, None
        batch.rows.append(row)

    def _known(self, schedule: int, instants: Sequence[datetime]) -> dict[datetime, Tick]:
        if not instants:
            return {}
        found = Tick.objects.using(self.using).filter(schedule_id=schedule, by_hand=False, at__gte=min(instants), at__lte=max(instants))
        return {tick.at: tick for tick in found}

    def _save(self, batch: _Batch) -> None:
        ticks, schedules = Tick.objects.using(self.using), Periodic.objects.using(self.using)
        ticks.bulk_create(batch.ticks)
        for tick in batch.retaken:
            tick.save(using=self.using, update_fields=["job_id", "run_at", "fate", "written_at", "actor"])
        for binding, job in zip(batch.bindings, schedule_many(batch.bindings), strict=True):
            if job.id != binding.id:  # jobs of its name are in a partition where it had its home before
                ticks.filter(job_id=binding.id).update(job_id=job.id)
        schedules.bulk_update(batch.rows, ["decided_to", "write_at", "problem"])
        for row, found in batch.missed:
            note(row, "periodic_missed", batch.now, self.using, **_missed(found))


def _before(found: Portion, decided_to: datetime, now: datetime, withdrawn: Sequence[datetime]) -> Portion:
    """What can be written now: a tick that is still withdrawn waits until its former job is cancelled, and what is behind it, too."""
    held = min((at for at in withdrawn if at > now - LONGEST_HELD), default=None)
    if held is None:
        return found
    jobs, missed = ([at for at in some if at < held] for some in (found.jobs, found.missed))
    end = max([decided_to, *jobs, *missed])
    return replace(found, jobs=jobs, missed=missed, decided_to=end, write_at=now + HELD_UP)


def check_jobs(one: Periodic | Declaration) -> None:
    """Whether the ticks of a schedule can have jobs: what the writer would find at each of them.

    Raises:
        UnknownTask: its task is not registered in this process.
        PayloadError, PayloadTooLarge: its arguments do not fit the task, or its queue.
        QueueUnknown: the settings do not list that.
    """
    args, kwargs = tuple(one.args), dict(one.kwargs)
    template = templates.get(registry.get(one.task), OPTIONS, None)
    template.check(args, kwargs)
    template.payload_of(args, kwargs, {PERIODIC: told(one, LONGEST, by_hand=True)})


def told(row: Periodic | Declaration, at: datetime, *, by_hand: bool = False) -> dict[str, Any]:
    """What the job of a tick says of it in its meta."""
    tick: dict[str, Any] = {"name": row.name, "tick": at.isoformat()}
    if row.overlap != "allow":
        tick["overlap"] = row.overlap
    if by_hand:
        tick["by_hand"] = True
    return tick


def _missed(found: Portion) -> dict[str, Any]:
    detail: dict[str, Any] = {"missed": len(found.missed), "first": found.missed[0].isoformat(), "last": found.missed[-1].isoformat()}
    return detail if found.since is None else {**detail, "since": found.since.isoformat()}


def _tell(row: Periodic, found: Portion) -> None:
    first, last = found.since or found.missed[0], found.missed[-1]
    count = f"more than {len(found.missed)}" if found.since else str(len(found.missed))
    logger.warning(
        "schedule %s: %s of its ticks, from %s to %s, have passed without a job (missed=%r)", row.name, count, first, last, row.missed
    )
