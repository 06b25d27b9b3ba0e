"""A job on its way through a task process, and the hook by which others hear of it. Nothing here acts on Redis."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol

from django.dispatch import Signal

from django_delayq import clock, signals
from django_delayq.ladder import Ladder
from django_delayq.logger import Logger
from django_delayq.store.scripts.queue import Kind, Outcome
from django_delayq.store.scripts.record import ClaimedJob, Header
from django_delayq.worker.current import CurrentJob
from django_delayq.worker.lease_table import LeaseTable
from django_delayq.worker.line import Line

logger = Logger("django_delayq.worker")

ENDS: Final[Mapping[str, Signal]] = {
    "ack": signals.job_succeeded,
    "retry": signals.job_retried,
    "snooze": signals.job_snoozed,
    "ask": signals.job_snoozed,
    "fail": signals.job_failed,
    "cancel": signals.job_cancelled,
}


Wrap = Callable[[Callable[..., Any], Mapping[str, Any], bool], Callable[..., Any]]
Missing = Callable[[Mapping[str, Any] | None], list[str]]


def no_carrier(_meta: Mapping[str, Any] | None) -> list[str]:
    """No carrier is missing, because no job has propagated context."""
    return []


class AnyTask(Protocol):
    """What a worker wants of a registered task."""

    name: str
    fn: Callable[..., Any]
    backoff: Any
    poll: Ladder | None
    timeout: float | None
    is_async: bool
    atomic: bool

    def check_arguments(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Raises PayloadError if the function cannot be called with them."""


class Run:
    """One claimed job in this process, and what the executor has learnt about it: each of its steps fills in its part. `row` and `turn`
    say where in the `leases` it is, `claimed` when it was claimed (monotonic seconds), `zero_ms` what Redis' clock showed at
    monotonic 0: the clock of this host may be wrong, and decides nothing.

    `poison`: why it is set aside without a run, one of "poison-signature", "poison-record", "poison-task", "poison-arguments",
    "poison-carriers".
    `header`, `args`, `kwargs` and `options` hold once the record has been read, `task` once it was found. `started`: when a consumer
    took it up (monotonic seconds). `current` is None as long as the run has not begun; then `timeout` (seconds, None for none) and
    `started_ms` (by Redis' clock) hold too. `cancel_token` is there while it may be interrupted, and empty when it was, see
    `process/timeouts.py`.
    """

    __slots__ = (
        "args",
        "cancel_token",
        "claimed",
        "current",
        "header",
        "job",
        "kwargs",
        "leases",
        "line",
        "options",
        "poison",
        "row",
        "started",
        "started_ms",
        "task",
        "timeout",
        "turn",
        "zero_ms",
    )

    header: Header
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    options: Mapping[str, Any]
    task: AnyTask
    timeout: float | None
    started_ms: int

    def __init__(self, job: ClaimedJob, line: Line, leases: LeaseTable, row: int, turn: int, claimed: float, zero_ms: float) -> None:
        self.job = job
        self.line = line
        self.leases = leases
        self.row = row
        self.turn = turn
        self.claimed = claimed
        self.zero_ms = zero_ms
        self.poison = ""
        self.started = claimed
        self.current: CurrentJob | None = None
        self.cancel_token: dict[str, int] | None = None

    @property
    def now_ms(self) -> int:
        """The present by Redis' clock."""
        return int(self.zero_ms + clock.monotonic() * 1000)

    @property
    def interrupted(self) -> bool:
        """Whether its function was, wherever that was."""
        return self.cancel_token is not None and not self.cancel_token

    def outcome(
        self,
        kind: Kind,
        detail: bytes = b"",
        delay_ms: int = 0,
        ran_ms: int = -1,
        error: BaseException | None = None,
        reason: str = "",
    ) -> Outcome:
        """The value that it ends in."""
        job = self.job
        return Outcome(job.id, job.attempt, job.fence, kind, delay_ms, detail, ran_ms, error, reason)


class Receiver(Protocol):
    """Somebody who is told of runs, in the thread that runs the task: logs, signals, database connections.

    `begins` is called as the current job, right before the task. What it raises ends the run as if the task had raised it, so a
    receiver may refuse a run. `ends` is called once for every job that this process has looked at, also for one that never began
    (`run.current` is None then). What it raises is logged, and changes nothing. Who is told first of a begin is told last of the end.
    """

    def begins(self, run: Run) -> None:
        """The task is about to be called."""

    def ends(self, run: Run, outcome: Outcome) -> None:
        """So it ended; Redis has not been told yet."""


class Receivers:
    """All who are told of runs, as one."""

    def __init__(self, receivers: Sequence[Receiver]) -> None:
        self._begins = tuple(receiver.begins for receiver in receivers)
        self._ends = tuple((receiver.ends, type(receiver).__name__) for receiver in reversed(receivers))

    def begins(self, run: Run) -> None:
        """See `Receiver`."""
        for begins in self._begins:
            begins(run)

    def ends(self, run: Run, outcome: Outcome) -> None:
        """See `Receiver`."""
        for ends, name in self._ends:
            try:
                ends(run, outcome)
            except Exception:
                logger.exception("job %s: %s failed at its end", run.job.id, name)


class SignalReceiver:
    """Sends Django's signals about runs that began."""

    def begins(self, run: Run) -> None:
        """Sends `job_started`."""
        if signals.job_started.receivers:
            signals.job_started.send_robust(sender=run.task, job=run.current)

    def ends(self, run: Run, outcome: Outcome) -> None:
        """Sends the one about this end."""
        if run.current is not None and (signal := ENDS[outcome.kind]).receivers:
            signal.send_robust(sender=run.task, job=run.current, outcome=outcome)


class ThreadState(threading.local):
    """What a receiver remembers between the jobs of one thread: `tidied`, when it last cleaned up behind one (monotonic seconds), and
    the names of what the thread has `opened`.
    """

    def __init__(self) -> None:
        self.tidied = float("-inf")
        self.opened: set[str] = set()
