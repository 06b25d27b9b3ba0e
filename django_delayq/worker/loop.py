"""Loops of a worker: `poll()` does one pass and returns how long to sleep. `LoopSchedule` runs several loops in one thread, and
continues after errors, with the pauses of `ErrorPause`. `LoopProcess` runs loops in a separate process, next to the task processes.
"""

from __future__ import annotations

import os
import random
import select
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from importlib import import_module
from typing import Final, Protocol

from django_delayq import clock, signals
from django_delayq.exceptions import StoreUnavailable
from django_delayq.logger import Logger
from django_delayq.store.connection.error_replies import StoreError, is_refusal
from django_delayq.store.scripts.formats import FormatNewer
from django_delayq.store.scripts.site import SiteRefused, is_news
from django_delayq.worker.outage_log import outages

logger = Logger("django_delayq.worker")

EARLY: Final = 0.25  # seconds, and share of its pause, by which a loop may run early if another has woken the thread: that costs most
SHORTEST: Final = 0.05  # seconds: the first pause after an error
LONGEST: Final = 5.0
OFTEN: Final = 60.0  # seconds in which breaks of a connection are counted
MANY: Final = 5  # breaks
HOUR: Final = 3600.0


# A block in which OpenTelemetry's instrumentations of database drivers create no spans. Without it, an idle worker would create several
# traces a second.
untraced: Callable[[], AbstractContextManager[None]] = nullcontext
with suppress(ImportError, AttributeError):  # otherwise no driver is instrumented
    untraced = import_module("opentelemetry.instrumentation.utils").suppress_instrumentation


class Loop(Protocol):
    """A step that is repeated."""

    def poll(self) -> float:
        """Does one pass. Returns the seconds until the next one; 0: at once."""


class _Part:
    def __init__(self, loop: Loop, longest: float) -> None:
        self.loop = loop
        self.at = 0.0
        self.early = 0.0  # seconds by which it may run early
        self.backoff = ErrorPause(type(loop).__name__.lower(), longest=longest)


class LoopSchedule:
    """Runs several loops in one thread, each at its time. An error in one loop does not stop the others."""

    def __init__(self, loops: Iterable[Loop], *, longest_pause: float = LONGEST) -> None:
        self._parts = [_Part(loop, longest_pause) for loop in loops]

    def poll(self) -> float:
        """Runs the loops that are due. Returns the seconds until the next one is due."""
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
        """Makes that loop due now."""
        for part in self._parts:
            if part.loop is loop:
                part.at = 0.0


@dataclass(frozen=True, slots=True)
class LoopProcess:
    """A process that runs next to the task processes. `target` runs in the child until its stop is set. Then it finishes the ready
    work (bounded) and returns. If it ends or fails before, it is started again. It opens
    its connections after the fork. `queues`: the queues whose server it works on; without queues it has nothing to finish.
    """

    name: str
    target: Callable[[PipeStop], None]
    queues: tuple[str, ...] = ()


class PipeStop:
    """The signal that ends a loop process: the first byte on a pipe from the supervisor. If the supervisor is gone, the process ends at
    once.
    """

    def __init__(self, commands: int, alive: int) -> None:
        self._commands = commands
        self._alive = alive
        self._set = False
        self._poll = select.poll()
        self._poll.register(commands, select.POLLIN)
        self._poll.register(alive, select.POLLIN)

    def is_set(self) -> bool:
        """Whether the loop must end now."""
        return self._look(0.0)

    def wait(self, seconds: float, also: int = -1) -> bool:
        """Sleeps, at most `seconds`, until it is set, or until the descriptor `also` can be read. Returns whether it is set."""
        if also >= 0:
            self._poll.register(also, select.POLLIN)
        deadline = clock.monotonic() + seconds
        try:
            while not self._look(max(0.0, deadline - clock.monotonic())) and clock.monotonic() < deadline:
                pass
        finally:
            if also >= 0:
                self._poll.unregister(also)
        return self._set

    def _look(self, seconds: float) -> bool:
        if self._set:
            if seconds > 0:
                clock.sleep(min(seconds, 0.05))  # avoids a busy loop while it drains
            return True
        called = False
        for descriptor, _ in self._poll.poll(seconds * 1000):
            if descriptor == self._alive:
                os._exit(1)
            elif descriptor == self._commands:
                self._set = bool(os.read(self._commands, 64)) or self._set
            else:
                called = True
        return self._set or called


