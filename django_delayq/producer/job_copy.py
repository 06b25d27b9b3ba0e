"""A job once more, as a new one: for people who look at one that has ended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

from django_delayq.exceptions import PayloadError
from django_delayq.producer import carriers, edit
from django_delayq.producer.options import Options
from django_delayq.producer.schedule import put_in
from django_delayq.producer.task import registry
from django_delayq.states import COPY_OF, PERIODIC, SCHEDULED_BY, SCHEDULED_WHY

if TYPE_CHECKING:
    from django_delayq.models import Job as JobRow
    from django_delayq.producer.job import Job


def schedule_copy(
    job: JobRow,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    id: UUID,
    delay: float = 0,
    actor: str = "",
    reason: str = "",
) -> Job:
    """Schedules a job of the same task, queue, priority, ladder, timeout, key and meta, with these arguments and all its attempts. What
    carriers have packed for the first goes with the second, too. It is no job of a tick. `id`: that of the new one; asked again with
    it, nothing is put in twice. `delay`: seconds. Who asked, and why, stands in its meta.

    Raises:
        KeyTaken: an unfinished job has the key.
        UnknownTask, PayloadError, PayloadTooLarge, QueueUnknown: as `edit.check`; also for tasks of this package.
        StoreUnavailable: as for `schedule`.
    """
    edit.check(job.task, job.queue, args, kwargs)
    given = job.options or {}
    meta = {name: value for name, value in job.meta.items() if name not in (PERIODIC, SCHEDULED_WHY)}
    meta |= {COPY_OF: job.short_id, SCHEDULED_BY: actor} | ({SCHEDULED_WHY: reason} if reason else {})
    lasted = None if job.expires_at is None else job.expires_at - job.created_at + timedelta(seconds=delay)
    options = Options(
        delay=delay,
        key=job.key,
        on_conflict="error" if job.key else "keep",
        expires=lasted,
        meta=meta,
        queue=job.queue,
        priority=job.priority,
        max_attempts=job.max_attempts,
        backoff=given.get("backoff"),
        timeout=given.get("timeout"),
        concurrency=_own_name(job),
    )
    return put_in(
        registry.get(job.task), options, tuple(args), dict(kwargs), id, carried=carriers.propagated_context(given.get("meta"))
    )


def _own_name(job: JobRow) -> tuple[str, int] | None:
    """The name that the job shares with others, as a format, unless its task makes it."""
    name, task = job.shared_name, registry.get(job.task)
    if name is None:
        return None
    try:
        made = task.named.name(tuple(job.args), job.kwargs, job.task) if task.named else None
    except PayloadError:
        made = None
    return None if made == name else (name.text.replace("{", "{{").replace("}", "}}"), name.most)
