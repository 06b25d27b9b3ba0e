"""A job as `schedule` and `get` return it. To wait for its end, this module polls the row of the job."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Generic, Never, TypeVar, overload
from uuid import UUID

from asgiref.sync import sync_to_async
from django.db import connections

from django_delayq import clock, conf, durations
from django_delayq.exceptions import ConfigError, JobFailed, NotFinished, ResultGone, StoreUnavailable
from django_delayq.job_meta import bare
from django_delayq.producer import acts, async_api, lookup, outbox
from django_delayq.producer.async_api import refuse_loop, twin
from django_delayq.producer.commit import JobRef
from django_delayq.producer.options import duration
from django_delayq.producer.stores import stores
from django_delayq.states import FINISHED, REQUEUEABLE, UNFINISHED, Change, State

FIRST_LOOK: Final = 0.05  # seconds until the next poll; doubled each time
LAST_LOOK: Final = 1.0
MIRROR_GRACE: Final = 10.0  # seconds. A row that the mirror has not written by then is not kept

_in_task: Callable[[], bool] = bool

if TYPE_CHECKING:
    from typing_extensions import TypeVar as WithDefault

    from django_delayq.models import Job as Row

    R = WithDefault("R", covariant=True, default=Any)
else:
    R = TypeVar("R", covariant=True)
S = TypeVar("S")


class Job(JobRef, Generic[R]):
    """A job, identified by its id. `created` is False if another job already had the key, in which case this object refers to that job.
    It is None until the transaction commits.

    For type checkers, `Job[str]` is a job whose task returns a `str`. Annotate a variable that holds jobs of several tasks with `Job`.
    """

    __slots__ = ()

    @property
    def state(self) -> State | None:
        """The current state, which is read each time. It is None if it isn't known, because the job isn't committed yet, has ended but
        isn't in the database yet, or is unresolved.
        """
        refuse_loop("job.astate()")
        return _state(self.id, self.queue)

    async def astate(self) -> State | None:
        """Async version of `state`."""
        return await sync_to_async(_state)(self.id, self.queue)

    @property
    def error(self) -> str:
        """The error of the last failed attempt, or ""."""
        found = end_row(self)
        return "" if found is None else found.error

    @property
    def attempts(self) -> int:
        """The number of attempts so far."""
        found = end_row(self)
        return 0 if found is None else found.attempts

    @property
    def asked(self) -> int:
        """How many times the task has raised `NotYet` so far."""
        found = end_row(self)
        return 0 if found is None else found.asked or 0

    def wait(self, timeout: durations.Delay) -> State | None:
        """Waits until the job ends, for up to `timeout`. Returns the state, or None if the job hasn't ended in time.

        Raises:
            ResultGone: The end of the job isn't stored in a row and never will be.
            ConfigError: The job can't end during this call. It was called in a task, or in the transaction that publishes the job.
        """
        refuse_loop("job.aresult(…)")
        found = _wait_for(self, timeout)
        return None if found is None else State(found.state)

    @overload
    def result(self: Job[Coroutine[Any, Any, S]], timeout: durations.Delay = 0) -> S: ...
    @overload
    def result(self, timeout: durations.Delay = 0) -> R: ...
    def result(self, timeout: durations.Delay = 0) -> Any:
        """Returns the task's return value. With a timeout, it waits until the job ends.

        Raises:
            JobFailed: The job failed or was cancelled.
            NotFinished: The job hasn't ended in time.
            ResultGone, ConfigError: See `wait`.
        """
        refuse_loop("job.aresult(…)")
        return _value(self, _wait_for(self, timeout))

    @overload
    async def aresult(self: Job[Coroutine[Any, Any, S]], timeout: durations.Delay = 0) -> S: ...
    @overload
    async def aresult(self, timeout: durations.Delay = 0) -> R: ...
    async def aresult(self, timeout: durations.Delay = 0) -> Any:
        """Async version of `result`."""
        return _value(self, await _awaited(self, timeout))

    def cancel(self, *, abort: bool = False, at_commit: bool = False, actor: str = "", reason: str = "") -> Change:
        """See `delayq.cancel`."""
        return acts.cancel(self, abort=abort, at_commit=at_commit, actor=actor, reason=reason)

    def reschedule(
        self,
        *given: Never,
        delay: durations.Delay | None = None,
        run_at: datetime | None = None,
        at_commit: bool = False,
        actor: str = "",
        reason: str = "",
    ) -> Change:
        """See `delayq.reschedule`."""
        return acts.reschedule(self, *given, delay=delay, run_at=run_at, at_commit=at_commit, actor=actor, reason=reason)

    def run_now(self, *, actor: str = "", reason: str = "") -> Change:
        """See `delayq.run_now`."""
        return acts.run_now(self, actor=actor, reason=reason)

    def requeue(self, *, actor: str = "", reason: str = "") -> Change:
        """See `delayq.requeue`."""
        return acts.requeue(self, actor=actor, reason=reason)

    acancel, areschedule, arun_now, arequeue = twin(cancel), twin(reschedule), twin(run_now), twin(requeue)


def get(
    job: Job | UUID | str | None = None, *, key: str | None = None, queue: str | None = None, scope: str | None = None
) -> Job | None:
    """Finds a job by its id, or by `key` and `queue`. With a key, it returns the unfinished job that has the key. Returns None if
    neither Redis nor the database has such a job. With an id, `queue` is where to look in Redis. The key belongs to `scope`, by
    default the one that the setting `SCOPE` returns.

    Raises:
        StoreUnavailable: Redis can't be reached, and either the database doesn't have the job or you passed a key.
    """
    refuse_loop("delayq.aget(…)")
    if key is not None:
        named, key = lookup.keyed(key, queue, job, scope)
        holder = lookup.far_of_key(named, key) or lookup.holder(named, key)
        if holder is None:
            # A row that Redis does not have; of others it is merely not mirrored that they came and went.
            holder = next((id for id in lookup.rows_of_key(named, key) if _holds(id, named)), None)
        return None if holder is None else _find(holder, named)
    return _find(*lookup.target(job, queue, scope))


aget = twin(get)


def _find(id: UUID, queue: str | None) -> Job | None:
    row = lookup.row_of(id)
    if row is not None:
        return Job(
            id=id,
            queue=row.queue,
            task=row.record.task,
            key=bare(row.record.key),
            due_ms=row.run_at_ms,
            created=True,
            scope=row.record.scope,
        )
    view, error = stores.find_view([queue] if queue else conf.get().queues, id)
    if view is None:
        if error is not None:
            raise error
        return None
    record = view.record
    return Job(
        id=id,
        queue=view.queue,
        task=record.task if record else "",
        key=bare(record.key) if record else "",
        due_ms=view.date_ms if view.state == "scheduled" else None,
        created=True,
        scope=record.scope if record else "",
    )


def _holds(id: UUID, queue: str) -> bool:
    row = lookup.row_of(id)
    return _state(id, queue) in UNFINISHED or (row is not None and row.unresolved)


def _state(id: UUID, queue: str) -> State | None:
    row = lookup.row_of(id)
    try:
        view = stores.view_of(id, queue)
    except StoreUnavailable:
        view = None
        if row is None:
            raise
    if view is None:
        return row.state if row is not None and not row.unresolved else None
    if view.state != "finished":
        return State(view.state)
    return row.state if row is not None and row.state in FINISHED else None


def know_tasks(in_task: Callable[[], bool]) -> None:
    """Sets the function that returns whether a task runs in this thread. Called by workers."""
    global _in_task
    _in_task = in_task


def end_row(job: JobRef) -> Row | None:
    """Returns the row of a job, or of the job that it was merged into. None: there is no row."""
    found = outbox.jobs.find(job.id) if outbox.installed else None
    return outbox.jobs.find(found.merged_into) if found is not None and found.merged_into is not None else found


def _wait_for(job: JobRef, timeout: durations.Delay) -> Row | None:
    """Waits for the end of a job. Returns its row, or None after the timeout."""
    pauses, since = _pauses(job, timeout), clock.monotonic()
    found = _ended(job, since)
    while found is None and (seconds := next(pauses, None)) is not None:
        clock.sleep(seconds)
        found = _ended(job, since)
    return found


async def _awaited(job: JobRef, timeout: durations.Delay) -> Row | None:
    """Async version of `_wait_for`."""
    pauses, since = _pauses(job, timeout), clock.monotonic()
    found = await async_api.in_thread(_ended, job, since)
    while found is None and (seconds := await async_api.in_thread(next, pauses, None)) is not None:
        await async_api.pause(seconds)
        found = await async_api.in_thread(_ended, job, since)
    return found


def _pauses(job: JobRef, timeout: durations.Delay) -> Iterator[float]:
    """Yields the seconds to sleep before the next poll, until the timeout.

    Raises:
        ConfigError: the timeout is not a duration. While it yields: the end cannot come while the caller waits.
    """
    longest = duration(timeout, "timeout", f"job {job.short_id}") / 1000

    # A wrong timeout raises even if there is no need to wait.
    def pauses() -> Iterator[float]:
        until, step = clock.monotonic() + longest, FIRST_LOOK
        while (left := until - clock.monotonic()) > 0:
            _refuse_wait(job)
            yield min(step, left)
            step = min(2 * step, LAST_LOOK)

    return pauses()


def _refuse_wait(job: JobRef) -> None:
    if _in_task():
        raise ConfigError(
            f"job {job.short_id}: a task cannot wait for another job, because that job may need the same thread. Schedule "
            "the next step in the other task, or raise delayq.Snooze and check again."
        )
    if connections[conf.get().database].in_atomic_block:
        found = end_row(job)
        if found is not None and found.durable and found.published is None and found.state == State.SCHEDULED:
            raise ConfigError(
                f"job {job.short_id} is published when this transaction commits, so it cannot end before that. Wait for "
                "it after the commit."
            )


def _ended(job: JobRef, since: float) -> Row | None:
    """Returns the row of a job that has ended; None while it can still end. `since`: the start of the wait (monotonic seconds). After a
    requeue, the row shows the old end until the mirror has updated it, so this checks Redis, too.

    Raises:
        ResultGone: no row has the end, and none will.
    """
    found = end_row(job)
    if found is not None and found.unresolved:
        raise ResultGone(code="end_unknown", job=job.short_id)
    if found is not None and found.state not in REQUEUEABLE:
        return found if found.state in FINISHED else None
    try:
        view = stores.view_of(job.id, job.queue)
    except StoreUnavailable:
        return found  # the row is all that is known
    if found is not None:
        return None if view is not None and view.state in UNFINISHED else found
    unfinished = view is not None and view.state != "finished"
    mirrored = conf.get().queue(job.queue).audit != "failures"
    if unfinished or (view is not None and mirrored and clock.monotonic() - since < MIRROR_GRACE):
        return None
    raise ResultGone(code="result_gone", job=job.short_id, queue=job.queue)


def _value(job: JobRef, found: Row | None) -> Any:
    """Returns the result of a row that has succeeded.

    Raises:
        JobFailed, NotFinished: it has not.
    """
    if found is None:
        raise NotFinished(code="not_finished", job=job.short_id)
    if found.state != State.SUCCEEDED:
        raise JobFailed(job=job.short_id, state=found.state, error=found.error)
    return found.result
