"""Tests the statements of docs/howto/reminders.md, in the project that the page builds."""

from django.core import mail
from orders.checkout import pay_order, place_order


def test_three_reminders_come_after_an_hour_a_day_and_three_days(delayq):
    place_order("ann@example.com")
    sent = []
    for time in ("59m", "2m", "22h", "2h", "46h", "2h", "30d"):
        delayq.advance(time)
        sent.append(len(mail.outbox))
    assert sent == [0, 1, 1, 2, 2, 3, 3]


def test_a_payment_ends_them(delayq):
    order = place_order("ann@example.com")
    delayq.advance("2h")
    pay_order(order)
    delayq.assert_not_scheduled()
    delayq.advance("30d")
    assert len(mail.outbox) == 1


def test_a_reminder_that_runs_twice_is_one(delayq):
    from orders.tasks import remind

    place_order("ann@example.com")
    delayq.crash_next(remind, at="end")
    delayq.advance("2h")
    assert len(mail.outbox) == 1
    delayq.advance("30d")
    assert len(mail.outbox) == 3


def test_only_one_reminder_of_an_order_waits(delayq):
    place_order("ann@example.com")
    assert len(delayq.scheduled()) == 1
    delayq.advance("1d")
    assert len(delayq.scheduled()) == 1
