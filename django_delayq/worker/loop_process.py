"""Loop processes: loops that a worker runs beside its tasks, each set in a process of its own, such as the mirror's."""

from __future__ import annotations

import os
import select
from collections.abc import Callable
from dataclasses import dataclass

from django_delayq import clock
from django_delayq.worker.loop import Stop


@dataclass(frozen=True, slots=True)
class LoopProcess:
    """A process to run beside the task processes.

    `target` runs in the child until its `Stop` is set, then finishes what is ready (bounded) and returns; `loop.run` does that for
    a list of loops. It is started again when it ends or errs before. It opens its own connections, after the fork. `queues`: those
    whose server it works on; without it, it has nothing to finish.
    """

    name: str
    target: Callable[[Stop], None]
    queues: tuple[str, ...] = ()


class PipeStop:
    """Set by the first byte on a pipe from the supervisor. When the supervisor itself is gone, this process ends at once."""

    def __init__(self, commands: int, alive: int) -> None:
        self._commands = commands
        self._alive = alive
        self._set = False
        self._poll = select.poll()
        self._poll.register(commands, select.POLLIN)
        self._poll.register(alive, select.POLLIN)

    def is_set(self) -> bool:
        """Whether to end now."""
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
                clock.sleep(min(seconds, 0.05))  # while it drains, nobody is to spin
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
    """What a forked child runs."""
    process.target(PipeStop(commands, alive))
    return 0
