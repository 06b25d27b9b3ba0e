"""Waits for the end of a job. It polls the row of the job."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final, Protocol
from uuid import UUID

from django.db import transaction

from django_delayq import clock, conf, ids
from django_delayq.exceptions import ConfigError, JobFailed, NotFinished, ResultGone, StoreUnavailable
from django_delayq.producer import async_api, outbox
from django_delayq.producer.options import duration
from django_delayq.producer.stores import stores
from django_delayq.states import FINISHED, REQUEUEABLE, UNFINISHED, State

if TYPE_CHECKING:
    from django_delayq.models import Job as Row

FIRST_LOOK: Final = 0.05  # seconds until the next poll; doubled each time
LAST_LOOK: Final = 1.0
MIRROR_GRACE: Final = 10.0  # seconds. A row that the mirror has not written by then is not kept

_in_task: Callable[[], bool] = bool


class Asked(Protocol):
    """The job to wait for."""

    @property
    def id(self) -> UUID:
        """Its id."""

    @property
    def short_id(self) -> str:
        """The same, for people."""

    @property
    def queue(self) -> str:
        """Its queue."""


def know_tasks(in_task: Callable[[], bool]) -> None:
    """Sets the function that returns whether a task runs in this thread. Called by workers."""
    global _in_task
    _in_task = in_task


def look(job: Asked) -> Row | None:
    """Returns the row of a job, or of the job that it was merged into. None: there is no row."""
    found = outbox.jobs.find(job.id) if outbox.installed else None
    if found is not None and found.merged_into is not None:
        return outbox.jobs.find(found.merged_into)
    return found


def waits(job: Asked, timeout: clock.Delay) -> Iterator[float]:
    """Yields the seconds to sleep before the next poll, until the timeout.

    Raises:
        ConfigError: the timeout is not a duration. While it yields: the end cannot come while the caller waits.
    """
    # Outside the generator, so that a wrong timeout raises even if there is no need to wait.
    return _pauses(job, duration(timeout, "timeout", f"job {job.short_id}") / 1000)


def _pauses(job: Asked, longest: float) -> Iterator[float]:
    until = clock.monotonic() + longest
    step = FIRST_LOOK
    while (left := until - clock.monotonic()) > 0:
        _refuse(job)
        yield min(step, left)
        step = min(2 * step, LAST_LOOK)


def ended(job: Asked, since: float) -> Row | None:
    """Returns the row of a job that has ended; None while it can still end. `since`: the start of the wait (monotonic seconds). After a
    requeue, the row shows the old end until the mirror has updated it, so this checks Redis, too.

    Raises:
        ResultGone: no row has the end, and none will.
    """
    found = look(job)
    if found is not None and found.unresolved:
        raise ResultGone(code="end_unknown", job=job.short_id)
    if found is not None and found.state not in REQUEUEABLE:
        return found if found.state in FINISHED else None
    view = None
    try:
        with stores.guarded(job.queue, ids.partition(job.id)):
            view = stores.inspector().job(job.queue, job.id)
    except StoreUnavailable:
        return found  # the row is all that is known
    if found is not None:
        return None if view is not None and view.state in UNFINISHED else found
    unfinished = view is not None and view.state != "finished"
    if unfinished or (view is not None and _kept(job.queue) and clock.monotonic() - since < MIRROR_GRACE):
        return None
    raise ResultGone(code="result_gone", job=job.short_id, queue=job.queue)


def value(job: Asked, found: Row | None) -> Any:
    """Returns the result of a row that has succeeded.

    Raises:
        JobFailed, NotFinished: it has not.
    """
    if found is None:
        raise NotFinished(code="not_finished", job=job.short_id)
    if found.state != State.SUCCEEDED:
        raise JobFailed(job=job.short_id, state=found.state, error=found.error)
    return found.result


def _kept(queue: str) -> bool:
    return conf.get().queue(queue).audit != "failures"


def _refuse(job: Asked) -> None:
    if _in_task():
        raise ConfigError(
            f"job {job.short_id}: a task must not wait for another job, because that job may wait for the thread of this one. "
            f"Schedule the next step from the other task, or raise delayq.Snooze and check again."
        )
    connection = transaction.get_connection(conf.get().database)
    if connection.in_atomic_block:
        found = look(job)
        if found is not None and found.durable and found.published is None and found.state == State.SCHEDULED:
            raise ConfigError(
                f"job {job.short_id}: it is published when this transaction commits, so it cannot end earlier. Wait after the commit."
            )


async def awaited(job: Asked, timeout: clock.Delay) -> Row | None:
    """Async version of `wait_for`."""
    pauses, since = waits(job, timeout), clock.monotonic()
    found = await async_api.in_thread(ended, job, since)
    while found is None and (seconds := await async_api.in_thread(next, pauses, None)) is not None:
        await async_api.pause(seconds)
        found = await async_api.in_thread(ended, job, since)
    return found


def wait_for(job: Asked, timeout: clock.Delay) -> Row | None:
    """Waits for the end of a job. Returns its row, or None after the timeout."""
    pauses, since = waits(job, timeout), clock.monotonic()
    found = ended(job, since)
    while found is None and (seconds := next(pauses, None)) is not None:
        clock.sleep(seconds)
        found = ended(job, since)
    return found
