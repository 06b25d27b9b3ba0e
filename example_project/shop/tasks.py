"""The tasks of the shop."""

import json
import urllib.request

from django.conf import settings
from django.db import transaction

import django_delayq as delayq
from django_delayq.models import Job
from shop.models import Ledger, Order


@delayq.task(queue="orders", timeout="30s")
def close_order(order_id: int) -> str:
    """Closes an order that was not paid in time. It checks the order first: a job is only a reminder."""
    order = Order.objects.get(pk=order_id)
    with transaction.atomic():
        closed = order.move(Order.State.UNPAID, Order.State.CLOSED, "closed")
    return "closed" if closed else "left alone"


@delayq.task(queue="orders")
def poll_refund(order_id: int) -> str:
    """Asks the payment provider until the refund is complete. Waiting is not an error, and a snooze does not count as an attempt."""
    order = Order.objects.get(pk=order_id)
    if order.state != Order.State.REFUNDING:
        return "nothing to refund"
    with urllib.request.urlopen(f"{settings.SHOP_URL}/provider/refunds/{order_id}/", timeout=10) as answer:
        status = json.load(answer)["status"]
    if status != "done":
        raise delayq.Snooze("2s", "the provider is not ready")
    with transaction.atomic():
        order.move(Order.State.REFUNDING, Order.State.REFUNDED, "refunded")
    return "refunded"


@delayq.task(queue="orders")
def write_to_partner(job_id: str) -> None:
    """The webhook failed for good, so a person must inform the partner."""
    delivery = Job.objects.get(pk=job_id)
    Ledger.objects.get_or_create(order_id=delivery.meta["order"], what="partner not reached")
