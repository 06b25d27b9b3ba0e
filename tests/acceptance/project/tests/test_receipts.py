"""A task with the API of `django.tasks`: the guarantees of Django, and the additions of delayq."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from deployment import Deployment, until
from django.test import Client
from orders.models import Customer, Letter, Order
from orders.tasks import send_receipt
from scraped import Scraped

from django_delayq.testing.kit import Kit

NewOrder = Callable[..., Order]
RECEIPT = "orders.tasks.send_receipt"


def test_a_receipt_is_sent_by_a_job_and_its_result_is_told(client: Client, delayq: Kit, new_order: NewOrder) -> None:
    order = new_order()
    sent = client.post(f"/orders/{order.pk}/receipt/").json()["result"]
    delayq.assert_scheduled(send_receipt, args=[order.pk], queue="mail", count=1)
    assert client.get(f"/results/{sent}/").json() == {"status": "READY", "value": None, "errors": []}
    assert [run.outcome for run in delayq.run_due()] == ["ack"]
    assert client.get(f"/results/{sent}/").json() == {"status": "SUCCESSFUL", "value": "ann@example.com", "errors": []}
    assert [letter.subject for letter in Letter.objects.all()] == ["receipt"]


def test_what_is_rolled_back_sends_none(client: Client, delayq: Kit, new_order: NewOrder) -> None:
    sent = client.post(f"/orders/{new_order().pk}/receipt/", {"sold_out": "1"}).json()["result"]
    delayq.assert_not_scheduled()
    assert client.get(f"/results/{sent}/").status_code == 404


def test_it_is_tried_again_as_its_options_say(client: Client, delayq: Kit, new_order: NewOrder) -> None:
    order = new_order(email="")
    sent = client.post(f"/orders/{order.pk}/receipt/").json()["result"]
    delayq.run_due()
    assert client.get(f"/results/{sent}/").json() == {"status": "READY", "value": None, "errors": ["builtins.LookupError"]}
    Customer.objects.update(email="bob@example.com")
    assert [run.outcome for run in delayq.advance("15s")] == ["ack"]
    assert client.get(f"/results/{sent}/").json()["value"] == "bob@example.com"


def test_it_fails_when_no_attempt_is_left(client: Client, delayq: Kit, new_order: NewOrder) -> None:
    sent = client.post(f"/orders/{new_order(email='').pk}/receipt/").json()["result"]
    assert [run.outcome for run in delayq.drain()] == ["retry", "retry", "fail"]
    assert client.get(f"/results/{sent}/").json() == {"status": "FAILED", "value": None, "errors": ["builtins.LookupError"] * 3}


@pytest.mark.live
def test_what_a_worker_has_done_of_it_is_counted_and_told(site: Deployment) -> None:
    order = site.post("/async/orders/", {"total": 600})["order"]
    sent = [site.post(f"/{way}orders/{order}/receipt/")["result"] for way in ("", "async/", "")]
    sent.append(site.post("/orders/0/receipt/")["result"])  # of an order that does not exist
    wanted = ["SUCCESSFUL"] * 3 + ["READY"]  # the last one waits for another attempt
    until(lambda: [site.get(f"/results/{result}/")["status"] for result in sent] == wanted, "the receipts were not sent")
    until(lambda: site.get(f"/results/{sent[3]}/")["errors"] == ["orders.models.Order.DoesNotExist"], "it was not tried")
    told = until_all(site.worker_metrics, {"succeeded": 3.0, "retried": 1.0, "failed": 0.0})
    assert told.of("delayq_worker_run_seconds_count", queue="mail") == 4
    assert told.of("delayq_worker_run_seconds_bucket", queue="mail", le="+Inf") == 4
    assert told.of("delayq_worker_lateness_seconds_count", queue="mail") == 4
    assert told.of("delayq_worker_slots") == 8
    assert told.of("delayq_jobs") is None, "the queues are told by the project's address"

    told = site.metrics()
    assert [told.of("delayq_up", part=part) for part in ("redis", "database")] == [1, 1]
    assert told.of("delayq_jobs_delayed", queue="mail") == told.of("delayq_jobs_retrying", queue="mail") == 1
    assert told.of("delayq_queue_workers", queue="mail") == 1
    assert told.of("delayq_slots") == 8


def until_all(look: Callable[[], Scraped], wanted: dict[str, float]) -> Scraped:
    def seen() -> Scraped | None:
        told = look()
        is_so = all(told.of("delayq_worker_runs_total", task=RECEIPT, outcome=how) == runs for how, runs in wanted.items())
        return told if is_so else None

    return until(seen, f"the runs are not {wanted}")
