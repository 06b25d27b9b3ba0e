"""Workers and web processes on a Redis Cluster, whose masters die, hang and hand slots over: each job runs, no queue waits."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from django_delayq.store.cluster_slots import slot_of
from django_delayq.store.keys import tag
from tests.conftest import missing
from tests.stage import ROOT
from tests.topologies import ClusterNode, ClusterServers, redis_program, valkey_program
from tests.worker.conftest import Shop, eventually
from tests.worker.test_restore import Site

PROGRAMS: dict[str, Callable[[], str]] = {"redis": redis_program, "valkey": valkey_program}
QUEUES = ("default", "b", "c", "d", "e")  # on all of three masters

SCHEDULE = """
import json, sys
import django
django.setup()
import django_delayq as delayq
from tests.app.shop.tasks import write_down
for queue, numbers, delay, seconds in json.loads(sys.argv[1]):
    delayq.schedule_many(write_down.using(queue=queue, delay=delay).bind(number, seconds) for number in range(*numbers))
"""


class ClusterSite(Site):
    """A shop with a database whose queues are on a Cluster. Its ledger is not there."""

    def __init__(self, shop: Shop, redis_server, cluster: ClusterServers, **settings) -> None:
        super().__init__(shop, redis_server, REDIS=cluster.url, QUEUES={queue: {} for queue in QUEUES}, **settings)
        self.cluster = cluster

    def put(self, *those: tuple[str, tuple[int, int], float, float]) -> None:
        """Per group: the queue, numbers from and to, delay, and how long the task takes."""
        environment = {**os.environ, **self.shop.project}
        subprocess.run([sys.executable, "-c", SCHEDULE, json.dumps(those)], cwd=ROOT, env=environment, check=True)

    def master_of(self, queue: str) -> ClusterNode:
        return self.cluster.serving(slot_of(f"{{{tag(queue, 0)}}}"))

    def all_run(self, count: int) -> None:
        eventually(lambda: self.states() == {"succeeded": count}, f"{count} jobs", patience=90)


@pytest.fixture
def cluster(request) -> Iterator[ClusterServers]:
    flavour, replicas = getattr(request, "param", ("redis", False))
    with ClusterServers(program=PROGRAMS[flavour]() or missing(f"no {flavour}"), replicas=replicas) as servers:
        yield servers


@pytest.mark.parametrize("cluster", [("redis", False), ("valkey", False)], indirect=True)
def test_queues_are_spread_over_the_masters_and_their_jobs_run(shop: Shop, redis_server, cluster: ClusterServers) -> None:
    site = ClusterSite(shop, redis_server, cluster)
    worker = site.work("--processes", "2")
    site.put(*((queue, (100 * n, 100 * n + 20), delay, 0.0) for n, queue in enumerate(QUEUES) for delay in (0.5,)))
    site.all_run(100)
    site.none_ran_twice()
    assert {site.master_of(queue).port for queue in QUEUES} == {node.port for node in cluster.masters}
    worker.signal(15)
    assert worker.wait() == 0, worker.text()
    assert "Traceback" not in worker.text()
