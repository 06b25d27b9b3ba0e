"""Committed rows reach Redis, once."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import transaction

import django_delayq as delayq
from django_delayq import clock, conf
from django_delayq.mirror import relay
from django_delayq.mirror.prune import PruneLoop, TidyLoop
from django_delayq.models import Attempt, Checkpoint, Event, Job
from django_delayq.producer import queues
from django_delayq.producer.stores import stores
from tests.depths import queue_depth
from tests.tasks_for_tests import close_order


@pytest.fixture
def unpublished(orders, monkeypatch):
    """Puts a job into the database only, as if the web process had died right after the commit."""

    def make(number: int = 7, **options) -> delayq.Job:
        with monkeypatch.context() as patch:
            patch.setattr("django_delayq.producer.put._send_rows", lambda publisher, puts: [])
            job = delayq.schedule(close_order, number, **options)
        Job.objects.filter(pk=job.id).update(created_at=clock.now() - timedelta(minutes=1))
        return job

    return make


def test_a_committed_row_that_redis_lacks_is_pushed_with_its_date(orders, unpublished):
    job = unpublished(delay="1h", key="o:7")
    orders.relay.poll()
    view = stores.inspector().job("orders", job.id)
    assert view is not None
    assert abs(view.date_ms - clock.to_ms(job.run_at)) < 5_000, "what is left of the delay, by the database's clock"
    assert stores.inspector().find("orders", "o:7") == job.id
    orders.fold()
    assert Job.objects.get().published is not None


def test_what_redis_forgets_before_its_event_is_folded_is_pushed_again(orders, unpublished, delayq_redis):
    redis = delayq_redis.link
    first = delayq.schedule(close_order, 1, delay="1h")
    orders.fold()
    before = {key: redis.execute("DUMP", key) for key in redis.execute("KEYS", "delayq:*")}
    job = unpublished(delay="1h")
    orders.relay.poll()
    assert stores.inspector().job("orders", job.id) is not None
    for key in redis.execute("KEYS", "delayq:*"):  # it falls back to what it had before
        redis.execute("UNLINK", key)
    for key, contents in before.items():
        redis.execute("RESTORE", key, 0, contents)
    assert stores.inspector().job("orders", job.id) is None
    assert stores.inspector().job("orders", first.id) is not None
    orders.fold()
    orders.relay.poll()
    assert stores.inspector().job("orders", job.id) is not None


def test_a_row_whose_event_is_lost_is_not_pushed_for_ever(orders, unpublished):
    job = unpublished(delay="1h")
    orders.relay.poll()
    stores.link.execute("UNLINK", orders.store.keys["events"])
    orders.relay.poll()
    assert Job.objects.get(pk=job.id).published is not None
    assert orders.relay.poll() == relay.IDLE


def test_a_round_comes_by_every_row_once(orders, unpublished, monkeypatch):
    monkeypatch.setattr(relay, "MOST", 2)
    jobs = [unpublished(number, delay="1h") for number in range(5)]
    assert [orders.relay.poll() for _ in range(3)] == [0.0, 0.0, relay.PAUSE]
    assert all(stores.inspector().job("orders", job.id) for job in jobs)
    assert orders.relay.poll() == relay.PAUSE, "it waits for the mirror"
    orders.fold()
    orders.relay.poll()
    assert orders.relay.poll() == relay.IDLE


def test_the_relay_waits_for_the_mirror(orders):
    job = delayq.schedule(close_order, 7)
    orders.settle(orders.claim()[0], "ack")
    stores.link.execute("UNLINK", orders.store.keys["finished"])
    orders.relay.poll()
    assert stores.inspector().job("orders", job.id) is None, "an unfolded row is not an unpublished one"
    orders.fold()
    orders.relay.poll()
    assert stores.inspector().job("orders", job.id) is None
    assert Job.objects.get().state == "succeeded"


@pytest.mark.parametrize("loss", ["deleted", "restored"])
def test_the_relay_does_not_wait_for_events_that_are_folded_and_gone(orders, unpublished, loss):
    delayq.schedule(close_order, 1, delay="1h")
    orders.fold()
    if loss == "deleted":
        Checkpoint.objects.all().delete()
    else:  # from a backup of the database
        Checkpoint.objects.update(last_event="5-0")
    job = unpublished(delay="1h")
    orders.relay.poll()
    assert stores.inspector().job("orders", job.id) is not None


def test_a_young_row_is_left_to_its_own_process(orders, unpublished):
    job = unpublished()
    Job.objects.update(created_at=clock.now())
    relay = orders.relay
    relay._young = 5.0
    relay.poll()
    assert stores.inspector().job("orders", job.id) is None


@pytest.mark.parametrize("minutes", [10, -10])
def test_a_row_that_was_dated_by_another_clock_does_not_wait_for_that(orders, unpublished, minutes):
    job = unpublished(delay="1h")
    Job.objects.update(created_at=clock.now() + timedelta(minutes=minutes))
    orders.relay._young = 5.0
    orders.relay.poll()
    assert stores.inspector().job("orders", job.id) is not None


def test_no_more_is_left_of_a_delay_than_all_of_it_whatever_clock_has_dated_the_row(orders, unpublished):
    job, ahead = unpublished(delay="1h"), timedelta(minutes=10)
    Job.objects.update(created_at=clock.now() + ahead, run_at=job.run_at + ahead)
    orders.relay.poll()
    view = stores.inspector().job("orders", job.id)
    assert view is not None
    assert abs(view.date_ms - clock.wall_ms() - 3_600_000) < 5_000


def test_what_is_written_behind_the_mark_is_left_to_the_next_round(orders, unpublished):
    first = unpublished(delay="1h")
    delayq.schedule(close_order, 1, delay="1h")  # whose event the mirror has not seen
    assert orders.relay.poll() == relay.PAUSE, "it waits for the mirror"
    second = unpublished(delay="1h")
    Job.objects.filter(pk=second.id).update(created_at=clock.now())
    orders.fold()
    orders.relay.poll()
    assert stores.inspector().job("orders", first.id) is not None
    assert stores.inspector().job("orders", second.id) is None


def test_a_pushed_row_runs_once(orders, unpublished):
    unpublished()
    orders.relay.poll()
    orders.relay._mark = None
    Job.objects.update(published=None)
    orders.fold()
    assert len(orders.claim()) == 1
    assert orders.claim() == []


def test_a_row_cancelled_before_it_was_pushed_never_runs(orders, unpublished):
    job = unpublished()
    assert delayq.cancel(job, actor="clerk", reason="paid") is delayq.Change.DONE
    orders.relay.poll()
    assert orders.claim() == []
    row = Job.objects.get()
    assert (row.state, row.error) == ("cancelled", "paid")
    assert Event.objects.get().actor == "clerk"


def test_a_cancel_whose_row_was_rolled_back_is_told_to_the_row_by_the_relay(orders, unpublished):
    job = unpublished()
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        assert job.cancel() is delayq.Change.DONE
        raise ZeroDivisionError
    assert Job.objects.get().state == "scheduled"
    orders.relay.poll()
    assert orders.claim() == [], "a cancel that answered done"
    orders.fold()
    row = Job.objects.get()
    assert (row.state, job.state) == ("cancelled", "cancelled")
    assert row.finished_at is not None


def test_a_row_whose_job_has_just_succeeded_is_not_called_cancelled(orders, unpublished):
    job = unpublished()
    orders.relay.poll()
    orders.settle(orders.claim()[0], "ack")
    Job.objects.update(published=None)
    orders.relay._mark = (0, 0), clock.now()  # taken before all this
    orders.relay.poll()
    assert Job.objects.get().derived == "unresolved", "of what Redis says no event tells"
    orders.fold()
    assert job.requeue() is delayq.Change.CONFLICT
    assert Job.objects.get().state == "succeeded"


def test_a_row_moved_before_it_was_pushed_keeps_its_new_date(orders, unpublished):
    job = unpublished(delay="1h")
    assert delayq.reschedule(job, delay="3h") is delayq.Change.DONE
    orders.relay.poll()
    view = stores.inspector().job("orders", job.id)
    assert view is not None
    assert view.date_ms > clock.to_ms(job.run_at) + 3_600_000


def test_a_purge_also_ends_rows_that_redis_does_not_have(orders, unpublished):
    running = delayq.schedule(close_order, 1)
    assert len(orders.claim()) == 1
    in_redis = delayq.schedule(close_order, 2, delay="1h")
    lacking = unpublished(delay="1h")
    assert sum(queues.purge("orders", actor="clerk", reason="wrong price")) == 2
    orders.relay.poll()
    orders.fold()
    orders.relay.poll()
    assert queue_depth("orders").scheduled == 0
    states = dict(Job.objects.values_list("id", "state"))
    assert states == {running.id: "running", in_redis.id: "cancelled", lacking.id: "cancelled"}
    assert not Job.objects.filter(cancel_requested=True).exists()
    assert Event.objects.get(job_id=lacking.id).actor == "clerk"


def test_a_row_moved_while_the_relay_pushes_it_keeps_its_new_date(orders, unpublished, monkeypatch):
    job = unpublished(delay="0s")
    real = orders.relay.store.start_schedule

    def schedule(items, **options):
        assert job.reschedule(delay="3h") is delayq.Change.DONE  # between the relay's read and its write
        return real(items, **options)

    monkeypatch.setattr(orders.relay.store, "start_schedule", schedule)
    orders.relay.poll()
    assert orders.claim() == [], "it would run before its date"
    orders.fold()
    row = Job.objects.get()
    assert row.run_at > clock.now() + timedelta(hours=2)
    assert job.state == "scheduled"


def test_an_unpublished_row_holds_its_key(orders, unpublished):
    first = unpublished(delay="1h", key="o:7")
    second = delayq.schedule(close_order, 7, key="o:7")
    assert (second.id, second.created) == (first.id, False)
    assert delayq.cancel(key="o:7", queue="orders") is delayq.Change.DONE


def test_a_key_is_held_once_whoever_publishes_first(orders, unpublished):
    first = unpublished(delay="1h", key="o:7")
    second = delayq.schedule(close_order, 7, delay="1h", key="o:7")
    assert (second.id, second.created) == (first.id, False), "a committed row holds its key before Redis has it"
    orders.relay.poll()  # waits for the mirror
    orders.fold()
    orders.relay.poll()
    orders.fold()
    assert dict(Job.objects.values_list("id", "state")) == {first.id: "scheduled"}
    assert queue_depth("orders").scheduled == 1


def test_a_record_that_redis_lost_comes_back_by_the_relay(orders, delayq_redis):
    job = delayq.schedule(close_order, 7)
    orders.fold()
    delayq_redis.link.execute("DEL", orders.store.keys["jobs"])
    assert orders.claim() == []
    orders.fold()
    Job.objects.update(created_at=clock.now() - timedelta(minutes=1))
    orders.relay.poll()
    assert [claimed.id for claimed in orders.claim()] != []
    assert stores.inspector().job("orders", job.id) is not None


def test_a_transaction_under_way_is_not_pushed(orders, unpublished):
    with transaction.atomic():
        delayq.schedule(close_order, 7)
        assert orders.claim() == []
    assert len(orders.claim()) == 1


def test_prune_comes_to_every_state(orders):
    for outcome in ("ack", "cancel"):
        delayq.schedule(close_order, 7)
        orders.settle(orders.claim()[0], outcome)
    orders.fold()
    Job.objects.update(finished_at=clock.now() - timedelta(days=90))
    PruneLoop(stores.places, conf.get().queue("orders")).poll()
    assert not Job.objects.exists(), "a queue that always has something to prune of one state must prune the others too"


def test_two_changes_of_an_unpublished_row_within_a_millisecond(orders, unpublished, monkeypatch):
    job = unpublished(delay="1h")
    now = clock.now()
    monkeypatch.setattr(clock, "now", lambda: now)
    assert [job.reschedule(delay="2h"), job.reschedule(delay="3h"), job.cancel()] == ["done"] * 3
    assert Event.objects.filter(job_id=job.id).count() == 3


def test_prune_deletes_what_is_past_its_retention(orders):
    for outcome in ("ack", "fail"):
        delayq.schedule(close_order, 7)
        orders.settle(orders.claim()[0], outcome)
    delayq.schedule(close_order, 8, delay="1h")
    orders.fold()
    Job.objects.update(finished_at=clock.now() - timedelta(days=8))
    Job.objects.filter(state="scheduled").update(finished_at=None)
    loop = PruneLoop(stores.places, conf.get().queue("orders"))
    loop.poll()
    assert sorted(Job.objects.values_list("state", flat=True)) == ["failed", "scheduled"]
    assert list(Attempt.objects.values_list("outcome", flat=True)) == ["failed"]


def test_tidy_keeps_a_failed_record_until_the_mirror_has_it(orders, monkeypatch):
    monkeypatch.setattr("django_delayq.mirror.prune.FAILED_IN_REDIS_MS", -60_000)
    delayq.schedule(close_order, 7)
    orders.settle(orders.claim()[0], "fail")
    config = conf.get()
    tidy = TidyLoop(stores.link, orders.config, prefix=config.prefix)
    tidy.poll()
    assert queue_depth("orders").failed == 1
    orders.fold()
    clock.sleep(0.005)
    delayq.schedule(close_order, 8, delay="1h")
    orders.fold()
    tidy.poll()
    assert queue_depth("orders").failed == 0
    assert Job.objects.filter(state="failed").count() == 1
