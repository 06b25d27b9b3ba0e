"""Signals that the operating system sends to the processes of a worker. The supervisor notes an order when it arrives and obeys it
between two passes.

SIGQUIT: a process writes the stacks of its threads to standard error. Python code does that, because no frame changes while it runs.
`faulthandler` reads the stacks of threads that are running, and can crash the process. But while a task blocks the interpreter, no
Python code runs and no frame changes. Then the supervisor sends `SECOND_LOOK`, and `faulthandler` writes the stacks.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, Final, Literal

from django_delayq import clock

SECOND_LOOK: Final = signal.SIGUSR2
PATIENCE: Final = 0.3  # seconds in which the stacks are written, if anything in Python runs

# The supervisor catches SECOND_LOOK only because a child must handle it from its first moment.
CAUGHT: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGCHLD, SECOND_LOOK)

# stop: claim no more, finish what runs within the grace, leave; again: give back what runs, and leave at once; interrupt: the same by
# Ctrl-C, which exits with 130 the second time. quiet: claim no more. stacks: every process writes the stacks of its threads.
Order = Literal["stop", "interrupt", "quiet", "stacks"]
ORDERS: Final[dict[int, Order]] = {
    signal.SIGTERM: "stop",
    signal.SIGINT: "interrupt",
    signal.SIGUSR1: "quiet",
    signal.SIGQUIT: "stacks",
}


class OsSignals:
    """Receives the signals of a worker.

    1. `catch` replaces the existing handlers.
    2. A signal is recorded, and makes `descriptor` readable, so that a process that sleeps on it wakes up.
    3. `taken` yields each order once, in order.
    4. `close` restores the former handlers.

    `told_at`: when the first signal to stop came (monotonic), which may be long before it is taken; 0 if none came.
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
        """Records signals from now on."""
        self.descriptor, self._write = os.pipe()
        for descriptor in (self.descriptor, self._write):
            os.set_blocking(descriptor, False)
        self._before = {sign: signal.signal(sign, self._note) for sign in CAUGHT}
        show_on_quit(self._note)
        signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)

    def add(self, order: Order) -> None:
        """Adds an order that came in another way than by a signal."""
        self._noted.append(order)

    def taken(self) -> Iterator[Order]:
        """Yields the recorded orders, and those that arrive in the meantime."""
        while self._noted:
            yield self._noted.pop(0)

    def drain(self) -> None:
        """Empties the descriptor, until the next signal comes."""
        os.read(self.descriptor, 4096)

    def close(self) -> None:
        """Restores the former handlers at the end of the worker."""
        signal.set_wakeup_fd(-1)
        for sign, handler in self._before.items():
            signal.signal(sign, handler)
        self.forget()

    def forget(self) -> None:
        """In a child: closes the pipe, which belongs to the supervisor."""
        os.close(self.descriptor)
        os.close(self._write)

    def _note(self, sign: int, _: object) -> None:
        order = ORDERS.get(sign)
        if order is None:  # a signal that only wakes the process
            return
        if order in ("stop", "interrupt") and not self.told_at:
            self.told_at = clock.monotonic()
        self._noted.append(order)


def show_on_quit(then: Callable[[int, FrameType | None], None]) -> None:
    """SIGQUIT writes the stacks of all threads, and calls `then`."""

    def show(sign: int, frame: FrameType | None) -> None:
        _write(frame)
        then(sign, frame)

    faulthandler.unregister(signal.SIGQUIT)
    signal.signal(signal.SIGQUIT, show)


def show_when_stuck() -> None:
    """The same in a child. `SECOND_LOOK` writes the stacks if SIGQUIT could not."""
    show_on_quit(_looked)
    signal.signal(SECOND_LOOK, _arm)
    _arm()


def _arm(*_: object) -> None:
    faulthandler.register(SECOND_LOOK, file=_descriptor(), all_threads=True, chain=False)


def _looked(*_: object) -> None:
    faulthandler.unregister(SECOND_LOOK)  # the next one only arms it again, see `show_when_stuck`


def _write(frame: FrameType | None) -> None:
    """Writes the stacks. `frame`: the frame of the main thread, which was interrupted for this."""
    # Not by a stream or a logger: this thread may have been interrupted while it wrote to one.
    left = "\n".join(_lines(frame)).encode("utf-8", "backslashreplace") + b"\n"
    with contextlib.suppress(OSError):
        while left:
            left = left[os.write(_descriptor(), left) :]


def _lines(frame: FrameType | None) -> Iterator[str]:
    here = threading.get_ident()
    for thread, found in sys._current_frames().items():
        yield f"{'Current thread' if thread == here else 'Thread'} 0x{thread:016x} (most recent call first):"
        at = frame if thread == here else found
        while at is not None:
            yield f'  File "{at.f_code.co_filename}", line {at.f_lineno} in {at.f_code.co_name}'
            at = at.f_back
        yield ""


def _descriptor() -> int:
    try:
        return sys.__stderr__.fileno() if sys.__stderr__ is not None else 2
    except (OSError, ValueError):
        return 2
