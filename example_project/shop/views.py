"""The pages of the shop, and an endpoint for the simulated payment provider."""

from django.contrib import messages
from django.db import transaction
from django.db.models import F
from django.http import JsonResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.utils import timezone
from django.views.decorators.http import require_GET, require_POST

import django_delayq as delayq
from shop import fulfilment
from shop.jobs_of_order import jobs_of
from shop.models import Ledger, Order, Product, pay_window
from shop.tasks import close_order, poll_refund


@require_GET
def catalogue(request):
    return render(request, "shop/catalogue.html", {"products": Product.objects.all()})


@require_GET
def orders(request):
    return render(request, "shop/orders.html", {"orders": Order.objects.select_related("product")[:50]})


@require_POST
def checkout(request, product_id):
    """Places an order, and schedules the job that closes it if it is not paid, in one transaction."""
    product = get_object_or_404(Product, pk=product_id)
    with transaction.atomic():
        order = Order.objects.create(product=product, pay_until=timezone.now() + pay_window())
        Ledger.objects.create(order=order, what="placed")
        delayq.schedule(close_order, order.pk, run_at=order.pay_until, key=order.close_key)
    return redirect(order)


@require_GET
def order(request, order_id):
    found = get_object_or_404(Order.objects.select_related("product"), pk=order_id)
    ledger = list(found.ledger.all())
    done = {line.what for line in ledger}
    return render(request, "shop/order.html", {"order": found, "ledger": ledger, "done": done, "jobs": jobs_of(found)})


@require_GET
def order_state(request, order_id):
    """The state of an order. The order page requests it every second."""
    found = get_object_or_404(Order, pk=order_id)
    return JsonResponse(
        {
            "state": found.state,
            "seconds_left": found.seconds_left,
            "refund_polls": found.refund_polls,
            "steps": found.ledger.count(),
            "jobs": " ".join(job.stand for job in jobs_of(found)),
        }
    )


@require_POST
def pay(request, order_id):
    """Accepts the payment if the order is open, and cancels the job that closes it."""
    found = get_object_or_404(Order, pk=order_id)
    with transaction.atomic():
        paid = found.move(Order.State.UNPAID, Order.State.PAID, "paid")
        if paid:
            fulfilment.set_off(found.pk)
            delayq.cancel(key=found.close_key, queue="orders", actor="shop", reason="paid", at_commit=True)
    if not paid:
        messages.error(request, "Too late: this order has been closed, and nothing was charged.")
        return redirect(found)
    messages.success(request, "Thank you, your payment has arrived.")
    return redirect(found)


@require_POST
def refund(request, order_id):
    """Requests a refund, and schedules the job that checks it."""
    found = get_object_or_404(Order, pk=order_id)
    with transaction.atomic():
        asked = found.move(Order.State.PAID, Order.State.REFUNDING, "refund asked")
        if asked:
            delayq.schedule(poll_refund, found.pk, delay="2s", key=found.refund_key)
            fulfilment.call_off(found.pk, actor="shop", reason="refund asked")
    if asked:
        messages.info(request, "The refund is on its way; the provider takes a few seconds.")
    return redirect(found)


@require_GET
def provider(request, order_id):
    """The payment provider: a refund is complete at the third request."""
    Order.objects.filter(pk=order_id).update(refund_polls=F("refund_polls") + 1)
    polls = Order.objects.values_list("refund_polls", flat=True).get(pk=order_id)
    return JsonResponse({"status": "done" if polls >= 3 else "pending"})
