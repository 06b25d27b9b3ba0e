"""Clusters and Sentinels over TLS, whose servers accept no other connections. The client uses TLS for each node that one of them
names, and each node must show a certificate.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from types import SimpleNamespace
from urllib.parse import quote

import pytest

from django_delayq.exceptions import StoreUnavailable
from django_delayq.store.connection.cluster import slot_of
from django_delayq.store.connection.link import connect
from django_delayq.store.connection.places import Places, place
from django_delayq.store.keys import Keys
from django_delayq.store.reads.topology import kind_findings
from django_delayq.store.scripts.queue import QueueStore
from tests.conftest import missing
from tests.ports import free_port
from tests.security.test_tls import Certificates, certificates, certify, tls
from tests.servers import PASSWORD, USER
from tests.store.test_cluster import item
from tests.topologies import ClusterServers, SentinelServer
from tests.worker.conftest import Shop, eventually
from tests.worker.test_cluster import ClusterSite

__all__ = ["certificates", "tls"]  # fixtures
QUEUES = ("a", "b", "c", "d", "e", "f")


def files(of: Certificates) -> dict[str, str]:
    """Returns the options of a server that has this certificate."""
    return {"tls_ca_cert_file": of.authority, "tls_cert_file": of.certificate, "tls_key_file": of.key, "tls_auth_clients": "no"}


class TlsCluster(ClusterServers):
    """A cluster whose nodes speak only TLS, to clients and to each other."""

    def __init__(self, certificates: Certificates) -> None:
        self.authority = certificates.authority
        super().__init__(tls_cluster="yes", tls_replication="yes", **files(certificates))

    @property
    def url(self) -> str:
        return self.by(self.places)

    def by(self, seeds: str, authority: str = "") -> str:
        """As a project writes it, with these nodes, and another authority."""
        return f"rediss+cluster://{USER}:{PASSWORD}@{seeds}?ssl_ca_certs={quote(authority or self.authority)}"


@pytest.fixture(scope="module")
def cluster(certificates: Certificates) -> Iterator[TlsCluster]:
    with ExitStack() as stack:
        try:
            servers = stack.enter_context(TlsCluster(certificates))
        except RuntimeError as error:
            if "TLS support" not in str(error) and "Bad directive" not in str(error):
                raise
            missing("the server was built without TLS")
        yield servers


@pytest.fixture
def places(cluster: TlsCluster) -> Iterator[Places]:
    """Returns the places with one node as the start; the node reports the others."""
    there = place(cluster.by(f"localhost:{cluster.masters[0].port}"), name="test")
    yield there
    there.close()


def logins(cluster: TlsCluster) -> int:
    """Returns how often the user of the package was admitted, on any node, or was refused."""
    told = [node.call("INFO", "commandstats", whole=True) for node in cluster.nodes]
    return sum(int(text.partition(f"cmdstat_{name}:calls=")[2].partition(",")[0] or 0) for text in told for name in ("auth", "hello"))


def test_nodes_that_a_node_names_are_spoken_to_by_tls(cluster, places):
    ports = set()
    for queue in QUEUES:
        assert QueueStore(places, prefix="t:tls", queue=queue).schedule([item()])[0].status == "created"
        ports.add(cluster.serving(slot_of(f"{{{queue}}}")).port)
    assert ports == {node.port for node in cluster.masters}, "the queues are on all of them"
    assert len(places.nodes()) == 3


def test_a_slot_that_moves_is_followed_by_tls(cluster, places):
    store = QueueStore(places, prefix="t:tls", queue="moved")
    assert store.schedule([item()])[0].status == "created"
    slot = slot_of("{moved}")
    source = cluster.serving(slot)
    to = next(node for node in cluster.masters if node is not source)
    cluster.open(slot, to)
    assert cluster.carry(slot, to) > 0
    assert places.of("moved", 0).execute("HLEN", Keys("t:tls", "moved")["jobs"]) == 1, "where it goes, by ASK"
    cluster.settle(slot, to)
    assert store.schedule([item()])[0].status == "created", "by MOVED"
    assert source.call("CLUSTER", "COUNTKEYSINSLOT", str(slot)) == ":0"


@pytest.mark.slow
def test_workers_wake_by_tls_at_all_masters(cluster, certificates, shop: Shop, redis_server):
    queues: dict[str, dict] = {queue: {} for queue in ("default", *QUEUES)}
    site = ClusterSite(shop, redis_server, cluster, queues)
    site.shop.settings["REDIS"] = {"URL": cluster.url.partition("?")[0], "OPTIONS": {"ssl_ca_certs": certificates.authority}}
    worker = site.work()
    eventually(lambda: all("cmd=blpop" in node.call("CLIENT", "LIST", whole=True) for node in cluster.masters), "the wake lines")
    site.put(*((queue, (100 * number, 100 * number + 50), 0.3, 0.0) for number, queue in enumerate(QUEUES)))
    site.all_run(50 * len(QUEUES))
    site.none_ran_twice()
    worker.signal(15)
    assert worker.wait() == 0, worker.text()
    assert "not available" not in worker.text()


def test_nodes_of_another_authority_are_refused_and_get_no_password(cluster, tmp_path):
    before = logins(cluster)
    there = place(cluster.by(cluster.places, certify(tmp_path).authority), name="test")
    with pytest.raises(StoreUnavailable, match=r"the Cluster of .*(?i:certificate)") as error:
        QueueStore(there, prefix="t:tls", queue="a").schedule([item()])
    there.close()
    assert PASSWORD not in str(error.value)
    assert logins(cluster) == before


def test_a_node_is_refused_whose_certificate_is_for_another_name(cluster, tmp_path):
    """The node that sends the map has a matching certificate. The other nodes, which the map names by address, do not."""
    others = certify(tmp_path, "DNS:localhost")
    with TlsCluster(others) as servers:
        there = place(servers.by(f"localhost:{servers.masters[0].port}"), name="test")
        for queue in QUEUES:
            with pytest.raises(StoreUnavailable, match=r"(?i)certificate|hostname"):
                QueueStore(there, prefix="t:tls", queue=queue).schedule([item()])
        there.close()
        asked, *named = servers.masters
        assert "cmdstat_cluster|slots" in asked.call("INFO", "commandstats", whole=True)
        assert not any("cmdstat_auth" in node.call("INFO", "commandstats", whole=True) for node in named)


@pytest.mark.parametrize("database", [0, 3])
def test_an_address_without_tls_is_refused_with_the_line_to_write(cluster, tls, database):
    place = f"127.0.0.1:{cluster.masters[1].port}"
    [found] = kind_findings(f"redis+cluster://{USER}:{PASSWORD}@127.0.0.1:1,{place}")
    assert (found.code, found.level) == ("E020", "error")
    assert f"to rediss+cluster://[user:password@]{place}" in found.hint
    server = tls()
    [found] = kind_findings(f"redis://{USER}:{PASSWORD}@localhost:{server.tls_port}/{database}")
    assert found.code == "E020"
    assert f"to rediss://[user:password@]localhost:{server.tls_port}/{database}," in found.hint
    assert PASSWORD not in str(found)


def test_an_address_without_tls_of_sentinels_is_refused_with_the_line_to_write(certificates, tls, request):
    port = str(free_port())
    sentinel = SentinelServer(
        SimpleNamespace(port=tls().tls_port), quorum=1, tls_port=port, tls_replication="yes", **files(certificates)
    )
    request.addfinalizer(sentinel.stop)
    sentinel.start()
    [found] = kind_findings(f"redis+sentinel://{USER}:{PASSWORD}@127.0.0.1:1,localhost:{port}/mymaster/2")
    assert (found.code, found.level) == ("E020", "error")
    assert f"to rediss+sentinel://[user:password@]localhost:{port}/mymaster/2," in found.hint
    assert PASSWORD not in str(found)
    assert kind_findings("redis+sentinel://127.0.0.1:1/mymaster/2") == [], "nobody is there, which others tell"


def test_a_node_by_tls_at_the_address_of_a_server_of_its_own(cluster):
    [found] = kind_findings(cluster.by(f"127.0.0.1:{cluster.masters[0].port}").replace("+cluster", ""))
    assert found.code == "E013"
    assert f"to rediss+cluster://[user:password@]127.0.0.1:{cluster.masters[0].port}" in found.hint


def test_a_worker_does_not_start_at_a_port_of_tls_without_it(cluster, shop: Shop):
    shop.settings = {"REDIS": cluster.root_url}
    worker = shop.work("--burst")
    assert worker.wait() == 1
    assert "delayq.E020" in worker.text()
    assert f"rediss+cluster://[user:password@]127.0.0.1:{cluster.masters[0].port}" in worker.text()


@pytest.mark.slow
def test_after_a_failover_sentinels_lead_to_the_next_master_by_tls(certificates, tls, request):
    by_tls = {"tls_replication": "yes"}
    master = tls(**by_tls)
    replica = tls(**by_tls, replicaof=f"127.0.0.1 {master.tls_port}", repl_diskless_sync_delay="0")
    eventually(lambda: "state=online" in master.call("INFO", "replication", whole=True), "the replica does not follow")
    port = str(free_port())
    watched = SimpleNamespace(port=master.tls_port)
    sentinel = SentinelServer(watched, quorum=1, tls_port=port, **by_tls, **files(certificates))
    request.addfinalizer(sentinel.stop)
    sentinel.start()
    link = connect(f"rediss+sentinel://{USER}:{PASSWORD}@localhost:{port}/mymaster/0?ssl_ca_certs={quote(certificates.authority)}")
    request.addfinalizer(link.close)
    store = QueueStore(link, prefix="t:tls", queue="a")
    assert store.schedule([item()])[0].status == "created"
    eventually(lambda: str(replica.tls_port).encode() in sentinel.call("SENTINEL", "REPLICAS", "mymaster"), "no replica is known")
    eventually(lambda: replica.call("HLEN", Keys("t:tls", "a")["jobs"]) == ":1", "the replica does not get the job")
    master.kill()
    eventually(lambda: "role:master" in replica.call("INFO", "replication", whole=True), "the replica is not promoted")
    eventually(lambda: scheduled(store), "the link does not find the next master")
    assert replica.call("HLEN", Keys("t:tls", "a")["jobs"]) == ":2"


def scheduled(store: QueueStore) -> bool:
    try:
        return store.schedule([item()])[0].status == "created"
    except StoreUnavailable:
        return False
