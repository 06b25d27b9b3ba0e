"""Runs of one schedule that must not overlap: who begins takes hold of the schedule's row, unless the job that holds it is running."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final

from django.db import Error as DriverError

from django_delayq import conf, ids
from django_delayq.exceptions import Skip, Snooze, StoreUnavailable
from django_delayq.models import Attempt, Periodic, Tick
from django_delayq.producer.stores import stores
from django_delayq.states import PERIODIC, AttemptOutcome
from django_delayq.store.error_replies import StoreError
from django_delayq.worker.current import CurrentJob, current
from django_delayq.worker.run_context import Wrap

UNKNOWN: Final = 10.0  # seconds until one asks again, when the database or Redis could not be asked
SHORTEST, LONGEST = 1.0, 30.0  # seconds until a run that waits looks again: a quarter of the time for which it has waited
TRIES: Final = 5
LOST: Final = (AttemptOutcome.RUNNING, AttemptOutcome.CRASHED)
Fate = Tick.Fate


def guarded(wrap: Wrap | None) -> Wrap:
    """What a worker calls around runs, with the check in front of it. Jobs that are no ticks, and those of schedules that allow an
    overlap, pay a look into their meta.
    """

    def guard(fn: Callable[..., Any], meta: Mapping[str, Any], is_async: bool) -> Callable[..., Any]:
        if PERIODIC in meta:
            check(meta[PERIODIC])
        return fn if wrap is None else wrap(fn, meta, is_async)

    return guard


def check(tick: Any) -> None:
    """Lets the current job run, as that tick of a schedule.

    Raises:
        Skip: another one runs, and this one is not to be.
        Snooze: another one runs, and this one waits; or nobody can tell whether one runs.
    """
    policy = tick.get("overlap") if isinstance(tick, dict) else None
    if policy not in ("skip", "wait"):
        return
    job = current()
    try:
        held = _take(job, str(tick.get("name", "")))
        skipped = policy == "skip" and held and not _has_begun(job)
        if policy == "skip":
            if skipped:
                _note(job, Fate.SKIPPED)
            elif not held:
                _note(job, Fate.SCHEDULED)
    except (DriverError, StoreUnavailable, StoreError) as error:
        raise Snooze(UNKNOWN, f"could not check whether another run of the schedule is in progress: {type(error).__name__}") from None
    if not held:
        return
    if skipped:
        raise Skip(f"skipped: job {held} of the same schedule was running")
    raise Snooze(_wait(job, tick.get("tick")), f"waits for job {held} of the same schedule")


def _has_begun(job: CurrentJob) -> bool:
    """Whether it ran before. A run that Redis has lost counts nothing there, and only the rows have heard of it."""
    lost = Attempt.objects.using(conf.get().database).filter(job_id=job.id, outcome__in=LOST).exclude(fence=job.nonce)
    return job.attempt > 1 or job.crashes > 0 or job.asked > 0 or lost.exists()


def _take(job: CurrentJob, name: str) -> str:
    """Takes hold of the schedule; or returns the job that holds it, and runs. One by one: whoever has read what stands there no more
    looks again.
    """
    rows = Periodic.objects.using(conf.get().database).filter(name=name)
    mine = f"{job.short_id}/{job.nonce}"
    holder = ""
    for _ in range(TRIES):
        found = rows.values_list("pk", "holder", "holder_queue").first()
        if found is None:
            return ""  # the schedule is gone, and with it whom this one could meet
        pk, holder, queue = found
        id, _, nonce = holder.partition("/")
        if holder and id != job.short_id and _runs(queue, id, nonce):
            return str(id)
        if holder == mine or rows.filter(pk=pk, holder=holder).update(holder=mine, holder_queue=job.queue):
            return ""
    return holder.partition("/")[0]  # many begin at once, and one of them is first


def _runs(queue: str, id: str, nonce: str) -> bool:
    """Whether that run holds its lease."""
    job = ids.full(id)
    with stores.guarded(queue, ids.partition(job)):
        view = stores.inspector().job(queue, job)
    return view is not None and view.state == "running" and view.fence == nonce and view.date_ms > view.now_ms


def _note(job: CurrentJob, fate: Fate) -> None:
    other = Fate.SCHEDULED if fate is Fate.SKIPPED else Fate.SKIPPED
    Tick.objects.using(conf.get().database).filter(job_id=job.id, fate=other).update(fate=fate)


def _wait(job: CurrentJob, tick: Any) -> float:
    try:
        waited = (job.now - datetime.fromisoformat(tick)).total_seconds()
    except (TypeError, ValueError):
        return LONGEST
    return min(LONGEST, max(SHORTEST, waited / 4))
