"""Soft timeouts of plain functions: `SoftTimeout` is raised inside the thread that runs too long.

Python delivers it at the thread's next bytecode; a task that waits in C code gets it when that returns. The hard timeout,
which needs nobody's help, is the supervisor's.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from django_delayq import clock
from django_delayq.exceptions import SoftTimeout

LONGEST_NAP = 0.5
SHORTEST_NAP = 0.01


class Fuse:
    """The timeout of one run. It burns at most once, not before `light`, and never after `put_out` has returned: neither into the
    worker's own code, where it might leave a lock locked, nor into the next job.
    """

    __slots__ = ("_burnt", "_lit", "_lock", "_thread", "deadline", "fresh")

    def __init__(self, deadline: float) -> None:
        self.deadline = deadline
        self._thread = threading.get_ident()
        self._lock = threading.Lock()
        self._lit = False
        self._burnt = False
        self.fresh = True

    def light(self) -> None:
        """From now on SoftTimeout may come. To be called where it is expected."""
        self._lit = True
        self.fresh = False

    def burn(self) -> None:
        """Raises SoftTimeout in the thread that lit it, unless it is not lit or has burnt."""
        with self._lock:
            if self._lit and not self._burnt:
                self._burnt = True
                _raise_in(self._thread, SoftTimeout)

    def put_out(self) -> None:
        """The run is over. May be interrupted by the very SoftTimeout it takes back; then it is to be called again."""
        with self._lock:
            if self._lit:
                self._lit = False
                if self._burnt:
                    _raise_in(self._thread, None)


class SoftTimer:
    """1. Its thread starts with the first job that has a timeout. 2. It looks at the fuse of each thread: there are as many as
    consumers, so a plain scan does. 3. It dies with the process.
    """

    def __init__(self) -> None:
        self._fuses: dict[int, Fuse] = {}
        self._alarm = threading.Event()
        self._next_look = 0.0
        self._start_lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def call(self, fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], timeout: float) -> Any:
        """Calls `fn`, and raises SoftTimeout in it when `timeout` seconds have passed."""
        fuse = Fuse(clock.monotonic() + timeout)
        self._watch_over(fuse)
        result, failure, over = None, None, False
        # SoftTimeout may arrive at any bytecode from light until put_out has returned. Inside the inner `try` it is the task's;
        # behind it, it came too late and is dropped. It comes only once, so the second put_out is not interrupted.
        try:
            try:
                fuse.light()
                result = fn(*args, **kwargs)
            except BaseException as error:
                failure = error
            over = True
            fuse.put_out()
        except SoftTimeout as error:
            fuse.put_out()
            if not over:
                failure = error
        self._fuses.pop(threading.get_ident(), None)
        if failure is not None:
            if isinstance(failure, SoftTimeout) and not failure.args:
                failure.args = (text(timeout),)
            raise failure
        return result

    def poll(self) -> float:
        """Burns the fuses whose time has come. Returns the seconds until it must look again."""
        now = clock.monotonic()
        nearest = now + LONGEST_NAP
        for fuse in list(self._fuses.values()):
            if fuse.deadline <= now:
                fuse.burn()
                if fuse.fresh:  # its job is about to begin
                    nearest = min(nearest, now + SHORTEST_NAP)
            else:
                nearest = min(nearest, fuse.deadline)
        self._next_look = nearest
        return nearest - now

    def _watch_over(self, fuse: Fuse) -> None:
        self._fuses[threading.get_ident()] = fuse
        if self._thread is None:
            with self._start_lock:
                if self._thread is None:
                    self._thread = threading.Thread(target=self._watch, name="delayq-timer", daemon=True)
                    self._thread.start()
        if fuse.deadline < self._next_look:
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


def _raise_in(thread: int, kind: type[BaseException] | None) -> None:
    argument = ctypes.py_object(kind) if kind is not None else None
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), argument)
