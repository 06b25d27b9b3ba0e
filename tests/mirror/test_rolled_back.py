"""Redis has older contents than it had: an old copy was started, or another server took over."""

from __future__ import annotations

import pytest

import django_delayq as delayq
from django_delayq import clock, ids
from django_delayq.mirror import restore
from django_delayq.mirror.restore import RestoreLoop
from django_delayq.models import Attempt, Job
from django_delayq.producer.publish import Publisher
from django_delayq.producer.stores import stores
from django_delayq.store.scripts.recovery import EpochStore
from tests.mirror.conftest import Orders
from tests.mirror.restoring import bring_back, in_redis, put_ahead, settle_down, snapshot
from tests.tasks_for_tests import close_order

pytestmark = pytest.mark.django_db(transaction=True)


def test_what_the_mirror_read_just_before_a_roll_back_hides_nothing(orders, loop, redis_server, monkeypatch):
    """The mirror has read, the server is replaced by one with older data, and only then the mirror commits and trims."""
    early = delayq.schedule(close_order, 1, delay="1h")
    settle_down(orders, loop)
    old = redis_server.link.execute("DUMP", orders.mirror.log.keys["meta"])
    late = delayq.schedule(close_order, 2, delay="1h")
    write = orders.mirror._write

    def replaced(entries):
        write(entries)
        keys = orders.mirror.log.keys
        redis_server.link.execute("RESTORE", keys["meta"], 0, old, "REPLACE")
        redis_server.link.execute("HDEL", keys["jobs"], ids.short(late.id))
        redis_server.link.execute("ZREM", keys["normal"], ids.short(late.id))
        redis_server.link.execute("DEL", keys["events"])
        monkeypatch.setattr(orders.mirror.epoch, "look", look)

    look = orders.mirror.epoch.look
    monkeypatch.setattr(orders.mirror.epoch, "look", lambda seen: look(seen)._replace(server="the one before"))
    monkeypatch.setattr(orders.mirror, "_write", replaced)
    orders.mirror.poll()
    monkeypatch.setattr(orders.mirror, "_write", write)
    assert late.id in {row.id for row in Job.objects.filter(published__isnull=False)}
    settle_down(orders, loop)
    assert set(in_redis(orders)) == {ids.short(early.id), ids.short(late.id)}


def test_a_job_of_redis_durability_that_has_ended_by_its_row_does_not_rise_from_an_old_copy(orders, loop, redis_server):
    ended = delayq.schedule(close_order, 1, delay=0, durability="redis")
    waits = delayq.schedule(close_order, 2, delay="1h", durability="redis")
    orders.fold()
    copy = snapshot(redis_server.link)
    for job in orders.claim():
        orders.settle(job, "ack")
    orders.fold()
    bring_back(redis_server.link, copy)
    settle_down(orders, loop)
    assert in_redis(orders) == {ids.short(waits.id): "scheduled"}
    orders.fold()
    assert Job.objects.get(pk=ended.id).state == "succeeded"


def test_a_rollback_is_noticed_by_what_the_database_has_seen(orders, loop, redis_server):
    kept = delayq.schedule(close_order, 1, delay="1h")
    done = delayq.schedule(close_order, 2, delay=0)
    lost = delayq.schedule(close_order, 3, delay=0)
    orders.fold()
    copy = snapshot(redis_server.link)
    for job in orders.claim():
        orders.settle(job, "ack" if job.id == ids.short(done.id) else "retry", delay=60_000)
    late = delayq.schedule(close_order, 4, delay="1h")
    orders.fold()
    bring_back(redis_server.link, copy)
    assert loop.look()[0].older
    settle_down(orders, loop)
    assert in_redis(orders) == {ids.short(job.id): "scheduled" for job in (kept, lost, late)}
    view = stores.inspector().job("orders", lost.id)
    assert (view.attempt, view.date_ms) == (1, clock.to_ms(Job.objects.get(pk=lost.id).run_at))
    assert {job.id: job.state for job in Job.objects.all()} == {
        kept.id: "scheduled",
        done.id: "succeeded",
        lost.id: "scheduled",
        late.id: "scheduled",
    }
    assert stores.inspector().job("orders", done.id) is None


@pytest.mark.parametrize("steps", [0, 1, 3])
def test_an_old_copy_is_noticed_that_is_started_while_jobs_come_back_behind_a_wipe(orders, loop, wipe, redis_server, steps):
    """The copy has the previous complete generation, and the mirror continued from it before restore checked."""
    dropped = delayq.schedule(close_order, 1, delay="1h")
    settle_down(orders, loop)
    copy = snapshot(redis_server.link)
    late = delayq.schedule(close_order, 2, delay="1h")
    assert dropped.cancel() is delayq.Change.DONE
    settle_down(orders, loop)
    wipe()
    between = delayq.schedule(close_order, 3, delay="1h")
    orders.fold()
    for _ in range(steps):
        loop.poll()
    bring_back(redis_server.link, copy)
    after = delayq.schedule(close_order, 4, delay="1h")
    orders.fold()
    settle_down(orders, loop)
    assert in_redis(orders) == {ids.short(job.id): "scheduled" for job in (late, between, after)}
    assert Job.objects.get(pk=dropped.id).state == "cancelled"


