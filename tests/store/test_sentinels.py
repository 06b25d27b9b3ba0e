"""By Sentinel: the master is looked up at each connect, and nothing goes on to one that has been replaced."""

from __future__ import annotations

import os
import select
from collections.abc import Iterator

import pytest
from redis.connection import Connection, SSLConnection
from redis.sentinel import Sentinel

from django_delayq import clock
from django_delayq.exceptions import ConfigError, StoreUnavailable
from django_delayq.store.connection import link as module
from django_delayq.store.connection.address import address, resolve, way
from django_delayq.store.connection.link import Link
from django_delayq.store.connection.wake import EventLine, WakeLine
from django_delayq.store.reads.topology import kind_findings
from tests.links import opened
from tests.servers import PASSWORD, USER, RedisServer, as_package
from tests.store.board import Board
from tests.topologies import SentinelServer, Trio
from tests.worker.conftest import eventually

WANTED = "only-for-clients"  # by the Sentinels


@pytest.fixture
def trio() -> Iterator[Trio]:
    with Trio() as trio:
        yield trio


@pytest.fixture(scope="module")
def quiet() -> Iterator[Trio]:
    """One that is not harmed; its Sentinels want a password."""
    with Trio(name="shop.jobs", password=WANTED) as trio:
        yield trio


def _sorted(trio: Trio) -> str:
    return ", ".join(sorted(trio.hosts.split(",")))


def port_of(link: Link) -> int:
    """The run ID of the server that answers."""
    found = link.execute("INFO").partition(b"tcp_port:")[2].split()[0]
    return int(found)


def cache(hosts: list[tuple[str, int]], name: str, **options: object) -> dict[str, object]:
    """A cache by django-redis, as its docs write it."""
    return {
        "BACKEND": "django_redis.cache.RedisCache",
        "LOCATION": f"redis://{USER}:{PASSWORD}@{name}/0",
        "OPTIONS": {
            "CLIENT_CLASS": "django_redis.client.SentinelClient",
            "CONNECTION_FACTORY": "django_redis.pool.SentinelConnectionFactory",
            "SENTINELS": hosts,
            **options,
        },
    }


@pytest.mark.parametrize("how", ["url", "options", "alias"])
def test_the_master_is_found(quiet, settings, how):
    hosts = [("127.0.0.1", sentinel.port) for sentinel in quiet.sentinels]
    settings.CACHES = {"default": cache(hosts, quiet.name, SENTINEL_KWARGS={"password": WANTED})}
    spec: object = {
        "url": quiet.url,
        "options": {"URL": quiet.url.partition("?")[0], "OPTIONS": {"sentinel_password": WANTED}},
        "alias": "default",
    }[how]
    link = opened(spec)
    assert link.where == f"shop.jobs by Sentinel at {_sorted(quiet)}, db 0"
    assert port_of(link) == quiet.master.port
    assert (way(spec).here, way(spec).network, way(spec).password) == (False, True, True)
    assert kind_findings(spec) == []


def test_the_database_of_the_url_is_chosen(quiet):
    url = quiet.url.replace("/0?", "/3?")
    link = opened(url)
    link.execute("PING")
    assert b"db=3" in opened(quiet.master.url).execute("CLIENT", "LIST")
    assert address(url) == f"shop.jobs by Sentinel at {_sorted(quiet)}, db 3"
    [found] = kind_findings(quiet.url.replace("/0?", "/99?"))
    assert found.code == "E015"


@pytest.mark.slow
def test_the_sentinels_that_do_not_answer_are_passed_over(quiet):
    hung = quiet.sentinels[0]
    hung.pause()
    try:
        link = opened(quiet.url.replace("127.0.0.1:", "127.0.0.1:1,127.0.0.1:", 1))
        assert port_of(link) == quiet.master.port
        assert link._sentinels is not None
        first = link._sentinels._entrances[0][1]["port"]
        assert first in {sentinel.port for sentinel in quiet.sentinels[1:]}, "who has answered is asked first"
    finally:
        hung.resume()
        hung.wait_ready()


def test_where_no_sentinel_answers_each_is_named_and_no_password(settings):
    link = opened(f"redis+sentinel://{USER}:hunter2@127.0.0.1:1,127.0.0.1:2/shop/0?sentinel_password=s3cret")
    with pytest.raises(StoreUnavailable) as caught:
        link.execute("PING")
    assert caught.match(r"shop by Sentinel at 127\.0\.0\.1:1, 127\.0\.0\.1:2, db 0 is not available: no Sentinel responds ")
    assert caught.match(r"\(127\.0\.0\.1:1: .*; 127\.0\.0\.1:2: ")
    assert "hunter2" not in str(caught.value)
    assert "s3cret" not in str(caught.value)
    assert link.away


