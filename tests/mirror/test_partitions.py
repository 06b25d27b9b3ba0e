"""Rows, restore and prune of a queue with several partitions."""

from __future__ import annotations

import threading
from dataclasses import replace
from datetime import timedelta
from typing import Any
from zlib import crc32

import pytest
from django.db import connection
from django.db.models import F

import django_delayq as delayq
from django_delayq import clock, conf, ids
from django_delayq.management.left_partitions import left_partitions, serving_what_is_left
from django_delayq.mirror import mirror_loop, restore
from django_delayq.mirror.bring_in import BringInLoop
from django_delayq.mirror.checkpoint import locked_checkpoint
from django_delayq.mirror.mirror_loop import MirrorLoop
from django_delayq.mirror.prune import PruneLoop
from django_delayq.mirror.reconcile_rows import pending_changes
from django_delayq.mirror.relay import IDLE, RelayLoop, SharedLook
from django_delayq.mirror.restore import needs_restore
from django_delayq.mirror.service import Service
from django_delayq.models import Checkpoint, Event, Job, Pause, UncheckedKey, of_state
from django_delayq.producer.publish import Publisher
from django_delayq.producer.stores import stores
from django_delayq.store.scripts.events import EventLog
from django_delayq.store.scripts.limits import LimitStore
from tests.depths import queue_depth
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
    """The restore loops of three partitions, which have found their epoch well."""
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
    assert queue_depth("orders").scheduled == 20
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
    lost = Job.objects.filter(of_state("unresolved"))
    while not lost.exists() and clock.monotonic() < until:
        loops[1].poll()
    assert {ids.partition(id) for id in lost.values_list("id", flat=True)} == {1}
    assert lost.count() == per_partition(jobs)[1]


def test_a_paused_queue_is_paused_again_in_all_partitions(loops, redis_server):
    delayq.schedule_many(close_order.using(delay="1h").bind(n) for n in range(600))
    delayq.pause("orders", reason="x")
    settle_down(loops)
    assert Pause.objects.filter(paused_at__isnull=False).count() == 1
    redis_server.link.execute("FLUSHALL")
    settle_down(loops)
    assert [depth.paused_reason for depth in stores.inspector().by_partition(["orders"])[0]] == ["x"] * 3
    delayq.resume("orders")
    assert not Pause.objects.filter(paused_at__isnull=False).exists()


def test_a_paused_task_is_paused_in_all_partitions_and_again_in_one_that_loses_it(loops, redis_server):
    delayq.schedule_many(close_order.bind(n) for n in range(600))
    reply = delayq.pause(task=close_order)
    assert (reply.changed, reply.unconfirmed) == (True, ())
    assert claim() == []
    settle_down(loops)
    for key in redis_server.link.execute("KEYS", "delayq:{orders/1}*"):
        redis_server.link.execute("DEL", key)
    settle_down(loops)
    assert [len(LimitStore(store).paused()) for store in stores.parts("orders")] == [1] * 3
    assert claim() == []


def test_old_rows_of_all_partitions_are_pruned(divide):
    divide(3)
    jobs = [delayq.schedule(close_order, n) for n in range(30)]
    succeed(claim())
    fold()
    Job.objects.update(finished_at=F("finished_at") - timedelta(days=30))
    assert PruneLoop(stores.places, conf.get().queue("orders")).prune() == len(jobs)
    assert not Job.objects.exists()


def test_far_jobs_come_into_their_own_partitions(divide):
    divide(3, HORIZON="1h")
    loop = BringInLoop(stores.places, conf.get().queue("orders"), prefix="delayq", young=-3600)
    loop.poll()
    jobs = [delayq.schedule(close_order, n, delay="2h") for n in range(30)]
    assert Job.objects.filter(far=True).count() == 30
    assert queue_depth("orders").scheduled == 0
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
    pending = [[change.job for change in pending_changes("orders", n, folded[n])] for n in range(3)]
    assert pending == [[], [job.id], []]


