"""The models and modules of the shop that the examples of the topic pages need."""

from __future__ import annotations

from pathlib import Path

MODULES = {
    "orders/models.py": """
from django.db import models


class Order(models.Model):
    state = models.CharField(max_length=20, default="unpaid")
    status = models.CharField(max_length=20, default="")
    turn = models.BigIntegerField(default=0)
    total = models.IntegerField(default=0)


class Payout(models.Model):
    order = models.ForeignKey(Order, models.CASCADE)
    amount = models.IntegerField()


class Stock(models.Model):
    order = models.IntegerField()
    reserved = models.BooleanField(default=False)


class Parcel(models.Model):
    order_id = models.IntegerField()
""",
    "orders/provider.py": """
answers = []
booked = []


def ask_provider(order_id):
    return answers.pop(0)


def book_parcel(order_id):
    booked.append(order_id)
""",
    "orders/bank.py": """
bookings = []


def ask_bank(order_id):
    return bookings.pop(0)
""",
}
CLOSE_ORDER = """
import django_delayq as delayq


@delayq.task(queue="orders")
def close_order(order_id: int) -> None: ...
"""


def complete(home: Path) -> None:
    """Adds these modules to a project. `close_order` is a task of each project that does not define one."""
    for name, code in MODULES.items():
        (home / name).write_text(code)
    tasks = home / "orders" / "tasks.py"
    if not tasks.exists() or "def close_order" not in tasks.read_text():
        with tasks.open("a") as out:
            out.write(CLOSE_ORDER)
