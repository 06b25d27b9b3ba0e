"""Timeouts and aborts of synchronous tasks: raises `SoftTimeout` or `Cancelled` in the thread of the task, from another thread.

Python delivers the exception at the next bytecode of the thread, so a task that waits in C code gets it when the call returns. The
supervisor replaces a process whose task does not react (`supervisor/deadlines.py`).

The cancel token of a run (`Run.cancel_token`) contains the thread while the run can be interrupted. Whichever side removes the thread
first wins: the interrupter raises the exception, or the run has ended. So a run without an interrupt takes no lock.
"""

from __future__ import annotations

import ctypes
import threading
from _thread import get_ident
from collections.abc import Callable, Set
from threading import Lock
from typing import Any, Final

from django_delayq import clock
from django_delayq.exceptions import Cancelled, SoftTimeout
from django_delayq.worker.current import Run

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
                error.args = (text(timeout),)
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


def text(timeout: float) -> str:
    """The message of SoftTimeout."""
    return f"the task ran longer than its timeout of {clock.text(timeout)}"


def hard_limit(timeout: float) -> float:
    """Seconds after the start of a run at which the supervisor ends it: the timeout, plus time to clean up."""
    return timeout + max(5.0, timeout * 0.2)


ABORTED: Final = "the job was aborted while it ran"  # the message of Cancelled

THREAD: Final = "thread"
_raising: Final = Lock()  # held from removing the thread to raising the exception in it; never by a thread that can be interrupted


def call(run: Run, fn: Callable[..., Any], aborted: Set[tuple[int, int]]) -> Any:
    """Calls `fn` with the arguments of the run, as one that `raise_in_thread` can interrupt, at most once. The exception is never
    raised after `fn` has ended: not in the next job, and not in the worker's own code, where it could leave a lock locked. A second
    exception could strike while the first one is handled, and the run ends after the first anyway.

    Args:
        aborted: row and turn of runs that must not start: these raise Cancelled.
    """
    token = {THREAD: get_ident()}
    result, failure, over = None, None, False
    # The exception may arrive at any bytecode from here until _disarm has returned. Inside the inner `try` it is the task's; after
    # that it came too late and is dropped. It comes only once, so the second _disarm is not interrupted.
    try:
        try:
            run.cancel_token = token
            if aborted and (run.row, run.turn) in aborted:  # after the line above: a later abort finds the token
                raise Cancelled
            result = fn(*run.args, **run.kwargs)
        except BaseException as error:
            failure = error
        over = True
        _disarm(run, token)
    except (SoftTimeout, Cancelled) as error:
        _disarm(run, token)
        if not over:
            failure = error
    if failure is not None:
        if isinstance(failure, Cancelled) and not failure.args:
            failure.args = (ABORTED,)
        raise failure
    return result


def raise_in_thread(run: Run, kind: type[BaseException]) -> None:
    """Raises an exception of this class in the run, unless it has not started, has ended, or was interrupted before."""
    with _raising:
        thread = (run.cancel_token or {}).pop(THREAD, None)
        if thread is not None:
            _set_async_exc(thread, kind)


def _disarm(run: Run, token: dict[str, int]) -> None:
    """Ends the time in which the run can be interrupted. The very exception that it takes back may interrupt it; then call it again.
    Do not call it in an `except` block: Python 3.13 would keep that exception as the context of all later errors of the thread.
    """
    if token.pop(THREAD, None) is not None:
        run.cancel_token = None
        return
    # Do not acquire the lock here: the exception can come at once, in Python 3.14 even before `with` would release the lock.
    while _raising.locked():
        clock.sleep(0.001)
    _set_async_exc(get_ident(), None)


def _set_async_exc(thread: int, kind: type[BaseException] | None) -> None:
    argument = ctypes.py_object(kind) if kind is not None else None
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), argument)
