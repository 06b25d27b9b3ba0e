"""The addresses of a Redis Cluster: URLs, clients of factories and caches. Invalid ones are rejected with the line to write instead."""

from __future__ import annotations

import pytest
from redis.cluster import RedisCluster
from redis.connection import Connection, SSLConnection

from django_delayq import ids
from django_delayq.exceptions import ConfigError
from django_delayq.store.connection.address import address, is_cluster, resolve, way
from django_delayq.store.connection.link import connect
from django_delayq.store.connection.places import Nodes, by_node, place
from django_delayq.store.keys import Keys
from django_delayq.store.reads.figures import Figures
from django_delayq.store.reads.inspector import Inspector
from django_delayq.store.scripts.queue import QueueStore, ScheduleItem
from django_delayq.store.scripts.record import JobRecord
from tests.depths import queue_depths
from tests.servers import as_package
from tests.topologies import ClusterServers


def test_a_url_names_nodes_and_credentials():
    connection_class, kwargs = resolve("redis+cluster://user:s%40crt@n1:7000,n2,[::1]:7002")
    assert connection_class is Connection
    assert kwargs == {"username": "user", "password": "s@crt", "cluster": [("n1", 7000), ("n2", 6379), ("::1", 7002)]}
    assert address("redis+cluster://user:secret@n1:7000,n2/0") == "the Cluster of n1:7000, n2:6379"


def test_by_tls_names_are_checked_as_everywhere():
    connection_class, kwargs = resolve({"URL": "rediss+cluster://n1", "OPTIONS": {"ssl_ca_certs": "/ca.pem"}})
    assert issubclass(connection_class, SSLConnection)
    assert (kwargs["ssl_ca_certs"], kwargs["ssl_check_hostname"]) == ("/ca.pem", True)
    found = way("rediss+cluster://:pw@127.0.0.1,10.0.0.7")
    assert (found.tls, found.checked, found.password, found.network, found.here) == (True, True, True, True, False)
    assert way("redis+cluster://127.0.0.1:1,localhost:2").here


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("redis+cluster://", "does not contain any nodes"),
        ("redis+cluster://n1:x", "does not contain any nodes"),
        ("redis+cluster://n1:70000", "does not contain any nodes"),
        ("redis+cluster://n1,,n2", "does not contain any nodes"),
        ("redis+cluster://n1/1", "database 0 only"),
        ("redis+cluster://n1?db=2", "database 0 only"),
        ("redis+cluster://n1/x", "database 0 only"),
        ("redis+cluster://u:hunter2/x@n1", "no usable address"),
    ],
)
def test_what_is_no_address_of_a_cluster_is_refused_and_quoted_nowhere(url, said):
    with pytest.raises(ConfigError, match=said) as caught:
        resolve(url)
    assert "hunter2" not in str(caught.value)


def test_a_database_in_the_options_is_refused_too():
    with pytest.raises(ConfigError, match="database 0 only"):
        resolve({"URL": "redis+cluster://n1", "OPTIONS": {"db": 1}})


def test_nothing_is_sent_before_a_link_is_used_and_queues_of_one_value_share_the_map():
    nodes = Nodes("redis+cluster://127.0.0.1:1", {"b": "redis+cluster://127.0.0.1:2", "c": "redis+cluster://127.0.0.1:2"}, name="t")
    assert nodes.of("b", 0)._cluster is nodes.of("c", 0)._cluster
    assert nodes.of("a", 0)._cluster is nodes.shared._cluster
    assert nodes.on_shared("b", 0) is not nodes.of("b", 0)
    assert nodes.of("a", 0).where == "the Cluster of 127.0.0.1:1"
    nodes.close()


def test_what_is_done_on_one_server_is_not_done_on_a_cluster():
    assert is_cluster("redis+cluster://n1")
    assert not is_cluster("embedded")
    with pytest.raises(ConfigError, match="a single server"):
        connect("redis+cluster://n1")


_running: list[ClusterServers] = []


@pytest.fixture(scope="module")
def cluster():
    with ClusterServers() as servers:
        for node in servers.masters:  # what the client library wants to know is more than we may ask
            assert node.call("ACL", "SETUSER", "wide", "on", ">only-for-tests", "~*", "+@all") == "+OK"
        _running.append(servers)
        yield servers
    _running.clear()


def client() -> RedisCluster:
    return RedisCluster(host="127.0.0.1", port=_running[0].masters[0].port, username="wide", password="only-for-tests")


class ClusterCache:
    """As caches of projects are made that hand out a cluster client."""

    def __init__(self, *_: object) -> None:
        self._cache = self

    def get_client(self, **_: object) -> RedisCluster:
        return client()

    def close(self) -> None: ...


class UnmadeCluster(RedisCluster):
    """To make one, it would have to be there."""

    def __init__(self) -> None: ...

    def __del__(self) -> None: ...


def a_cluster() -> UnmadeCluster:
    return UnmadeCluster()


def test_a_cluster_client_is_read_for_its_nodes_and_credentials(cluster, settings):
    settings.CACHES = {**settings.CACHES, "spread": {"BACKEND": f"{__name__}.ClusterCache"}}
    for spec in (f"{__name__}.client", "spread"):
        kwargs = resolve(spec)[1]
        assert {("127.0.0.1", node.port) for node in cluster.masters} <= set(kwargs.pop("cluster"))
        assert kwargs == {"username": "wide", "password": "only-for-tests"}
        there = place(spec, name="test")
        assert there.of("a", 0).execute("PING") == b"PONG"
        there.close()


def test_a_cluster_client_that_tells_no_nodes_is_refused_with_the_line_to_write():
    with pytest.raises(ConfigError, match="UnmadeCluster that does not list its nodes") as caught:
        resolve(f"{__name__}.a_cluster")
    assert "Write redis+cluster://" in caught.value.fields["hint"]


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
