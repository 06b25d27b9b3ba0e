"""Runs the audit of the example on a good day, and on days with one fault each. `python -m tests.example.broken` prints the results
as JSON, in a process with the example's settings. It uses no server: it writes ledgers and rows directly.
"""

# ruff: noqa: E402  # Django is set up before what uses it is imported

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import django

django.setup()

from django.conf import settings
from django.core.management import call_command
from django.db import transaction
from partner import PartnerLedger, mood
from shop.audit import audit
from shop.fulfilment import WAREHOUSE, pack_key
from shop.models import Ledger, Order, Product
from warehouse import WarehouseLedger

from django_delayq import clock
from django_delayq.models import Job

ORDERS, PAID = range(1, 7), (1, 2, 3)
# Change of a ledger -> the faults that it causes, one of each, by the first words of their sentences.
PARTNERS = {
    "DELETE FROM asked WHERE order_id = 1": ("paid orders of which the partner has not heard",),
    "DELETE FROM taken WHERE order_id = 1": ("paid orders that the partner has not taken",),
    "INSERT INTO taken VALUES ('again', 2, 0)": ("orders that the partner has taken more than once",),
    "INSERT INTO asked VALUES ('stray', 4, 0, 503)": ("orders that were not paid, but of which the partner",),
    "INSERT INTO taken VALUES ('stray', 5, 0)": ("orders that were not paid, but of which the partner",),
}
WAREHOUSES = {
    "DELETE FROM packed WHERE order_id = 1": ("paid orders that the warehouse has not packed",),
    "INSERT INTO packed VALUES ('again', 2, 0)": ("orders that the warehouse has packed more than once",),
    "INSERT INTO pulled VALUES ('f', 'm-4', 4, 0); INSERT INTO acked VALUES ('m-4', 4, 0)": (
        "orders that were not paid, but that the",
    ),
    "INSERT INTO packed VALUES ('m-5', 5, 0)": ("orders that were not paid, but that the warehouse",),
    "DELETE FROM acked WHERE order_id = 3": ("messages that the warehouse has pulled and not acked",),
}


def unpaid_and_open():
    Order.objects.filter(pk=4).update(state=Order.State.UNPAID)
    Ledger.objects.filter(order_id=4, what="closed").delete()


SHOPS = {
    "an unpaid order stays open": (unpaid_and_open, ("unpaid orders that were not closed", "orders in a wrong state")),
    "an order is closed twice": (lambda: line(5, "closed", 2), ("orders closed more than once",)),
    "a paid order is closed": (lambda: line(1, "closed", 2), ("paid orders that were closed",)),
    "an order is closed early": (
        lambda: Ledger.objects.filter(order_id=6, what="closed").update(at=clock.now() - timedelta(hours=2)),
        ("orders closed early",),
    ),
    "a message failed": (lambda: Job.objects.filter(key=pack_key(2)).update(state="failed"), ("messages that have not ended well",)),
    "a message waits": (lambda: Job.objects.filter(key=pack_key(3)).update(state="scheduled"), ("messages that have not ended well",)),
}


def line(order, what, seconds=0):
    Ledger.objects.create(order_id=order, what=what, at=clock.now() + timedelta(seconds=seconds))


def good_day():
    """Six orders, three of them paid."""
    call_command("migrate", verbosity=0)
    product = Product.objects.create(name="pen", price=1, blurb="")
    partner, warehouse = PartnerLedger(settings.PARTNER_LEDGER), WarehouseLedger(settings.WAREHOUSE_LEDGER)
    now = clock.now()
    for order in ORDERS:
        state = Order.State.PAID if order in PAID else Order.State.CLOSED
        Order.objects.create(pk=order, product=product, state=state, pay_until=now - timedelta(hours=1))
        line(order, "paid" if order in PAID else "closed")
    for order in PAID:
        for _ in range(4):  # with the 429 of order 2
            partner.asked(f"w-{order}", order, mood(order))
        for table, key in (("pulled", f"fence-{order}"), ("packed", f"m-{order}"), ("acked", f"m-{order}")):
            rest = [f"m-{order}", order] if table == "pulled" else [order]
            assert warehouse.note(table, key, *rest)
        Job.objects.create(
            queue=WAREHOUSE,
            key=pack_key(order),
            task="",
            state="succeeded",
            run_at=now,
            created_at=now,
            finished_at=now,
            max_attempts=1,
        )


def broken_file(path: Path, statements: str):
    """Returns the audit's findings after the statements changed the ledger, and then restores the ledger."""
    with closing(sqlite3.connect(path, isolation_level=None)) as rows:
        before = "\n".join(rows.iterdump())
        rows.executescript(statements)
        found = audit(ORDERS)
        tables = [name for (name,) in rows.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        rows.executescript("".join(f"DROP TABLE {name};" for name in tables))
        rows.executescript(before)
    return found


def broken_rows(act):
    """Does the same with the shop's own rows."""
    with transaction.atomic():
        act()
        found = audit(ORDERS)
        transaction.set_rollback(True)
    return found


def main():
    good_day()
    said = {"nothing is wrong": ([], audit(ORDERS))}
    for path, cases in ((settings.PARTNER_LEDGER, PARTNERS), (settings.WAREHOUSE_LEDGER, WAREHOUSES)):
        said |= {case: (wanted, broken_file(path, case)) for case, wanted in cases.items()}
    said |= {case: (wanted, broken_rows(act)) for case, (act, wanted) in SHOPS.items()}
    said["nothing is wrong any more"] = ([], audit(ORDERS))
    print(json.dumps(said))


if __name__ == "__main__":
    main()
