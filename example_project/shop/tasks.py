"""What the shop puts off until later."""

import json
import urllib.request

from django.conf import settings
from django.db import transaction

import django_delayq as delayq
from shop.models import Ledger, Order


@delayq.task(queue="orders", timeout="30s")
def close_order(order_id: int) -> str:
    """Closes an order that was not paid in time. Looks at the order itself first: a job is a reminder, not the truth."""
    order = Order.objects.get(pk=order_id)
    with transaction.atomic():
        closed = order.move(Order.State.UNPAID, Order.State.CLOSED, "closed")
    return "closed" if closed else "left alone"


@delayq.task(queue="orders")
def poll_refund(order_id: int) -> str:
    """Asks the payment provider until the refund is through. Not an error while it is not: a snooze costs no attempt."""
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


@delayq.task(queue="partners", timeout="15s", max_attempts=6)
def notify_partner(order_id: int) -> str:
    """Tells a partner of a paid order, unless a refund was asked for in the meantime. The partner's endpoint is flaky: an error is
    tried again along the ladder."""
    if Order.objects.get(pk=order_id).state != Order.State.PAID:
        return "no longer wanted"
    body = json.dumps({"order": order_id}).encode()
    request = urllib.request.Request(f"{settings.SHOP_URL}/partner/orders/", data=body, headers={"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=10):
        pass
    with transaction.atomic():
        Order.objects.filter(pk=order_id).update(partner_told=True)
        Ledger.objects.create(order_id=order_id, what="partner told")
    return "told"
