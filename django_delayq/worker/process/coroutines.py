"""`async def` tasks: all of one process run on one event loop, in a thread of its own that starts with the first of them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

from asgiref.sync import SyncToAsync, ThreadSensitiveContext, sync_to_async

from django_delayq.exceptions import SoftTimeout
from django_delayq.logger import Logger
from django_delayq.worker.current import CURRENT, CurrentJob
from django_delayq.worker.process import stray_copies, timeouts

logger = Logger("django_delayq.worker")


class Coroutines:
    """1. A consumer hands a coroutine over and waits, so that as many run at once as there are consumers. 2. At its timeout
    the coroutine is cancelled, and its run ends in SoftTimeout. 3. The loop dies with the process.

    Args:
        end_thread: called at the end of the thread in which a coroutine has run plain functions.
    """

    def __init__(self, end_thread: Callable[[], None]) -> None:
        self._end_thread = end_thread
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

    def call(
        self,
        fn: Callable[..., Coroutine[Any, Any, Any]],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        timeout: float | None,
        job: CurrentJob,
    ) -> Any:
        """Runs `fn` on the event loop; returns or raises what it does."""
        run = _run(fn, args, kwargs, timeout, job, self._end_thread)
        result, failure = asyncio.run_coroutine_threadsafe(run, self._running_loop()).result()
        if failure is not None:
            raise failure
        return result

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=_turn, args=(self._loop,), name="delayq-asyncio", daemon=True).start()
            return self._loop


def _turn(loop: asyncio.AbstractEventLoop) -> None:
    # SystemExit raised in a task of asyncio ends the loop, and so does `loop.stop()`; the other coroutines would wait for ever.
    while not loop.is_closed():
        try:
            loop.run_forever()
            logger.warning("a task stopped the event loop of its process, which others share; it goes on")
        except BaseException as error:
            logger.warning("%s ended the event loop of its process, which others share; it goes on", type(error).__name__)


async def _run(
    fn: Callable[..., Coroutine[Any, Any, Any]],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    timeout: float | None,
    job: CurrentJob,
    end_thread: Callable[[], None],
) -> tuple[Any, BaseException | None]:
    CURRENT.set(job)
    # What asgiref runs in a thread for this job, as Django does with every query, gets a thread of the job's own, with its
    # own connections. In the one that it shares by default nobody would ever close them, and the jobs would queue up.
    async with ThreadSensitiveContext() as thread:
        ended = await _call(fn, args, kwargs, timeout)
        stray_copies.end(ended[1])
        if thread in SyncToAsync.context_to_thread_executor:
            await sync_to_async(end_thread)()
    return ended


async def _call(
    fn: Callable[..., Coroutine[Any, Any, Any]], args: Sequence[Any], kwargs: Mapping[str, Any], timeout: float | None
) -> tuple[Any, BaseException | None]:
    # Errors are returned, not raised, as SystemExit would interrupt the loop.
    scope = asyncio.timeout(timeout)
    try:
        async with scope:
            return await fn(*args, **kwargs), None
    except BaseException as error:
        if timeout is not None and scope.expired() and isinstance(error, TimeoutError):
            late = SoftTimeout(timeouts.text(timeout)).with_traceback(error.__traceback__)
            late.__cause__ = error.__cause__
            return None, late
        return None, error
