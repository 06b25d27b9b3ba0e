"""Tasks that tests schedule."""

from __future__ import annotations

import django_delayq as delayq


@delayq.task(queue="orders")
def close_order(order_id: int, *, note: str = "") -> int:
    return order_id


@delayq.task(queue="redis")
def ping(number: int = 0) -> None: ...


@delayq.task(queue="orders")
def takes_all(*args: object, **kwargs: object) -> None: ...


@delayq.task(queue="orders")
def look_after(job_id: str) -> None: ...


@delayq.task(queue="orders", on_failure=look_after)
def risky(number: int = 0) -> None: ...


@delayq.task(queue="orders", atomic=True)
def book(number: int = 0) -> None: ...


@delayq.task(queue="orders")
async def fetch(number: int = 0) -> None: ...


@delayq.task(queue="orders", poll="15s 10m 1h")
def ask_bank(order_id: int) -> None: ...


@delayq.task(queue="orders", rate=("bank:{bank}", "6/m"))
def pay_out(bank: int, number: int = 0) -> None: ...


@delayq.task(queue="orders", fair="tenant:{tenant}")
def bill(tenant: str, number: int = 0) -> None: ...