def test_a_second_wipe_is_noticed_while_jobs_come_back_behind_the_first(orders, loop, wipe):
    """The next call creates no generation, so the store looks like one whose events the database never saw."""
    early = delayq.schedule(close_order, 1, delay="1h")
    settle_down(orders, loop)
    wipe()
    between = delayq.schedule(close_order, 2, delay="1h")
    orders.fold()
    wipe()
    delayq.pause("orders")
    orders.fold()
    after = delayq.schedule(close_order, 3, delay="1h")
    orders.fold()
    settle_down(orders, loop)
    assert in_redis(orders) == {ids.short(job.id): "scheduled" for job in (early, between, after)}


def test_an_end_that_the_mirror_has_written_is_not_undone_by_an_older_restore_that_is_told_again(orders, loop, wipe, redis_server):
    """An old copy of Redis holds the event of a restore; what became of the job since, it does not hold."""
    job = delayq.schedule(close_order, 1, delay="1h")
    orders.fold()
    wipe()
    while in_redis(orders) != {ids.short(job.id): "scheduled"}:
        loop.poll()
    copy = snapshot(redis_server.link)
    settle_down(orders, loop)
    assert delayq.run_now(job.id) is delayq.Change.DONE
    assert orders.settle(orders.claim()[0], "ack") == "done"
    orders.fold()
    bring_back(redis_server.link, copy)
    settle_down(orders, loop)
    assert Job.objects.get(pk=job.id).state == "succeeded"
    assert in_redis(orders) == {}


@pytest.fixture
def rolled_back(orders, loop, redis_server):
    """A waiting job, known to Redis and to its row, and a Redis that has forgotten what came after."""

    def make(between=lambda job: None):
        job = delayq.schedule(close_order, 1, delay="1h")
        orders.fold()
        between(job)
        orders.fold()
        copy = snapshot(redis_server.link)
        delayq.schedule(close_order, 2, delay="1h")
        return job, copy

    return make


@pytest.mark.parametrize("ago", [0, 3_600_000])
def test_a_cancel_during_a_restore_stands_whatever_the_clock_says(orders, loop, redis_server, rolled_back, monkeypatch, ago):
    job, copy = rolled_back()
    orders.fold()
    bring_back(redis_server.link, copy)
    answers = []

    def cancelled_meanwhile(*given, **more):
        if not answers:
            answers.append(orders.store.cancel(job.id, actor="clerk", now_ms=clock.wall_ms() - ago).change)
        return sweep(*given, **more)

    sweep = loop.epoch.sweep
    monkeypatch.setattr(loop.epoch, "sweep", cancelled_meanwhile)
    settle_down(orders, loop)
    assert answers == ["done"]
    assert Job.objects.get(pk=job.id).state == "cancelled"
    assert ids.short(job.id) not in in_redis(orders)


def test_what_happens_before_a_roll_back_is_noticed_is_folded_though_the_clock_is_behind(orders, loop, redis_server, rolled_back):
    job, _ = rolled_back()
    runs = delayq.schedule(close_order, 3)
    (held,) = orders.claim()
    orders.fold()
    copy = snapshot(redis_server.link)
    delayq.schedule(close_order, 4, delay="1h")
    orders.fold()
    put_ahead(Job.objects.all())
    bring_back(redis_server.link, copy)
    assert orders.store.cancel(job.id, actor="clerk").change == "done"
    assert orders.settle(held, "ack") == "done"
    settle_down(orders, loop)
    states = dict(Job.objects.values_list("id", "state"))
    assert (states[job.id], states[runs.id]) == ("cancelled", "succeeded")
    assert Attempt.objects.get(job=runs.id).outcome == "succeeded"
    assert {ids.short(job.id), held.id}.isdisjoint(in_redis(orders))


@pytest.mark.parametrize("audit", ["full", "outcomes"])
@pytest.mark.parametrize("before", ["first run", "requeued once"])
def test_a_success_before_a_roll_back_is_noticed_stands_though_the_clock_is_behind(
    delayq_redis, transactional_db, redis_server, settings, monkeypatch, audit, before
):
    settings.DELAYQ = {**settings.DELAYQ, "AUDIT": audit}
    monkeypatch.setattr(restore, "LOOK", 0.0)
    orders = Orders()
    loop = RestoreLoop(stores.link, orders.config, prefix="delayq")
    settle_down(orders, loop)
    job = delayq.schedule(close_order, 3)
    (held,) = orders.claim()
    if before == "requeued once":
        assert orders.settle(held, "fail") == "done"
        orders.fold()
        assert delayq.requeue(job.id) is delayq.Change.DONE
        (held,) = orders.claim()
    orders.fold()
    copy = snapshot(redis_server.link)
    delayq.schedule(close_order, 4, delay="1h")
    assert delayq.cancel(job.id) is delayq.Change.RUNNING
    orders.fold()
    put_ahead(Job.objects.filter(pk=job.id))
    bring_back(redis_server.link, copy)
    assert orders.settle(held, "ack") == "done"
    settle_down(orders, loop)
    assert Job.objects.get(pk=job.id).state == "succeeded"
    assert held.id not in in_redis(orders)


