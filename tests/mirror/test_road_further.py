"""The publishing path as users see it: changes by key, unpublished rows, and calls that arrive after a wipe."""

from __future__ import annotations

from datetime import UTC, datetime
from uuid import UUID

import pytest
from django.db import connection, transaction

import django_delayq as delayq
from django_delayq import clock, ids
from django_delayq.mirror import restore
from django_delayq.mirror.restore import RestoreLoop
from django_delayq.models import Job
from django_delayq.producer.stores import stores
from tests.mirror.restoring import bring_back, in_redis, settle_down, snapshot
from tests.mirror.test_road import due_in, ran, relayed
from tests.tasks_for_tests import close_order

pytestmark = pytest.mark.django_db(transaction=True)

DONE = delayq.Change.DONE


def test_a_cancel_by_key_reaches_the_older_row_whose_publisher_died(orders, unpublished):
    """One job holds the key in Redis, and an older one of the same key is a row that the relay has yet to publish."""
    unpublished(1, key="o:7", on_conflict="replace")
    delayq.schedule(close_order, 2, key="o:7", on_conflict="replace", delay="1h")
    assert delayq.cancel(key="o:7", queue="orders") is DONE
    relayed(orders)
    assert in_redis(orders) == {}
    assert set(Job.objects.values_list("state", flat=True)) == {"cancelled"}


def test_a_move_by_key_reaches_every_row_of_the_key(orders, unpublished, lost_reply):
    for number in range(2):  # Redis hangs
        stores.reset()
        lost_reply(1)
        unpublished(number, key="o:7")
    stores.reset()
    assert delayq.reschedule(key="o:7", queue="orders", delay="1h") is DONE
    for publish in reversed(unpublished.later):  # the web processes go on
        publish()
    relayed(orders)
    assert orders.claim() == []
    assert len(in_redis(orders)) == 1


@pytest.mark.parametrize(("change", "wanted"), [({"delay": "1h"}, 3600), (None, 0)], ids=["later", "now"])
def test_a_job_moved_between_commit_and_publication_has_the_new_date_whoever_publishes_it(orders, unpublished, change, wanted):
    job = unpublished(delay="10m")
    answer = delayq.reschedule(job.id, **change) if change else delayq.run_now(job.id)
    assert answer is DONE
    unpublished.later[0]()  # the web process goes on, with the date of the call in its hands
    relayed(orders)
    assert abs(due_in(job) - wanted) < 5
    assert abs((Job.objects.get().run_at - clock.now()).total_seconds() - wanted) < 5


@pytest.mark.parametrize("act", ["cancel", "reschedule"])
def test_a_change_behind_a_wipe_holds_while_the_restore_waits_for_a_command(orders, loop, wipe, monkeypatch, act):
    monkeypatch.setattr(restore, "LOOK", 0.0)
    job = delayq.schedule(close_order, 7, delay="10m")
    settle_down(orders, loop)
    wipe()
    manual = RestoreLoop(stores.link, orders.config, prefix="delayq", auto=False)
    for _ in range(5):
        manual.poll()
        orders.fold()
    assert in_redis(orders) == {}, "it waits for the command"
    assert getattr(job, act)(**({"delay": "2h"} if act == "reschedule" else {})) is DONE
    settle_down(orders, loop)  # the command
    orders.fold()
    if act == "cancel":
        assert in_redis(orders) == {}
        assert Job.objects.get().state == "cancelled"
    else:
        assert abs(due_in(job) - 7200) < 5


def test_a_cancel_whose_answer_was_lost_is_done_when_another_process_asks_again(orders, loop, wipe, lost_reply):
    delayq.schedule(close_order, 8, delay="1h").cancel()  # Redis knows the script: the lost answer is that of a cancel
    job = delayq.schedule(close_order, 7, delay="1h")
    orders.fold()
    lost_reply(1)
    with pytest.raises(delayq.StoreUnavailable):
        job.cancel()
    stores.reset()  # another process
    assert delayq.cancel(job.id, queue="orders") is DONE
    assert Job.objects.get(pk=job.id).state == "cancelled"
    wipe()
    settle_down(orders, loop)
    assert in_redis(orders) == {}


