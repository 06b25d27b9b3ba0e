"""Queues on two servers: the server of each queue, and reads that use both."""

from __future__ import annotations

import pytest

from django_delayq import ids
from django_delayq.store.connection.places import Nodes, by_node
from django_delayq.store.keys import Keys
from django_delayq.store.reads.figures import Figures
from django_delayq.store.reads.inspector import Inspector
from django_delayq.store.scripts.queue import QueueStore, ScheduleItem
from django_delayq.store.scripts.record import JobRecord
from tests.depths import queue_depths
from tests.servers import as_package

QUEUES = ["near", "other", "third"]


@pytest.fixture
def nodes(own_redis, redis_server):
    own = as_package(own_redis().url)
    made = Nodes(as_package(redis_server.url), {"other": own, "third": own}, name="test")
    yield made
    made.close()


def put(nodes, queue: str, count: int, delay_ms: int = 60_000) -> None:
    store = QueueStore(nodes, prefix="t:x", queue=queue)
    records = [JobRecord(id=ids.new(), task="t", durable=False, payload=b"[[],{}]", key=f"k{n}") for n in range(count)]
    store.schedule([ScheduleItem.of(record, delay_ms=delay_ms) for record in records])


def test_equal_values_share_a_link_and_nothing_is_looked_up_before_it_is_asked_for():
    nodes = Nodes("not an alias", {"a": "not an alias either", "b": "redis://b/1", "c": "redis://b/1"}, name="test")
    assert [nodes.number(queue) for queue in ("a", "b", "c", "unknown")] == [1, 2, 2, 0]
    assert nodes.of("b", 0) is nodes.of("c", 3)
    assert nodes.of("b", 0).where == "b:6379, db 1"


def test_queues_are_grouped_by_their_servers(nodes):
    parts = [Keys("t:x", *part) for part in (("third", 1), ("near", 0), ("other", 0))]
    assert list(by_node(nodes, parts).values()) == [[parts[0], parts[2]], [parts[1]]]
    assert by_node(nodes.shared, parts) == {nodes.shared: parts}  # a link is the place of all


def test_each_queue_is_read_where_it_is(nodes):
    for queue, count in zip(QUEUES, (1, 2, 3), strict=True):
        put(nodes, queue, count)
    inspector = Inspector(nodes, prefix="t:x")
    assert [depth.scheduled for depth in queue_depths(["third", "near", "other"], inspector)] == [3, 1, 2]
    assert [depth.scheduled for depth in queue_depths(QUEUES, Inspector(nodes.shared, prefix="t:x"))] == [1, 0, 0]
    assert [count for count, _ in inspector.unread(QUEUES)] == [1, 1, 1]
    id = inspector.find("third", "k1")
    assert id is not None
    assert inspector.job("third", id).state == "scheduled"
    assert [name for batch in inspector.records("other") for name, _ in batch] != []


def test_figures_of_two_servers_are_added_up(nodes):
    for queue, count in zip(QUEUES, (1, 2, 3), strict=True):
        put(nodes, queue, count, delay_ms=1_800_000)
    figures = Figures(nodes, prefix="t:x")
    found = figures.forecast(QUEUES)
    assert (sum(found.minutes), sum(found.hours)) == (6, 6)
    assert sum(figures.forecast(["near"]).minutes) == 1
    assert [one.queue for one in figures.counts(QUEUES)] == QUEUES
    assert len(figures.hours(QUEUES)) == 3