def test_a_publisher_puts_in_no_row_of_another_partition(divide, settings, tmp_path):
    divide(3)
    url = settings.DELAYQ["REDIS"]
    settings.DELAYQ = {**settings.DELAYQ, "REDIS": f"unix://{tmp_path}/nobody"}
    jobs = delayq.schedule_many([close_order.using(delay="1h", key=f"k{n}").bind(n) for n in range(30)])
    settings.DELAYQ = {**settings.DELAYQ, "REDIS": url}
    published = Publisher(stores.queue("orders", 1)).publish_rows([job.id for job in jobs])
    assert {ids.partition(id) for id in published.jobs} == {1}
    assert [depth.scheduled for depth in stores.inspector().by_partition(["orders"])[0]] == [0, per_partition(jobs)[1], 0]


def test_a_mirror_leaves_a_partition_alone_that_another_one_folds(divide):
    """And takes the next one, on databases that leave out locked rows."""
    if not connection.features.has_select_for_update_skip_locked:
        pytest.skip("this database cannot leave out locked rows")
    divide(2)
    fold()
    delayq.schedule_many(close_order.using(durability="redis").bind(n) for n in range(400))
    held, over = threading.Event(), threading.Event()

    def another() -> None:
        try:
            with locked_checkpoint("orders", 0):
                held.set()
                over.wait(60)
        finally:
            connection.close()

    thread = threading.Thread(target=another)
    thread.start()
    assert held.wait(60)
    config = conf.get()
    mirrors = [MirrorLoop(stores.places, config.queue("orders"), prefix=config.prefix, partition=number) for number in (0, 1)]
    assert mirrors[0].poll() == mirror_loop.TAKEN
    while mirrors[1].poll() == 0.0:
        pass
    assert set(Job.objects.values_list("partition", flat=True)) == {1}
    over.set()
    thread.join(60)
    while mirrors[0].poll() == 0.0:
        pass
    assert set(Job.objects.values_list("partition", flat=True)) == {0, 1}


def idle(service: Service) -> None:
    """Lets it come to rest, then lets the time of all its loops come."""
    until = clock.monotonic() + 30
    while service.poll() < 0.2 or service.descriptor < 0:
        assert clock.monotonic() < until, "it does not come to rest"
        clock.sleep(0.02)
    for runner in service._runners:
        runner.next = 0.0


def test_epochs_and_streams_of_one_server_are_looked_at_in_one_write(divide, delayq_redis, monkeypatch):
    monkeypatch.setattr(restore, "LOOK", 600.0)  # seconds between looks at the database, too, which are apart
    divide(8)
    claim()  # so each has a generation
    config = conf.get()
    service = Service(stores.places, config, [config.queue("orders")])
    idle(service)
    link = stores.places.of("orders", 0)
    written = []
    send = link.execute_many

    def sent(commands):
        written.append([command[0] for command in commands])
        return send(commands)

    link.execute_many = sent  # of the link that all of them have
    try:
        service.poll()
    finally:
        del link.execute_many
    looks = [names for names in written if "HMGET" in names]
    assert looks == [["HMGET", "INFO", *["HMGET"] * 7, *["XLEN"] * 8]]


def test_the_relays_of_a_queue_ask_the_database_once(divide, django_assert_num_queries):
    divide(8)
    config = conf.get()
    look = SharedLook("orders")
    common: Any = {"prefix": config.prefix}
    relays = [RelayLoop(stores.places, config.queue("orders"), partition=number, young=0, look=look, **common) for number in range(8)]
    with django_assert_num_queries(1):
        assert [relay.poll() for relay in relays] == [IDLE] * 8


@pytest.mark.parametrize("restored", [False, True])
def test_a_key_in_its_former_home_is_held_while_a_wiped_redis_is_not_restored(divide, redis_server, monkeypatch, restored):
    monkeypatch.setattr(restore, "LOOK", 0.0)
    divide(4)
    key = next(text for n in range(1_000) if (text := f"o:{n}") and crc32(text.encode()) % 4 != crc32(text.encode()) % 16)
    first = delayq.schedule(close_order, 1, delay="1h", key=key)
    settle_down(restores())
    divide(16, 4)
    made = restores()
    settle_down(made)
    redis_server.link.execute("FLUSHALL")
    if restored:
        settle_down(made)
    second = delayq.schedule(close_order, 2, delay="1h", key=key)
    settle_down(made)
    assert ids.partition(second.id) == ids.partition(first.id)
    assert queue_depth("orders").scheduled == 1


