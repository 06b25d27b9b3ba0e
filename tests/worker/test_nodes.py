"""Workers with servers that they cannot use, and nodes that return errors about themselves."""

from __future__ import annotations

import pytest

from tests.links import opened
from tests.servers import RedisServer, Server
from tests.topologies import ClusterNode, SentinelServer, ToldNode
from tests.worker.bench import Bench
from tests.worker.conftest import Shop, eventually


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
