"""Tests the statements of docs/howto/close-unpaid-orders.md that its test does not cover, in the project that the page builds."""

import pytest
from django.db import transaction
from orders.checkout import pay_order, place_order
from orders.models import Order
from orders.tasks import close_order


def states():
    return list(Order.objects.order_by("pk").values_list("state", flat=True))


def test_a_payment_that_rolls_back_leaves_the_job(delayq):
    order = place_order(9)
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        assert pay_order(order)
        raise ZeroDivisionError
    delayq.advance("30m")
    assert states() == ["closed"]
    assert not pay_order(order)


def test_an_order_that_rolls_back_leaves_no_job(delayq):
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        place_order(9)
        raise ZeroDivisionError
    delayq.assert_not_scheduled()


def test_a_payment_holds_while_redis_is_down_and_its_cancel_follows(delayq):
    order = place_order(7)
    with delayq.redis_down():
        assert pay_order(order)
    assert delayq.advance("30m") == []
    assert states() == ["paid"]


def test_a_second_run_changes_nothing(delayq):
    place_order(7)
    delayq.crash_next(close_order, at="end")
    assert [run.outcome for run in delayq.advance("1h")][-1] == "ack"
    assert states() == ["closed"]