@pytest.mark.parametrize("again", ["", "2h", "30m"], ids=["alone", "far again", "near again"])
def test_a_far_job_with_a_key_comes_into_its_former_home_after_a_change(divide, again):
    divide(4, HORIZON="1h")
    key = next(text for n in range(1_000) if (text := f"o:{n}") and crc32(text.encode()) % 4 != crc32(text.encode()) % 16)
    bring_in().poll()
    first = delayq.schedule(close_order, 1, delay="3h", key=key)
    assert Job.objects.get().far
    divide(16, 4, HORIZON="1h")
    if again:
        second = delayq.schedule(close_order, 2, delay=again, key=key)
        assert (second.id, second.created) == (first.id, False)
    bring_in().bring_in(clock.now() + timedelta(hours=3))
    there = [depth.scheduled for depth in stores.inspector().by_partition(["orders"])[0]]
    assert (there[ids.partition(first.id)], sum(there)) == (1, 1)
    fold()
    assert delayq.get(key=key, queue="orders").id == first.id
    assert Job.objects.filter(state="scheduled").count() == 1
    assert delayq.cancel(key=key, queue="orders") == "done"


@pytest.mark.parametrize("horizon", ["1h", None])
def test_a_far_job_of_a_partition_that_nobody_serves_stays_far_until_a_worker_serves_it(divide, horizon):
    divide(3, HORIZON="1h")
    bring_in().poll()
    jobs = [delayq.schedule(close_order, n, delay="2h") for n in range(30)]
    mine, all_left = per_partition(jobs)[0], sum(per_partition(jobs)[1:])
    claim()  # workers were there
    divide(1, HORIZON=horizon)
    due = clock.now() + timedelta(hours=2)
    assert len(bring_in().bring_in(due)) == mine
    assert Job.objects.filter(far=True, partition__gt=0).count() == all_left
    assert left_partitions(stores.places, conf.get().queue("orders")) == dict(enumerate(per_partition(jobs)[1:], 1))
    serving = serving_what_is_left(stores.places, conf.get(), ["orders"]).queue("orders")  # as a worker that is started now
    loop = BringInLoop(stores.places, serving, prefix="delayq", young=-3600)
    assert len(loop.bring_in(due)) == all_left
    assert not Job.objects.filter(far=True).exists()
    divide(3, HORIZON="1h")
    assert [depth.scheduled for depth in stores.inspector().by_partition(["orders"])[0]] == per_partition(jobs)


def test_keys_of_far_jobs_that_nobody_serves_keep_no_others_waiting(divide, monkeypatch):
    divide(3, HORIZON="1h")
    bring_in().poll()
    jobs = [delayq.schedule(close_order, n, delay="2h", key=f"o:{n}") for n in range(30)]
    UncheckedKey.objects.bulk_create([UncheckedKey(job_id=job.id, queue="orders") for job in jobs], ignore_conflicts=True)
    divide(1, HORIZON="1h")
    monkeypatch.setattr("django_delayq.mirror.bring_in.MOST", 1)
    for _ in jobs:
        bring_in().poll()
    left = {job.id for job in jobs if ids.partition(job.id)}
    assert 0 < len(left) < len(jobs)
    assert set(UncheckedKey.objects.values_list("job_id", flat=True)) == left


def bring_in() -> BringInLoop:
    return BringInLoop(stores.places, conf.get().queue("orders"), prefix="delayq", young=-3600)


@pytest.mark.parametrize("polls", [0, 1, 3])
def test_a_restore_that_the_old_settings_begin_the_new_ones_end(divide, redis_server, monkeypatch, polls):
    monkeypatch.setattr(restore, "LOOK", 0.0)
    divide(4, 16)
    jobs = [delayq.schedule(close_order, n, delay="1h", key=f"o:{n}") for n in range(20)]
    old = restores()
    settle_down(old)
    divide(16, 4)
    jobs += [delayq.schedule(close_order, n, delay="1h", key=f"o:{n}") for n in range(40)]
    fold()
    redis_server.link.execute("FLUSHALL")
    for _ in range(polls):
        for loop in old:
            loop.poll()
    settle_down(restores())
    once = {job.id for job in jobs}
    assert len(once) == 40
    there = [depth.scheduled for depth in stores.inspector().by_partition(["orders"])[0]]
    assert there == [sum(ids.partition(id) == partition for id in once) for partition in range(16)]
    assert [delayq.get(key=f"o:{n}", queue="orders").id for n in range(40)] == [job.id for job in jobs[20:]]
