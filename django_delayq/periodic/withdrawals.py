"""Ticks that are to be no more: their jobs are cancelled. Sent again, that changes nothing, so any process may do it, and finish it."""

from __future__ import annotations

from datetime import timedelta
from typing import Final
from uuid import UUID

from django.db.models import QuerySet

from django_delayq import ids
from django_delayq.exceptions import QueueUnknown
from django_delayq.logger import Logger
from django_delayq.models import Attempt, Job, Periodic, Tick
from django_delayq.periodic import schedule_rows
from django_delayq.periodic.schedule_rows import begin, locked
from django_delayq.producer import acts
from django_delayq.producer.stores import stores
from django_delayq.states import PUT_OFF, AttemptOutcome, Change, State

logger = Logger("django_delayq.periodic")

AT_ONCE: Final = 200  # jobs; a schedule has a few ahead, unless it is retired while its queue is paused
AWAY: Final = timedelta(days=1)
NO_RUN: Final = {*PUT_OFF, AttemptOutcome.RUNNING}  # attempts that prove no run: put off, or that may just have been


def carry_out(schedule: int, using: str, *, give_up: bool = False) -> bool:
    """Cancels the jobs of a schedule's withdrawn ticks, 200 at most. A job that has begun, against all expectation, keeps its tick. One
    in a queue that the settings do not list any more cannot be cancelled: it is left there behind its date, with `give_up` at once.
    Returns whether none is left.

    Raises:
        QueueUnknown: so one waits for its date; the others are done.
        StoreUnavailable, DatabaseError: call again; nothing is lost.
    """
    ticks = Tick.objects.using(using).filter(schedule_id=schedule, fate=Tick.Fate.WITHDRAWN)
    found = _read(schedule, ticks, using)
    why = _why(schedule, using) if found else ""
    unlisted = None
    for tick in found:
        mine = ticks.filter(pk=tick.pk, job_id=tick.job_id)
        try:
            gone = tick.job_id is None or (not _has_run(tick.job_id, using) and _cancelled(tick.job_id, tick.actor, why))
        except QueueUnknown as error:
            if tick.job_id is None or not (give_up or tick.run_at <= schedule_rows.now(using)):
                unlisted = error
                continue
            gone = _left_behind(tick.job_id, error, using)
        told = mine.update(fate=Tick.Fate.CANCELLED if gone else Tick.Fate.SCHEDULED)
        if gone and not told:
            _decide_anew(tick, using)
    if unlisted is not None:
        raise unlisted
    with locked(using, pk=schedule) as row:
        if row is None or not row.withdrawing or ticks.select_for_update().first() is not None:
            return row is None or not row.withdrawing
        still = row.write_at if row.active else None
        Periodic.objects.using(using).filter(pk=schedule).update(withdrawing=False, write_at=still, problem=None)
    return True


def _read(schedule: int, ticks: QuerySet[Tick], using: str) -> list[Tick]:
    """As they are, and not as the caller's transaction found them: where MySQL reads repeatably, what another process has done would be
    there to do for ever.
    """
    with locked(using, pk=schedule):  # first, as for all who write ticks
        return list(ticks.select_for_update().order_by("at")[:AT_ONCE])


def _left_behind(job: UUID, error: QueueUnknown, using: str) -> bool:
    """Whether that job, in a queue of which nobody here knows, has not begun as far as its row tells."""
    begun = Job.objects.using(using).filter(pk=job, state__in=(State.RUNNING, State.SUCCEEDED, State.FAILED)).exists()
    if not begun:
        logger.warning(
            "the job %s of a withdrawn tick stays in its queue: %s If that queue is served again, the job runs", ids.short(job), error
        )
    return not begun


def _decide_anew(tick: Tick, using: str) -> None:
    """Another process has found its job running, and left it to the tick; it was put off then, and is cancelled by now."""
    kept = Tick.objects.using(using).filter(pk=tick.pk, job_id=tick.job_id, fate=Tick.Fate.SCHEDULED)
    with locked(using, pk=tick.schedule_id) as row:
        if kept.update(fate=Tick.Fate.CANCELLED) and row is not None and row.active and row.decided_to >= tick.at:
            begin(row, tick.at - timedelta(milliseconds=1), schedule_rows.now(using))
            row.save(using=using, update_fields=["decided_to", "write_at", "problem"])


def _has_run(job: UUID, using: str) -> bool:
    """Whether it waits to be run again: its run has failed or asked, or its worker vanished. Its row hears of that later than Redis,
    and Redis may have lost it.
    """
    if Attempt.objects.using(using).filter(job_id=job).exclude(outcome__in=NO_RUN).exists():
        return True
    row = Job.objects.using(using).filter(pk=job).only("queue", "state", "attempts", "crashes", "asked").first()
    if row is None:
        return False
    with stores.guarded(row.queue, ids.partition(job)):
        view = stores.inspector().job(row.queue, job)
    if view is None:
        return row.state == State.SCHEDULED and bool(row.attempts or row.crashes or row.asked)
    return view.state == "scheduled" and bool(view.attempt or view.crashes or view.asks)


def _cancelled(job: UUID, actor: str, why: str) -> bool:
    """Whether that job is no more. One that has begun goes on: a cancel would ask it to stop, so it is moved out of the way first, to
    which a running one says that it runs, and nothing else.
    """
    if acts.reschedule(job, delay=AWAY, actor=actor, reason=why) is Change.RUNNING:
        return False
    return acts.cancel(job, actor=actor, reason=why) in (Change.DONE, Change.UNKNOWN)


def _why(schedule: int, using: str) -> str:
    row = Periodic.objects.using(using).filter(pk=schedule).first()
    if row is None or row.active:
        return "its schedule has other dates or arguments"
    return f"its schedule {row.name} is retired" if row.retired_at else f"its schedule {row.name} was turned off"
