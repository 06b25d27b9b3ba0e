"""Changes of a schedule's row: its lock, its dates, its events, and withdrawn ticks, whose jobs are cancelled here.

A repeated cancel changes nothing, so each process may start it, and each other one may finish it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

from django.db.models import Exists, F, OuterRef, QuerySet

from django_delayq import ids
from django_delayq.exceptions import QueueUnknown
from django_delayq.logger import Logger
from django_delayq.models import Attempt, Event, Job, Periodic, Tick, database
from django_delayq.periodic.dates import LONGEST_JITTER_MS, Dates
from django_delayq.producer import acts
from django_delayq.producer.outbox import rows
from django_delayq.producer.stores import stores
from django_delayq.states import PUT_OFF, AttemptOutcome, Change, State

logger = Logger("django_delayq.periodic")

AT_ONCE: Final = 200  # jobs; a schedule has a few ahead, but more if it is retired while its queue is paused
AWAY: Final = timedelta(minutes=1)  # by which a job is late if its cancel ends halfway, and it is kept because it has run
NO_RUN: Final = {*PUT_OFF, AttemptOutcome.RUNNING}  # attempts that prove no run: put off, or that may just have been
ACTS: Final = "periodic:"  # the start of the stream ids of such events; the schedule's own follows


@contextmanager
def locked(**which: Any) -> Iterator[Periodic | None]:
    """Yields the locked row of a schedule in a transaction, or None."""
    with database.atomic():
        mine = Periodic.objects.filter(**which)
        mine.update(withdrawing=F("withdrawing"))  # takes the lock on all databases
        yield mine.select_for_update().first()  # with repeatable reads MySQL would show the row as the caller's transaction found it


def now() -> datetime:
    """The database's clock. All decisions about schedules use it."""
    return database.now()


