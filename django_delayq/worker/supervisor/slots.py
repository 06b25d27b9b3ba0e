"""The places for processes in a worker: who sits there, when an empty one is filled again, and when its occupant is replaced."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from django_delayq import clock
from django_delayq.logger import Logger
from django_delayq.worker.outcome import signal_name
from django_delayq.worker.supervisor.fork import Child

logger = Logger("django_delayq.worker")

SHORT_LIFE: Final = 5.0  # seconds; a process that ends sooner has a worse cause than one bad job
LONGEST_PAUSE: Final = 30.0
NO_ROOM_PAUSE: Final = 5.0


class Slot:
    """A process of this name shall run. One that dies is started again at once; one that keeps dying young, after a pause."""

    def __init__(self, name: str, fork: Callable[[str], Child]) -> None:
        self.name = name
        self.child: Child | None = None
        self.over = False  # it has done its work, and no other is to follow
        self._fork = fork
        self.died = self.replaced = 0  # how many of its occupants were, and had a successor
        self._fill_at = 0.0
        self._young_deaths = 0

    def fill(self) -> None:
        """Starts a process if there is none and the pause is over."""
        if self.child is not None or self.over or clock.monotonic() < self._fill_at:
            return
        try:
            self.child = self._fork(self.name)
        except OSError as error:  # no memory or no process left just now: no reason to end those that work
            self._fill_at = clock.monotonic() + NO_ROOM_PAUSE
            logger.error("%s cannot be started. The next attempt follows in %.0f s: %s", self.name, NO_ROOM_PAUSE, error)

    def vacate(self) -> None:
        """Its occupant is on the way out; the next may come."""
        self.replaced += 1
        self.child = None

    def leave(self, *, burst: bool, stopping: bool) -> Child:
        """Its occupant has ended. Returns it."""
        child = self.child
        assert child is not None
        self.child = None
        if stopping:
            return child
        if burst and child.in_order and child.leases is not None:
            self.over = True
            return child
        self.died += 1
        now = clock.monotonic()
        self._young_deaths = self._young_deaths + 1 if now - child.born < SHORT_LIFE else 0
        pause = min(0.25 * 2.0**self._young_deaths, LONGEST_PAUSE) if self._young_deaths > 1 else 0.0
        self._fill_at = now + pause
        logger.error("%s (pid %d) %s; started again in %.1f s", child.name, child.pid, _how(child), pause)
        return child


def _how(child: Child) -> str:
    code = child.exit_code or 0
    return f"was killed by {signal_name(-code)}" if code < 0 else f"ended with exit code {code}"
