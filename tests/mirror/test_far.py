"""Far rows: jobs beyond the horizon of their queue are only in the database until they are brought in."""

from __future__ import annotations

import pytest
from django.db import transaction

import django_delayq as delayq
from django_delayq import signals
from django_delayq.models import Event, Job
from tests.mirror.horizons import near
from tests.tasks_for_tests import close_order

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("horizon")]  # before "orders", which reads the settings

Change = delayq.Change


def test_a_far_job_is_a_row_comes_in_and_runs(horizon, orders):
    job = delayq.schedule(close_order, 7, delay="2h")
    assert job.created is True
    assert Job.objects.get().derived == "far"
    assert not near(job)
    assert horizon.later(minutes=30) == []
    assert horizon.later(minutes=61) == [job.id]
    assert near(job)
    orders.fold()
    assert Job.objects.get().derived == "scheduled"
    [claimed] = orders.claim(ahead_ms=7_201_000)
    orders.settle(claimed, "ack")
    orders.fold()
    assert Job.objects.get().state == "succeeded"


def test_a_job_within_the_horizon_goes_to_redis_at_once(horizon):
    assert near(delayq.schedule(close_order, 7, delay="59m"))


def test_of_jobs_that_are_scheduled_together_only_those_of_a_queue_with_a_horizon_wait_as_rows(horizon):
    far, close = delayq.schedule_many(close_order.using(delay="2h", queue=queue).bind(7) for queue in ("orders", "default"))
    assert (near(far), near(close)) == (False, True)


def test_while_redis_is_away_a_far_job_is_scheduled_moved_found_and_cancelled(horizon, redis_away):
    redis_away()
    job = delayq.schedule(close_order, 7, delay="2h")
    assert job.reschedule(delay="3h") is Change.DONE
    assert delayq.get(job.id).id == job.id
    assert job.state is delayq.State.SCHEDULED
    assert job.cancel(actor="ana", reason="paid") is Change.DONE
    row = Job.objects.get()
    assert (row.state, row.far, row.error) == ("cancelled", False, "paid")
    assert [(event.kind, event.actor) for event in Event.objects.all()] == [("rescheduled", ""), ("cancelled", "ana")]


def test_a_cancelled_far_job_does_not_come_in(horizon):
    job = delayq.schedule(close_order, 7, delay="2h")
    job.cancel()
    assert horizon.later(days=1) == []
    assert job.cancel() is Change.DONE, "asked again"
    assert not near(job)


def test_a_change_in_a_transaction_is_undone_with_it(horizon):
    job = delayq.schedule(close_order, 7, delay="2h")
    with transaction.atomic():
        assert job.cancel() is Change.DONE
        transaction.set_rollback(True)
    assert Job.objects.get().derived == "far"


def test_run_now_brings_in(horizon, orders):
    job = delayq.schedule(close_order, 7, delay="2h")
    assert job.run_now() is Change.DONE
    assert [claimed.id for claimed in orders.claim()] == [job.short_id]


@pytest.mark.parametrize("change", ["cancel", "reschedule", "run_now"])
def test_a_change_in_a_savepoint_is_undone_with_that(horizon, change):
    job = delayq.schedule(close_order, 7, delay="2h")
    with transaction.atomic(), transaction.atomic():
        answer = job.reschedule(delay="10m") if change == "reschedule" else getattr(job, change)()
        transaction.set_rollback(True)
    assert answer is Change.DONE
    assert Job.objects.get().derived == "far"
    assert not near(job)
    assert not Event.objects.exists()


def test_of_a_job_that_its_own_transaction_has_cancelled_nobody_hears(horizon):
    heard = []

    def hear(job, **_: object) -> None:
        heard.append(job.id)

    signals.job_scheduled.connect(hear)
    try:
        with transaction.atomic():
            kept, gone, back = (delayq.schedule(close_order, number, delay="2h") for number in range(3))
            assert gone.cancel() is Change.DONE
            with transaction.atomic():
                back.cancel()
                transaction.set_rollback(True)
    finally:
        signals.job_scheduled.disconnect(hear)
    assert heard == [kept.id, back.id]
    assert (kept.created, gone.created, back.created) == (True, None, True)
