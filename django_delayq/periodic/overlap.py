"""Prevents overlapping runs of one schedule. This code runs in the consumer threads of workers, before the task.

A run that begins writes itself into the schedule's row as the holder, unless the holder there is still running.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

from django.db import Error as DriverError

from django_delayq import ids
from django_delayq.exceptions import Skip, Snooze, StoreUnavailable
from django_delayq.models import Attempt, Periodic, Tick
from django_delayq.producer.stores import stores
from django_delayq.states import AttemptOutcome
from django_delayq.store.connection.error_replies import StoreError
from django_delayq.worker.current import CurrentJob, current

UNKNOWN: Final = 10.0  # seconds until the next check after the database or Redis was unavailable
SHORTEST, LONGEST = 1.0, 30.0  # limits of the seconds between two checks: a quarter of the time that the run has waited
TRIES: Final = 5
LOST: Final = (AttemptOutcome.RUNNING, AttemptOutcome.CRASHED)
Fate = Tick.Fate


def check(tick: Any) -> None:
    """Returns if the current job may run as this tick of a schedule.

    Raises:
        Skip: another run goes on, and the policy is "skip".
        Snooze: another run goes on, and the policy is "wait"; or the check was not possible.
    """
    policy = tick.get("overlap") if isinstance(tick, dict) else None
    if policy not in ("skip", "wait"):
        return
    job = current()
    try:
        held = _take(job, str(tick.get("name", "")))
        skipped = policy == "skip" and held and not _has_begun(job)
        if policy == "skip" and (skipped or not held):
            _note(job, Fate.SKIPPED if skipped else Fate.SCHEDULED)
    except (DriverError, StoreUnavailable, StoreError) as error:
        raise Snooze(UNKNOWN, f"could not check whether another run of the schedule is in progress: {type(error).__name__}") from None
    if not held:
        return
    if skipped:
        raise Skip(f"skipped: job {held} of the same schedule was running")
    raise Snooze(_wait(job, tick.get("tick")), f"waiting for job {held} of the same schedule")


def _has_begun(job: CurrentJob) -> bool:
    """Whether it ran before. If Redis lost that run, only its rows show it."""
    lost = Attempt.objects.filter(job_id=job.id, outcome__in=LOST).exclude(fence=job.nonce)
    return job.attempt > 1 or job.crashes > 0 or job.asked > 0 or lost.exists()


def _take(job: CurrentJob, name: str) -> str:
    """Makes the job the holder of the schedule, or returns the holder that runs. Reads again if the holder changed."""
    rows = Periodic.objects.filter(name=name)
    mine = f"{job.short_id}/{job.nonce}"
    holder = ""
    for _ in range(TRIES):
        found = rows.values_list("pk", "holder", "holder_queue").first()
        if found is None:
            return ""  # the schedule is deleted
        pk, holder, queue = found
        id, _, nonce = holder.partition("/")
        if holder and id != job.short_id and _runs(queue, id, nonce):
            return str(id)
        if holder == mine or rows.filter(pk=pk, holder=holder).update(holder=mine, holder_queue=job.queue):
            return ""
    return holder.partition("/")[0]  # many runs begin at once, and one of them was first


def _runs(queue: str, id: str, nonce: str) -> bool:
    """Whether that run still has its lease."""
    view = stores.view_of(ids.full(id), queue)
    return view is not None and view.state == "running" and view.fence == nonce and view.date_ms > view.now_ms


def _note(job: CurrentJob, fate: Fate) -> None:
    other = Fate.SCHEDULED if fate is Fate.SKIPPED else Fate.SKIPPED
    Tick.objects.filter(job_id=job.id, fate=other).update(fate=fate)


def _wait(job: CurrentJob, tick: Any) -> float:
    try:
        waited = (job.now - datetime.fromisoformat(tick)).total_seconds()
    except (TypeError, ValueError):
        return LONGEST
    return min(LONGEST, max(SHORTEST, waited / 4))
