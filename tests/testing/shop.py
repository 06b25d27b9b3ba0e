"""Tasks of a small project that record what they see."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.contrib.auth.models import User
from django.utils import timezone

import django_delayq as delayq

SEEN: list[Any] = []
KIT: list[Any] = []


@delayq.task(queue="orders", backoff="15s 3m 10m", max_attempts=4)
def settle_cart(order_id: int, *, note: str = "") -> int:
    SEEN.append(("settle_cart", order_id, delayq.current().attempt))
    return order_id


@delayq.task(queue="orders", backoff="15s 3m 10m", max_attempts=4)
def fail_twice(order_id: int) -> str:
    attempt = delayq.current().attempt
    SEEN.append(("fail_twice", order_id, attempt))
    if attempt < 3:
        raise RuntimeError("the bank is closed")
    return "paid"


@delayq.task
def tell_support(failed: str) -> None:
    SEEN.append(("tell_support", failed))


@delayq.task(max_attempts=1, on_failure=tell_support)
def charge() -> None:
    raise RuntimeError("the card is empty")


@delayq.task(queue="orders", atomic=True)
def book_or_wait(name: str) -> None:
    User.objects.create(username=name)
    if delayq.current().asked < 2:
        raise delayq.NotYet("not booked")


@delayq.task(queue="orders", backoff="15s 3m 10m")
def fail_always(order_id: int) -> None:
    job = delayq.current()
    SEEN.append(("fail_always", job.attempt, job.max_attempts, job.is_last_attempt))
    raise RuntimeError("the bank is closed")


@delayq.task(queue="orders", poll="15s 3m 10m", max_attempts=1)
def ask_bank(order_id: int) -> None:
    SEEN.append(("ask_bank", delayq.current().attempt, delayq.current().asked))
    raise delayq.NotYet("the bank has not booked it")


class ShopCarrier:
    """A carrier that records its number around each run."""

    def pack(self) -> int:
        return 7

    @contextmanager
    def wrap(self, packed: Any) -> Iterator[None]:
        SEEN.append(("inside", packed))
        yield


@delayq.task
def again(every: str) -> None:
    SEEN.append(delayq.current().run_at)
    delayq.schedule(again, every, delay=every)


@delayq.task(atomic=True)
def make_user(name: str) -> int:
    with delayq.once("user") as first:
        if first:
            User.objects.create(username=name)
    delayq.schedule(settle_cart, 1, delay="5m")
    return User.objects.filter(username=name).count()


@delayq.task
async def greet(name: str) -> str:
    SEEN.append(("greet", name, delayq.current().attempt, await User.objects.acount()))
    return f"hello {name}"


@delayq.task
def look_at_the_clock() -> None:
    SEEN.append((delayq.current().run_at, timezone.now()))


@delayq.task(timeout="1ms")
def take_longer_than_allowed() -> None:
    for _ in range(20):
        time.sleep(0.01)


@delayq.task
def move_time() -> None:
    KIT[0].advance("1m")


@delayq.task
def stop_when_asked(abort: bool) -> None:
    delayq.cancel(delayq.current().id, queue="default", abort=abort)
    SEEN.append(delayq.current().cancel_requested)
    raise RuntimeError("stopped")


@delayq.task(queue="orders", max_attempts=1)
def ship_alone(order_id: int) -> int:
    with delayq.lock(f"order:{order_id}", lease="40s") as lock:
        SEEN.append(("ship_alone", order_id))
        return lock.fence