def main(process: LoopProcess, commands: int, alive: int) -> int:
    """The main function of the forked child."""
    process.target(PipeStop(commands, alive))
    return 0


class ErrorPause:
    """How long to pause after errors in a row. The pause doubles, with jitter, so that a hundred workers do not return at the same
    time. It logs the first error and the end of the errors, but leaves it to `outages` to log that Redis is away.
    """

    def __init__(self, name: str, *, longest: float = LONGEST, rand: Callable[[], float] = random.random) -> None:
        self.name = name
        self._longest = longest
        self._rand = rand
        self._since = 0.0
        self.failures = 0
        self.error: StoreUnavailable | None = None  # the last error, until a pass succeeds
        self._logged = False

    @property
    def lasts(self) -> float:
        """Seconds since the first of the errors in a row; 0 without an error."""
        return clock.monotonic() - self._since if self.failures else 0.0

    def failed(self, error: Exception) -> float:
        """Records an error. Returns the seconds to pause."""
        self.failures += 1
        self.error = error if isinstance(error, StoreUnavailable) else None
        if self.failures == 1:
            self._since = clock.monotonic()
        if isinstance(error, StoreUnavailable):
            if not is_refusal(error):
                outages.failed(self, error)
            signals.store_unavailable.send_robust(sender=None, error=error)
        elif not self._logged:
            self._logged = True
            self._log(error)
        pause = min(SHORTEST * 2.0 ** min(self.failures - 1, 20), self._longest)
        return pause * (0.5 + self._rand())

    def worked(self) -> None:
        """Records a pass without an error."""
        if self.failures:
            outages.worked(self)
            if self._logged:
                logger.warning("%s works again after %.1f s. Errors: %d", self.name, clock.monotonic() - self._since, self.failures)
            self.failures, self.error, self._logged = 0, None, False

    def _log(self, error: Exception) -> None:
        if not is_news(error):
            return  # it was reported within a minute
        if isinstance(error, SiteRefused):
            logger.error("%s: %s Its jobs are waiting.", self.name, error)
        elif isinstance(error, FormatNewer) or (isinstance(error, StoreError) and error.nothing_done):
            logger.warning("%s: %s The worker tries again until it succeeds.", self.name, error)
        else:
            logger.exception("%s: unexpected error; the next pass starts after a pause", self.name, exc_info=error)


class LineBreaks:
    """Counts the breaks of a connection on which a loop only listens, and delays the next connection.

    It is separate from the pauses of the loop's own calls: these calls succeed, and would reset it. A single break is not logged: if
    the server is down, the next call reports it. A connection that breaks again and again is reported at most once an hour: something
    on the network path closes idle connections.
    """

    def __init__(self, name: str, *, rand: Callable[[], float] = random.random) -> None:
        self._name = name
        self._rand = rand
        self._moments: list[float] = []
        self._until = 0.0
        self._told_at = float("-inf")

    @property
    def over(self) -> bool:
        """Whether the next connection may be opened."""
        return clock.monotonic() >= self._until

    def broke(self, error: StoreUnavailable) -> None:
        """Records a break."""
        now = clock.monotonic()
        self._moments = [at for at in self._moments if now - at < OFTEN] + [now]
        in_a_row = sum(now - at < LONGEST for at in self._moments)
        pause = min(SHORTEST * 2.0 ** (in_a_row - 1), LONGEST)
        self._until = now + pause * (0.5 + self._rand())
        if len(self._moments) >= MANY and now - self._told_at > HOUR:
            self._told_at = now
            logger.warning(
                "%s: %s This happened %d times within a minute. Check whether a proxy closes idle connections. Jobs still run, "
                "but can start up to one second late.",
                self._name,
                error,
                MANY,
            )
