"""The audit of the ledgers of the shop, the partner and the warehouse, after all orders have ended. Each fault has a count."""

import sqlite3
from collections import Counter

from django.conf import settings
from django.db.models import Count, Q

from django_delayq.models import Job
from shop.fulfilment import WAREHOUSE, pack_key
from shop.models import Ledger, Order


class Records:
    """The ledger of the partner or the warehouse, in a SQLite file that it only reads."""

    def __init__(self, path):
        self.rows = sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=20)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.rows.close()

    def orders(self, table, orders):
        """How often a table contains each order."""
        span = [min(orders), max(orders)]
        found = self.rows.execute(f"SELECT order_id, COUNT(*) FROM {table} WHERE order_id BETWEEN ? AND ? GROUP BY order_id", span)
        return Counter({order: times for order, times in found if order in orders})

    def messages(self, table, orders):
        """The ids of the messages for these orders."""
        span = [min(orders), max(orders)]
        found = self.rows.execute(f"SELECT DISTINCT message_id, order_id FROM {table} WHERE order_id BETWEEN ? AND ?", span)
        return {message for message, order in found if order in orders}


def audit(orders):
    """Fault -> count, for a range of order numbers."""
    lines = of_orders(Ledger.objects.filter(what="paid"), orders)
    paid = {order for order in lines.values_list("order_id", flat=True) if order in orders}
    faults = shop_faults(orders)
    with Records(settings.PARTNER_LEDGER) as partner:
        faults |= partner_faults(partner, orders, paid)
    with Records(settings.WAREHOUSE_LEDGER) as warehouse:
        faults |= warehouse_faults(warehouse, orders, paid)
    return faults


def of_orders(rows, orders):
    """The lines for these orders."""
    return rows.filter(order_id__gte=min(orders), order_id__lte=max(orders))


def shop_faults(orders):
    mine = Order.objects.filter(pk__gte=min(orders), pk__lte=max(orders)).annotate(
        closings=Count("ledger", filter=Q(ledger__what="closed")),
        payments=Count("ledger", filter=Q(ledger__what="paid")),
    )
    dates = of_orders(Ledger.objects.filter(what="closed"), orders).values_list("at", "order__pay_until")
    return {
        "unpaid orders that were not closed": mine.filter(payments=0, closings=0).count(),
        "orders closed more than once": mine.filter(closings__gt=1).count(),
        "paid orders that were closed": mine.filter(payments__gt=0, closings__gt=0).count(),
        "orders closed early": sum(at < until for at, until in dates.iterator()),
        "orders in a wrong state": mine.filter(state=Order.State.UNPAID).count(),
    }


def partner_faults(partner, orders, paid):
    """`paid`: the paid orders. The partner must not receive others."""
    heard, taken = partner.orders("asked", orders), partner.orders("taken", orders)
    return {
        "paid orders of which the partner has not heard, with a good signature": len(paid - heard.keys()),
        "paid orders that the partner has not taken": sum(not taken[order] for order in paid),
        "orders that the partner has taken more than once": sum(times > 1 for times in taken.values()),
        "orders that were not paid, but of which the partner has heard": len((heard.keys() | taken.keys()) - paid),
    }


def warehouse_faults(warehouse, orders, paid):
    """Each pulled message must be acknowledged, in the ledger of the warehouse and in the rows of the queue."""
    pulled, packed = warehouse.orders("pulled", orders), warehouse.orders("packed", orders)
    messages, acked = warehouse.messages("pulled", orders), warehouse.messages("acked", orders)
    keys = (pack_key(order) for order in orders)
    return {
        "paid orders that the warehouse has not packed": sum(not packed[order] for order in paid),
        "orders that the warehouse has packed more than once": sum(times > 1 for times in packed.values()),
        "orders that were not paid, but that the warehouse has seen": len((pulled.keys() | packed.keys()) - paid),
        "messages that the warehouse has pulled and not acked": len(messages - acked),
        "messages that have not ended well": unsettled(keys),
    }


def unsettled(keys):
    """How many messages with these keys are not acknowledged in the rows of the queue."""
    left = Job.objects.filter(queue=WAREHOUSE).exclude(state="succeeded").values_list("key", flat=True)
    wanted = set(keys)
    return sum(key in wanted for key in left.iterator())
