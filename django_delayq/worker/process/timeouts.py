"""Soft timeouts of plain functions: `SoftTimeout` is raised inside the thread that runs too long. The hard timeout, which needs
nobody's help, is the supervisor's.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Set
from typing import Any

from django_delayq import clock
from django_delayq.exceptions import SoftTimeout
from django_delayq.worker.process import interrupt
from django_delayq.worker.run_context import Run

LONGEST_NAP = 0.5
SHORTEST_NAP = 0.01


class SoftTimer:
    """1. Its thread starts with the first job that has a timeout. 2. It looks at the run of each thread: there are as many as
    consumers, so a plain scan does. 3. It dies with the process.
    """

    def __init__(self) -> None:
        self._runs: dict[int, tuple[float, Run]] = {}  # by thread; and when their time is over
        self._alarm = threading.Event()
        self._next_look = 0.0
        self._start_lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def call(self, run: Run, timeout: float, fn: Callable[..., Any], aborted: Set[tuple[int, int]]) -> Any:
        """As `interrupt.call`, and raises SoftTimeout in `fn` when `timeout` seconds have passed."""
        self._watch_over(run, clock.monotonic() + timeout)
        try:
            return interrupt.call(run, fn, aborted)
        except SoftTimeout as error:
            if not error.args:
                error.args = (text(timeout),)
            raise
        finally:
            self._runs.pop(threading.get_ident(), None)

    def poll(self) -> float:
        """Interrupts the runs whose time has come. Returns the seconds until it must look again."""
        now = clock.monotonic()
        nearest = now + LONGEST_NAP
        for deadline, run in list(self._runs.values()):
            if deadline <= now:
                interrupt.raise_in_thread(run, SoftTimeout)
                if run.cancel_token is None:  # it is about to begin
                    nearest = min(nearest, now + SHORTEST_NAP)
            else:
                nearest = min(nearest, deadline)
        self._next_look = nearest
        return nearest - now

    def _watch_over(self, run: Run, deadline: float) -> None:
        self._runs[threading.get_ident()] = deadline, run
        if self._thread is None:
            with self._start_lock:
                if self._thread is None:
                    self._thread = threading.Thread(target=self._watch, name="delayq-timer", daemon=True)
                    self._thread.start()
        if deadline < self._next_look:
            self._alarm.set()

    def _watch(self) -> None:
        while True:
            pause = self.poll()
            self._alarm.wait(pause)
            self._alarm.clear()


def text(timeout: float) -> str:
    """What SoftTimeout says."""
    return f"the task ran longer than its timeout of {clock.text(timeout)}"


def hard_limit(timeout: float) -> float:
    """Seconds after the start of a run at which the supervisor ends it: the timeout, and time to clean up behind it."""
    return timeout + max(5.0, timeout * 0.2)
