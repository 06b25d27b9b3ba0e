"""A job as JSON documents show it: those of the commands and of the gateway. Ids and dates stay objects, for `plain` to write."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

from django_delayq import clock, ids
from django_delayq.console import asks, masking
from django_delayq.models import Job
from django_delayq.states import NO_LIMIT
from django_delayq.store.reads.inspector import JobView


def job_document(job: Job, view: JobView | None = None, *, sensitive: bool = False) -> dict[str, Any]:
    """A row as JSON documents show it. What SENSITIVE or its task names is masked, unless `sensitive`. How often the job has asked is
    Redis' word where there is one; of how many times is None where nobody knows, or it never has.
    """
    asked = asks.of(job, view)
    args, kwargs, result, meta = job.args, job.kwargs, job.result, job.meta
    if not sensitive:
        args, kwargs = masking.arguments(job.task, args, kwargs)
        result, meta = masking.result(job.task, result), masking.attached(job.task, meta)
    return {
        "id": job.id,
        "uuid": str(job.id),
        "queue": job.queue,
        "task": job.task,
        "state": job.state,
        "derived": job.derived,
        "key": job.key,
        "args": args,
        "kwargs": kwargs,
        "priority": job.priority,
        "run_at": job.run_at,
        "created_at": job.created_at,
        "started_at": job.started_at,
        "finished_at": job.finished_at,
        "attempts": job.attempts,
        "max_attempts": 0 if job.max_attempts == NO_LIMIT else job.max_attempts,
        "crashes": job.crashes,
        "asked": asked.times if asked else 0,
        "asked_of": asked.most if asked else None,
        "worker": job.worker,
        "error": job.error,
        "result": result,
        "meta": meta,
        "published": job.published,
    }


def redis_document(view: JobView) -> dict[str, Any]:
    """What Redis knows of it now."""
    return {
        "queue": view.queue,
        "state": view.state,
        "date": clock.from_ms(view.date_ms),
        "attempt": view.attempt,
        "crashes": view.crashes,
        "asked": view.asks,
        "name": view.name,
        "turn": view.turn,
        "waits_for_name": view.blocked,
        "name_held_by": view.name_holder,
        "cancel_by": view.cancel_by,
        "aborts": view.aborts,
        "progress": view.progress,
    }


def plain(value: Any) -> Any:
    """A value as JSON has it: an id in 22 characters, a date in ISO 8601."""
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, UUID):
        return ids.short(value)
    raise TypeError(f"{type(value).__name__} has no JSON form")
