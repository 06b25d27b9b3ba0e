"""One partition waits while its slot is being moved to another master, or while its master answers late; the others do not wait."""

from __future__ import annotations

import pytest

from django_delayq.store.connection.cluster import slot_of
from django_delayq.store.keys import tag
from tests.topologies import ClusterServers
from tests.worker.conftest import Shop, eventually
from tests.worker.test_cluster import ClusterSite, cluster

__all__ = ["cluster"]  # a fixture
PARTS = 6
HALF = 3
KEYS = 3  # that have moved when whoever moves them dies


@pytest.mark.slow
@pytest.mark.parametrize("cluster", [("redis", False), ("valkey", False)], indirect=True, ids=str)
def test_a_slot_is_left_half_way_and_taken_up_later(shop: Shop, redis_server, cluster: ClusterServers) -> None:
    site = ClusterSite(shop, redis_server, cluster, queues={"default": {"PARTITIONS": PARTS}})
    worker = site.work("--processes", "2")
    site.put(("default", (0, 1200), 0.0, 0.0))
    site.all_run(1200)
    source = site.master_of("default", HALF)
    to = next(node for node in cluster.masters if node is not source)
    slot = slot_of(f"{{{tag('default', HALF)}}}")
    cluster.open(slot, to)
    cluster.carry(slot, to, KEYS)
    site.put(("default", (2000, 3200), 0.0, 0.0))
    eventually(lambda: len(site.runs()) == 2400 - 200, "the jobs of the other partitions")
    cluster.carry(slot, to)
    cluster.settle(slot, to)
    site.all_run(2400)
    site.none_ran_twice()
    assert site.master_of("default", HALF) is to
    worker.signal(15)
    assert worker.wait() == 0, worker.text()
    assert "Traceback" not in worker.text()
