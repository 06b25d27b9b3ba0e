"""Tests the statements of docs/topics/transactions.md, in the project that the page builds."""

import pytest
from django.db import transaction
from orders import orders, payments, provider, tasks
from orders.models import Order, Parcel, Payout, Stock

from django_delayq import schedule


def test_a_job_comes_and_goes_with_its_transaction(delayq, transactional_db):
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        orders.place(10)
        raise ZeroDivisionError
    delayq.assert_not_scheduled()
    order = orders.place(10)
    delayq.assert_scheduled(tasks.close_order, args=[order.pk], delay="30m")


def test_a_cancel_at_the_commit_comes_and_goes_with_its_transaction(delayq, transactional_db):
    order = Order.objects.create()
    job = schedule(tasks.close_order, order.pk, delay="30m", key=f"close-order:{order.pk}")
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        payments.pay(order)
        raise ZeroDivisionError
    assert job.state == "scheduled"
    payments.pay(order)
    assert job.state == "cancelled"


def test_an_atomic_task_pays_once_although_it_runs_twice(delayq, transactional_db):
    order = Order.objects.create(total=7)
    tasks.pay_out.schedule(order.pk)
    delayq.crash_next(at="end")
    delayq.run_due()
    delayq.advance("1m")
    assert Payout.objects.get().amount == 7


def test_a_run_that_dies_between_two_chunks_is_continued(delayq, transactional_db, monkeypatch):
    orders = Order.objects.bulk_create(Order(total=number) for number in range(250))
    insert = Payout.objects.bulk_create

    def die(payouts):
        insert(payouts)
        if Payout.objects.count() == 200:
            monkeypatch.undo()
            raise RuntimeError

    monkeypatch.setattr(Payout.objects, "bulk_create", die)
    tasks.pay_out_all.schedule()
    assert [ran.outcome for ran in delayq.advance("1h")] == ["retry", "ack"]
    assert sorted(Payout.objects.values_list("order", flat=True)) == [order.pk for order in orders]


def test_a_step_is_kept_once_although_the_rest_runs_twice(delayq, transactional_db, monkeypatch):
    monkeypatch.setattr(provider, "booked", [])
    Stock.objects.create(order=7)
    tasks.ship.schedule(7)
    delayq.crash_next(at="end")
    delayq.run_due()
    delayq.advance("1m")
    assert provider.booked == [7, 7]
    assert Parcel.objects.count() == 1
    assert Stock.objects.get().reserved
