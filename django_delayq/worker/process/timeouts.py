"""The timeout of a run. After it, the process raises SoftTimeout in the task. If that does not end the run, the supervisor ends the
process at the hard limit (`supervisor/hanging_processes.py`). Runs in a thread of the task process.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Set
from typing import Any

from django_delayq import clock
from django_delayq.exceptions import SoftTimeout
from django_delayq.worker.current import Run
from django_delayq.worker.process.task_call import call, raise_in_thread, timeout_text

LONGEST_NAP = 0.5
SHORTEST_NAP = 0.01


class SoftTimer:
    """Raises SoftTimeout in threads whose run takes too long.

    1. Its thread starts with the first job that has a timeout.
    2. It checks the run of each thread. There are as many as consumers, so a plain scan is enough.
    3. It dies with the process.
    """

    def __init__(self) -> None:
        self._runs: dict[int, tuple[float, Run]] = {}  # by thread: the end of the timeout, and the run
        self._alarm = threading.Event()
        self._next_look = 0.0
        self._start_lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def call(self, run: Run, timeout: float, fn: Callable[..., Any], aborted: Set[tuple[int, int]]) -> Any:
        """Like `call`, but also raises SoftTimeout in `fn` after `timeout` seconds."""
        self._watch_over(run, clock.monotonic() + timeout)
        try:
            return call(run, fn, aborted)
        except SoftTimeout as error:
            if not error.args:
                error.args = (timeout_text(timeout),)
            raise
        finally:
            self._runs.pop(threading.get_ident(), None)

    def poll(self) -> float:
        """Interrupts the runs whose timeout has passed. Returns the seconds until the next check."""
        now = clock.monotonic()
        nearest = now + LONGEST_NAP
        for deadline, run in list(self._runs.values()):
            if deadline <= now:
                raise_in_thread(run, SoftTimeout)
                if run.cancel_token is None:  # it is about to start
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


def hard_limit(timeout: float) -> float:
    """Seconds after the start of a run at which the supervisor ends it: the timeout, plus time to clean up."""
    return timeout + max(5.0, timeout * 0.2)
