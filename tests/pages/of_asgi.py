"""Tests the statements of docs/howto/asgi.md, in the project that the page builds."""

import pytest
from asgiref.sync import async_to_sync
from django.core.exceptions import SynchronousOnlyOperation
from django.test import AsyncRequestFactory
from orders import tasks, views
from orders.models import Order

import django_delayq


def test_async_views_schedule_and_the_async_task_closes(delayq):
    get = AsyncRequestFactory().get
    pk = int(async_to_sync(views.checkout)(get("/")).content)
    other = Order.objects.create()
    async_to_sync(views.close_later)(get("/"), other.pk)
    delayq.assert_scheduled(tasks.close_order, args=[other.pk], key=f"close-order:{other.pk}", delay="30m")
    assert sorted(run.args for run in delayq.advance("30m")) == [[pk], [other.pk]]
    assert set(Order.objects.values_list("state", flat=True)) == {"closed"}


def test_a_sync_function_in_async_code_names_its_variant(delayq):
    async def wrong():
        django_delayq.schedule(tasks.close_order, 1)

    with pytest.raises(SynchronousOnlyOperation, match="aschedule"):
        async_to_sync(wrong)()
