"""Watchers: what joins this package to others, such as traces, and hears of each call that puts jobs in while it lasts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, Protocol

from django_delayq.logger import Logger
from django_delayq.producer.commit import Plan

logger = Logger("django_delayq.producer")
OURS: Final = "django_delayq."  # the names of all watchers begin so


class Call:
    """One call of `schedule`, or of `schedule_many`, for which `many` is True. Of the former `task` and `queue` are known from the
    start, of the latter they are "". `plans` has the jobs that passed every check, as far as the call has come.
    """

    __slots__ = ("many", "plans", "queue", "task")

    def __init__(self, task: str = "", queue: str = "", *, many: bool = False) -> None:
        self.task = task
        self.queue = queue
        self.many = many
        self.plans: list[Plan] = []


class Watcher(Protocol):
    """Somebody who hears of such calls, in the thread of the caller. What it raises is logged, and changes nothing.

    The job stores the context under `name`, as for a carrier. It starts with `OURS`. Do not change it while jobs wait.
    """

    name: str

    def begins(self, call: Call) -> Any:
        """Called before anything is checked. What it returns is handed to `ends`."""

    def pack(self) -> Any:
        """Called for each job. What is to travel with it, as JSON; None: nothing."""

    def ends(self, call: Call, begun: Any, error: BaseException | None) -> None:
        """Called once for each call that began: its jobs are in, or in the open transaction, or it ended by that error."""


watchers: Final[dict[str, Watcher]] = {}


def add(watcher: Watcher) -> None:
    """From now on it hears of calls; again: nothing more."""
    watchers[watcher.name] = watcher


def remove(name: str) -> None:
    """From now on it does not."""
    watchers.pop(name, None)


@contextmanager
def watched(call: Call) -> Iterator[Call]:
    """What such a call happens inside of. Who is told first of its begin is told last of its end."""
    begun: list[tuple[Watcher, Any]] = []
    for watcher in tuple(watchers.values()):
        with _harmless(watcher):
            begun.append((watcher, watcher.begins(call)))
    error: BaseException | None = None
    try:
        yield call
    except BaseException as raised:
        error = raised
        raise
    finally:
        for watcher, state in reversed(begun):
            with _harmless(watcher):
                watcher.ends(call, state, error)


def packed() -> dict[str, Any]:
    """What they pack for one job, by their names."""
    found = {}
    for watcher in tuple(watchers.values()):
        with _harmless(watcher):
            if (context := watcher.pack()) is not None:
                found[watcher.name] = context
    return found


@contextmanager
def _harmless(watcher: Watcher) -> Iterator[None]:
    try:
        yield
    except Exception:
        logger.exception("%s failed while a job was scheduled; scheduling continues", type(watcher).__name__)
