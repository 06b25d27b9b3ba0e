"""Loops of a worker: `poll()` does one pass and returns how long to sleep. `LoopSchedule` runs several loops in one thread, and
continues after errors. `LoopProcess` runs loops in a separate process, next to the task processes.
"""

from __future__ import annotations

import os
import select
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, Protocol

from django_delayq import clock
from django_delayq.worker.error_pause import LONGEST, ErrorPause

EARLY: Final = 0.25  # seconds, and share of its pause, by which a loop may run early if another has woken the thread: that costs most


class Loop(Protocol):
    """A step that is repeated."""

    def poll(self) -> float:
        """Does one pass. Returns the seconds until the next one; 0: at once."""


class Stop(Protocol):
    """The signal that ends a loop."""

    def is_set(self) -> bool:
        """Whether the loop must end now."""

    def wait(self, seconds: float, also: int = -1) -> bool:
        """Sleeps, at most `seconds`, until it is set, or until the descriptor `also` can be read; returns whether it is set."""


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

    def drain(self, most: int = 1_000) -> None:
        """Runs one more pass of each loop, and further passes while a loop returns 0 (at most `most`)."""
        for part in self._parts:
            part.at = 0.0
        for _ in range(most):
            if self.poll() > 0:
                return


def run(loops: Iterable[Loop], stop: Stop) -> None:
    """Runs loops until `stop` is set, and then drains them, so that no ready work is left."""
    schedule = LoopSchedule(loops)
    while not stop.is_set():
        stop.wait(schedule.poll())
    schedule.drain()


@dataclass(frozen=True, slots=True)
class LoopProcess:
    """A process that runs next to the task processes. `target` runs in the child until its `Stop` is set. Then it finishes the ready
    work (bounded) and returns; `loop.run` does that for a list of loops. If it ends or fails before, it is started again. It opens
    its connections after the fork. `queues`: the queues whose server it works on; without queues it has nothing to finish.
    """

    name: str
    target: Callable[[Stop], None]
    queues: tuple[str, ...] = ()


class PipeStop:
    """Set by the first byte on a pipe from the supervisor. If the supervisor is gone, this process ends at once."""

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
        """Sleeps, at most `seconds`, until it is set, or until the descriptor `also` can be read."""
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
