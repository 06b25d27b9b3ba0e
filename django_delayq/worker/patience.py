"""Calls of a project's code that may hang: in a thread of their own, which is left behind when they do."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue

from django_delayq.logger import Logger

logger = Logger("django_delayq.worker")

_Calls = SimpleQueue[tuple[Callable[[], None], threading.Event] | None]


class PatientThread:
    """1. The thread starts with the first call, and serves those that follow. 2. A call that takes too long keeps it; the next one gets
    another. 3. It dies with its process.
    """

    def __init__(self) -> None:
        self._calls: _Calls | None = None

    def run(self, call: Callable[[], None], seconds: float) -> bool:
        """Calls it there, and waits. False: it has not come back within so many seconds. What it raises is logged."""
        if self._calls is None:
            self._calls = SimpleQueue()
            threading.Thread(target=_serve, args=(self._calls,), name="delayq-receivers", daemon=True).start()
        done = threading.Event()
        self._calls.put((call, done))
        if done.wait(seconds):
            return True
        self._calls.put(None)  # the thread ends when this call comes back, if ever
        self._calls = None
        return False


def _serve(calls: _Calls) -> None:
    while (given := calls.get()) is not None:
        call, done = given
        try:
            call()
        except BaseException:
            logger.exception("a call of receivers failed")
        done.set()
