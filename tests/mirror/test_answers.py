"""The answers of `cancel`, `reschedule` and `run_now` if the row lags behind Redis, or Redis lags behind the row."""

from __future__ import annotations

import pytest
from django.db import transaction

import django_delayq as delayq
from django_delayq import clock, ids
from django_delayq.models import Event, Job
from django_delayq.producer.changes import Cancel
from django_delayq.producer.outbox import jobs
from django_delayq.producer.stores import stores
from django_delayq.store.scripts.events import EventLog
from tests.mirror.restoring import bring_back, in_redis, settle_down, snapshot
from tests.tasks_for_tests import close_order

pytestmark = pytest.mark.django_db(transaction=True)

DONE, FINISHED = delayq.Change.DONE, delayq.Change.FINISHED


@pytest.fixture
def retrying(orders, loop):
    """A job that waits for its next attempt, and whose row says that it runs: the mirror is behind."""
    job = delayq.schedule(close_order, 7)
    orders.fold()
    settle_down(orders, loop)
    [held] = orders.claim()
    orders.fold()
    orders.settle(held, "retry", delay=60_000)
    assert Job.objects.get().state == "running"
    return job


def test_a_move_of_what_waits_for_a_retry_of_which_its_row_has_not_heard_holds(orders, loop, wipe, retrying):
    assert retrying.reschedule(delay="1h") is DONE
    wipe()
    settle_down(orders, loop)
    view = stores.inspector().job("orders", retrying.id)
    assert (view.state, round((view.date_ms - view.now_ms) / 60_000)) == ("scheduled", 60)


def test_a_cancel_of_what_waits_for_a_retry_holds_when_its_first_answer_was_lost(orders, loop, wipe, retrying):
    orders.store.cancel(retrying.id)  # Redis made the change, but the reply was lost
    assert retrying.cancel() is DONE
    wipe()
    settle_down(orders, loop)
    assert in_redis(orders) == {}
    assert Job.objects.get().state == "cancelled"


@pytest.mark.parametrize("by_key", [False, True])
def test_a_cancel_aborts_when_it_says_so_and_not_else(orders, by_key):
    job = delayq.schedule(close_order, 7, key="k")
    [held] = orders.claim()
    how = {"key": "k", "queue": "orders"} if by_key else {"job": job}
    asked = [(held.id, held.fence)]
    for abort, heard in (({}, "cancel"), ({"abort": True}, "abort")):
        assert delayq.cancel(**how, **abort) is delayq.Change.RUNNING
        assert orders.store.extend(asked, worker="host:1:w", lease_ms=30_000) == {held.id: heard}
    orders.fold()
    assert list(Event.objects.filter(kind="cancel_requested").order_by("pk").values_list("detail", flat=True)) == [
        None,
        {"abort": True},
    ]


@pytest.mark.parametrize("act", ["cancel", "run_now"])
def test_a_success_is_final_though_an_old_copy_has_the_job_waiting(orders, loop, redis_server, act):
    job = delayq.schedule(close_order, 7)
    orders.fold()
    copy = snapshot(redis_server.link)
    orders.settle(orders.claim()[0], "ack")
    orders.fold()
    bring_back(redis_server.link, copy)
    assert getattr(job, act)() is FINISHED
    settle_down(orders, loop)
    assert Job.objects.get().state == "succeeded"


def test_a_cancel_that_was_held_up_does_not_undo_a_success(orders, loop, wipe, monkeypatch):
    """Between reading the row and asking, the job runs, its success is folded, and Redis forgets it."""
    job = delayq.schedule(close_order, 7, delay="1s")
    orders.fold()
    ask = Cancel.ask

    def held_up(*all):
        monkeypatch.setattr(Cancel, "ask", ask)
        clock.sleep(1.0)
        orders.settle(orders.claim()[0], "ack")
        orders.fold()
        wipe()
        settle_down(orders, loop)
        return ask(*all)

    monkeypatch.setattr(Cancel, "ask", held_up)
    assert job.cancel() is FINISHED
    orders.fold()
    assert Job.objects.get().state == "succeeded"


def test_a_move_whose_job_has_run_before_its_row_was_told_is_done(orders, monkeypatch):
    """Between the answer of Redis and the row, the job runs at the date that it was moved to, and the mirror is quicker."""
    job = delayq.schedule(close_order, 7, delay="1h")
    orders.fold()
    tell = jobs.apply

    def held_up(*all):
        orders.settle(orders.claim()[0], "ack")
        orders.fold()
        return tell(*all)

    monkeypatch.setattr(jobs, "apply", held_up)
    assert job.run_now() is DONE
    assert Job.objects.get().state == "succeeded"
    assert list(Event.objects.values_list("kind", flat=True)) == ["rescheduled"]


