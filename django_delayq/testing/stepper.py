"""A worker that does one step at a time: it claims a job, runs it in the caller's thread with the real executor, and settles it. A
test can make its runs fail.
"""

from __future__ import annotations

from asyncio import CancelledError
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple
from uuid import UUID

from django_delayq import codec, ids
from django_delayq.conf import Config
from django_delayq.store.connection.link import Link
from django_delayq.store.scripts.queue import Outcome
from django_delayq.store.scripts.record import BANDS, ClaimedJob, read
from django_delayq.testing.calling_thread import OneRun, executor, taken
from django_delayq.worker.current import Run
from django_delayq.worker.line import Line, lines_of
from django_delayq.worker.logs import JobLog
from django_delayq.worker.process.settler import Adopter, Settler
from django_delayq.worker.receivers import SignalReceiver

WORKER: Final = "test:1:kit"
ENDS_OF_RUNS: Final = (Exception, SystemExit, GeneratorExit, CancelledError)  # exceptions that a worker treats as the end of a run


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """One run. `outcome`: "ack", "retry", "snooze", "ask", "park", "fail" or "cancel"; "crash" if a test made its worker crash.
    `error`: the exception of the task. `attempt` counts from 1.
    """

    id: UUID
    task: str
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    key: str
    queue: str
    attempt: int
    outcome: str
    error: BaseException | None = field(default=None, compare=False)

    @property
    def ends_the_test(self) -> bool:
        """Whether it was Ctrl-C, or an exception by which a framework ends a test, such as `pytest.fail`: a task does not raise these
        for its worker.
        """
        return self.error is not None and not isinstance(self.error, ENDS_OF_RUNS)


class Due(NamedTuple):
    """A date in ms, of a waiting job or of the end of a lease, and its line."""

    date_ms: int
    line: Line
    lease: bool


class Stepper:
    """The lines of one set of settings, and the executor of their jobs."""

    def __init__(self, config: Config, link: Link, faults: Faults) -> None:
        self.config = config
        self.lines = [line.on(link, config.prefix) for line in lines_of(config, dict.fromkeys(config.queues, 1))]
        self._link = link
        self._faults = faults
        self._claims = 0
        self._leases = OneRun(len(self.lines))
        self._leases.worker = WORKER
        self._free: deque[int] = deque()
        adopter = Adopter(leases=self._leases, worker=WORKER)
        self._settler = Settler(leases=self._leases, free=self._free, adopter=adopter, worker=WORKER, settled=lambda: None)
        self._executor = executor(self._leases, SignalReceiver(), JobLog(WORKER), faults)

    def close(self) -> None:
        """Releases its memory."""
        self._leases.close()

    def next(self, stuck: frozenset[Line]) -> Due | None:
        """The first due job; None: no job waits. Lines that are paused, and lines in `stuck`, are skipped."""
        commands: list[tuple[Any, ...]] = []
        for line in self.lines:
            keys = line.store.keys
            commands += [("HGET", keys["meta"], "paused")]
            commands += [("ZRANGE", keys[name], 0, 0, "WITHSCORES") for name in (*BANDS, "leases")]
        replies = self._link.execute_many(commands)
        dates: list[tuple[int, int, bool]] = []
        for number, line in enumerate(self.lines):
            paused, *waiting, leases = replies[number * 5 : number * 5 + 5]
            if not paused and line not in stuck and not self.config.queue(line.queue).pulled:
                dates += [(int(float(found[1])), number, False) for found in waiting if found]
                dates += [(int(float(leases[1])) + 1, number, True)] if leases else []
        if not dates:
            return None
        date, number, lease = min(dates)
        return Due(date, self.lines[number], lease)

    def step(self, line: Line, alive_ms: int | None) -> Ran | None:
        """Runs the first due job of that line; None if no job is due. `alive_ms`: a worker was present all the time until then, so no
        lease is protected.
        """
        if alive_ms is not None:
            self._link.execute("HSET", line.store.keys["meta"], "alive", alive_ms)
        self._claims += 1
        reply = line.store.claim(
            WORKER,
            f"kit{self._claims:x}",
            want=1,
            lease_ms=line.lease_ms,
            max_crashes=line.max_crashes,
            max_events=line.max_events,
        )
        return self._run(line, reply.jobs[0]) if reply.jobs else None

    def _run(self, line: Line, job: ClaimedJob) -> Ran:
        task = read(job.record)[0].task
        if self._faults.crash(task, "begin"):
            return _ran(job, "crash")
        run = taken(self._leases, line, self.lines.index(line), job)
        self._leases.run = run
        try:
            outcome = self._executor.run(run)
        finally:
            self._leases.run = None
        if self._faults.crash(task, "end"):
            return _ran(job, "crash")
        self._settler.add(run, outcome)
        self._settler.poll()
        return _ran(job, outcome.kind if outcome else "lost", outcome.error if outcome else None)


def _ran(job: ClaimedJob, outcome: str, error: BaseException | None = None) -> Ran:
    header, payload = read(job.record)
    args, kwargs, _ = codec.decode_payload(payload)
    return Ran(
        id=ids.full(job.id),
        task=header.task,
        args=args,
        kwargs=kwargs,
        key=header.key,
        queue=job.queue,
        attempt=job.attempt,
        outcome=outcome,
        error=error,
    )


Moment = Literal["begin", "end"]


@dataclass(frozen=True, slots=True)
class Fault:
    """`task`: the name of the task that fails, "" for any. `error`: the exception of its run; None: its worker crashes at `moment`."""

    task: str
    error: BaseException | None = None
    moment: Moment = "begin"


def made(error: Any) -> BaseException:
    """Returns the given error, or an instance of the given class.

    Raises:
        ValueError: it is neither. Without this check, a run would fail with another error than the test wants, and use up an attempt.
    """
    if isinstance(error, BaseException):
        return error
    if not isinstance(error, type) or not issubclass(error, BaseException):
        raise ValueError(f"fail_next({error!r}): pass an error or its class, such as ConnectionError('no route').")
    try:
        return error()
    except TypeError as problem:
        name = error.__name__
        raise ValueError(f"fail_next({name}): {problem}. Pass one that is made, {name}(…).") from None


class Faults:
    """A receiver of runs that makes them fail. Each fault happens once, in the order in which the test requested them."""

    def __init__(self) -> None:
        self.waiting: list[Fault] = []

    def crash(self, task: str, moment: Moment) -> bool:
        """Whether the worker crashes at that moment of a run of this task."""
        return self._take(task, lambda fault: fault.error is None and fault.moment == moment) is not None

    def begins(self, run: Run) -> None:
        """Raises the requested error of the run."""
        fault = self._take(run.task.name, lambda fault: fault.error is not None)
        if fault is not None and fault.error is not None:
            raise fault.error

    def ends(self, run: Run, outcome: Outcome) -> None:
        """Does nothing."""

    def _take(self, task: str, fits: Callable[[Fault], bool]) -> Fault | None:
        found = next((fault for fault in self.waiting if fault.task in ("", task) and fits(fault)), None)
        if found is not None:
            self.waiting.remove(found)
        return found
