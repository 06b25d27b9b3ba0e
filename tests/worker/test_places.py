"""Queues on several servers: one that hangs or dies delays no other queue, and its jobs run when it is back."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable

import pytest

from tests.links import opened
from tests.servers import RedisServer, Server, as_package
from tests.stage import ROOT
from tests.topologies import ClusterNode, SentinelServer, ToldNode
from tests.worker.bench import Bench
from tests.worker.conftest import Shop, eventually
from tests.worker.test_restore import Site

# Two numbers every 50 ms, one for each server, and how long the request took; even ones go to the shared server.
REQUESTS = """
import select, sys, time
import django
django.setup()
from tests.app.shop.tasks import write_down
number = int(sys.argv[1])
while not select.select([sys.stdin], [], [], 0.05)[0]:
    for queue in ("default", "slow"):
        began = time.monotonic()
        write_down.using(queue=queue, delay=0.2).schedule(number, 0.0)
        print(number, began, time.monotonic() - began, flush=True)
        number += 1
"""


def frozen(server: RedisServer) -> None:
    server.pause()


def thawed(server: RedisServer) -> None:
    server.resume()


def killed(server: RedisServer) -> None:
    server.kill()


def started(server: RedisServer) -> None:
    server.start()


class Web:
    """A web process that schedules; what it has scheduled, and when."""

    def __init__(self, shop: Shop) -> None:
        self._path = shop.folder / "web"
        with open(self._path, "ab") as out:
            self._process = subprocess.Popen(
                [sys.executable, "-c", REQUESTS, "0"],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=out,
                env={**os.environ, **shop.project},
            )

    def end(self) -> dict[int, float]:
        assert self._process.stdin is not None
        self._process.stdin.close()
        assert self._process.wait(30) == 0
        return self.scheduled()

    def scheduled(self) -> dict[int, float]:
        """By number, when."""
        written = self._path.read_text().rpartition("\n")[0]  # whole lines
        return {int(line.split()[0]): float(line.split()[1]) for line in written.splitlines()}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("down", "harm", "heal"),
    [
        ("own", frozen, thawed),
        ("shared", killed, started),
        ("shared", frozen, thawed),
        ("own", killed, started),
    ],
)
def test_a_server_that_is_away_keeps_no_job_of_another_waiting(
    shop: Shop, own_redis, down: str, harm: Callable[[RedisServer], None], heal: Callable[[RedisServer], None]
) -> None:
    servers = {"shared": own_redis(appendonly="yes", appendfsync="always"), "own": own_redis(appendonly="yes", appendfsync="always")}
    site = Site(shop, servers["shared"], QUEUES={"default": {}, "slow": {"REDIS": as_package(servers["own"].url)}})
    worker = site.work()
    web = Web(shop)
    eventually(lambda: len(site.runs()) > 20)
    harm(servers[down])
    harmed_at = time.monotonic()
    time.sleep(6)

    def whole(until: float) -> set[int]:
        """The jobs that were scheduled for the other server while one was unavailable, up to three seconds before its return."""
        return {n for n, at in web.scheduled().items() if harmed_at < at < until - 3 and n % 2 == (down == "shared")}

    eventually(lambda: len(whole(time.monotonic())) > 10, "as many jobs as are judged", patience=60)
    before = site.runs()
    healed_at = time.monotonic()
    heal(servers[down])
    scheduled = web.end()
    assert not whole(healed_at) - before.keys(), "while the one was away, all ran of the other"
    eventually(lambda: site.states() == {"succeeded": len(scheduled)}, "all jobs", patience=60)
    site.none_ran_twice()
    assert site.runs().keys() == scheduled.keys()
    worker.signal(15)
    assert worker.wait() == 0, worker.text()


@pytest.fixture
def master(own_redis) -> RedisServer:
    return own_redis(port=True)


@pytest.mark.parametrize(("kind", "code"), [("node", "E013"), ("sentinel", "E014"), ("database", "E015")])
def test_a_worker_does_not_start_before_what_is_no_server_of_its_own(shop: Shop, master: RedisServer, request, kind: str, code: str):
    url = f"{master.tcp_url}/16"
    if kind != "database":
        other: Server = ClusterNode() if kind == "node" else SentinelServer(master)
        request.addfinalizer(other.stop)
        other.start()
        url = f"redis://127.0.0.1:{other.port}/0"  # type: ignore[attr-defined]
    shop.settings = {"REDIS": url}
    worker = shop.work()
    assert worker.process.wait(30) == 1
    said = worker.text()
    assert f"delayq.{code}: " in said
    assert "The worker does not start." in said
    assert "Traceback" not in said


@pytest.mark.parametrize(
    "said",
    [
        "MOVED 3999 127.0.0.1:6381",
        "ASK 3999 127.0.0.1:6381",
        "TRYAGAIN Multiple keys request during rehashing of slot",
        "CLUSTERDOWN The cluster is down",
        "READONLY You can't write against a read only replica.",
        "LOADING Redis is loading the dataset in memory",
        "NOREPLICAS Not enough good replicas to write.",
    ],
)
def test_the_settler_comes_back_with_the_same_outcome(own_redis, said: str) -> None:
    node = ToldNode(own_redis())
    bench = Bench(opened(node.url), threads=1, package=opened(node.url))
    try:
        bench.register(_nothing)
        bench.put("_nothing")
        bench.move()
        run = bench.take()
        bench.settler.add(run, bench.executor.run(run))
        node.refuse("EVALSHA", said, times=3)
        bench.settler.start()
        eventually(lambda: run.row in bench.free)
        assert node.refused == ["EVALSHA"] * 3
        assert bench.kinds() == ["scheduled", "claimed", "succeeded"]
    finally:
        bench.settler.end(10)
        bench.close()
        node.close()


def _nothing() -> None:
    pass
