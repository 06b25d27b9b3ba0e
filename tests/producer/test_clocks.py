"""Nodes of a Cluster whose clocks differ: a delay counts by that of the node where the job is."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import django_delayq as delayq
from django_delayq import conf, ids
from django_delayq.producer.publish import Publisher
from django_delayq.producer.stores import stores
from django_delayq.store.connection.cluster import SlotLink, slot_of
from django_delayq.store.keys import tag
from tests.partitioned import claim
from tests.tasks_for_tests import close_order
from tests.topologies import ClusterNode, ClusterServers

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def own_cluster(settings) -> Iterator[ClusterServers]:
    with ClusterServers(cluster_require_full_coverage="no", cluster_node_timeout="60000") as running:
        settings.DELAYQ = {**settings.DELAYQ, "REDIS": running.url, "QUEUES": {"orders": {"PARTITIONS": 6}}}
        stores.reset()
        yield running
        stores.reset()


def home_of(key: str) -> int:
    return conf.get().queue("orders").homes(key)[0]


@pytest.mark.slow
def test_another_date_is_one_by_the_clock_of_the_node_that_gets_the_job(own_cluster, monkeypatch):
    def node_of(partition: int) -> ClusterNode:
        return own_cluster.serving(slot_of(f"{{{tag('orders', partition)}}}"))

    slow = node_of(0)
    key = next(f"k{n}" for n in range(100) if node_of(home_of(f"k{n}")) is not slow)
    there = node_of(home_of(key))
    there.pause()
    job = delayq.schedule(close_order, 1, key=key, delay="1h")
    there.resume()
    there.wait_ready()
    assert job.created is None, "it waits as a row"

    execute, publish = SlotLink.execute, Publisher.publish_rows

    def half_a_minute_behind(link, *words):
        reply = execute(link, *words)
        late = words == ("TIME",) and link.server is stores.places.of("orders", 0).server
        return [int(reply[0]) - 30, reply[1]] if late else reply

    due: list[object] = []

    def look(publisher, *args, **options):
        found = publish(publisher, *args, **options)
        due.extend(claim())
        return found

    monkeypatch.setattr(SlotLink, "execute", half_a_minute_behind)
    monkeypatch.setattr(Publisher, "publish_rows", look)
    assert job.reschedule(delay="20s") == "done"
    assert due == [], "it does not begin before its date"
    assert ids.partition(job.id) == home_of(key)
