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
        show_on_quit(self._note)
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


def show_on_quit(then: Callable[[int, FrameType | None], None]) -> None:
    """SIGQUIT writes the stacks of all threads, and calls `then`."""

    def show(sign: int, frame: FrameType | None) -> None:
        _write(frame)
        then(sign, frame)

    faulthandler.unregister(signal.SIGQUIT)
    signal.signal(signal.SIGQUIT, show)


def show_when_stuck() -> None:
    """The same in a child, and `SECOND_LOOK` writes them if SIGQUIT could not."""
    show_on_quit(_looked)
    signal.signal(SECOND_LOOK, _arm)
    _arm()


def _arm(*_: object) -> None:
    faulthandler.register(SECOND_LOOK, file=_descriptor(), all_threads=True, chain=False)


def _looked(*_: object) -> None:
    faulthandler.unregister(SECOND_LOOK)  # the next one only arms it again, see `show_when_stuck`


def _write(frame: FrameType | None) -> None:
    """`frame`: that of the main thread, which has been interrupted for this."""
    # Not by a stream or a logger: this thread may be in the midst of writing to it.
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