def test_a_job_whose_holder_ends_before_the_commit_is_scheduled(orders):
    delayq.schedule(close_order, 1, key="o:7")
    [held] = orders.claim()
    with transaction.atomic():
        delayq.schedule(close_order, 2, key="o:7")
        orders.settle(held, "ack")
    assert ran(orders) == [2]


def test_a_cancel_tries_though_a_schedule_of_this_process_has_just_failed(orders, lost_reply, monkeypatch):
    job = delayq.schedule(close_order, 7, delay="1h")
    lost_reply(9)
    with transaction.atomic():
        delayq.schedule(close_order, 8, delay="1h")  # one slow second; the row waits for the relay
    monkeypatch.undo()
    assert job.cancel() is DONE
    assert ids.short(job.id) not in in_redis(orders)


@pytest.mark.parametrize("policy", ["earliest", "latest"])
def test_an_id_that_was_stored_before_the_commit_stands_for_the_holder(orders, policy):
    holder = delayq.schedule(close_order, 1, key="o:7", delay="1h")
    with transaction.atomic():
        stored = delayq.schedule(close_order, 2, key="o:7", delay="1h", on_conflict=policy).id
    orders.fold()
    assert delayq.cancel(stored) is DONE
    assert in_redis(orders) == {}
    orders.fold()
    assert Job.objects.get(pk=holder.id).state == "cancelled"


def test_what_a_hook_of_more_than_half_a_minute_later_would_publish_is_left_to_the_relay(orders, unpublished, monkeypatch):
    job = unpublished()
    passed, monotonic = 31.0, clock.monotonic
    with monkeypatch.context() as patch:
        patch.setattr(clock, "monotonic", lambda: monotonic() + passed)
        unpublished.later[0]()
    assert in_redis(orders) == {}
    relayed(orders)
    assert list(in_redis(orders)) == [ids.short(job.id)]


def test_the_clock_of_a_web_host_does_not_hold_up_the_relay(orders, unpublished, monkeypatch):
    if connection.vendor == "sqlite":
        pytest.skip("the clock of SQLite is the host's")
    hour_ms = 3_600_000
    an_hour_ahead = UUID(int=ids.new().int + (hour_ms << 80))
    with monkeypatch.context() as patch:
        patch.setattr(clock, "wall_ms", lambda: clock.to_ms(datetime.now(UTC)) + hour_ms)
        patch.setattr(clock, "now", lambda: clock.from_ms(clock.to_ms(datetime.now(UTC)) + hour_ms))
        patch.setattr(ids, "new", lambda: an_hour_ahead)
        job = unpublished(delay="10m")
    clock.sleep(0.01)
    orders.relay.poll()  # whose `young` is 0
    assert list(in_redis(orders)) == [ids.short(job.id)]


def test_a_row_does_not_say_cancelled_of_a_job_that_ran_on_the_new_primary(orders, loop, redis_server):
    job = delayq.schedule(close_order, 7)
    settle_down(orders, loop)
    new_primary = snapshot(redis_server.link)
    assert job.cancel() is DONE  # on the old one, which is alive
    bring_back(redis_server.link, new_primary)
    [held] = orders.claim()  # before anybody could carry the cancel over
    assert orders.settle(held, "ack") == "done"
    for _ in range(4):
        orders.fold()
        loop.poll()
    orders.fold()
    assert in_redis(orders) == {}
    assert Job.objects.get().state == "succeeded"


@pytest.mark.parametrize("end", ["ack", "cancel"])
def test_what_the_relay_publishes_late_behind_a_wipe_does_not_raise_what_has_ended(orders, loop, wipe, unpublished, monkeypatch, end):
    job, stood_still = unpublished(), []

    def stands_still(name):
        if name == "relay.publish" and not stood_still:  # it has read the row
            stood_still.append(name)
            unpublished.later[0]()
            if end == "ack":
                assert ran(orders) == [7]
            else:
                assert job.cancel() is DONE
            orders.fold()
            wipe()
            settle_down(orders, loop)

    monkeypatch.setattr("django_delayq.mirror.relay.failpoint", stands_still)
    relayed(orders)
    assert stood_still
    assert orders.claim() == []
    orders.fold()
    assert Job.objects.get().state == ("succeeded" if end == "ack" else "cancelled")