@pytest.mark.parametrize("durability", ["outbox", "redis"])
def test_a_cancel_by_key_withdraws_what_the_open_transaction_has_scheduled(orders, durability):
    with transaction.atomic():
        delayq.schedule(close_order, 7, key="o:7", durability=durability)
        assert delayq.cancel(key="o:7", queue="orders") is DONE
    assert orders.claim() == []


@pytest.mark.parametrize("durability", ["outbox", "redis"])
def test_what_its_transaction_has_cancelled_cannot_be_moved(orders, durability):
    with transaction.atomic():
        job = delayq.schedule(close_order, 7, durability=durability)
        assert job.cancel() is DONE
        assert (job.reschedule(delay="1h"), job.run_now(), job.cancel()) == (FINISHED, FINISHED, DONE)
    assert in_redis(orders) == {}


@pytest.mark.parametrize("durability", ["outbox", "redis"])
def test_a_job_whose_cancel_a_savepoint_takes_back_can_be_moved(orders, durability):
    with transaction.atomic():
        job = delayq.schedule(close_order, 7, durability=durability)
        with pytest.raises(ZeroDivisionError), transaction.atomic():
            assert job.cancel() is DONE
            raise ZeroDivisionError
        assert job.reschedule(delay="1h") is DONE
    view = stores.inspector().job("orders", job.id)
    assert round((view.date_ms - view.now_ms) / 60_000) == 60


@pytest.mark.parametrize("act", ["run_now", "reschedule"])
def test_what_waits_behind_a_running_job_of_its_key_can_be_moved(orders, act):
    holder = delayq.schedule(close_order, 1, key="o:7")
    [held] = orders.claim()
    behind = delayq.schedule(close_order, 2, key="o:7", on_conflict="after", delay="10m")
    assert getattr(behind, act)(**({"delay": "1h"} if act == "reschedule" else {})) is DONE
    orders.settle(held, "ack")
    orders.fold()
    clock.sleep(0.002)
    orders.relay.poll()
    view = stores.inspector().job("orders", behind.id)
    assert round((view.date_ms - view.now_ms) / 60_000) == (60 if act == "reschedule" else 0)
    assert holder.state == "succeeded"


def test_a_cancel_by_key_that_is_asked_again_answers_done(orders):
    delayq.schedule(close_order, 7, key="o:7", delay="1h")
    orders.store.cancel("o:7")  # and the answer was lost
    orders.fold()
    assert delayq.cancel(key="o:7", queue="orders") is DONE
    assert delayq.cancel(key="o:8", queue="orders") is delayq.Change.UNKNOWN


def test_a_merged_job_that_was_requeued_stands_for_itself(orders):
    holder = delayq.schedule(close_order, 1, key="o:7", delay="1h")
    with transaction.atomic():
        merged = ids.full(ids.short(delayq.schedule(close_order, 2, key="o:7", on_conflict="keep").id))
    orders.fold()
    assert holder.cancel() is DONE
    orders.fold()
    assert delayq.requeue(merged) is DONE
    assert delayq.cancel(merged) is DONE
    orders.fold()
    assert orders.claim() == []
    assert Job.objects.get(pk=merged).state == "cancelled"


def test_jobs_that_were_merged_into_each_other_end_a_cancel(orders):
    """Somebody else has written that."""
    one, other = (delayq.schedule(close_order, number, delay="1h") for number in range(2))
    orders.fold()
    for job, holder in ((one, other), (other, one)):
        job.cancel()
        Job.objects.filter(pk=job.id).update(ending="merged", merged_into=holder.id)
    orders.fold()
    stores.link.execute("UNLINK", orders.store.keys["finished"])
    assert delayq.cancel(one.id) is FINISHED


def test_a_move_of_a_row_goes_on_when_the_epoch_changes_under_it(orders, unpublished, monkeypatch):
    job = unpublished(delay="10m")
    rows, changed = jobs.read, []

    def read(*all, **options):
        found = rows(*all, **options)
        if len(changed) == 1:  # the second reading is that for the publication
            stores.link.execute("HSET", orders.store.keys["meta"], "server", "another")
        changed.append(True)
        return found

    monkeypatch.setattr(jobs, "read", read)
    assert job.reschedule(delay="1h") is DONE
    view = stores.inspector().job("orders", job.id)
    assert round((view.date_ms - view.now_ms) / 60_000) == 60


def test_what_is_no_id_is_not_repeated_at_length():
    with pytest.raises(delayq.PayloadError) as raised:
        delayq.cancel("x" * 1_000_000)
    assert len(str(raised.value)) < 500


def test_each_answered_change_is_one_event(orders):
    job = delayq.schedule(close_order, 7, delay="1h")
    orders.fold()
    assert (job.reschedule(delay="2h"), job.cancel(), job.cancel()) == (DONE, DONE, DONE)
    orders.fold()
    assert EventLog(stores.link, orders.store.keys).length() == 0
    assert sorted(Event.objects.values_list("kind", flat=True)) == ["cancelled", "rescheduled"]
