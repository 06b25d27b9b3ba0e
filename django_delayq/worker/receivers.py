"""Receivers of runs: loggers, signals and database connections that observe the start and the end of each job. Threads of consumers
call them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol

from django.dispatch import Signal

from django_delayq import signals
from django_delayq.logger import Logger
from django_delayq.store.scripts.queue import Outcome
from django_delayq.worker.current import Run

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


class Receiver(Protocol):
    """Observes runs, in the thread that runs the task: logs, signals, database connections.

    `begins` is called as the current job, right before the task. An exception ends the run as if the task had raised it, so a
    receiver can refuse a run. `ends` is called once for every job that this process has examined, also for a job that never began
    (then `run.current` is None). Its exceptions are logged, and change nothing. `ends` is called in the reverse order of `begins`. A
    receiver that has nothing to do at the start inherits `begins`.
    """

    def begins(self, run: Run) -> None:
        """The task is about to be called."""
        return

    def ends(self, run: Run, outcome: Outcome) -> None:
        """The run has ended with this outcome; Redis does not know it yet."""


class Receivers:
    """Calls all receivers."""

    def __init__(self, receivers: Sequence[Receiver]) -> None:
        self._begins = tuple(one.begins for one in receivers if type(one).begins is not Receiver.begins)
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
        """Sends the signal of this outcome."""
        if run.current is not None and (signal := ENDS[outcome.kind]).receivers:
            signal.send_robust(sender=run.task, job=run.current, outcome=outcome)


class ThreadState(threading.local):
    """The state that a receiver keeps between the jobs of one thread: `tidied`, when it last cleaned up after a job (monotonic
    seconds), and the names of the objects that the thread has `opened`.
    """

    def __init__(self) -> None:
        self.tidied = float("-inf")
        self.opened: set[str] = set()
