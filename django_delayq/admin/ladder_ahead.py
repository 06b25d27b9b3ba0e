"""The attempts that lie ahead of a job, with what its ladder says of each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from django_delayq import conf
from django_delayq.exceptions import QueueUnknown, UnknownTask
from django_delayq.ladder import Ladder
from django_delayq.models import Job
from django_delayq.producer.task import registry

STEPS: Final = 8  # of a ladder, shown one by one


@dataclass(frozen=True, slots=True)
class LadderStep:
    """An attempt to come, `wait` seconds after the one before it has failed; None where a function of the task decides."""

    attempt: int
    wait: float | None


def ladder(job: Job, made: int) -> tuple[list[LadderStep], int]:
    """The attempts behind attempt `made`, and how many more there are behind those."""
    left = max(0, job.max_attempts - made)
    shown = min(left, STEPS)
    found = _ladder_of(job)
    if found is None:
        return [LadderStep(made + n, None) for n in range(1, shown + 1)], left - shown
    waits = found.steps(made + shown)[made - 1 :] if made else found.steps(shown)
    return [LadderStep(made + n, waits[n - 1]) for n in range(1, shown + 1)], left - shown


def _ladder_of(job: Job) -> Ladder | None:
    """The job's own, else its task's, else its queue's; None for a function."""
    try:
        if text := (job.options or {}).get("backoff"):
            return Ladder(text)
    except (ValueError, TypeError):
        pass
    try:
        own: Any = registry.get(job.task).backoff
    except UnknownTask:
        own = None
    if own is not None:
        return own if isinstance(own, Ladder) else None
    try:
        return conf.get().queue(job.queue).backoff
    except QueueUnknown:
        return conf.get().backoff
