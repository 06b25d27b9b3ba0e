"""What a test wants to go wrong in the next runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from django_delayq.store.scripts.queue import Outcome
from django_delayq.worker.run_context import Run

Moment = Literal["begin", "end"]


@dataclass(frozen=True, slots=True)
class Fault:
    """`task`: the name of the one that it is about, "" for any. `error`: what its run raises; None: its worker is gone at `moment`."""

    task: str
    error: BaseException | None = None
    moment: Moment = "begin"


def made(error: Any) -> BaseException:
    """The error that is given, or one of the class that is.

    Raises:
        ValueError: it is neither. What a run could not raise would burn an attempt by an error that nobody has asked for.
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
    """A receiver of runs that lets them fail, each fault once, in the order in which they were asked for."""

    def __init__(self) -> None:
        self.waiting: list[Fault] = []

    def crash(self, task: str, moment: Moment) -> bool:
        """Whether the worker vanishes at that moment of a run of this task."""
        return self._take(task, lambda fault: fault.error is None and fault.moment == moment) is not None

    def begins(self, run: Run) -> None:
        """Raises what the run is to fail by."""
        fault = self._take(run.task.name, lambda fault: fault.error is not None)
        if fault is not None and fault.error is not None:
            raise fault.error

    def ends(self, run: Run, outcome: Outcome) -> None:
        """Nothing."""

    def _take(self, task: str, fits: Callable[[Fault], bool]) -> Fault | None:
        found = next((fault for fault in self.waiting if fault.task in ("", task) and fits(fault)), None)
        if found is not None:
            self.waiting.remove(found)
        return found
