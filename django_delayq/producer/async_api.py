"""Async versions of functions, such as `aschedule`. They run the sync function in the thread that Django uses for sync code."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
from collections.abc import Callable, Coroutine, Sequence
from functools import wraps
from typing import Any, Final, ParamSpec, TypeVar
from uuid import UUID

from asgiref.sync import sync_to_async
from django.core.exceptions import SynchronousOnlyOperation

from django_delayq import ids
from django_delayq.exceptions import DelayqError

P = ParamSpec("P")
R = TypeVar("R")

running_loop: Final = asyncio.events._get_running_loop  # faster than get_running_loop, which raises


def refuse_loop(twin: str, *, block: bool = False) -> None:
    """Refuses sync calls in async code. `twin`: the call to await instead, with its parentheses; with `block`, the block to enter.

    Raises:
        SynchronousOnlyOperation: an event loop runs in this thread, and the call would block it. DJANGO_ALLOW_ASYNC_UNSAFE allows it,
            as for the rest of Django.
    """
    if running_loop() is not None and not os.environ.get("DJANGO_ALLOW_ASYNC_UNSAFE"):
        way = f"use async with {twin}" if block else f"use await {twin}"
        raise SynchronousOnlyOperation(f"This was called in async code, where it would block the event loop: {way}.")


def twin(of: Callable[P, R]) -> Callable[P, Coroutine[Any, Any, R]]:
    """Makes the async version of a function. It commits by itself, because transactions in Django belong to a thread."""

    @wraps(of)
    async def awaited(*args: P.args, **kwargs: P.kwargs) -> R:
        return await sync_to_async(of)(*args, **kwargs)

    awaited.__name__ = f"a{of.__name__}"
    awaited.__qualname__ = awaited.__name__.join(of.__qualname__.rsplit(of.__name__, 1))
    awaited.__doc__ = f"Async version of `{of.__name__}`."
    return awaited


def like(of: Callable[P, R]) -> Callable[[Callable[..., Coroutine[Any, Any, R]]], Callable[P, Coroutine[Any, Any, R]]]:
    """Gives an async function the signature of its sync version."""

    def decorate(fn: Callable[..., Coroutine[Any, Any, R]]) -> Callable[P, Coroutine[Any, Any, R]]:
        fn.__signature__ = inspect.signature(of)  # type: ignore[attr-defined]  # what help() and documentation show
        return fn

    return decorate


async def in_thread(of: Callable[..., R], *args: Any) -> R:
    """Calls a sync function in the thread that Django uses for sync code."""
    return await sync_to_async(of)(*args)


async def unbroken(of: Callable[..., R], *args: Any, back: Callable[[R], None]) -> R:
    """Like `in_thread`, but completes if the caller is cancelled. Then `back` gets the result."""
    under_way = asyncio.ensure_future(sync_to_async(of)(*args))
    try:
        return await asyncio.shield(under_way)
    except asyncio.CancelledError:
        with contextlib.suppress(DelayqError):  # there is no result to give back
            await sync_to_async(back)(await under_way)
        raise


async def pause(seconds: float) -> None:
    """Sleeps without blocking the event loop."""
    await asyncio.sleep(seconds)


async def readable(descriptor: int, seconds: float) -> bool:
    """Waits for data to read, at most this many seconds. Returns whether there is some."""
    if descriptor < 0:  # there is no connection
        await asyncio.sleep(seconds)
        return False
    loop = asyncio.get_running_loop()
    came = asyncio.Event()
    loop.add_reader(descriptor, came.set)
    try:
        async with asyncio.timeout(seconds):
            await came.wait()
    except TimeoutError:
        pass
    finally:
        loop.remove_reader(descriptor)
    return came.is_set()


async def scheduled(drawn: Sequence[UUID], put: Callable[..., R], *args: Any) -> R:
    """Schedules jobs that have the ids `drawn`.

    Raises:
        CancelledError: it is not known whether the jobs were scheduled. The error has their ids in `jobs`.
    """
    try:
        return await sync_to_async(put)(*args)
    except asyncio.CancelledError as error:
        error.jobs = tuple(drawn)  # type: ignore[attr-defined]  # the caller can check them with delayq.aget
        error.add_note(
            f"It is not known whether these jobs were scheduled: {', '.join(map(ids.short, drawn[:20]))}. Check with delayq.aget(id)."
        )
        raise
