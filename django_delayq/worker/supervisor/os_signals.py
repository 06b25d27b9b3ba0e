"""Signals that the operating system delivers to the supervisor: what each of them orders. They are noted when they come, and their
orders taken between its passes.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any, Final, Literal

from django_delayq import clock
from django_delayq.worker.supervisor import stacks

# SECOND_LOOK for a child alone, which has it caught from its first moment.
CAUGHT: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGCHLD, stacks.SECOND_LOOK)

# stop: claim no more, finish what runs within the grace, leave; again: give back what runs, and leave at once; interrupt: the same by
# Ctrl-C, which the second time ends with 130. quiet: claim no more. stacks: every process writes what its threads do.
Order = Literal["stop", "interrupt", "quiet", "stacks"]
ORDERS: Final[dict[int, Order]] = {
    signal.SIGTERM: "stop",
    signal.SIGINT: "interrupt",
    signal.SIGUSR1: "quiet",
    signal.SIGQUIT: "stacks",
}


class OsSignals:
    """1. `catch` puts itself in the place of the handlers that were there. 2. What comes is noted, and makes `descriptor` readable, so
    that who sleeps on it wakes up. 3. `taken` gives each once, in order. 4. `close` puts the former handlers back.

    `told_at`: when the first one came that asks to stop (monotonic), which may be long before it is taken; 0 for none.
    """

    def __init__(self) -> None:
        self.told_at = 0.0
        self.descriptor = -1
        self._write = -1
        self._noted: list[Order] = []
        self._before: dict[int, Any] = {}

    def __bool__(self) -> bool:
        return bool(self._noted)

    def catch(self) -> None:
        """From now on signals are noted."""
        self.descriptor, self._write = os.pipe()
        for descriptor in (self.descriptor, self._write):
            os.set_blocking(descriptor, False)
        self._before = {sign: signal.signal(sign, self._note) for sign in CAUGHT}
        stacks.show_on_quit(self._note)
        signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)

    def add(self, order: Order) -> None:
        """As if its signal had come: somebody asks for the same by another way."""
        self._noted.append(order)

    def taken(self) -> Iterator[Order]:
        """What those order that have come, and come meanwhile."""
        while self._noted:
            yield self._noted.pop(0)

    def drain(self) -> None:
        """The descriptor is readable no more, until the next one comes."""
        os.read(self.descriptor, 4096)

    def close(self) -> None:
        """The worker is over."""
        signal.set_wakeup_fd(-1)
        for sign, handler in self._before.items():
            signal.signal(sign, handler)
        self.forget()

    def forget(self) -> None:
        """In a child: the pipe is the supervisor's."""
        os.close(self.descriptor)
        os.close(self._write)

    def _note(self, sign: int, _: object) -> None:
        order = ORDERS.get(sign)
        if order is None:  # it only wakes
            return
        if order in ("stop", "interrupt") and not self.told_at:
            self.told_at = clock.monotonic()
        self._noted.append(order)
