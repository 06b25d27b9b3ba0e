"""Watchers observe each call that schedules jobs. Integrations such as traces use them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, Protocol

from django_delayq.logger import Logger
from django_delayq.producer.commit import Plan

logger = Logger("django_delayq.producer")
OURS: Final = "django_delayq."  # prefix of the names of watchers


class Call:
    """One call of `schedule`, or of `schedule_many` (`many`), for which `task` and `queue` are "". `plans` has the jobs that have
    passed all checks so far.
    """

    __slots__ = ("many", "plans", "queue", "task")

    def __init__(self, task: str = "", queue: str = "", *, many: bool = False) -> None:
        self.task = task
        self.queue = queue
        self.many = many
        self.plans: list[Plan] = []


class Watcher(Protocol):
    """Observes such calls, in the thread of the caller. Its exceptions are logged and change nothing.

    The job stores the context under `name`, as for a carrier. It starts with `OURS`. Do not change it while jobs wait.
    """

    name: str

    def begins(self, call: Call) -> Any:
        """Called before the checks. `ends` gets the result."""

    def pack(self) -> Any:
        """Called for each job. Returns the context of the job as JSON, or None."""

    def ends(self, call: Call, begun: Any, error: BaseException | None) -> None:
        """Called at the end of each call. The jobs are in Redis or in the open transaction, or there is an error."""


watchers: Final[dict[str, Watcher]] = {}


def add(watcher: Watcher) -> None:
    """Adds a watcher. A second call has no effect."""
    watchers[watcher.name] = watcher


def remove(name: str) -> None:
    """Removes a watcher."""
    watchers.pop(name, None)


@contextmanager
def watched(call: Call) -> Iterator[Call]:
    """Informs the watchers about the start of a call, and in reverse order about its end."""
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
    """Returns the context that the watchers pack for one job, by name."""
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