def test_a_wrong_password_of_the_sentinels_is_told(quiet):
    with pytest.raises(StoreUnavailable) as caught:
        opened(quiet.url.replace(WANTED, "wr0ngone")).execute("PING")
    assert "no Sentinel responds" in str(caught.value)
    assert "wr0ngone" not in str(caught.value)


def test_a_name_that_no_sentinel_knows_is_told(quiet):
    url = quiet.url.replace("shop.jobs", "shop.other")
    assert [found.code for found in kind_findings(url)] == ["E016"]
    with pytest.raises(StoreUnavailable, match=r"do not know a master named 'shop\.other'"):
        opened(url).execute("PING")


def master_for():
    sentinels = Sentinel([("127.0.0.1", int(os.environ["TEST_SENTINEL"]))], sentinel_kwargs={"password": WANTED})
    return sentinels.master_for("shop.jobs", username=USER, password=PASSWORD)


def slave_for():
    return Sentinel([("127.0.0.1", 1)]).slave_for("shop.jobs")


def test_a_factory_may_return_the_client_of_a_master_but_not_of_its_replicas(quiet, monkeypatch):
    monkeypatch.setenv("TEST_SENTINEL", str(quiet.sentinels[1].port))
    assert port_of(opened(f"{__name__}.master_for")) == quiet.master.port
    with pytest.raises(ConfigError, match=r"leads to replicas of 'shop\.jobs'") as caught:
        opened(f"{__name__}.slave_for")
    assert "master_for" in caught.value.fields["hint"]


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("redis+sentinel://s1:26379,s2:26379", "it does not contain the name of a master"),
        ("redis+sentinel://s1:26379,s2:26379/", "it does not contain the name of a master"),
        ("rediss+sentinel://:hunters3cret@s1:26379//0", "it does not contain the name of a master"),
        ("redis+sentinel://s1/my master/0", "not followed by a name and a database number"),
        ("redis+sentinel://s1/mymaster/one", "not followed by a name and a database number"),
        ("redis+sentinel://s1/mymaster/0/1", "not followed by a name and a database number"),
        ("redis+sentinel:///mymaster/0", "does not contain any Sentinels"),
        ("redis+sentinel://s1,,s2/mymaster/0", "does not contain any Sentinels"),
        ("redis+sentinel://s1:port/mymaster/0", "does not contain any Sentinels"),
        ("redis+sentinel://s1:70000/mymaster/0", "does not contain any Sentinels"),
        ("redis+sentinel://s1 hunters3cret/mymaster/0", "does not contain any Sentinels"),
        ("redis+sentinel://s1,password=hunters3cret/mymaster/0", "does not contain any Sentinels"),
        ("redis+sentinel://:hunter/s3cret@s1/mymaster/0", "no usable address"),
        ("redis+sentinel://:hunter?s3cret@s1/mymaster/0", "no usable address"),
    ],
)
def test_an_address_by_sentinel_that_is_none_says_what_to_write(url, said):
    with pytest.raises(ConfigError, match=said) as caught:
        resolve(url)
    assert "redis+sentinel://" in str(caught.value)
    assert "hunter" not in str(caught.value)
    assert "s3cret" not in str(caught.value)


def test_what_a_url_by_sentinel_may_say():
    made, kwargs = resolve(
        "rediss+sentinel://us%40er:p%2Fw@[::1]:5,host/my-master.1?ssl_ca_certs=/x.pem&sentinel_username=s&sentinel_password=t"
    )
    assert made is SSLConnection
    assert (kwargs["username"], kwargs["password"], kwargs["ssl_check_hostname"]) == ("us@er", "p/w", True)
    sentinels = kwargs["sentinels"]
    assert sentinels.name == "my-master.1"
    for (kind, entrance), (host, port) in zip(sentinels._entrances, [("::1", 5), ("host", 26379)], strict=True):
        assert kind is SSLConnection
        assert entrance == {
            "host": host,
            "port": port,
            "username": "s",
            "password": "t",
            "ssl_ca_certs": "/x.pem",
            "ssl_check_hostname": True,
        }
    made, kwargs = resolve("redis+sentinel://:pw@host/mymaster")
    assert made is Connection
    assert kwargs["sentinels"]._entrances == [(Connection, {"host": "host", "port": 26379})], "not the password of the master"


# failovers


@pytest.mark.slow
@pytest.mark.parametrize("how", ["url", "alias"])
def test_a_killed_master_gets_a_successor_and_the_same_link_finds_it(trio, settings, how):
    settings.CACHES = {"default": cache([("127.0.0.1", sentinel.port) for sentinel in trio.sentinels], trio.name)}
    link = opened(trio.url if how == "url" else "default")
    board = Board(link, link)
    wake, events = WakeLine(link, [board.keys]), EventLine(link, [board.keys])
    wake.arm()
    events.arm()
    board.put(1)
    trio.wait_synced()
    trio.master.kill()
    with pytest.raises(StoreUnavailable):
        board.put(2)
    trio.wait_promoted(trio.replica)
    eventually(lambda: port_of(link) == trio.replica.port)
    assert board.put(2) == "created"
    for line in (wake, events):
        _comes_back(line)
    board.put(3, now=_now(link), due=_now(link) + 5000)
    link.execute("LPUSH", board.keys["wake"], "1")
    assert select.select([wake], [], [], 10)[0]
    assert wake.drain() == board.keys["wake"]
    assert events.drain() is True