@pytest.mark.parametrize("end", ["failed", "cancelled"])
def test_a_requeue_that_redis_has_forgotten_counts(orders, loop, redis_server, rolled_back, end):
    def ended(job):
        if end == "cancelled":
            assert delayq.cancel(job.id) is delayq.Change.DONE
        else:
            assert delayq.run_now(job.id) is delayq.Change.DONE
            assert orders.settle(orders.claim()[0], "fail") == "done"

    job, copy = rolled_back(ended)
    assert delayq.requeue(job.id) is delayq.Change.DONE
    orders.fold()
    bring_back(redis_server.link, copy)
    settle_down(orders, loop)
    assert Job.objects.get(pk=job.id).state == "scheduled"
    assert in_redis(orders)[ids.short(job.id)] == "scheduled"


def test_without_rows_of_ended_jobs_only_those_whose_rows_are_gone_are_dropped(
    delayq_redis, transactional_db, settings, monkeypatch, redis_server
):
    settings.DELAYQ = {**settings.DELAYQ, "AUDIT": "failures"}
    monkeypatch.setattr(restore, "LOOK", 0.0)
    orders = Orders()
    loop = RestoreLoop(stores.link, orders.config, prefix="delayq")
    settle_down(orders, loop)
    done = delayq.schedule(close_order, 1)
    waits = delayq.schedule(close_order, 2, delay="1h")
    in_redis_alone = delayq.schedule(close_order.using(durability="redis"), 3, delay="1h")
    settle_down(orders, loop)
    copy = snapshot(redis_server.link)
    orders.settle(orders.claim()[0], "ack")
    late = delayq.schedule(close_order, 4, delay="1h")
    orders.fold()
    Job.objects.filter(pk=in_redis_alone.id).delete()  # as if the mirror had not heard of it yet
    bring_back(redis_server.link, copy)
    settle_down(orders, loop)
    assert set(in_redis(orders)) == {ids.short(job.id) for job in (waits, in_redis_alone, late)}
    assert not Job.objects.filter(pk=done.id).exists()


def test_events_after_a_rollback_are_folded_though_the_clock_went_back_too(orders, loop, redis_server):
    delayq.schedule(close_order, 1, delay="1h")
    orders.fold()
    put_ahead(Job.objects.none())
    settle_down(orders, loop)
    new = delayq.schedule(close_order, 2, delay="1h")
    orders.fold()
    assert Job.objects.get(pk=new.id).published
    assert orders.mirror.log.length() == 0


def test_nothing_is_requeued_while_an_old_copy_is_put_right_by_rows_that_would_end_it_again(orders, loop, redis_server, monkeypatch):
    job = delayq.schedule(close_order, 1, delay="1h")
    orders.fold()
    copy = snapshot(redis_server.link)
    other = delayq.schedule(close_order, 2, delay="1h")
    orders.fold()
    bring_back(redis_server.link, copy)
    sweep, answers = loop._sweep, []

    def requeued_meanwhile(way):
        answers.append(delayq.cancel(job.id))
        with pytest.raises(delayq.StoreUnavailable, match="RESTORING"):
            delayq.requeue(job.id)
        yield from sweep(way)

    monkeypatch.setattr(loop, "_sweep", requeued_meanwhile)
    settle_down(orders, loop)
    assert answers == [delayq.Change.DONE]
    assert delayq.requeue(job.id) is delayq.Change.DONE
    assert in_redis(orders) == {ids.short(job.id): "scheduled", ids.short(other.id): "scheduled"}


def test_while_jobs_leave_no_other_job_takes_the_key_of_one(orders, loop, redis_server, monkeypatch):
    """A publisher has put in what holds the key, and the sweep takes that away before the publisher sends its own job."""
    delayq.schedule(close_order, 1, delay="1h")
    settle_down(orders, loop)
    copy = snapshot(redis_server.link)
    delayq.schedule(close_order, 2, delay="1h")
    orders.fold()
    bring_back(redis_server.link, copy)
    first = delayq.schedule(close_order, 3, delay="1h", key="k")
    put_right, sweep, others = Publisher._put_right, EpochStore.sweep, []

    def leaves(self, *args):
        put_right(self, *args)
        sweep(loop.epoch, loop.look()[0].generation, "0", progress="x 0 0")

    def sweeps(self, *args, **options):
        if not others:
            stores.learn(orders.store, orders.store.epoch())
            with monkeypatch.context() as meanwhile:
                meanwhile.setattr(Publisher, "_put_right", leaves)
                others.append(delayq.schedule(close_order, 4, delay="1h", key="k"))
        return sweep(self, *args, **options)

    monkeypatch.setattr(EpochStore, "sweep", sweeps)
    settle_down(orders, loop)
    [other] = others
    assert (first.created, other.created) == (True, None)
    for _ in range(3):
        orders.relay.poll()
        orders.fold()
    assert Job.objects.get(pk=first.id).state == "scheduled"
    assert Job.objects.get(pk=other.id).merged_into == first.id
