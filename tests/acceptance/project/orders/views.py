"""The sync views."""

from uuid import UUID

from django.db import transaction
from django.http import HttpRequest, JsonResponse
from django.views.decorators.http import require_POST

import django_delayq as delayq
from orders.background import TaskResultDoesNotExist, TaskResultStatus
from orders.models import Customer, LedgerEntry, Order, Report, Tenant
from orders.surroundings import tenant
from orders.tasks import bake, charge, close_order, cool, count_stock, print_label, remind, scan, send_receipt


class OutOfStock(Exception):
    """Raised after the schedule, so that the job is rolled back with the order."""


def place(total: int, sold_out: bool = False) -> tuple[Order, delayq.Job]:
    """Creates an order, and the job that closes it, in one transaction."""
    with transaction.atomic():
        seller, _ = Tenant.objects.get_or_create(slug=tenant.get() or "none")
        customer = Customer.objects.create(tenant=seller, email="ann@example.com")
        order = Order.objects.create(customer=customer, total=total)
        job = close_order.using(delay="30m", key=f"close-order:{order.pk}").schedule(order.pk)
        remind.using(delay="20m", key=f"remind:{order.pk}", expires="25m").schedule(order.pk)
        if sold_out:
            raise OutOfStock
    return order, job


@require_POST
def checkout(request: HttpRequest) -> JsonResponse:
    order, job = place(int(request.POST["total"]))
    return JsonResponse({"order": order.pk, "job": str(job.id)})


@require_POST
def pay(request: HttpRequest, order_id: int) -> JsonResponse:
    """The customer pays: the order is not closed, and the charge is due now."""
    try:
        closing = delayq.cancel(key=f"close-order:{order_id}", queue="orders", actor="shop", reason="paid")
    except delayq.StoreUnavailable:
        return JsonResponse({"ask": "again"}, status=503)
    with transaction.atomic():
        job = charge.using(key=f"charge:{order_id}", priority=10).schedule(order_id)
    return JsonResponse({"closing": closing, "job": str(job.id)})


@require_POST
def receipt(request: HttpRequest, order_id: int) -> JsonResponse:
    """Uses Django's tasks. The task is still part of the transaction."""
    with transaction.atomic():
        result = send_receipt.enqueue(order_id)
        if "sold_out" in request.POST:
            transaction.set_rollback(True)
    return JsonResponse({"result": result.id})


def result(request: HttpRequest, result_id: str) -> JsonResponse:
    try:
        found = send_receipt.get_result(result_id)
    except TaskResultDoesNotExist:
        return JsonResponse({}, status=404)
    value = found.return_value if found.status == TaskResultStatus.SUCCESSFUL else None
    return JsonResponse({"status": found.status, "value": value, "errors": [error.exception_class_path for error in found.errors]})


@require_POST
def more_time(request: HttpRequest, order_id: int) -> JsonResponse:
    return JsonResponse({"change": delayq.reschedule(key=f"close-order:{order_id}", queue="orders", delay="2h")})


@require_POST
def close(request: HttpRequest, order_id: int) -> JsonResponse:
    """Closes the order now instead of at its deadline."""
    return JsonResponse({"change": delayq.run_now(key=f"close-order:{order_id}", queue="orders")})


def of_total(request: HttpRequest, total: int) -> JsonResponse:
    return JsonResponse({str(order.pk): order.status for order in Order.objects.filter(total=total)})


def job(request: HttpRequest, job_id: UUID) -> JsonResponse:
    found = delayq.get(job_id)
    if found is None:
        return JsonResponse({}, status=404)
    return JsonResponse({"task": found.task, "state": found.state, "attempts": found.attempts, "error": found.error})


def ledger(request: HttpRequest) -> JsonResponse:
    return JsonResponse({str(entry.job_id): [entry.state, entry.cause] for entry in LedgerEntry.objects.all()})


def reports(request: HttpRequest, subject: str) -> JsonResponse:
    return JsonResponse({str(report.at): report.figure for report in Report.objects.filter(subject=subject)})


@require_POST
def stock(request: HttpRequest, task: str) -> JsonResponse:
    made: delayq.Job  # of any task
    match task:
        case "count":
            made = count_stock.schedule(int(request.POST["shelves"]))
        case "scan":
            made = scan.schedule(float(request.POST["seconds"]))
        case "label":
            made = print_label.schedule("fragile")
        case "bake":
            made = bake.schedule(float(request.POST["seconds"]))
        case "cool":
            made = cool.schedule(float(request.POST["seconds"]))
        case "abort":
            return JsonResponse({"change": delayq.cancel(request.POST["job"], abort=True, reason="the shop closes")})
        case "cancel":
            return JsonResponse({"change": delayq.cancel(request.POST["job"], reason="nobody waits for it")})
        case _:
            return JsonResponse({}, status=404)
    return JsonResponse({"job": str(made.id)})
