"""Payments: retried along the ladder, taken once, and followed by an apology if they cannot be taken."""

from collections.abc import Callable

import pytest
from django.test import Client
from orders.models import Booking, Letter, Order
from orders.provider import Declined
from orders.tasks import charge, close_order, remind

from django_delayq import JobFailed, Snooze, State
from django_delayq.testing.kit import Kit

NewOrder = Callable[..., Order]
Answers = list[str | Exception]


def test_the_provider_is_asked_again_until_it_pays(delayq: Kit, new_order: NewOrder, answers: Answers) -> None:
    answers += [ConnectionError("away"), "pending", ConnectionError("away again")]
    order = new_order()
    job = charge.schedule(order.pk)
    assert [(run.attempt, run.outcome) for run in delayq.advance("2m")] == [(1, "retry"), (2, "snooze"), (2, "retry"), (3, "ack")]
    assert job.result() == 3
    assert (job.state, job.attempts, job.error) == (State.SUCCEEDED, 3, "")
    assert Booking.objects.get().amount == order.total


def test_who_is_declined_is_written_to_once_the_charge_has_failed(delayq: Kit, new_order: NewOrder, answers: Answers) -> None:
    answers.append(Declined("no cover"))
    job = charge.schedule(new_order().pk)
    assert [run.outcome for run in delayq.run_due()][:1] == ["fail"]
    with pytest.raises(JobFailed) as failed:
        job.result()
    assert failed.value.fields["state"] == State.FAILED
    assert "no cover" in failed.value.fields["error"]
    delayq.advance("1m")
    assert [letter.subject for letter in Letter.objects.all()] == ["sorry"]


def test_a_charge_that_has_failed_can_be_requeued_and_its_next_end_counts(delayq: Kit, new_order: NewOrder, answers: Answers) -> None:
    answers += [Declined("no cover"), Declined("no cover")]
    job = charge.schedule(new_order().pk)
    delayq.drain()
    assert job.requeue() == "done"
    delayq.drain()
    assert Letter.objects.filter(subject="sorry").count() == 2
    assert job.requeue() == "done"
    delayq.drain()
    assert job.result() == 1
    assert job.requeue() == "conflict"


@pytest.mark.parametrize("at", ["begin", "end"])
def test_a_worker_that_vanishes_takes_no_money_twice(delayq: Kit, new_order: NewOrder, at: str) -> None:
    job = charge.schedule(new_order().pk)
    if at == "end":
        delayq.crash_next(charge, at="end")
    else:
        delayq.crash_next(charge)
    delayq.advance("2m")
    assert job.state == State.SUCCEEDED
    assert Booking.objects.count() == 1


def test_the_next_run_fails_as_told_and_the_one_behind_it_does_not(delayq: Kit, new_order: NewOrder) -> None:
    delayq.fail_next(TimeoutError("no answer"), charge)
    charge.schedule(new_order().pk)
    assert [(run.outcome, type(run.error)) for run in delayq.advance("1m")] == [("retry", TimeoutError), ("ack", type(None))]


def test_one_run_by_itself(delayq: Kit, new_order: NewOrder, answers: Answers) -> None:
    answers.append("pending")
    order = new_order()
    with pytest.raises(Snooze):
        delayq.perform(charge, order.pk)
    assert delayq.perform(charge.using(key="charge:7"), order.pk, attempt=3) == 3
    assert close_order(order.pk) == "left alone"


def test_a_reminder_asks_for_another_try_and_ends_with_its_attempts(delayq: Kit, new_order: NewOrder) -> None:
    remind.schedule(new_order(email="").pk)
    assert [run.outcome for run in delayq.advance("10m")] == ["retry", "retry", "fail"]


def test_while_redis_is_away_an_order_is_taken_and_a_payment_says_ask_again(client: Client, delayq: Kit) -> None:
    with delayq.redis_down():
        placed = client.post("/orders/", {"total": 7})
        assert placed.status_code == 200
        paid = client.post(f"/orders/{placed.json()['order']}/pay/")
        assert (paid.status_code, paid.json()) == (503, {"ask": "again"})
        assert delayq.advance("20m") == []
    assert [run.task for run in delayq.advance("20m")] == ["orders.tasks.remind", "orders.tasks.close_order"]
