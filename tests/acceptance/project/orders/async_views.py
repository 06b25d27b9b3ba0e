"""The async views. Each uses the async variants of the API."""

import asyncio
import time
from uuid import UUID

from asgiref.sync import sync_to_async
from django.core.exceptions import SynchronousOnlyOperation
from django.http import HttpRequest, JsonResponse

import django_delayq as delayq
from orders import tasks
from orders.models import Customer, Order, Tenant
from orders.surroundings import tenant
from orders.views import OutOfStock, place

abandoned: list[str] = []  # jobs that this process may or may not have scheduled


async def new_order(total: int) -> Order:
    seller, _ = await Tenant.objects.aget_or_create(slug=tenant.get() or "none")
    customer = await Customer.objects.acreate(tenant=seller, email="ann@example.com")
    return await Order.objects.acreate(customer=customer, total=total)


async def checkout(request: HttpRequest) -> JsonResponse:
    """Runs outside of any transaction: each write is committed when its call returns."""
    order = await new_order(int(request.POST["total"]))
    soon = tasks.close_order.using(delay=request.POST.get("delay", "30m"), key=f"close-order:{order.pk}")
    job = await soon.aschedule(order.pk)
    return JsonResponse({"order": order.pk, "job": str(job.id), "created": job.created})


async def checkout_in_a_transaction(request: HttpRequest) -> JsonResponse:
    """Runs the whole block in one sync function."""
    try:
        order, job = await sync_to_async(place)(int(request.POST["total"]), "sold_out" in request.POST)
    except OutOfStock:
        return JsonResponse({"orders": await Order.objects.filter(total=request.POST["total"]).acount()}, status=409)
    return JsonResponse({"order": order.pk, "job": str(job.id), "created": job.created})


async def checkout_behind_a_slow_query(request: HttpRequest) -> JsonResponse:
    """The client may leave while the schedule waits for the thread. Then the ids are noted, and looked up later."""
    order = await new_order(int(request.POST["total"]))
    slow = asyncio.create_task(sync_to_async(wait_until_closed)(order.pk))
    await asyncio.sleep(0)
    try:
        job = await tasks.thank.aschedule(order.pk)
    except asyncio.CancelledError as gone:
        abandoned.extend(str(left) for left in getattr(gone, "jobs", ()))
        raise
    finally:
        await slow
    return JsonResponse({"job": str(job.id)})


def wait_until_closed(order_id: int) -> None:
    """Blocks the thread of the request while the order is open, for at most 20 seconds."""
    for _ in range(400):
        if not Order.objects.filter(pk=order_id, status=Order.Status.PLACED).exists():
            return
        time.sleep(0.05)


async def left_behind(request: HttpRequest) -> JsonResponse:
    return JsonResponse({"jobs": abandoned})


async def keep_open(request: HttpRequest, order_id: int) -> JsonResponse:
    change = await delayq.acancel(key=f"close-order:{order_id}", queue="orders", reason="kept open")
    return JsonResponse({"change": change})


async def thank(request: HttpRequest, order_id: int) -> JsonResponse:
    job = await tasks.thank.aschedule(order_id)
    try:
        return JsonResponse({"result": await job.aresult(request.POST.get("wait", "5s"))})
    except delayq.NotFinished:
        return JsonResponse({"job": str(job.id)}, status=202)


async def receipt(request: HttpRequest, order_id: int) -> JsonResponse:
    result = await tasks.send_receipt.aenqueue(order_id)
    return JsonResponse({"result": result.id})


async def job(request: HttpRequest, job_id: UUID) -> JsonResponse:
    found = await delayq.aget(job_id)
    if found is None:
        return JsonResponse({}, status=404)
    return JsonResponse({"task": found.task, "state": await found.astate()})


async def wrong(request: HttpRequest) -> JsonResponse:
    """A sync call in async code."""
    try:
        delayq.cancel(key="close-order:1", queue="orders")
    except SynchronousOnlyOperation as error:
        return JsonResponse({"error": str(error)}, status=500)
    return JsonResponse({})
