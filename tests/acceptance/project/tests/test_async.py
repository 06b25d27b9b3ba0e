"""Async views with Django's client and `unittest`. Their jobs are committed, and the test controls the time here too."""

from asgiref.sync import sync_to_async
from django.test import TransactionTestCase
from orders.models import Order
from orders.tasks import close_order, thank

import django_delayq as delayq
from django_delayq.testing import DelayqMixin


class AsyncViewTests(DelayqMixin, TransactionTestCase):
    async def test_an_async_view_schedules_outside_of_a_transaction(self) -> None:
        placed = (await self.async_client.post("/async/orders/", {"total": 7})).json()
        await sync_to_async(self.delayq.assert_scheduled)(close_order, args=[placed["order"]], delay="30m", within="1m", count=1)
        runs = await sync_to_async(self.delayq.advance)("30m")
        assert [run.outcome for run in runs] == ["ack"]
        assert (await Order.objects.aget()).status == "closed"

    async def test_an_async_view_schedules_inside_of_a_transaction_or_not_at_all(self) -> None:
        placed = await self.async_client.post("/async/orders/atomic/", {"total": 7})
        refused = await self.async_client.post("/async/orders/atomic/", {"total": 8, "sold_out": 1})
        assert (placed.status_code, refused.status_code) == (200, 409)
        await sync_to_async(self.delayq.assert_scheduled)(close_order, count=1)
        assert await Order.objects.acount() == 1

    async def test_an_async_view_enqueues_a_task_of_django_by_the_twin(self) -> None:
        placed = (await self.async_client.post("/async/orders/", {"total": 7})).json()
        sent = (await self.async_client.post(f"/async/orders/{placed['order']}/receipt/")).json()["result"]
        await sync_to_async(self.delayq.run_due)()
        told = (await self.async_client.get(f"/results/{sent}/")).json()
        assert told == {"status": "SUCCESSFUL", "value": "ann@example.com", "errors": []}

    async def test_an_async_view_asks_for_jobs_and_cancels_them(self) -> None:
        placed = (await self.async_client.post("/async/orders/", {"total": 7})).json()
        answer = await self.async_client.post(f"/async/orders/{placed['order']}/cancel/")
        assert answer.json() == {"change": "done"}
        found = await self.async_client.get(f"/async/jobs/{placed['job']}/")
        assert found.json() == {"task": "orders.tasks.close_order", "state": "cancelled"}

    async def test_a_result_that_is_not_there_in_time(self) -> None:
        placed = (await self.async_client.post("/async/orders/", {"total": 7})).json()
        answer = await self.async_client.post(f"/async/orders/{placed['order']}/thank/", {"wait": "0s"})
        assert answer.status_code == 202
        runs = await sync_to_async(self.delayq.run_due)()
        assert [run.task for run in runs] == [thank.name]
        job = await delayq.aget(answer.json()["job"])
        assert job is not None
        assert await job.aresult() == {"tenant": "", "language": "en", "request": ""}

    async def test_a_sync_call_in_an_async_view_names_its_twin(self) -> None:
        answer = await self.async_client.get("/async/wrong/")
        assert "delayq.acancel" in answer.json()["error"]
