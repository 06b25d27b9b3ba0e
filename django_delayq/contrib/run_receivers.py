"""The base of the receivers that report runs to OpenTelemetry and Sentry. They run in the thread of the run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Any, Generic, NamedTuple, TypeVar

from django.dispatch import Signal

from django_delayq import signals
from django_delayq.exceptions import ControlFlow
from django_delayq.store.scripts.queue import Outcome
from django_delayq.worker.current import CurrentJob
from django_delayq.worker.receivers import ENDS

State = TypeVar("State")


class OpenRun(NamedTuple):
    """A run that has started. `state`: what `started` returned; `outer`: if jobs run inline, the run that scheduled this one."""

    fence: str
    state: Any
    outer: OpenRun | None


class RunReceiver(ABC, Generic[State]):
    """Connects the signals about runs to `started` and `ended`, and the end of the process to `flush`."""

    name: str  # of its context in the job, and of its watcher
    runs: ContextVar[OpenRun | None]  # an async task runs in a copy of the context

    @abstractmethod
    def started(self, job: CurrentJob) -> State | None:
        """Opens the span of a run. If it returns None, `ended` is not called."""

    @abstractmethod
    def ended(self, job: CurrentJob, state: State, outcome: Outcome, error: BaseException | None) -> None:
        """Closes the span of a run. `error`: see `error_of`."""

    @abstractmethod
    def flush(self, **_: Any) -> None:
        """Sends what is ready, before the process ends."""

    def receivers(self) -> list[tuple[Signal, Callable[..., None]]]:
        """The signals that it receives, with their receivers."""
        ends = [(end, self._ended) for end in ENDS.values()]
        return [(signals.job_started, self._started), *ends, (signals.process_stopped, self.flush)]

    def connect(self) -> None:
        """Connects all receivers."""
        for sender, receiver in self.receivers():
            sender.connect(receiver, weak=False)

    def disconnect(self) -> None:
        """Disconnects all receivers. Runs that have started are not reported."""
        for sender, receiver in self.receivers():
            sender.disconnect(receiver)

    def _started(self, job: CurrentJob, **_: Any) -> None:
        state = self.started(job)
        if state is not None:
            self.runs.set(OpenRun(job.fence, state, self.runs.get()))

    def _ended(self, job: CurrentJob, outcome: Outcome, **_: Any) -> None:
        run = self.runs.get()
        if run is not None and run.fence == job.fence:  # otherwise the run started before connect()
            self.runs.set(run.outer)
            self.ended(job, run.state, outcome, error_of(outcome))

    def context_of(self, job: CurrentJob) -> dict[str, str]:
        """The context that the scheduling process put into the job. Ignores values that are not text: Redis is not trusted."""
        found = job.propagated_context(self.name)
        return {name: value for name, value in found.items() if isinstance(value, str)} if isinstance(found, Mapping) else {}


def error_of(outcome: Outcome) -> BaseException | None:
    """The error of a failed attempt. None for a run that succeeded or was cancelled, or whose task raised Retry or the like. If the
    task did so on its last attempt, or raised Fail: the error that caused it, if there is one.
    """
    error = outcome.error
    if outcome.kind not in ("retry", "fail") or error is None:
        return None
    if not isinstance(error, ControlFlow):
        return error
    if outcome.kind == "retry":
        return None
    return error.__cause__ or error.__context__ or error
