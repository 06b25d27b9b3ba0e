"""Workers and web processes on a Redis Cluster, whose masters die, hang and hand slots over: each job runs, none waits for others."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from django_delayq.store.connection.cluster import slot_of
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

    def __init__(self, shop: Shop, redis_server, cluster: ClusterServers, queues: dict[str, dict] | None = None) -> None:
        super().__init__(shop, redis_server, REDIS=cluster.url, QUEUES=queues or {queue: {} for queue in QUEUES})
        self.cluster = cluster

    def put(self, *those: tuple[str, tuple[int, int], float, float | None]) -> None:
        """Per group: the queue, numbers from and to, delay, and how long the task takes."""
        environment = {**os.environ, **self.shop.project}
        subprocess.run([sys.executable, "-c", SCHEDULE, json.dumps(those)], cwd=ROOT, env=environment, check=True)

    def master_of(self, queue: str, partition: int = 0) -> ClusterNode:
        return self.cluster.serving(slot_of(f"{{{tag(queue, partition)}}}"))

    def all_run(self, count: int) -> None:
        eventually(lambda: self.states() == {"succeeded": count}, f"{count} jobs", patience=90)


@pytest.fixture
def cluster(request) -> Iterator[ClusterServers]:
    flavour, replicas = getattr(request, "param", ("redis", False))
    program = PROGRAMS[flavour]() or missing(f"no {flavour}")
    with ClusterServers(program=program, replicas=replicas, cluster_require_full_coverage="no") as servers:
        yield servers


@pytest.mark.slow
@pytest.mark.parametrize("cluster", [("redis", False), ("valkey", False)], indirect=True, ids=str)
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


@pytest.mark.slow
def test_the_partitions_of_one_queue_are_spread_over_the_masters_of_which_one_hangs(
    shop: Shop, redis_server, cluster: ClusterServers
) -> None:
    parts = 6
    site = ClusterSite(shop, redis_server, cluster, queues={"default": {"PARTITIONS": parts}})
    worker = site.work("--processes", "2")
    site.put(("default", (0, 1200), 1.0, 0.0))
    site.all_run(1200)
    site.none_ran_twice()
    hung = site.master_of("default")
    there = {partition for partition in range(parts) if site.master_of("default", partition) is hung}
    assert 0 < len(there) < parts
    assert {site.master_of("default", partition).port for partition in range(parts)} == {node.port for node in cluster.masters}
    hung.pause()
    site.put(("default", (2000, 3200), 0.0, 0.0))
    assert site.rows("SELECT partition, count(*) FROM delayq_job GROUP BY partition") == [(n, 400) for n in range(parts)]
    eventually(lambda: len(site.runs()) == 1200 + 200 * (parts - len(there)), "the jobs of the other partitions")
    hung.resume()
    site.all_run(2400)
    site.none_ran_twice()
    worker.signal(15)
    assert worker.wait() == 0, worker.text()
    assert "Traceback" not in worker.text()


@pytest.mark.slow
@pytest.mark.parametrize("cluster", [("redis", True), ("valkey", True)], indirect=True, ids=str)
def test_a_master_is_killed_and_each_job_runs_and_none_is_lost(shop: Shop, redis_server, cluster: ClusterServers) -> None:
    site = ClusterSite(shop, redis_server, cluster)
    workers = [site.work("--processes", "2"), site.work()]
    # Running jobs are not settled until there is another master.
    site.put(*((queue, (100 * n, 100 * n + 2), 0.0, None) for n, queue in enumerate(QUEUES)))
    eventually(lambda: site.states() == {"running": 10}, "ten running jobs")
    site.put(*((queue, (100 * n + 10, 100 * n + 40), 4.0, 0.0) for n, queue in enumerate(QUEUES)))
    eventually(lambda: site.rows("SELECT count(*) FROM delayq_job WHERE published IS NULL") == [(0,)], "all is in Redis")
    killed = site.master_of("default")
    others = [queue for queue in QUEUES if site.master_of(queue) is not killed]
    killed.kill()
    site.put(*((queue, (100 * n + 50, 100 * n + 60), 0.0, 0.0) for n, queue in enumerate(QUEUES)))
    assert len(others) == 3
    eventually(lambda: site.master_of("default") is not killed, "another master")
    shop.release(*(100 * n + number for n in range(len(QUEUES)) for number in range(2)))
    site.all_run(210)
    assert set(site.runs()) == {100 * n + number for n in range(len(QUEUES)) for number in (*range(2), *range(10, 40), *range(50, 60))}
    for worker in workers:
        worker.signal(15)
        assert worker.wait() == 0, worker.text()
        assert "Traceback" not in worker.text()


@pytest.mark.slow
def test_while_a_master_hangs_the_queues_of_the_others_go_on(shop: Shop, redis_server, cluster: ClusterServers) -> None:
    site = ClusterSite(shop, redis_server, cluster)
    workers = [site.work("--processes", "2"), site.work()]
    site.put(*((queue, (100 * n, 100 * n + 10), 0.0, 0.0) for n, queue in enumerate(QUEUES)))
    site.all_run(50)
    hung = site.master_of("default")
    behind = {n for n, queue in enumerate(QUEUES) if site.master_of(queue) is hung}
    hung.pause()
    for times in (1, 2):
        numbers = range(10 * times, 10 * times + 10)
        site.put(*((queue, (100 * n + numbers[0], 100 * n + numbers[-1] + 1), 0.0, 0.0) for n, queue in enumerate(QUEUES)))
        wanted = {100 * n + number for n in range(len(QUEUES)) if n not in behind for number in numbers}
        eventually(lambda wanted=wanted: wanted <= site.runs().keys(), "the jobs of the other masters")
    assert len(site.runs()) == 50 + 20 * (len(QUEUES) - len(behind)), "those of the one that hangs wait as rows"
    eventually(lambda: site.states().get("succeeded", 0) == len(site.runs()), "the rows of the others say so")
    hung.resume()
    site.all_run(50 + 20 * len(QUEUES))
    site.none_ran_twice()
    for worker in workers:
        worker.signal(15)
        assert worker.wait() == 0, worker.text()
        assert "Traceback" not in worker.text()


def by_hand(cluster: ClusterServers, slot: int, to: ClusterNode) -> None:
    """As far as `redis-cli --cluster fix` would have to take it up."""
    cluster.open(slot, to)
    cluster.carry(slot, to, 3)


def at_once(cluster: ClusterServers, slot: int, to: ClusterNode) -> None:
    source = cluster.serving(slot)
    assert source.call("CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", str(slot), str(slot), "NODE", to.id) == "+OK"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cluster", "begin"),
    [(("redis", False), by_hand), (("valkey", False), at_once)],
    indirect=["cluster"],
    ids=["by hand", "at once"],
)
def test_a_slot_moves_under_live_workers_and_each_job_runs_once(
    shop: Shop, redis_server, cluster: ClusterServers, begin: Callable[[ClusterServers, int, ClusterNode], None]
) -> None:
    site = ClusterSite(shop, redis_server, cluster)
    workers = [site.work("--processes", "2"), site.work()]
    site.put(("default", (0, 6), 0.0, None))
    eventually(lambda: site.states() == {"running": 6}, "six running jobs")
    site.put(*((queue, (100 * n + 10, 100 * n + 40), 4.0, 0.0) for n, queue in enumerate(QUEUES)))
    eventually(lambda: site.rows("SELECT count(*) FROM delayq_job WHERE published IS NULL") == [(0,)], "all is in Redis")
    slot = slot_of("{default}")
    to = next(node for node in cluster.masters if node is not site.master_of("default"))
    begin(cluster, slot, to)
    site.put(*((queue, (100 * n + 50, 100 * n + 60), 0.0, 0.0) for n, queue in enumerate(QUEUES)))
    wanted = {100 * n + number for n in range(1, len(QUEUES)) for number in range(50, 60)}
    eventually(lambda: wanted <= site.runs().keys(), "the jobs of other slots")
    shop.release(*range(6))
    if begin is by_hand:
        cluster.carry(slot, to)
        cluster.settle(slot, to)
    site.all_run(6 + 150 + 50)
    site.none_ran_twice()
    assert site.master_of("default") is to
    for worker in workers:
        worker.signal(15)
        assert worker.wait() == 0, worker.text()
        assert "Traceback" not in worker.text()
