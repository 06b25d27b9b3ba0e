"""Tests the statements of docs/topics/keys.md, in the project that the page builds."""

import pytest
from orders import checkout, payments, tasks
from orders.models import Order

from django_delayq.models import Job


@pytest.fixture
def order(db):
    return Order.objects.create()


def test_a_key_makes_one_job_and_finds_it(delayq, order):
    first, second = checkout.remind(order.pk), checkout.remind(order.pk)
    assert (second.created, second.id) == (False, first.id)
    delayq.assert_scheduled(tasks.close_order, key=f"close-order:{order.pk}", delay="30m", count=1)
    payments.paid(order.pk)
    assert Job.objects.get().state == "cancelled"


def test_a_job_of_a_name_writes_with_its_turn_and_an_older_writer_is_rejected(delayq, order):
    tasks.synchronize.schedule(order.pk)
    delayq.run_due()
    order.refresh_from_db()
    assert (order.status, order.turn > 0) == ("sent", True)
    Order.objects.update(turn=2**62, status="newer")
    tasks.synchronize.using(serial="tenant:bikes").schedule(order.pk)
    assert [run.outcome for run in delayq.run_due()] == ["ack"]
    order.refresh_from_db()
    assert order.status == "newer"


def test_an_export_is_one_of_five_of_its_tenant(delayq, db):
    tasks.export.schedule("bikes", "2031-05")
    assert [run.outcome for run in delayq.run_due()] == ["ack"]
