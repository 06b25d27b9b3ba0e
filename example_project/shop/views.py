"""The pages of the shop, its webhook, and endpoints of the simulated payment providers."""

import json

from django.conf import settings
from django.contrib import messages
from django.db import transaction
from django.db.models import F
from django.http import Http404, HttpResponse, JsonResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.utils import timezone
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_GET, require_POST

import django_delayq as delayq
from django_delayq.contrib.http import SignatureRefused, verify
from shop import fulfilment, payments
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
        paid = payments.accept(found)
    if not paid:
        messages.error(request, "Too late: this order has been closed, and nothing was charged.")
        return redirect(found)
    messages.success(request, "Thank you, your payment has arrived.")
    return redirect(found)


@require_POST
def transfer(request, order_id):
    """Lets the payment provider report a transfer. The button exists twice, so that the provider can report it again."""
    found = get_object_or_404(Order, pk=order_id)
    payments.send_webhook(found)
    messages.info(request, "The provider reports the transfer by its webhook.")
    return redirect(found)


@csrf_exempt
@require_POST
def webhook(request):
    """The payment provider reports an event, sometimes twice, also days later. The job is scheduled once for each event."""
    try:
        verify(request, [settings.PROVIDER_SECRET])
    except SignatureRefused as refused:
        return HttpResponse(refused.code, status=401)
    event = json.loads(request.body)
    with transaction.atomic():
        Ledger.objects.create(order_id=event["order"], what="webhook")
        delayq.schedule(payments.charge, event["order"], key=f"payment:{event['id']}", once_for=settings.ONCE_FOR)
    return HttpResponse(status=204)


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


@require_GET
def payouts(request):
    latest, calls = payments.latest_payouts(), payments.calls_in_last_minute()
    providers = [(provider, calls[provider]) for provider in payments.PROVIDERS]
    context = {"providers": providers, "merchants": payments.MERCHANTS, "payouts": latest, "jobs": states_of(latest)}
    return render(request, "shop/payouts.html", context)


@require_GET
def payouts_state(request):
    """The page of payouts requests it every second."""
    return JsonResponse({"state": "", "steps": 0, "jobs": states_of(payments.latest_payouts())})


def states_of(latest):
    """Text that changes with the jobs."""
    return " ".join(f"{payout['url']}:{payout['state']}" for payout in latest)


@require_POST
def pay_out(request, provider):
    """Schedules payouts by this provider to one merchant or all: one each, or as many as the button says."""
    merchant, times = request.POST.get("merchant"), request.POST.get("times", "1")
    if provider not in payments.PROVIDERS or times not in ("1", "50", "1000"):
        raise Http404
    payments.schedule_payouts(provider, [merchant] if merchant in payments.MERCHANTS else payments.MERCHANTS, int(times))
    return redirect("payouts")


@require_GET
def payout_provider(request, provider):
    """A provider that pays merchants."""
    return JsonResponse({"status": f"paid by {provider}"})
