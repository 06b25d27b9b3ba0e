"""Tasks of the desk. They contact no other system, and end at once."""

from __future__ import annotations

import time

import django_delayq as delayq


@delayq.task(name="shop.mail.send_mail", queue="mail")
def send_mail(to: str, subject: str) -> str:
    """Tells a customer something."""
    return f"told {to} of {subject}"


@delayq.task(name="shop.mail.remind", queue="mail")
def remind(customer: int, order_id: int) -> None:
    """Reminds a customer of what is in the basket."""


@delayq.task(name="shop.partner.tell_partner", queue="default")
def tell_partner(order_id: int) -> None:
    """Tells the partner of an order."""


@delayq.task(name="shop.packing.pack", queue="orders", serial="order:{order_id}")
def pack(order_id: int) -> None:
    """Packs an order: never twice at a time."""


@delayq.task(name="shop.reports.report", queue="reports")
def report(year: int) -> None:
    """Takes long, and says how far it is."""


@delayq.task(name="shop.stock.count_stock", queue="stock")
def count_stock(shelf: int) -> None:
    """Takes an hour, unless its worker has died once."""
    if not delayq.current().crashes:
        time.sleep(3600)


@delayq.task(name="shop.stock.order_paper", queue="stock", max_attempts=5, backoff="1d")
def order_paper(sheets: int) -> None:
    """Fails until tomorrow."""
    raise ConnectionError("paper.example is closed today")
