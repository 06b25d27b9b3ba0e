"""Tasks whose runs end in each possible way, for integrations that report runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from asgiref.sync import sync_to_async

import django_delayq as delayq
from django_delayq.producer.task import Task, registry

LOOKS: list[Callable[[], Any]] = []  # what a run asks
SEEN: list[Any] = []  # and was answered


def _look() -> None:
    SEEN.extend(look() for look in LOOKS)


class Lost(Exception):
    """A parcel is lost."""


@delayq.task(queue="orders", sensitive=["iban"])
def ship(order: int, iban: str = "") -> int:
    _look()
    return order


@delayq.task(queue="orders")
async def ship_later(order: int) -> int:
    await asyncio.sleep(0)
    await sync_to_async(_look)()
    _look()
    return order


@delayq.task(queue="orders", sensitive=["iban"], max_attempts=2, backoff="1h")
def lose(order: int, iban: str = "") -> None:
    _look()
    raise Lost(f"order {order} is gone")


@delayq.task(queue="orders", sensitive=["iban"], max_attempts=1)
async def lose_later(order: int, iban: str = "") -> None:
    await asyncio.sleep(0)
    raise Lost(f"order {order} is gone")


@delayq.task(queue="orders", max_attempts=2)
def retry(cause: str = "") -> None:
    try:
        if cause:
            raise Lost(cause)
    except Lost as error:
        raise delayq.Retry("1h", "the carrier is closed") from error
    raise delayq.Retry("1h", "the carrier is closed")


@delayq.task(queue="orders")
def snooze() -> None:
    if delayq.current().meta.get("ready"):
        return
    raise delayq.Snooze("1h", "not packed yet")


@delayq.task(queue="orders", poll="1h")
def ask() -> None:
    try:
        raise LookupError("no such parcel")
    except LookupError as error:
        raise delayq.NotYet("nobody has scanned it") from error


@delayq.task(queue="orders")
def fail() -> None:
    raise delayq.Fail("no such order")


class Wordless(Exception):
    """An error whose `str()` and `repr()` raise."""

    def __str__(self) -> str:
        raise RuntimeError("no words")

    __repr__ = __str__


@delayq.task(queue="orders", max_attempts=1)
def lose_words() -> None:
    raise Wordless


@delayq.task(queue="orders")
def give_up() -> None:
    """Is cancelled while it runs, and fails because of it."""
    delayq.cancel(delayq.current().id)
    raise Lost("on the way")


@delayq.task(queue="orders")
def tell(job: str) -> None: ...


@delayq.task(queue="orders", max_attempts=1, on_failure=tell)
def break_off() -> None:
    raise Lost("the last one")


def inner(*args: Any) -> None:
    """Has the signature of a decorator: the arguments of a task without their names."""
    copied = list(args)
    raise Lost("with a copy") if copied else AssertionError


@delayq.task(queue="orders", sensitive=["iban"], max_attempts=1)
def lose_wrapped(order: int, iban: str, bank: str) -> None:
    inner(iban, bank)


# Known while a test of this folder runs: what is masked depends on whether any task hides something.
TASKS = {task.name: task for task in list(globals().values()) if isinstance(task, Task)}
for name in TASKS:
    del registry._tasks[name]
