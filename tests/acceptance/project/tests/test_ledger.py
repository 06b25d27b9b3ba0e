"""The project hears of every job that ends, whatever ended it. The ledger has one row for it."""

import logging
from collections.abc import Callable
from datetime import timedelta

import pytest
from django.conf import settings
from django.test import Client, override_settings
from orders.models import LedgerEntry, Order
from orders.tasks import charge, close_order, print_label, remind

import django_delayq
from django_delayq.testing.kit import Kit

NewOrder = Callable[..., Order]


def ledger() -> list[tuple[str, str, str]]:
    rows = LedgerEntry.objects.order_by("pk").values_list("task", "state", "cause")
    return [(task.removeprefix("orders.tasks."), state, cause) for task, state, cause in rows]


def test_an_end_that_is_good(delayq: Kit, new_order: NewOrder) -> None:
    charge.schedule(new_order().pk)
    delayq.run_due()
    assert ledger() == [("charge", "succeeded", "succeeded")]


def test_a_task_that_has_failed(delayq: Kit, new_order: NewOrder) -> None:
    remind.using(max_attempts=1).schedule(new_order(email="").pk)
    delayq.run_due()
    assert ledger() == [("remind", "failed", "failed")]


def test_a_worker_that_vanished_once_too_often(delayq: Kit) -> None:
    print_label.schedule("fragile")
    delayq.crash_next()
    delayq.advance("5m")
    assert ledger() == [("print_label", "failed", "crashed")]


def test_a_job_that_was_cancelled_while_it_waited(client: Client, delayq: Kit) -> None:
    order = client.post("/orders/", {"total": 7}).json()["order"]
    assert django_delayq.cancel(key=f"close-order:{order}", queue="orders") == "done"
    delayq.run_due()
    assert ledger() == [("close_order", "cancelled", "cancelled")]


def test_a_job_whose_time_is_over(delayq: Kit, new_order: NewOrder) -> None:
    remind.using(delay="1m", expires="5m").schedule(new_order().pk)
    delayq.travel(delayq.now + timedelta(hours=1))
    assert delayq.run_due() == []
    assert ledger() == [("remind", "cancelled", "expired")]


def test_a_job_whose_time_is_over_behind_its_first_run(delayq: Kit, new_order: NewOrder) -> None:
    remind.using(expires="30s").schedule(new_order(email="").pk)
    delayq.advance("1h")
    assert ledger() == [("remind", "failed", "expired")]


def test_a_job_that_another_one_replaced(delayq: Kit, new_order: NewOrder) -> None:
    order = new_order()
    for _ in range(2):
        remind.using(delay="1h", key="remind", on_conflict="replace").schedule(order.pk)
    delayq.drain()
    assert sorted(ledger()) == [("remind", "cancelled", "replaced"), ("remind", "succeeded", "succeeded")]


def test_a_job_that_is_not_ours(delayq: Kit, new_order: NewOrder) -> None:
    """A job that was scheduled unsigned does not run after signatures are required."""
    close_order.schedule(new_order().pk)
    with override_settings(DELAYQ={**settings.DELAYQ, "SIGNING": True}):
        delayq.run_due()
    assert ledger() == [("close_order", "failed", "poison")]


def test_a_proposal_that_was_merged_is_no_job(delayq: Kit, new_order: NewOrder) -> None:
    order = new_order()
    jobs = [close_order.using(key="close").schedule(order.pk) for _ in range(2)]
    delayq.run_due()
    assert [job.created for job in jobs] == [True, False]
    assert ledger() == [("close_order", "succeeded", "succeeded")]


def test_each_run_is_heard_of(
    delayq: Kit, new_order: NewOrder, answers: list[str | Exception], caplog: pytest.LogCaptureFixture
) -> None:
    answers += ["pending", ConnectionError()]
    with caplog.at_level(logging.INFO, "orders.runs"):
        charge.schedule(new_order().pk)
        delayq.advance("2m")
        remind.using(max_attempts=1).schedule(new_order(email="").pk)
        delayq.run_due()
        with delayq.redis_down():
            remind.schedule(new_order().pk)
    words = [record.getMessage().split()[0] for record in caplog.records if record.name == "orders.runs"]
    assert words == [
        "job_scheduled",
        "job_started",
        "job_snoozed",
        "job_started",
        "job_retried",
        "job_started",
        "job_succeeded",
        "job_scheduled",
        "job_started",
        "job_failed",
        "store_unavailable",
    ]
