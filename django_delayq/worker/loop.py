"""Loops: an object whose `poll()` does one pass and returns how long to sleep. Here is who calls them, waits between passes,
and keeps on after errors.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from typing import Final, Protocol

from django_delayq import clock, signals
from django_delayq.exceptions import StoreUnavailable
from django_delayq.logger import Logger
from django_delayq.store.formats import FormatNewer

logger = Logger("django_delayq.worker")

SHORTEST: Final = 0.05  # seconds: the first pause after an error
LONGEST: Final = 5.0
EARLY: Final = 0.25  # seconds, and share of its pause, by which a loop comes early if another has woken the thread: that costs the most


class Loop(Protocol):
    """Something done again and again."""

    def poll(self) -> float:
        """One pass. Returns the seconds after which it wants the next one; 0: at once."""


class Stop(Protocol):
    """What tells a loop to end."""

    def is_set(self) -> bool:
        """Whether to end now."""

    def wait(self, seconds: float, also: int = -1) -> bool:
        """Sleeps, at most `seconds`, until it is set, or until the descriptor `also` can be read; returns whether it is set."""


class Backoff:
    """How long to pause after errors in a row: doubling, with jitter so that a hundred workers do not return as one, and
    what is to be said about it: once when the trouble begins, and once when it is over.
    """

    def __init__(self, name: str, *, longest: float = LONGEST, rand: Callable[[], float] = random.random) -> None:
        self.name = name
        self._longest = longest
        self._rand = rand
        self._since = 0.0
        self.failures = 0

    @property
    def lasts(self) -> float:
        """For how many seconds nothing has worked."""
        return clock.monotonic() - self._since if self.failures else 0.0

    def failed(self, error: Exception) -> float:
        """Notes an error. Returns the seconds to pause."""
        self.failures += 1
        if self.failures == 1:
            self._since = clock.monotonic()
            if isinstance(error, (StoreUnavailable, FormatNewer)):
                logger.warning("%s: %s It will be tried again until it works.", self.name, error)
            else:
                logger.exception("%s: an unexpected error; the next pass follows after a pause", self.name, exc_info=error)
        if isinstance(error, StoreUnavailable):
            signals.store_unavailable.send_robust(sender=None, error=error)
        pause = min(SHORTEST * 2.0 ** min(self.failures - 1, 20), self._longest)
        return pause * (0.5 + self._rand())

    def worked(self) -> None:
        """Notes a pass without an error."""
        if self.failures:
            logger.warning("%s: works again, after %d errors in %.1f s", self.name, self.failures, clock.monotonic() - self._since)
            self.failures = 0


class _Part:
    def __init__(self, loop: Loop, longest: float) -> None:
        self.loop = loop
        self.at = 0.0
        self.early = 0.0  # seconds by which it may come before
        self.backoff = Backoff(type(loop).__name__.lower(), longest=longest)


class LoopSchedule:
    """Several loops in one thread, each when its time has come; an error of one does not stop the others."""

    def __init__(self, loops: Iterable[Loop], *, longest_pause: float = LONGEST) -> None:
        self._parts = [_Part(loop, longest_pause) for loop in loops]

    def poll(self) -> float:
        """Runs those whose time has come. Returns the seconds until the next one's has."""
        woken = any(part.at <= clock.monotonic() for part in self._parts)
        for part in self._parts if woken else ():
            if part.at <= clock.monotonic() + part.early:
                try:
                    pause = part.loop.poll()
                    part.backoff.worked()
                except Exception as error:
                    pause = part.backoff.failed(error)
                part.at = clock.monotonic() + pause
                part.early = EARLY * min(1.0, pause)
        now = clock.monotonic()
        return max(0.0, min((part.at for part in self._parts), default=now + 1.0) - now)

    def soon(self, loop: Loop) -> None:
        """That loop has something to do now."""
        for part in self._parts:
            if part.loop is loop:
                part.at = 0.0

    def drain(self, most: int = 1_000) -> None:
        """One more pass of each, and further ones while a loop asks for the next at once (at most `most`)."""
        for part in self._parts:
            part.at = 0.0
        for _ in range(most):
            if self.poll() > 0:
                return


def run(loops: Iterable[Loop], stop: Stop) -> None:
    """Runs loops until `stop` is set, and then drains them, so that nothing that was ready stays behind."""
    schedule = LoopSchedule(loops)
    while not stop.is_set():
        stop.wait(schedule.poll())
    schedule.drain()
