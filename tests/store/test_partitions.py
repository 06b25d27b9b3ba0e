"""Reads of a queue of several partitions, on one server: sums, and each by itself."""

from __future__ import annotations

import pytest

from django_delayq import clock, ids
from django_delayq.store.reads.figures import Figures
from django_delayq.store.reads.inspector import Inspector
from django_delayq.store.scripts.queue import Outcome, QueueStore, ScheduleItem
from django_delayq.store.scripts.record import JobRecord
from tests.depths import queue_depth, queue_depths

PARTS = {"q": 3}
COUNTS = (1, 2, 4)


@pytest.fixture
def stores(redis_server) -> list[QueueStore]:
    return [QueueStore(redis_server.link, prefix="t:p", queue="q", partition=partition) for partition in range(3)]


@pytest.fixture
def inspector(redis_server) -> Inspector:
    return Inspector(redis_server.link, prefix="t:p", partitions=PARTS)


@pytest.fixture
def figures(redis_server) -> Figures:
    return Figures(redis_server.link, prefix="t:p", partitions=PARTS)


def put(store: QueueStore, count: int, *, delay_ms: int = 0, **fields) -> list[JobRecord]:
    records = [JobRecord(id=ids.new(store.partition), task="t", durable=False, payload=b"[[],{}]", **fields) for _ in range(count)]
    store.schedule([ScheduleItem.of(record, delay_ms=delay_ms) for record in records])
    return records


def fail(store: QueueStore) -> None:
    jobs = store.claim("w", f"n{store.partition}", want=200, lease_ms=30_000, max_crashes=3).jobs
    ends = [Outcome(id=job.id, attempt=1, fence=job.fence, kind="fail", delay_ms=0, detail=b"{}", ran_ms=40) for job in jobs]
    store.settle(ends, worker="w", max_crashes=3)


def test_depths_are_added_up_and_each_can_be_had(stores, inspector):
    for store, count in zip(stores, COUNTS, strict=True):
        put(store, count, delay_ms=60_000 * count)
    put(stores[2], 5)
    depth = queue_depth("q", inspector)
    assert (depth.scheduled, depth.due, depth.events) == (12, 5, 4)
    [parts] = inspector.by_partition(["q"])
    assert [part.scheduled for part in parts] == [1, 2, 9]
    assert depth.next_due_ms == parts[2].next_due_ms
    assert inspector.part("q", 1).scheduled == 2
    assert inspector.unread(["q"])[0][0] == 4


def test_a_queue_is_paused_when_all_of_it_is(stores, inspector):
    for store in stores[:2]:
        store.pause(actor="ann", reason="x")
    assert not queue_depth("q", inspector).paused
    assert [part.paused for part in inspector.by_partition(["q"])[0]] == [True, True, False]
    stores[2].pause(actor="ann", reason="x")
    depth = queue_depth("q", inspector)
    assert (depth.paused, depth.paused_by, depth.paused_reason) == (True, "ann", "x")


def test_jobs_are_found_where_their_ids_say(stores, inspector):
    made = [record for store, count in zip(stores, COUNTS, strict=True) for record in put(store, count, delay_ms=60_000)]
    unknown = ids.new(1)
    views = inspector.jobs("q", [made[6].id, unknown, made[0].id, made[2].id])
    assert [view and view.id for view in views] == [made[6].id, None, made[0].id, made[2].id]
    assert {name for batch in inspector.records("q") for name, _ in batch} == {ids.short(record.id) for record in made}


def test_a_key_is_looked_for_in_all_partitions(stores, inspector):
    [held] = put(stores[2], 1, delay_ms=60_000, key="k")
    assert inspector.find("q", "k") == held.id
    assert inspector.find("q", "other") is None


def test_a_name_is_seen_where_an_unfinished_job_bears_it(stores, inspector):
    payload = b'[[],{},{"meta":{"delayq.name":["a:b",1]}}]'
    record = JobRecord(id=ids.new(1), task="t", durable=False, payload=payload)
    stores[1].schedule([ScheduleItem.of(record, delay_ms=60_000)])
    for failed in (True, False):
        assert [inspector.names("q", partition, "a:b", failed=failed) for partition in range(3)] == [False, True, False]
        assert not inspector.names("q", 1, "b", failed=failed)
    stores[1].cancel(record.id)
    assert not inspector.names("q", 1, "a:b", failed=True)


def test_a_failed_job_bears_its_name_for_who_asks_for_these_too(stores, inspector):
    payload = b'[[],{},{"meta":{"delayq.name":["a:b",1]}}]'
    records = [JobRecord(id=ids.new(1), task="t", durable=False, payload=payload) for _ in range(2)]
    stores[1].schedule([ScheduleItem.of(records[0], delay_ms=0)])
    fail(stores[1])
    assert [inspector.names("q", 1, "a:b", failed=failed) for failed in (True, False)] == [True, False]
    stores[1].schedule([ScheduleItem.of(records[1], delay_ms=60_000)])
    assert inspector.names("q", 1, "a:b", failed=False), "another one waits"


def test_figures_are_added_up(stores, figures, redis_server):
    for store, count in zip(stores, COUNTS, strict=True):
        put(store, count)
        fail(store)
        put(store, count, delay_ms=1_800_000)
    assert figures.bands("q") == {"high": 0, "normal": 7, "low": 0}
    assert sum(figures.forecast(["q"]).minutes) == 7
    [counts] = figures.counts(["q"])
    assert (counts.failed_hour, counts.failed_day) == (7, 7)
    assert sum(figures.ended("q", step=5, steps=12).failed) == 7
    [hour] = figures.hours(["q"])
    assert sum(hour.failed) == sum(hour.ran) == sum(hour.late) == 7
    [slots] = figures.slots(["q"])
    assert sum(map(sum, slots.ran)) == 7
    assert slots.start_ms <= clock.wall_ms()


def test_other_queues_have_one_partition(stores, inspector, redis_server):
    put(QueueStore(redis_server.link, prefix="t:p", queue="other"), 3, delay_ms=60_000)
    assert [depth.scheduled for depth in queue_depths(["other", "q"], inspector)] == [3, 0]
