"""Money: payments of orders, which a webhook of the payment provider can report, and payouts to merchants."""

import json
import urllib.request
from collections import Counter
from datetime import timedelta

from django.conf import settings
from django.urls import reverse
from django.utils import timezone

import django_delayq as delayq
from django_delayq.models import Job
from shop import fulfilment
from shop.models import Ledger, Order

PAYOUTS = "payouts"  # a queue
PROVIDERS = ("north", "south")
MERCHANTS = ("Paper Mill", "Ink Works", "Wax & Co")


def accept(order):
    """Marks an open order as paid, and cancels the job that closes it. Call it in a transaction. Returns False if it is not open."""
    paid = order.move(Order.State.UNPAID, Order.State.PAID, "paid")
    if paid:
        fulfilment.set_off(order.pk)
        delayq.cancel(key=order.close_key, queue="orders", actor="shop", reason="paid", at_commit=True)
    return paid


@delayq.task(queue="orders", atomic=True)
def charge(order_id: int) -> str:
    """Charges a transfer. It would charge a paid order again: `once_for` must prevent this, see `views.webhook`."""
    order = Order.objects.get(pk=order_id)
    if order.state == Order.State.CLOSED:
        return "too late"
    Ledger.objects.create(order=order, what="charged")
    accept(order)
    return "charged"


def send_webhook(order):
    """Plays the payment provider: sends the signed event of a transfer. If it is sent again, it is the same event."""
    event = {"id": f"transfer:{order.pk}", "order": order.pk}
    delayq.deliver(settings.SHOP_URL + reverse("webhook"), json=event, secret="provider")


@delayq.task(
    queue=PAYOUTS,
    concurrency=("provider:{provider}", 5),
    rate=("provider:{provider}", "100/m"),
    fair="merchant:{merchant}",
    timeout="30s",
)
def pay_out(provider: str, merchant: str) -> str:
    """Pays a merchant. Each provider allows 100 calls a minute, and merchants take turns, however many payouts one has. If a provider
    has a problem, pause the name of its payouts, such as `provider:north`.
    """
    with urllib.request.urlopen(f"{settings.SHOP_URL}/provider/payouts/{provider}/", timeout=10) as answer:
        return json.load(answer)["status"]


def schedule_payouts(provider, merchants, times):
    """This many payouts for each of these merchants."""
    delayq.schedule_many(
        pay_out.using(meta={"provider": provider, "merchant": merchant}).bind(provider, merchant)
        for _ in range(times)
        for merchant in merchants
    )


def calls_in_last_minute():
    """Provider -> how many payouts it has made."""
    rows = Job.objects.filter(queue=PAYOUTS, state="succeeded", finished_at__gte=timezone.now() - timedelta(minutes=1))
    return Counter(row.meta["provider"] for row in rows)


def latest_payouts():
    """The newest jobs, for the page of payouts."""
    return [
        {**row.meta, "state": row.state, "url": reverse("admin:delayq_job_change", args=[row.pk])}
        for row in Job.objects.filter(queue=PAYOUTS).order_by("-id")[:20]
    ]
