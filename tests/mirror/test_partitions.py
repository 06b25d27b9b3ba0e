"""Rows, restore and prune of a queue with several partitions."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from django.db.models import F

import django_delayq as delayq
from django_delayq import clock, conf, ids
from django_delayq.mirror import restore
from django_delayq.mirror.bring_in import BringInLoop
from django_delayq.mirror.prune import PruneLoop
from django_delayq.mirror.restore import needs_restore
from django_delayq.mirror.unfolded import unfolded_changes
from django_delayq.models import Checkpoint, Event, Job, QueueState
from django_delayq.producer.horizon import obedience
from django_delayq.producer.publish import Publisher
from django_delayq.producer.stores import stores
from django_delayq.store.events import EventLog
from tests.partitioned import claim, divide, fold, restores, succeed
from tests.tasks_for_tests import close_order

__all__ = ["divide"]
pytestmark = pytest.mark.django_db(transaction=True)


def settle_down(loops) -> None:
    """Lets mirrors and restores take turns until there is nothing to do."""
    for _ in range(500):
        fold()
        pauses = [loop.poll() for loop in loops]
        if set(pauses) == {restore.IDLE} and not any(needs_restore(*loop.look()) for loop in loops):
            fold()
            return
        clock.sleep(0.005)
    raise AssertionError("restore does not come to an end")


@pytest.fixture
def loops(divide, monkeypatch):
    """The restore loops of three partitions, which have found their ground well."""
    monkeypatch.setattr(restore, "LOOK", 0.0)
    divide(3)
    made = restores()
    settle_down(made)
    return made


def per_partition(jobs) -> list[int]:
    return [sum(ids.partition(job.id) == partition for job in jobs) for partition in range(3)]


def test_each_partition_has_a_checkpoint_and_all_rows_are_written(divide):
    divide(3)
    jobs = delayq.schedule_many(close_order.using(durability="redis").bind(n) for n in range(450))
    fold()
    assert set(Checkpoint.objects.values_list("partition", flat=True)) == {0, 1, 2}
    assert Job.objects.count() == 450
    assert all(partition == ids.partition(id) for id, partition in Job.objects.values_list("id", "partition"))
    assert len(succeed(claim())) == 450
    fold()
    assert set(Job.objects.values_list("state", flat=True)) == {"succeeded"}
    assert per_partition(jobs) == [Job.objects.filter(partition=partition).count() for partition in range(3)]


def test_events_of_two_partitions_with_one_id_are_both_kept(divide):
    divide(3)
    jobs = [delayq.schedule(close_order, n, delay="1h") for n in range(30)]
    fold()
    same = f"{clock.wall_ms() + 1_000}-0"
    for partition in range(3):
        store = stores.queue("orders", partition)
        job = next(job for job in jobs if ids.partition(job.id) == partition)
        said = (f"{job.short_id} 0 0 -\n{{}}",)
        store.link.execute("XADD", store.keys["events"], same, "at", clock.wall_ms(), "by", "me", "cancelled", *said)
    fold()
    assert Event.objects.filter(stream_id=same).count() == 3


def test_a_wiped_redis_gets_the_jobs_of_each_partition_back(loops, redis_server):
    jobs = delayq.schedule_many(close_order.using(delay="1h").bind(n) for n in range(600))
    now = [delayq.schedule(close_order, n) for n in range(12)]
    settle_down(loops)
    redis_server.link.execute("FLUSHALL")
    settle_down(loops)
    assert [depth.scheduled for depth in stores.inspector().by_partition(["orders"])[0]] == per_partition([*jobs, *now])


def test_of_one_wiped_partition_the_others_hear_nothing(loops, redis_server):
    jobs = [delayq.schedule(close_order, n, delay="1h") for n in range(30)]
    settle_down(loops)
    lost, kept = stores.queue("orders", 1), stores.queue("orders", 2)
    before = EventLog(kept.link, kept.keys).last_id()
    for name in ("jobs", "normal", "keys", "meta", "events"):
        redis_server.link.execute("DEL", lost.keys[name])
    settle_down(loops)
    assert [depth.scheduled for depth in stores.inspector().by_partition(["orders"])[0]] == per_partition(jobs)
    assert EventLog(kept.link, kept.keys).last_id() == before


def test_a_cancel_that_one_partition_has_lost_is_told_to_that_one_alone(loops, redis_server):
    jobs = [delayq.schedule(close_order, n, delay="1h") for n in range(30)]
    settle_down(loops)
    assert [job.cancel() for job in jobs[:10]] == ["done"] * 10
    redis_server.link.execute("FLUSHALL")
    settle_down(loops)
    assert stores.inspector().depth("orders").scheduled == 20
    assert Job.objects.filter(state="cancelled").count() == 10


def test_jobs_of_redis_durability_are_lost_in_the_partition_that_lost_them(loops, redis_server):
    jobs = [delayq.schedule(close_order, n, delay="1h", durability="redis") for n in range(30)]
    settle_down(loops)
    store = stores.queue("orders", 1)
    for name in ("jobs", "normal", "meta", "events"):
        redis_server.link.execute("DEL", store.keys[name])
    loops[1].queue = replace(loops[1].queue, lease=0.0)
    settle_down(loops)
    until = clock.monotonic() + 30
    while not Job.objects.filter(state="failed").exists() and clock.monotonic() < until:
        loops[1].poll()
    assert {ids.partition(id) for id in Job.objects.filter(state="failed").values_list("id", flat=True)} == {1}
    assert Job.objects.filter(state="failed").count() == per_partition(jobs)[1]


def test_a_paused_queue_is_paused_again_in_all_partitions(loops, redis_server):
    delayq.schedule_many(close_order.using(delay="1h").bind(n) for n in range(600))
    delayq.pause("orders", reason="x")
    settle_down(loops)
    assert QueueState.objects.filter(paused_at__isnull=False).count() == 3
    redis_server.link.execute("FLUSHALL")
    settle_down(loops)
    assert [depth.paused_reason for depth in stores.inspector().by_partition(["orders"])[0]] == ["x"] * 3
    delayq.resume("orders")
    assert not QueueState.objects.filter(paused_at__isnull=False).exists()


def test_old_rows_of_all_partitions_are_pruned(divide):
    divide(3)
    jobs = [delayq.schedule(close_order, n) for n in range(30)]
    succeed(claim())
    fold()
    Job.objects.update(finished_at=F("finished_at") - timedelta(days=30))
    assert PruneLoop(conf.get().queue("orders"), using="default").prune() == len(jobs)
    assert not Job.objects.exists()


def test_far_jobs_come_into_their_own_partitions(divide):
    divide(3, HORIZON="1h")
    loop = BringInLoop(stores.places, conf.get().queue("orders"), prefix="delayq", using="default", young=-3600)
    loop.poll()
    obedience.forget()
    jobs = [delayq.schedule(close_order, n, delay="2h") for n in range(30)]
    assert Job.objects.filter(far=True).count() == 30
    assert stores.inspector().depth("orders").scheduled == 0
    assert len(loop.bring_in(clock.now() + timedelta(hours=2))) == 30
    assert [depth.scheduled for depth in stores.inspector().by_partition(["orders"])[0]] == per_partition(jobs)
    fold()
    assert Job.objects.filter(published__isnull=False).count() == 30


def test_a_change_that_is_not_folded_is_pending_in_its_own_partition(divide):
    divide(3)
    jobs = [delayq.schedule(close_order, n, delay="1h") for n in range(30)]
    fold()
    job = next(job for job in jobs if ids.partition(job.id) == 1)
    assert job.cancel() == "done"
    folded = dict(Checkpoint.objects.values_list("partition", "last_event"))
    pending = [[change.job for change in unfolded_changes("orders", n, "default", folded[n])] for n in range(3)]
    assert pending == [[], [job.id], []]


def test_a_publisher_puts_in_no_row_of_another_partition(divide, settings, tmp_path):
    divide(3)
    url = settings.DELAYQ["REDIS"]
    settings.DELAYQ = {**settings.DELAYQ, "REDIS": f"unix://{tmp_path}/nobody"}
    jobs = delayq.schedule_many([close_order.using(delay="1h", key=f"k{n}").bind(n) for n in range(30)])
    settings.DELAYQ = {**settings.DELAYQ, "REDIS": url}
    published = Publisher(stores.queue("orders", 1), "default").publish_rows([job.id for job in jobs])
    assert {ids.partition(id) for id in published.jobs} == {1}
    assert [depth.scheduled for depth in stores.inspector().by_partition(["orders"])[0]] == [0, per_partition(jobs)[1], 0]
