"""The tasks that the shop runs later."""

import asyncio
import logging
import os
import signal
import time
from datetime import datetime

from django.conf import settings
from django.db import transaction
from django.db.models import Sum
from django.utils import timezone, translation

import django_delayq as delayq
from django_delayq.contrib.tasks import options
from django_delayq.models import Job
from orders import provider
from orders.background import task
from orders.models import Booking, Letter, Order, Report
from orders.surroundings import request_id, tenant

logger = logging.getLogger("orders.stock")


def letter(order_id: int, subject: str) -> Letter:
    return Letter(
        order_id=order_id,
        subject=subject,
        tenant=tenant.get(),
        language=translation.get_language() or "",
        request_id=request_id.get(),
    )


@delayq.task(queue="orders", atomic=True)
def close_order(order_id: int) -> str:
    """Closes an order that is not paid by now."""
    if Order.objects.filter(pk=order_id, status=Order.Status.PLACED).update(status=Order.Status.CLOSED):
        letter(order_id, "closed").save()
        return "closed"
    return "left alone"


@delayq.task
def apologise(job_id: str) -> None:
    """Runs after a charge that has failed for good."""
    order_id = Job.objects.get(pk=job_id).args[0]
    letter(order_id, "sorry").save()


def patience(attempt: int, error: BaseException) -> float | None:
    return None if isinstance(error, provider.Declined) else 15.0 * attempt


@delayq.task(queue="payments", on_failure=apologise, backoff=patience)
def charge(order_id: int) -> int:
    """Takes the money once, and returns the attempt that took it."""
    order = Order.objects.get(pk=order_id)
    if provider.collect(order_id, order.total) == "pending":
        raise delayq.Snooze("30s", "the provider is not ready")
    with delayq.once("booked"):
        Booking.objects.create(order=order, amount=order.total)
        order.status = Order.Status.PAID
        order.save()
    return delayq.current().attempt


@delayq.task(queue="orders", max_attempts=3)
def remind(order_id: int) -> None:
    """Reminds a customer of an unpaid order. Retries while the customer has no address."""
    order = Order.objects.select_related("customer").get(pk=order_id)
    if not order.customer.email:
        raise delayq.Retry("1m", "no address yet")
    with transaction.atomic():
        letter(order_id, "reminder").save()


@delayq.task(queue="orders")
async def thank(order_id: int) -> dict[str, str]:
    order = await Order.objects.aget(pk=order_id)
    written = letter(order.pk, "thanks")
    await written.asave()
    return {"tenant": written.tenant, "language": written.language, "request": written.request_id}


@delayq.task(queue="stock")
def count_stock(shelves: int) -> int:
    """Counts one shelf at a time. Stops if somebody cancels it."""
    for shelf in range(shelves):
        delayq.current().progress(shelf, shelves)
        if delayq.current().cancel_requested:
            raise delayq.Fail("asked to stop")
        time.sleep(0.05)
    return shelves


@delayq.task(queue="stock", timeout="0.2s")
def scan(seconds: float) -> None:
    """Waits in C code, where it does not notice its timeout."""
    time.sleep(seconds)


@delayq.task(queue="stock")
def bake(seconds: float) -> None:
    """Does not check for cancellation. Cleans up when it is stopped."""
    try:
        for _ in range(int(seconds / 0.05)):
            time.sleep(0.05)
    except delayq.Cancelled:
        logger.info("oven_is_off %s", delayq.current().id)
        raise


@delayq.task(queue="stock")
async def cool(seconds: float) -> None:
    """Does the same on the event loop."""
    try:
        await asyncio.sleep(seconds)
    except asyncio.CancelledError:
        logger.info("fan_is_off %s", delayq.current().id)
        raise


@delayq.task(queue="labels")
def print_label(name: str) -> None:
    """A driver that kills its process."""
    os.kill(os.getpid(), signal.SIGKILL)


@task(queue_name="mail")
@options(max_attempts=3, backoff="15s 3m")
def send_receipt(order_id: int) -> str:
    """A plain Django task, as an app writes it that does not know delayq."""
    order = Order.objects.select_related("customer").get(pk=order_id)
    if not order.customer.email:
        raise LookupError("no address yet")
    letter(order_id, "receipt").save()
    return order.customer.email


def tick() -> datetime:
    """Returns the date that this run is for, however late it is. For a run that a person requested, returns now."""
    schedule = delayq.current().meta.get("delayq.periodic")
    return datetime.fromisoformat(schedule["tick"]) if schedule else timezone.now()


@delayq.periodic("0 3 * * *", timezone="Europe/Berlin")
@delayq.task(queue="reports")
def nightly_report() -> int:
    """Reports the sum of the paid orders, at three at night in the shop's time zone."""
    paid: int = Order.objects.filter(status=Order.Status.PAID).aggregate(sum=Sum("total"))["sum"] or 0
    Report.objects.get_or_create(subject="paid", at=tick(), defaults={"figure": paid})
    return paid


@delayq.periodic(every=settings.COUNT_EVERY, missed="skip", overlap="skip")
@delayq.task(queue="reports")
def count_open_orders() -> None:
    waiting = Order.objects.filter(status=Order.Status.PLACED).count()
    Report.objects.get_or_create(subject="open", at=tick(), defaults={"figure": waiting})
