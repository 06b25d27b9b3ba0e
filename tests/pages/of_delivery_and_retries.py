"""Tests the statements of docs/topics/delivery-and-retries.md, in the project that the page builds."""

from datetime import timedelta
from types import SimpleNamespace

import pytest
from django.utils import translation
from orders import bank, provider, tasks
from orders.carriers import LanguageCarrier
from orders.models import Order

import django_delayq


@pytest.mark.parametrize(
    ("answer", "outcome"), [("unknown order", "fail"), ("too many calls", "snooze"), ("refunded", "ack")], ids=lambda text: text
)
def test_fail_and_snooze(delayq, db, answer, outcome):
    provider.answers[:] = [answer]
    tasks.refund.schedule(1)
    assert [run.outcome for run in delayq.run_due()] == [outcome]


def test_a_ladder_of_three_steps_repeats_its_last(delayq, db):
    job = tasks.send_receipt.schedule(1)
    for _ in range(4):
        delayq.fail_next(ValueError("no"), tasks.send_receipt)
        delayq.run_due()
        (waiting,) = delayq.scheduled(tasks.send_receipt)
        delayq.advance(waiting.delay - timedelta(seconds=1))
        assert delayq.scheduled(tasks.send_receipt)
        delayq.travel(delayq.now + timedelta(seconds=2))
    assert job.state == "scheduled"


def test_a_function_decides_about_the_next_attempt(delayq, db):
    job = tasks.import_prices.schedule("https://shop.example")
    delayq.fail_next(PermissionError(), tasks.import_prices)
    delayq.run_due()
    assert job.state == "failed"
    assert tasks.patience(2, ValueError()) == 120


def test_a_quote_is_tried_until_its_date(delayq, db):
    job = tasks.send(SimpleNamespace(pk=1, valid_until=delayq.now + timedelta(hours=3)))
    for _ in range(10):
        delayq.fail_next(ValueError("no"), tasks.confirm)
    delayq.advance("2h")
    assert (job.state, job.attempts) == ("scheduled", 5)
    delayq.advance("2h")
    assert job.state == "failed"


def test_a_poll_is_no_attempt_and_gives_up_at_the_end(delayq, db):
    bank.bookings[:] = [None] * 10
    job = tasks.wait_for_booking.schedule(1)
    delayq.advance("4m")
    assert (job.state, job.asked) == ("scheduled", 3)
    delayq.advance("3d")
    assert job.state == "failed"
    assert "GaveUp" in job.error


def test_a_failure_schedules_the_task_for_it(delayq, db):
    charge = tasks.charge.using(max_attempts=1).schedule(1)
    delayq.fail_next(ValueError("declined"), tasks.charge)
    runs = delayq.advance("1m")
    assert [(run.task, list(run.args)) for run in runs[1:]] == [(tasks.give_back.name, [str(charge.id)])]


def test_a_carrier_brings_the_language_to_the_run(db):
    carrier = LanguageCarrier()
    with translation.override("de"):
        packed = carrier.pack()
    with carrier.wrap(packed):
        assert translation.get_language() == "de"


def test_the_second_run_finds_nothing_to_change(delayq, db):
    order = Order.objects.create()
    job = tasks.close_order.schedule(order.pk)
    delayq.crash_next(at="end")
    delayq.run_due()
    delayq.advance("1m")
    assert job.result() == "left alone"
    assert django_delayq.get(job.id).state == "succeeded"