def dates_of(row: Periodic) -> Dates:
    """The dates in force: the override or its own. The jitter is at most half of a shorter period, so ticks stay in order."""
    if not row.overridden:
        return Dates(row.cron, row.every_ms, row.timezone, row.jitter_ms)
    jitter_ms = min(row.jitter_ms, row.override_every_ms // 2) if row.override_every_ms else row.jitter_ms
    return Dates(row.override_cron, row.override_every_ms, row.override_timezone, jitter_ms)


def withdraw(row: Periodic, now: datetime, *, actor: str = "") -> None:
    """Marks future ticks as withdrawn; call it in the transaction of the row. A tick whose date has passed is decided, and keeps its
    job even if jitter delays it. If the schedule is off, all ticks that are not due are withdrawn; if it is retired, all that have not
    begun. `cancel_withdrawn` cancels the jobs.
    """
    ticks = Tick.objects.filter(schedule=row, fate=Tick.Fate.SCHEDULED, by_hand=False)
    if row.retired_at is not None:
        unrun = {"state": State.SCHEDULED.value, "attempts": 0, "crashes": 0, "asked": None}
        jobs = Job.objects.filter(pk=OuterRef("job_id"), **unrun)
        ticks = ticks.filter(Exists(jobs))
    elif row.enabled:
        ticks = ticks.filter(at__gt=now)
    else:
        ticks = ticks.filter(at__gt=now - timedelta(milliseconds=LONGEST_JITTER_MS), run_at__gt=now)  # the former for the index
    if ticks.update(fate=Tick.Fate.WITHDRAWN, actor=rows.clean(actor, 200)):
        row.withdrawing = True


def begin(row: Periodic, since: datetime, now: datetime) -> None:
    """Lets the loop decide anew about all ticks after `since`. If the schedule is off, it decides about none."""
    row.decided_to = since
    row.write_at = now if row.active or row.withdrawing else None
    row.problem = None


def note(row: Periodic, kind: str, at: datetime, *, actor: str = "", reason: str = "", **detail: Any) -> None:
    """Writes an event of a schedule."""
    full: Any = {"schedule": row.name, **detail}
    Event.objects.create(
        job=None,
        queue="",
        at=at,
        kind=kind,
        actor=rows.clean(actor, 200),
        reason=rows.clean(reason),
        detail=full,
        stream_id=f"{ACTS}{row.pk}:{ids.short(ids.new())}",
    )


def events(row: Periodic, n: int) -> list[Event]:
    """Its events, the last one first."""
    begins = f"{ACTS}{row.pk}:"
    return list(Event.objects.filter(queue="", stream_id__startswith=begins).order_by("-id")[:n])


def cancel_withdrawn(schedule: int, *, give_up: bool = False) -> bool:
    """Cancels the jobs of a schedule's withdrawn ticks, 200 at most. Returns whether none is left. A job that has begun keeps its tick.
    A job cannot be cancelled if the settings no longer list its queue. It stays there after its date, or at once with `give_up`.

    Raises:
        QueueUnknown: a job of such a queue waits for its date. All others are done.
        StoreUnavailable, DatabaseError: call again; nothing is lost.
    """
    ticks = Tick.objects.filter(schedule_id=schedule, fate=Tick.Fate.WITHDRAWN)
    found = _read_withdrawn(schedule, ticks)
    why = _cancel_reason(schedule) if found else ""
    unlisted = None
    for tick in found:
        mine = ticks.filter(pk=tick.pk, job_id=tick.job_id)
        try:
            gone = tick.job_id is None or (not _has_run(tick.job_id) and _cancelled(tick.job_id, tick, why))
        except QueueUnknown as error:
            if tick.job_id is None or not (give_up or tick.run_at <= now()):
                unlisted = error
                continue
            gone = _left_behind(tick.job_id, error)
        changed = mine.update(fate=Tick.Fate.CANCELLED if gone else Tick.Fate.SCHEDULED)
        if gone and not changed:
            _decide_anew(tick)
    if unlisted is not None:
        raise unlisted
    with locked(pk=schedule) as row:
        if row is None or not row.withdrawing or ticks.select_for_update().first() is not None:
            return row is None or not row.withdrawing
        still = row.write_at if row.active else None
        Periodic.objects.filter(pk=schedule).update(withdrawing=False, write_at=still, problem=None)
    return True


def _read_withdrawn(schedule: int, ticks: QuerySet[Tick]) -> list[Tick]:
    """Reads committed rows, not those of the caller's snapshot: with repeatable reads, MySQL would never show what another process
    has done.
    """
    with locked(pk=schedule):  # the schedule's row first, like each writer of ticks
        return list(ticks.select_for_update().order_by("at")[:AT_ONCE])


def _left_behind(job: UUID, error: QueueUnknown) -> bool:
    """True if the row says that the job has not started. For queues missing from the settings."""
    begun = Job.objects.filter(pk=job, state__in=(State.RUNNING, State.SUCCEEDED, State.FAILED)).exists()
    if not begun:
        logger.warning(
            "the job %s of a cancelled tick remains in its queue: %s If a worker serves the queue again, the job runs",
            ids.short(job),
            error,
        )
    return not begun


def _decide_anew(tick: Tick) -> None:
    """Another process found the job running and kept the tick. The job was then put off, and is cancelled now."""
    kept = Tick.objects.filter(pk=tick.pk, job_id=tick.job_id, fate=Tick.Fate.SCHEDULED)
    with locked(pk=tick.schedule_id) as row:
        if kept.update(fate=Tick.Fate.CANCELLED) and row is not None and row.active and row.decided_to >= tick.at:
            begin(row, tick.at - timedelta(milliseconds=1), now())
            row.save(using=database.alias(), update_fields=["decided_to", "write_at", "problem"])


def _has_run(job: UUID) -> bool:
    """Whether it has run and waits for its next run. The row learns that later than Redis, and Redis may have lost it."""
    if Attempt.objects.filter(job_id=job).exclude(outcome__in=NO_RUN).exists():
        return True
    row = Job.objects.filter(pk=job).only("queue", "state", "attempts", "crashes", "asked").first()
    if row is None:
        return False
    view = stores.view_of(job, row.queue)
    if view is None:
        return row.state == State.SCHEDULED and bool(row.attempts or row.crashes or row.asked)
    return view.state == "scheduled" and bool(view.attempt or view.crashes or view.asks)


def _cancelled(job: UUID, tick: Tick, why: str) -> bool:
    """Whether that job is cancelled. A running job goes on. `cancel` would stop it, so `reschedule` moves the job first: for a running
    job this only returns RUNNING. A job that ran and failed before it was moved keeps its retry.
    """
    delay = max(tick.run_at - now(), timedelta()) + AWAY
    if acts.reschedule(job, delay=delay, actor=tick.actor, reason=why) is Change.RUNNING or _has_run(job):
        return False
    return acts.cancel(job, actor=tick.actor, reason=why) in (Change.DONE, Change.UNKNOWN)


def _cancel_reason(schedule: int) -> str:
    row = Periodic.objects.filter(pk=schedule).first()
    if row is None or row.active:
        return "its schedule has other dates or arguments"
    return f"its schedule {row.name} is retired" if row.retired_at else f"its schedule {row.name} was turned off"
