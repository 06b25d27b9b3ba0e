"""What all that changes a schedule's row has in common: the lock, the dates that hold, where it begins anew, and the event that tells
who did it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any, Final

from django.db import connections, transaction
from django.db.models import Exists, F, OuterRef

from django_delayq import ids
from django_delayq.mirror import database_clock, rows
from django_delayq.models import Event, Job, Periodic, Tick
from django_delayq.periodic.dates import LONGEST_JITTER_MS, Dates
from django_delayq.states import State

ACTS: Final = "periodic:"  # what the stream ids of such events begin with, before the schedule's own


@contextmanager
def locked(using: str, **which: Any) -> Iterator[Periodic | None]:
    """The row of a schedule in a transaction that nobody else can change it in; None if there is none."""
    with transaction.atomic(using=using):
        mine = Periodic.objects.using(using).filter(**which)
        mine.update(withdrawing=F("withdrawing"))  # takes the lock on all databases
        yield mine.select_for_update().first()  # with repeatable reads MySQL would show the row as the caller's transaction found it


def now(using: str) -> datetime:
    """The database's clock, by which everything about schedules is decided."""
    return database_clock.now(connections[using])


def dates_of(row: Periodic) -> Dates:
    """The dates that hold: those that people have given it in place of its own, or these. Of a period that people have made shorter,
    the jitter is half at most, so that ticks stay in order.
    """
    if not row.overridden:
        return Dates(row.cron, row.every_ms, row.timezone, row.jitter_ms)
    jitter_ms = min(row.jitter_ms, row.override_every_ms // 2) if row.override_every_ms else row.jitter_ms
    return Dates(row.override_cron, row.override_every_ms, row.override_timezone, jitter_ms)


def withdraw(row: Periodic, now: datetime, using: str, *, actor: str = "") -> None:
    """In the row's own transaction: its ticks ahead are to be no more. One whose date has passed keeps its job, though jitter has it
    wait: it is decided. But of a schedule that is off all goes that is not due yet, and of a retired one all that has not begun.
    `withdrawals` cancels the jobs.
    """
    ticks = Tick.objects.using(using).filter(schedule=row, fate=Tick.Fate.SCHEDULED, by_hand=False)
    if row.retired_at is not None:
        unrun = {"state": State.SCHEDULED.value, "attempts": 0, "crashes": 0, "asked": None}
        jobs = Job.objects.using(using).filter(pk=OuterRef("job_id"), **unrun)
        ticks = ticks.filter(Exists(jobs))
    elif row.enabled:
        ticks = ticks.filter(at__gt=now)
    else:
        ticks = ticks.filter(at__gt=now - timedelta(milliseconds=LONGEST_JITTER_MS), run_at__gt=now)  # the former for the index
    if ticks.update(fate=Tick.Fate.WITHDRAWN, actor=rows.clean(actor, 200)):
        row.withdrawing = True


def begin(row: Periodic, since: datetime, now: datetime) -> None:
    """Lets it decide anew about all ticks after that moment; if it is off, about none."""
    row.decided_to = since
    row.write_at = now if row.active or row.withdrawing else None
    row.problem = None


def note(row: Periodic, kind: str, at: datetime, using: str, *, actor: str = "", reason: str = "", **detail: Any) -> None:
    """An event of a schedule, beside those of jobs and queues."""
    told: Any = {"schedule": row.name, **detail}
    Event.objects.using(using).create(
        job=None,
        queue="",
        at=at,
        kind=kind,
        actor=rows.clean(actor, 200),
        reason=rows.clean(reason),
        detail=told,
        stream_id=f"{ACTS}{row.pk}:{ids.short(ids.new())}",
    )


def events(row: Periodic, using: str, n: int) -> list[Event]:
    """What people and deploys did to it, the last one first."""
    begins = f"{ACTS}{row.pk}:"
    return list(Event.objects.using(using).filter(queue="", stream_id__startswith=begins).order_by("-id")[:n])
