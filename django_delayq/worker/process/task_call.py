"""Calls the function of a task: a sync function in the thread of its consumer, a coroutine on the event loop of the process. The loop
has a separate thread. Timeouts (`timeouts.py`) and aborts interrupt both kinds from another thread.

A sync function is interrupted by an exception that is raised in its thread. Python delivers it at the next bytecode, so a task that
waits in C code gets it when the call returns. If a task does not react, the supervisor replaces its process, see
`supervisor/hanging_processes.py`.
The cancel token of a run (`Run.cancel_token`) contains the thread while the run can be interrupted. Whichever side removes the thread
first wins: the interrupter raises the exception, or the run has ended. So a run without an interrupt takes no lock.

A task may fork its process, as multiprocessing and daemons do. Such a fork is not a worker: it has only the thread of the task, but it
shares the lease table and has a copy of the buffer. So it ends when the task returns. Otherwise it would run jobs that the original
process runs, too.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import sys
import threading
from _thread import get_ident
from collections.abc import Callable, Coroutine, Set
from threading import Lock
from typing import Any, Final

from asgiref.sync import SyncToAsync, ThreadSensitiveContext, sync_to_async

from django_delayq import clock, durations
from django_delayq.exceptions import Cancelled, SoftTimeout
from django_delayq.logger import Logger
from django_delayq.worker.current import CURRENT, Run

logger = Logger("django_delayq.worker")

ABORTED: Final = "the job was aborted while it ran"  # the message of Cancelled
THREAD: Final = "thread"


def timeout_text(timeout: float) -> str:
    """The message of SoftTimeout."""
    return f"the task ran longer than its timeout of {durations.text(timeout)}"


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


_is_fork = False


def watch_forks() -> None:
    """Called once by a task process, before it starts threads: later forks are forks of a task."""
    os.register_at_fork(after_in_child=_become_a_fork)


def end_fork(error: BaseException | None) -> None:
    """Called when the task has ended, with its error. Ends the process if it is a fork of a task."""
    if not _is_fork:
        return
    code = 0
    try:
        if isinstance(error, SystemExit):
            code = error.code if isinstance(error.code, int) else int(error.code is not None)
        elif error is not None:
            code = 1
            logger.error("a process that a task forked ended with an error", exc_info=error)
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


def _become_a_fork() -> None:
    global _is_fork
    _is_fork = True
    # A task process leaves signals to its supervisor. A fork has no supervisor: `Process.terminate()` sends this signal, and then
    # waits.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


class Coroutines:
    """Runs the coroutines of a process.

    1. A consumer passes a coroutine and waits. So as many coroutines run at once as there are consumers.
    2. At its timeout the coroutine is cancelled, and its run ends in SoftTimeout. If the run is interrupted, it ends in Cancelled.
    3. The loop dies with the process.

    Args:
        end_thread: called at the end of the thread in which a coroutine has run sync functions.
    """

    def __init__(self, end_thread: Callable[[], None]) -> None:
        self._end_thread = end_thread
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._interruptible: dict[Run, asyncio.Task[Any]] = {}  # used by the loop's thread only

    def call(self, run: Run, fn: Callable[..., Coroutine[Any, Any, Any]], aborted: Set[tuple[int, int]]) -> Any:
        """Runs `fn`, the function of the run's task, on the event loop. Returns its result or raises its exception. `aborted`: see
        `call`.
        """
        result, failure = asyncio.run_coroutine_threadsafe(self._run(run, fn, aborted), self._running_loop()).result()
        if failure is not None:
            raise failure
        return result

    def interrupt(self, run: Run) -> None:
        """Cancels the run's coroutine, unless it has not begun, has ended, or has been interrupted before."""
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # a task has closed the loop
                self._loop.call_soon_threadsafe(self._cancel, run)

    def _cancel(self, run: Run) -> None:
        task = self._interruptible.pop(run, None)
        if task is not None:
            task.cancel()

    async def _run(
        self, run: Run, fn: Callable[..., Coroutine[Any, Any, Any]], aborted: Set[tuple[int, int]]
    ) -> tuple[Any, BaseException | None]:
        assert run.current is not None
        CURRENT.set(run.current)
        # asgiref runs sync functions of a job in a thread, as Django does with every query. Here each job gets a separate thread with
        # separate connections. In the thread that asgiref shares by default, the connections would never be closed, and the jobs
        # would wait for one another.
        async with ThreadSensitiveContext() as thread:
            ended = await self._call(run, fn, aborted)
            end_fork(ended[1])
            if thread in SyncToAsync.context_to_thread_executor:
                await sync_to_async(self._end_thread)()
        return ended

    async def _call(
        self, run: Run, fn: Callable[..., Coroutine[Any, Any, Any]], aborted: Set[tuple[int, int]]
    ) -> tuple[Any, BaseException | None]:
        # Errors are returned, not raised, as SystemExit would interrupt the loop.
        task = asyncio.current_task()
        assert task is not None
        self._interruptible[run] = task
        scope, failure = asyncio.timeout(run.timeout), None
        try:
            if (run.row, run.turn) in aborted:  # after the line above: a later abort finds the task
                raise Cancelled(ABORTED)
            async with scope:
                result = await fn(*run.args, **run.kwargs)
        except BaseException as error:
            failure = error
        interrupted = self._interruptible.pop(run, None) is None
        if failure is None:
            return result, None
        late: BaseException | None = None
        if interrupted and isinstance(failure, asyncio.CancelledError):
            late = Cancelled(ABORTED)
        elif run.timeout is not None and scope.expired() and isinstance(failure, TimeoutError):
            late = SoftTimeout(timeout_text(run.timeout))
        if late is None:
            return None, failure
        late.__cause__ = failure.__cause__
        return None, late.with_traceback(failure.__traceback__)

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=_run_loop, args=(self._loop,), name="delayq-asyncio", daemon=True).start()
            return self._loop


def _run_loop(loop: asyncio.AbstractEventLoop) -> None:
    # SystemExit in an asyncio task ends the loop, and so does `loop.stop()`. The other coroutines would then wait for ever.
    while not loop.is_closed():
        try:
            loop.run_forever()
            logger.warning("a task stopped the event loop of its process, which other tasks use. The loop continues")
        except BaseException as error:
            logger.warning("%s ended the event loop of its process, which other tasks use. The loop continues", type(error).__name__)
