"""What interrupts a running function of a task: an exception that is raised inside its thread, `SoftTimeout` or `Cancelled`.

Python delivers it at the thread's next bytecode; a task that waits in C code gets it when that returns. Who does not hear it is the
supervisor's (`supervisor/deadlines.py`).

The fuse of a run (`Run.fuse`) has the thread in it, as long as it may be interrupted. Who takes the thread out decides: who burns the
fuse then raises the exception there; the run itself has ended. So a run that nobody interrupts takes no lock.
"""

from __future__ import annotations

import ctypes
from _thread import get_ident
from collections.abc import Callable, Set
from threading import Lock
from typing import Any, Final

from django_delayq import clock
from django_delayq.exceptions import Cancelled, SoftTimeout
from django_delayq.worker.run import Run

ABORTED: Final = "the job was aborted while it ran"  # what Cancelled says

THREAD: Final = "thread"
_burning: Final = Lock()  # held between taking the thread out and raising the exception there; never by who may be interrupted


def call(run: Run, fn: Callable[..., Any], aborted: Set[tuple[int, int]]) -> Any:
    """Calls `fn` with what the run has for it. Raises in it, and from it, what the fuse is burnt with: at most once, and never behind
    its end, neither in the worker's own code, where it might leave a lock locked, nor in the next job. A second exception might strike
    where the first is taken, and who has had one is to end anyhow.

    Args:
        aborted: row and turn of runs that are not to begin: these raise Cancelled.
    """
    fuse = {THREAD: get_ident()}
    result, failure, over = None, None, False
    # The exception may arrive at any bytecode from here until _put_out has returned. Inside the inner `try` it is the task's;
    # behind it, it came too late and is dropped. It comes only once, so the second _put_out is not interrupted.
    try:
        try:
            run.fuse = fuse
            if aborted and (run.row, run.turn) in aborted:  # behind the line above: whoever aborts it later finds the fuse
                raise Cancelled
            result = fn(*run.args, **run.kwargs)
        except BaseException as error:
            failure = error
        over = True
        _put_out(run, fuse)
    except (SoftTimeout, Cancelled) as error:
        _put_out(run, fuse)
        if not over:
            failure = error
    if failure is not None:
        if isinstance(failure, Cancelled) and not failure.args:
            failure.args = (ABORTED,)
        raise failure
    return result


def burn(run: Run, kind: type[BaseException]) -> None:
    """Raises that in the run, unless it has not begun, has ended, or has been interrupted before."""
    with _burning:
        thread = (run.fuse or {}).pop(THREAD, None)
        if thread is not None:
            _raise_in(thread, kind)


def _put_out(run: Run, fuse: dict[str, int]) -> None:
    """May be interrupted by the very exception that it takes back; then it is to be called again. That must not come where another
    one is handled: Python 3.13 would take the thread to be handling that for ever, and name it with each error to come.
    """
    if fuse.pop(THREAD, None) is not None:
        run.fuse = None
        return
    # Not taken here: the exception may come as soon as it is, and from Python 3.14 on before `with` would give it back.
    while _burning.locked():
        clock.sleep(0.001)
    _raise_in(get_ident(), None)


def _raise_in(thread: int, kind: type[BaseException] | None) -> None:
    argument = ctypes.py_object(kind) if kind is not None else None
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), argument)
