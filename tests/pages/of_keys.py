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


def test_a_stream_of_changes_postpones_the_job_for_ten_minutes(delayq, order):
    first = checkout.remind_after_changes(order.pk)
    for _ in range(29):
        delayq.advance("20s")
        assert checkout.remind_after_changes(order.pk).id == first.id
    assert Job.objects.get().state == "scheduled"
    delayq.advance("20s")
    assert Job.objects.get(pk=first.id).state == "succeeded"
