"""What came of a job: its row is looked at, again and again where somebody waits."""

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

FIRST_LOOK: Final = 0.05  # seconds until the row is looked at again; twice as long each time
LAST_LOOK: Final = 1.0
MIRROR_GRACE: Final = 10.0  # seconds in which a mirror has surely told the row what Redis knows; a row that lacks then is not kept

_in_task: Callable[[], bool] = bool


class Asked(Protocol):
    """The job that is asked about."""

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
    """Tells how to find out whether a task runs here: a worker does."""
    global _in_task
    _in_task = in_task


def look(job: Asked) -> Row | None:
    """The row of a job, or of that into which it was merged; None if there is none."""
    found = outbox.jobs.find(job.id, conf.get().database) if outbox.installed else None
    if found is not None and found.merged_into is not None:
        return outbox.jobs.find(found.merged_into, conf.get().database)
    return found


def waits(job: Asked, timeout: clock.Delay) -> Iterator[float]:
    """Seconds to sleep until the next look, for as long as the timeout lasts; at least one look comes without.

    Raises:
        ConfigError: the timeout is no duration; or, when it is asked, it would wait for what cannot come.
    """
    # Not within the generator, which begins when it is asked: a wrong timeout would pass for as long as nobody has to wait.
    return _pauses(job, duration(timeout, "timeout", f"job {job.short_id}") / 1000)


def _pauses(job: Asked, longest: float) -> Iterator[float]:
    until = clock.monotonic() + longest
    step = FIRST_LOOK
    while (left := until - clock.monotonic()) > 0:
        _refuse(job)
        yield min(step, left)
        step = min(2 * step, LAST_LOOK)


def ended(job: Asked, since: float) -> Row | None:
    """The row, if it has ended; None while it may still end. `since`: when the wait began (monotonic seconds). Of a failed or
    cancelled job that was put back the row tells that end until the mirror has heard of it, so Redis has a word, too.

    Raises:
        ResultGone: no row tells of it, and none will.
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
        return found  # without it, nobody knows
    if found is not None:
        return None if view is not None and view.state in UNFINISHED else found
    unfinished = view is not None and view.state != "finished"
    if unfinished or (view is not None and _kept(job.queue) and clock.monotonic() - since < MIRROR_GRACE):
        return None
    raise ResultGone(code="result_gone", job=job.short_id, queue=job.queue)


def value(job: Asked, found: Row | None) -> Any:
    """The result of a row that has succeeded.

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
    """`wait_for`, without a thread that waits."""
    pauses, since = waits(job, timeout), clock.monotonic()
    found = await async_api.in_thread(ended, job, since)
    while found is None and (seconds := await async_api.in_thread(next, pauses, None)) is not None:
        await async_api.pause(seconds)
        found = await async_api.in_thread(ended, job, since)
    return found


def wait_for(job: Asked, timeout: clock.Delay) -> Row | None:
    """The row once it has ended; None if it has not when the timeout is over."""
    pauses, since = waits(job, timeout), clock.monotonic()
    found = ended(job, since)
    while found is None and (seconds := next(pauses, None)) is not None:
        clock.sleep(seconds)
        found = ended(job, since)
    return found
