"""Runs jobs in the calling thread, on its database connections: for tests, and for projects with `DELAYQ["INLINE"]`."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Set
from dataclasses import replace
from typing import Any, Final

from asgiref.sync import async_to_sync

from django_delayq import clock, conf, ids
from django_delayq.periodic import overlap
from django_delayq.producer import carriers
from django_delayq.producer.commit import Plan
from django_delayq.producer.options import Options
from django_delayq.producer.task import Task, registry
from django_delayq.states import PERIODIC
from django_delayq.store.scripts.queue import Outcome
from django_delayq.store.scripts.record import MAX_ATTEMPTS, ClaimedJob
from django_delayq.worker.current import CURRENT, Run
from django_delayq.worker.lease_table import LeaseTable
from django_delayq.worker.line import Line, lines_of
from django_delayq.worker.process.executor import Executor
from django_delayq.worker.process.task_call import Coroutines
from django_delayq.worker.process.timeouts import SoftTimer
from django_delayq.worker.receivers import Receiver, SignalReceiver
from django_delayq.worker.spec import nothing

FOREVER: Final = 10.0**9  # seconds; a test that stops in a debugger loses no lease
BY_HAND: Final = "byhand"


class CoroutinesHere(Coroutines):
    """Runs coroutines to their end in the calling thread. Functions that they call by `sync_to_async` run in this thread, too."""

    def call(self, run: Run, fn: Callable[..., Coroutine[Any, Any, Any]], aborted: Set[tuple[int, int]]) -> Any:
        """See `Coroutines`; there is no timeout."""
        current = run.current
        assert current is not None

        async def here() -> Any:
            CURRENT.set(current)
            return await fn(*run.args, **run.kwargs)

        return async_to_sync(here)()


class NoTimer(SoftTimer):
    """Never interrupts a task, so that a test can stop in a debugger."""

    def call(self, run: Run, timeout: float, fn: Callable[..., Any], aborted: Set[tuple[int, int]]) -> Any:
        """See `SoftTimer`; there is no timeout."""
        return fn(*run.args, **run.kwargs)


class OneRun(LeaseTable):
    """The one row that a test needs. It calls the lease extender at once, so a cancel request takes effect at once."""

    def __init__(self, lines: int) -> None:
        super().__init__(1, lines)
        self.run: Run | None = None

    def is_cancelled(self, row: int, turn: int) -> bool:
        """Also asks Redis."""
        return super().is_cancelled(row, turn) or self._extended({}) in ("cancel", "abort")

    def progress(self, row: int, text: str) -> None:
        """Also tells Redis."""
        super().progress(row, text)
        if self.run is not None:
            self._extended({self.run.job.id: text})

    def _extended(self, progress: Mapping[str, str]) -> str:
        if self.run is None:  # a run without a job, which Redis does not know
            return "ok"
        line: Line = self.run.line
        held = (self.run.job.id, self.run.job.fence)
        return line.store.extend([held], worker=self.worker, lease_ms=line.lease_ms, progress=progress)[held[0]]


def executor(leases: OneRun, *receivers: Receiver) -> Executor:
    """The executor of workers, for the calling thread."""
    return Executor(
        leases=leases,
        find_task=registry.get,
        task_numbers={},
        receivers=receivers,
        coroutines=CoroutinesHere(nothing),
        timer=NoTimer(),
        missing=carriers.missing,
        wrap=carriers.wrapped if conf.get().carriers else None,
        check_tick=overlap.check,
    )


def run_by_hand(plan: Plan, *receivers: Receiver, attempt: int = 1, crashes: int = 0, asked: int = 0, due_ms: int = 0) -> Outcome:
    """Runs a job that is neither in Redis nor in the database.

    Raises:
        ValueError: a job cannot have one of the numbers.
    """
    for name, number, least in (("attempt", attempt, 1), ("crashes", crashes, 0), ("asked", asked, 0)):
        if type(number) is not int or not least <= number <= MAX_ATTEMPTS:
            raise ValueError(f"{plan.task}: {name}={number!r} is not a whole number of at least {least}.")
    line = replace(lines_of(conf.get(), {plan.queue: 1})[0], signer=None)
    job = ClaimedJob(ids.short(plan.id), attempt, crashes, due_ms, plan.encode(), BY_HAND, plan.queue, asks=asked)
    leases = OneRun(1)
    try:
        outcome = executor(leases, *receivers).run(taken(leases, line, 0, job))
    finally:
        leases.close()
    assert outcome is not None  # no other worker can have taken it
    return outcome


def taken(leases: OneRun, line: Line, number: int, job: ClaimedJob) -> Run:
    """Puts the job of that line into the one row."""
    now = clock.monotonic()
    turn = leases.put(0, line=number, id=job.id, fence=job.fence, attempt=job.attempt, taken=now, good_until=now + FOREVER)
    return Run(job, line, leases, 0, turn, now, clock.wall_ms() - now * 1000)


def without_tick(options: Options) -> tuple[Options, Any]:
    """The options, and the tick in their meta. A job cannot claim to belong to a tick, but a run by hand is not a job."""
    if not isinstance(options.meta, Mapping) or PERIODIC not in options.meta:
        return options, None
    meta = dict(options.meta)
    tick = meta.pop(PERIODIC)
    return options._replace(meta=meta), tick


def run_inline(plan: Plan) -> None:
    """Runs one attempt. Raises the error of the task, unless `raises_inline` is off. Always raises `KeyboardInterrupt`."""
    outcome = run_by_hand(plan, SignalReceiver(), due_ms=clock.wall_ms())
    error, task = outcome.error, plan.template.task
    raises = not isinstance(task, Task) or task.raises_inline
    if error is not None and (raises or isinstance(error, KeyboardInterrupt)):
        raise error
