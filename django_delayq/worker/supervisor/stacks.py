"""SIGQUIT: a process writes the stacks of its threads to standard error, as faulthandler does.

In Python, since frames are still then: faulthandler goes through those of threads that run meanwhile, and reads what is gone, of which
the process dies. While a task keeps the interpreter to itself nothing in Python runs, and no frame changes. Then the supervisor sends
`SECOND_LOOK` behind it, and faulthandler writes them after all.
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
from typing import Final

SECOND_LOOK: Final = signal.SIGUSR2
PATIENCE: Final = 0.3  # seconds in which the stacks are written, if anything in Python runs


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
