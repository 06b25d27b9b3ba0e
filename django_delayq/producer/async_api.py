"""Async twins: `aschedule` for `schedule`, and so on. A twin runs the same function in the thread that Django keeps for sync code."""

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

running_loop: Final = asyncio.events._get_running_loop  # without the exception of get_running_loop, which costs more than the look


def refuse_loop(twin: str, *, block: bool = False) -> None:
    """Does nothing in a thread of its own. `twin`: what to await instead, with its parentheses; of a `block`, what to enter.

    Raises:
        SynchronousOnlyOperation: an event loop runs in this thread, and would stand still meanwhile.
            DJANGO_ALLOW_ASYNC_UNSAFE allows it, as for the rest of Django.
    """
    if running_loop() is not None and not os.environ.get("DJANGO_ALLOW_ASYNC_UNSAFE"):
        way = f"use async with {twin}" if block else f"use await {twin}"
        raise SynchronousOnlyOperation(f"This was called in async code, where it would block the event loop: {way}.")


def twin(of: Callable[P, R]) -> Callable[P, Coroutine[Any, Any, R]]:
    """The async twin of a function. It commits by itself, because transactions in Django belong to a thread."""

    @wraps(of)
    async def awaited(*args: P.args, **kwargs: P.kwargs) -> R:
        return await sync_to_async(of)(*args, **kwargs)

    awaited.__name__ = f"a{of.__name__}"
    awaited.__qualname__ = awaited.__name__.join(of.__qualname__.rsplit(of.__name__, 1))
    awaited.__doc__ = f"Async version of `{of.__name__}`."
    return awaited


def like(of: Callable[P, R]) -> Callable[[Callable[..., Coroutine[Any, Any, R]]], Callable[P, Coroutine[Any, Any, R]]]:
    """Gives an async function the parameters of its sync twin."""

    def decorate(fn: Callable[..., Coroutine[Any, Any, R]]) -> Callable[P, Coroutine[Any, Any, R]]:
        fn.__signature__ = inspect.signature(of)  # type: ignore[attr-defined]  # what help() and documentation show
        return fn

    return decorate


async def in_thread(of: Callable[..., R], *args: Any) -> R:
    """Calls a sync function in the thread that Django keeps for them."""
    return await sync_to_async(of)(*args)


async def unbroken(of: Callable[..., R], *args: Any, back: Callable[[R], None]) -> R:
    """The same, to its end whoever cancels the caller: `back` then gets what the caller does not."""
    under_way = asyncio.ensure_future(sync_to_async(of)(*args))
    try:
        return await asyncio.shield(under_way)
    except asyncio.CancelledError:
        with contextlib.suppress(DelayqError):  # it came to nothing
            await sync_to_async(back)(await under_way)
        raise


async def pause(seconds: float) -> None:
    """Lets the event loop go on."""
    await asyncio.sleep(seconds)


async def readable(descriptor: int, seconds: float) -> bool:
    """Waits until there is something to read, for so long at most. Whether there is."""
    if descriptor < 0:  # no call can come
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
    """Puts jobs in that bear the ids `drawn`.

    Raises:
        CancelledError: with the ids as its `jobs`: whether these jobs were put in is not known.
    """
    try:
        return await sync_to_async(put)(*args)
    except asyncio.CancelledError as error:
        error.jobs = tuple(drawn)  # type: ignore[attr-defined]  # who cancels may ask for them by delayq.aget
        error.add_note(
            f"It is not known whether these jobs were scheduled: {', '.join(map(ids.short, drawn[:20]))}. Check with delayq.aget(id)."
        )
        raise
