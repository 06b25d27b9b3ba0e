"""A job as `schedule` and `get` return it."""

from __future__ import annotations

from collections.abc import Coroutine
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, Never, TypeVar, overload
from uuid import UUID

from asgiref.sync import sync_to_async

from django_delayq import clock, conf, ids
from django_delayq.exceptions import StoreUnavailable
from django_delayq.producer import acts, lookup, wait_for_result
from django_delayq.producer.async_api import refuse_loop, twin
from django_delayq.producer.breaker import Silent
from django_delayq.producer.lookup import JobRef
from django_delayq.producer.stores import stores
from django_delayq.states import FINISHED, UNFINISHED, Change, State

if TYPE_CHECKING:
    from typing_extensions import TypeVar as WithDefault

    R = WithDefault("R", covariant=True, default=Any)
else:
    R = TypeVar("R", covariant=True)
S = TypeVar("S")


class Job(JobRef, Generic[R]):
    """One job, by its id. To a type checker, `Job[str]` is a job whose task returns a `str`. `created` is False if another job has the
    key, and this object is that job; it is None while the transaction that decides is open.
    """

    __slots__ = ()

    @property
    def state(self) -> State | None:
        """The current state, read each time. None if it is not known: not committed yet, ended and not in the database, or
        unresolved.
        """
        refuse_loop("job.astate()")
        return _state(self.id, self.queue)

    async def astate(self) -> State | None:
        """Async version of `state`."""
        return await sync_to_async(_state)(self.id, self.queue)

    @property
    def error(self) -> str:
        """The text of the last attempt that failed, or ""."""
        found = wait_for_result.look(self)
        return "" if found is None else found.error

    @property
    def attempts(self) -> int:
        """How many attempts have counted so far."""
        found = wait_for_result.look(self)
        return 0 if found is None else found.attempts

    @property
    def asked(self) -> int:
        """How often the task has raised `NotYet` so far."""
        found = wait_for_result.look(self)
        return 0 if found is None else found.asked or 0

    def wait(self, timeout: clock.Delay) -> State | None:
        """Waits for the end of the job, for `timeout` at most. Returns the state, or None if the job has not ended.

        Raises:
            ResultGone: no row has the end, and none will.
            ConfigError: the end cannot come: inside a task, or in the transaction that publishes the job.
        """
        refuse_loop("job.aresult(…)")
        found = wait_for_result.wait_for(self, timeout)
        return None if found is None else State(found.state)

    @overload
    def result(self: Job[Coroutine[Any, Any, S]], timeout: clock.Delay = 0) -> S: ...
    @overload
    def result(self, timeout: clock.Delay = 0) -> R: ...
    def result(self, timeout: clock.Delay = 0) -> Any:
        """Returns the value that the task returned. Waits for it, for `timeout` at most; by default it does not wait.

        Raises:
            JobFailed: the job has failed, or was cancelled.
            NotFinished: the job has not ended within the timeout.
            ResultGone, ConfigError: as `wait`.
        """
        refuse_loop("job.aresult(…)")
        return wait_for_result.value(self, wait_for_result.wait_for(self, timeout))

    @overload
    async def aresult(self: Job[Coroutine[Any, Any, S]], timeout: clock.Delay = 0) -> S: ...
    @overload
    async def aresult(self, timeout: clock.Delay = 0) -> R: ...
    async def aresult(self, timeout: clock.Delay = 0) -> Any:
        """Async version of `result`."""
        return wait_for_result.value(self, await wait_for_result.awaited(self, timeout))

    def cancel(self, *, abort: bool = False, at_commit: bool = False, actor: str = "", reason: str = "") -> Change:
        """See `delayq.cancel`."""
        return acts.cancel(self, abort=abort, at_commit=at_commit, actor=actor, reason=reason)

    def reschedule(
        self,
        *given: Never,
        delay: clock.Delay | None = None,
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


def get(job: Job | UUID | str | None = None, *, key: str | None = None, queue: str | None = None) -> Job | None:
    """Finds a job by a job, by an id, or by `key` and `queue`: the unfinished job with the key. None if neither Redis nor the database
    has it. With an id, `queue` is where to look in Redis.

    Raises:
        StoreUnavailable: Redis cannot be reached, and the database does not have the id, or a key is given.
    """
    refuse_loop("delayq.aget(…)")
    if key is not None:
        named = lookup.keyed(key, queue, job)
        holder = lookup.far_of_key(named, key) or lookup.holder(named, key)
        if holder is None:
            # A row that Redis does not have; of others it is merely not mirrored that they came and went.
            holder = next((id for id in lookup.rows_of_key(named, key) if _holds(id, named)), None)
        return None if holder is None else _find(holder, named)
    return _find(*lookup.target(job, queue))


aget = twin(get)


def _find(id: UUID, queue: str | None) -> Job | None:
    row = lookup.row_of(id)
    if row is not None:
        return Job(
            id=id,
            queue=row.queue,
            task=row.record.task,
            key=row.record.key,
            due_ms=row.run_at_ms,
            created=True,
        )
    names = [queue] if queue else list(conf.get().queues)
    away = Silent()
    for name in names:
        link = stores.places.of(name, ids.partition(id))
        node = link.server
        if link in away:
            continue
        try:
            with stores.guarded(name, ids.partition(id)):
                view = stores.inspector().job(name, id)
        except StoreUnavailable as error:  # another server may have the job
            away.note(link, node, error)
            continue
        if view is not None:
            record = view.record
            return Job(
                id=id,
                queue=name,
                task=record.task if record else "",
                key=record.key if record else "",
                due_ms=view.date_ms if view.state == "scheduled" else None,
                created=True,
            )
    for unavailable in away.errors.values():
        raise unavailable
    return None


def _holds(id: UUID, queue: str) -> bool:
    row = lookup.row_of(id)
    return _state(id, queue) in UNFINISHED or (row is not None and row.unresolved)


def _state(id: UUID, queue: str) -> State | None:
    row = lookup.row_of(id)
    try:
        with stores.guarded(queue, ids.partition(id)):
            view = stores.inspector().job(queue, id)
    except StoreUnavailable:
        view = None
        if row is None:
            raise
    if view is None:
        return row.state if row is not None and not row.unresolved else None
    if view.state != "finished":
        return State(view.state)
    return row.state if row is not None and row.state in FINISHED else None
