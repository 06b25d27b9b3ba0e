"""The network of a Cluster is split, with workers and web processes on both sides: no job is lost, and none waits for other jobs."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.stage import ROOT
from tests.topologies import ClusterServers
from tests.wires import FEW, Wires
from tests.worker.conftest import Shop, eventually
from tests.worker.test_cluster import SCHEDULE, ClusterSite

pytestmark = pytest.mark.slow

HERE, SURE, THERE = "default", "sure2", "b"  # queues: the first two are on the master that is cut off with some of the clients
REFUSED = re.compile(r"^django_delayq\.[\w.]+\.Store\w+: ", re.MULTILINE)
QUEUES = {HERE: {}, SURE: {"DURABILITY": "redis", "REPLICAS": 1}, THERE: {}}


@pytest.fixture
def wires() -> Wires:
    return Wires()


@pytest.fixture
def cluster(wires) -> Iterator[ClusterServers]:
    options = {"cluster_require_full_coverage": "no", "cluster_allow_replica_migration": "no"}
    with ClusterServers(replicas=True, wires=wires, **options) as servers:
        yield servers


def of_the_few(site: ClusterSite, *those: tuple[str, tuple[int, int], float, float]) -> str:
    """A web process on their side puts these in. Returns what it says if that fails."""
    environment = {**os.environ, **site.shop.project, "APP_CALLS_FROM": FEW}
    words = [sys.executable, "-c", SCHEDULE, json.dumps(those)]
    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True)
    return done.stderr if done.returncode else ""


def test_both_sides_go_on_and_nothing_is_lost(shop: Shop, redis_server, wires: Wires, cluster: ClusterServers, monkeypatch) -> None:
    site = ClusterSite(shop, redis_server, cluster, queues=QUEUES)
    many = site.work()
    with monkeypatch.context() as patched:
        patched.setenv("APP_CALLS_FROM", FEW)
        few = site.work()
    site.put(*((queue, (100 * n, 100 * n + 10), 0.0, 0.0) for n, queue in enumerate(QUEUES)))
    site.all_run(30)
    cut_off = site.master_of(HERE)
    assert cut_off is site.master_of(SURE)
    assert cut_off is not site.master_of(THERE)
    replica = cluster.replica_of(cut_off)
    assert replica is not None
    site.put((HERE, (1000, 1010), 20.0, 0.0), (SURE, (1100, 1110), 20.0, 0.0))  # long after the election
    eventually(lambda: site.rows("SELECT count(*) FROM delayq_job WHERE published IS NULL") == [(0,)], "not all are published")
    wires.split([FEW, cut_off.address])
    assert of_the_few(site, (HERE, (2000, 2010), 0.0, 0.0), (THERE, (2100, 2110), 0.0, 0.0)) == "", "these have rows"
    eventually(lambda: "role:master" in replica.call("INFO", "replication", whole=True), "no replica is elected")
    eventually(lambda: "cluster_state:fail" in cut_off.call("CLUSTER", "INFO", whole=True), "who is cut off does not give up")
    assert REFUSED.search(of_the_few(site, (SURE, (4000, 4001), 0.0, 0.0))), "nobody answers for what no replica has"
    site.put((HERE, (3000, 3010), 0.0, 0.0), (THERE, (3100, 3110), 0.0, 0.0))
    eventually(
        lambda: {*range(3000, 3010), *range(3100, 3110)} <= site.runs().keys(), "the jobs of the many, while the network is split"
    )
    wires.heal()
    eventually(lambda: site.states() == {"succeeded": 90}, "90 jobs", patience=90)
    assert site.runs().keys() == {*range(10), *range(100, 110), *range(200, 210), *range(1000, 1010), *range(1100, 1110)} | {
        *range(2000, 2010),
        *range(2100, 2110),
        *range(3000, 3010),
        *range(3100, 3110),
    }
    twice = {number for number, times in site.runs().items() if times > 1}
    assert twice <= {*range(2000, 2010)}, "what the master that was cut off handed out, its successor handed out again"
    for worker in (many, few):
        worker.signal(15)
        assert worker.wait() == 0, worker.text()