@pytest.mark.slow
def test_a_frozen_master_is_left_with_all_its_connections_and_lines(trio):
    link = opened(trio.url, timeout=0.5)
    board = Board(link, link)
    receivers = [link.start(("PING",)) for _ in range(5)]
    assert [receive() for receive in receivers] == [[b"PONG"]] * 5
    wake, events = WakeLine(link, [board.keys]), EventLine(link, [board.keys])
    wake.arm()
    events.arm()
    trio.wait_synced()
    trio.master.pause()
    with pytest.raises(StoreUnavailable):
        board.put(1)
    assert not link._idle, "one has timed out, and the others lead to the same server"
    trio.wait_promoted(trio.replica)
    eventually(lambda: _answers(link))
    assert port_of(link) == trio.replica.port
    wake.arm()
    assert events.answered(), "it waits at a server that nobody writes to any more"
    with pytest.raises(StoreUnavailable, match="another server is the master now"):
        events.drain()
    events.arm()
    eventually(lambda: b"blocked_clients:2\r" in link.execute("INFO", "clients"))
    board.put(1, now=_now(link), due=_now(link) + 5000)
    link.execute("LPUSH", board.keys["wake"], "1")
    assert select.select([wake], [], [], 10)[0]
    assert wake.drain()
    assert events.drain() is True
    trio.master.resume()


def test_a_demoted_master_refuses_and_its_connection_is_not_kept(quiet):
    with RedisServer(port=True) as alone, SentinelServer(alone, quorum=1) as sentinel:
        link = opened(f"redis+sentinel://{USER}:{PASSWORD}@{sentinel.place}/mymaster/0")
        board = Board(link, link)
        board.put(1)
        opened(alone.url).execute("REPLICAOF", "127.0.0.1", str(quiet.master.port))
        with pytest.raises(StoreUnavailable):
            board.put(2)
        assert not link._idle


@pytest.mark.slow
def test_a_connection_that_has_rested_is_used_only_if_it_still_leads_to_the_master(trio, monkeypatch):
    """A master that was cut off would take writes which are lost when it is found again."""
    monkeypatch.setattr(module, "RESTED", 0.0)
    link = opened(trio.url)
    assert port_of(link) == trio.master.port
    trio.wait_synced()
    trio.master.pause()
    trio.wait_promoted(trio.replica)
    assert port_of(link) == trio.replica.port, "it has not been called, so none could time out"
    trio.master.resume()


@pytest.mark.slow
def test_who_calls_all_the_time_leaves_a_master_that_was_cut_off_from_its_sentinels_alone(trio):
    link = opened(trio.url)
    assert port_of(link) == trio.master.port
    trio.wait_synced()
    # Sentinels and replicas come as another user than the package. The connections that they have are closed by this, too.
    opened(trio.master.url).execute_many([("ACL", "SETUSER", "default", "off"), ("CLIENT", "KILL", "USER", "default", "SKIPME", "yes")])
    eventually(lambda: port_of(link) == trio.replica.port, "it goes on at the master that was cut off", patience=60)
    assert opened(as_package(trio.master.url)).execute("PING") == b"PONG", "which answers still"


def test_while_no_sentinel_answers_what_is_connected_goes_on(monkeypatch, own_redis, request):
    monkeypatch.setattr(module, "RESTED", 0.0)
    server = own_redis(port=True)
    sentinel = SentinelServer(server, quorum=1)
    request.addfinalizer(sentinel.stop)
    sentinel.start()
    link = opened(f"redis+sentinel://{USER}:{PASSWORD}@{sentinel.place}/mymaster/0")
    first = link.execute("INFO")
    assert first
    sentinel.terminate()
    [(kept, _)] = link._idle
    for _ in range(3):
        link.execute("PING")
        assert [one for one, _ in link._idle] == [kept]


def _now(link: Link) -> int:
    return int(link.execute("TIME")[0]) * 1000


def _answers(link: Link) -> bool:
    try:
        return bool(link.execute("PING"))
    except StoreUnavailable:
        return False


def _comes_back(line: WakeLine | EventLine) -> None:
    """It hears that its server is gone, and waits at the new one."""
    deadline = clock.monotonic() + 30
    while True:
        assert clock.monotonic() < deadline
        if select.select([line], [], [], 1)[0]:
            with pytest.raises(StoreUnavailable):
                line.drain()
            line.arm()
            return
