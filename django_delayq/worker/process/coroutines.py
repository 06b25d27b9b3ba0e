"""`async def` tasks: all tasks of one process run on one event loop. The loop has a separate thread, which starts with the first
task.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine, Set
from typing import Any

from asgiref.sync import SyncToAsync, ThreadSensitiveContext, sync_to_async

from django_delayq.exceptions import Cancelled, SoftTimeout
from django_delayq.logger import Logger
from django_delayq.worker.current import CURRENT, Run
from django_delayq.worker.process import stray_copies, timeouts

logger = Logger("django_delayq.worker")


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
        `timeouts.call`.
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
            stray_copies.end(ended[1])
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
                raise Cancelled(timeouts.ABORTED)
            async with scope:
                result = await fn(*run.args, **run.kwargs)
        except BaseException as error:
            failure = error
        interrupted = self._interruptible.pop(run, None) is None
        if failure is None:
            return result, None
        late: BaseException | None = None
        if interrupted and isinstance(failure, asyncio.CancelledError):
            late = Cancelled(timeouts.ABORTED)
        elif run.timeout is not None and scope.expired() and isinstance(failure, TimeoutError):
            late = SoftTimeout(timeouts.text(run.timeout))
        if late is None:
            return None, failure
        late.__cause__ = failure.__cause__
        return None, late.with_traceback(failure.__traceback__)

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=_turn, args=(self._loop,), name="delayq-asyncio", daemon=True).start()
            return self._loop


def _turn(loop: asyncio.AbstractEventLoop) -> None:
    # SystemExit in an asyncio task ends the loop, and so does `loop.stop()`. The other coroutines would then wait for ever.
    while not loop.is_closed():
        try:
            loop.run_forever()
            logger.warning("a task stopped the event loop of its process, which other tasks use. The loop continues")
        except BaseException as error:
            logger.warning("%s ended the event loop of its process, which other tasks use. The loop continues", type(error).__name__)
