"""The map of a Cluster, and the errors that nodes can return. Two scripted nodes record all commands; test_cluster.py has real ones."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator

import pytest

from django_delayq import clock
from django_delayq.exceptions import StoreUnavailable
from django_delayq.store.connection import cluster as cluster_links
from django_delayq.store.connection import cluster as room
from django_delayq.store.connection import error_replies
from django_delayq.store.connection.cluster import Cluster, SlotLink
from django_delayq.store.connection.error_replies import StoreRefused
from django_delayq.store.connection.link import HURRIED
from django_delayq.store.connection.places import place
from tests.topologies import ToldNode

HERE = "127.0.0.1"


@pytest.fixture
def nodes(own_redis) -> Iterator[tuple[ToldNode, ToldNode]]:
    """The first serves all slots, as both say."""
    made = ToldNode(own_redis()), ToldNode(own_redis())
    for node in made:
        node.serves((0, 16_383, HERE, made[0].port))
    yield made
    for node in made:
        node.close()


@pytest.fixture
def cluster(nodes) -> Iterator[Callable[..., Cluster]]:
    made: list[Cluster] = []

    def make(*, patience: float = 0.0, seeds: tuple[ToldNode, ...] = nodes) -> Cluster:
        there = place("redis+cluster://" + ",".join(f"{HERE}:{node.port}" for node in seeds), name="test", patience=patience)
        assert isinstance(there, Cluster)
        made.append(there)
        return there

    yield make
    for one in made:
        one.close()


def told(node: ToldNode, *names: str) -> None:
    """It answers these commands with given replies."""
    for name in names:
        node.answer(name, f"+{name}\r\n".encode())


@pytest.fixture
def time(monkeypatch) -> list[float]:
    """The monotonic clock, which sleep() advances."""
    now = [1_000.0]
    monkeypatch.setattr(clock, "monotonic", lambda: now[0])
    monkeypatch.setattr(clock, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))
    return now


def port(link: SlotLink) -> int:
    return link.server.address[1]  # type: ignore[attr-defined]


def looks(*nodes: ToldNode) -> int:
    return sum(node.refused.count("CLUSTER") for node in nodes)


def test_who_is_told_that_a_slot_has_moved_goes_there_and_remembers_it_for_that_slot(nodes, cluster):
    first, second = nodes
    there = cluster()
    link, other = there.link(5), there.link(6)
    first.refuse("GET", f"MOVED 5 {HERE}:{second.port}")
    assert link.execute("GET", "x") is None
    assert (port(link), port(other)) == (second.port, first.port)
    assert (first.refused.count("GET"), looks(first, second)) == (1, 1), "the map is not looked at for that"


@pytest.mark.parametrize("host", ["", "?"])
def test_a_node_that_does_not_know_the_name_of_the_other_means_its_own_host(nodes, cluster, host):
    first, second = nodes
    link = cluster().link(5)
    first.refuse("GET", f"MOVED 5 {host}:{second.port}")
    assert link.execute("GET", "x") is None
    assert port(link) == second.port


def test_who_is_sent_in_a_circle_stops_after_five_times_and_has_no_answer_about_a_job(nodes, cluster):
    first, second = nodes
    link = cluster().link(5)
    first.refuse("GET", f"MOVED 5 {HERE}:{second.port}", 100)
    second.refuse("GET", f"MOVED 5 {HERE}:{first.port}", 100)
    with pytest.raises(StoreRefused) as caught:
        link.execute("GET", "x")
    assert caught.value.code == "redis_slot"
    assert first.refused.count("GET") + second.refused.count("GET") == 1 + cluster_links.MOST_HOPS


@pytest.mark.parametrize("said", ["MOVED", "ASK"])
@pytest.mark.parametrize("slot", [5, 6])
@pytest.mark.parametrize("started", [False, True])
def test_wait_goes_where_what_it_is_about_goes(nodes, cluster, said, slot, started):
    """By the same connection: elsewhere it would speak of what it has never seen."""
    first, second = nodes
    link = cluster().link(5)
    told(second, "ASKING", "SET", "WAIT")
    first.answer("WAIT", b":9\r\n")
    first.refuse("SET", f"{said} {slot} {HERE}:{second.port}")
    commands = [("GET", "x"), ("SET", "x", "y"), ("WAIT", 1, 100)]
    replies = link.start(*commands)() if started else link.execute_many(commands)
    assert replies == [None, b"SET", b"WAIT"]
    words = [word for word in second.refused if word != "CLUSTER"]
    assert words == [*["ASKING"] * (said == "ASK"), "SET", "WAIT"]


def test_what_is_sent_again_when_it_has_passed_is_waited_for_again(nodes, cluster, time):
    first, _ = nodes
    link = cluster(patience=1.0).link(5)
    told(first, "WAIT")
    first.refuse("SET", "TRYAGAIN Multiple keys request during rehashing of slot", 2)
    assert link.execute_many([("SET", "x", "y"), ("WAIT", 1, 100), ("GET", "x")]) == [b"OK", b"WAIT", None]
    assert [word for word in first.refused if word != "CLUSTER"] == ["SET", "WAIT", "SET", "WAIT", "WAIT"]


def test_an_asked_node_is_asked_once_and_the_map_stays(nodes, cluster):
    first, second = nodes
    link = cluster().link(5)
    second.answer("ASKING", b"+OK\r\n")
    first.refuse("GET", f"ASK 5 {HERE}:{second.port}", 2)
    for _ in range(2):
        assert link.execute("GET", "x") is None
    assert (second.refused.count("ASKING"), port(link)) == (2, first.port)
    assert link.execute("GET", "x") is None
    assert second.refused.count("ASKING") == 2


@pytest.mark.parametrize(
    "said",
    [
        "TRYAGAIN Multiple keys request during rehashing of slot",
        "CLUSTERDOWN The cluster is down",
        "CLUSTERDOWN Hash slot not served",
        "READONLY You can't write against a read only replica.",
        "NOREPLICAS Not enough good replicas to write.",
        "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
    ],
)
@pytest.mark.parametrize("started", [False, True])
def test_what_passes_by_itself_is_waited_for_by_who_has_patience_and_raised_to_others(nodes, cluster, time, said, started):
    first, _ = nodes

    def ask(link: SlotLink) -> object:
        reply = link.start(("GET", "x"))()[0] if started else link.execute("GET", "x")
        if isinstance(reply, Exception):
            raise reply
        return reply

    first.refuse("GET", said, 2)
    hasty = cluster().link(5)
    with pytest.raises(StoreRefused):
        ask(hasty)
    assert first.refused.count("GET") == 1, "a loop comes back by itself"
    patient = cluster(patience=1.0).link(5)
    assert ask(patient) is None
    assert first.refused.count("GET") == 2
    assert time[0] == pytest.approx(1_000.0 + cluster_links.SHORTEST)
    first.refuse("GET", said, 100)
    with pytest.raises(StoreRefused):
        ask(patient)
    assert time[0] == pytest.approx(1_001.0 + cluster_links.SHORTEST), "no longer than it has patience"
    assert first.refused.count("GET") == 2 + 1 + 5


def test_what_does_not_pass_is_not_waited_for(nodes, cluster, time):
    first, _ = nodes
    link = cluster(patience=1.0).link(5)
    for said in ("OOM command not allowed when used memory > 'maxmemory'.", "CROSSSLOT Keys in request don't hash to the same slot"):
        first.refuse("GET", said)
        with pytest.raises(StoreRefused):
            link.execute("GET", "x")
    assert (first.refused.count("GET"), time[0]) == (2, 1_000.0)


def test_in_a_pipeline_only_what_was_refused_is_sent_again(nodes, cluster, time):
    first, _ = nodes
    link = cluster(patience=1.0).link(5)
    first.refuse("LLEN", "TRYAGAIN Multiple keys request during rehashing of slot", 2)
    assert link.execute_many([("INCR", "a"), ("LLEN", "b"), ("INCR", "a")]) == [1, 0, 2]
    assert first.refused.count("LLEN") == 2


def test_of_a_node_that_is_lost_the_others_tell_who_has_taken_over(nodes, cluster, time):
    first, second = nodes
    link = cluster().link(5)
    link.execute("PING")
    second.serves((0, 16_383, HERE, second.port))
    first.close()
    time[0] += room.LOOK
    with pytest.raises(StoreUnavailable):
        link.execute("PING")
    assert port(link) == second.port
    assert link.execute("PING") == b"PONG"


def test_the_map_is_looked_at_once_a_second_at_most(nodes, cluster, time):
    first, second = nodes
    link = cluster(seeds=(second,)).link(5)
    link.execute("PING")
    first.close()
    assert looks(second) == 1
    for moment, wanted in ((0.5, 1), (0.5, 2), (0.9, 2), (0.1, 3)):
        time[0] += moment
        with pytest.raises(StoreUnavailable):
            link.execute("PING")
        assert looks(second) == wanted


def test_one_thread_looks_and_the_others_go_by_what_is_known(nodes, cluster, time):
    first, second = nodes
    there = cluster()
    link = there.link(5)
    link.execute("PING")
    time[0] += 10
    with there._locks.looking:
        done: list[object] = []
        thread = threading.Thread(target=lambda: done.append(there.look()))
        thread.start()
        thread.join(30)
        assert done == [None]
        assert link.execute("PING") == b"PONG"
    assert looks(first, second) == 1
    there.look()
    assert looks(first, second) == 2


def test_a_copy_of_the_process_looks_for_itself(nodes, cluster, time, monkeypatch):
    """The thread that had the lock is not copied."""
    there = cluster()
    there.link(5).execute("PING")
    time[0] += 10
    there._locks.looking.acquire()
    monkeypatch.setattr(os, "getpid", lambda: 1)
    there.look()
    assert looks(*nodes) == 2


def test_who_told_something_old_is_not_asked_again_at_once(nodes, cluster, time):
    """A node that is cut off from the others goes on naming a master that is gone."""
    first, second = nodes
    second.serves((0, 8_000, HERE, first.port), (8_001, 16_383, HERE, second.port))
    first.serves((0, 16_383, HERE, 1))
    link = cluster(seeds=(first, second)).link(5)
    with pytest.raises(StoreUnavailable):
        link.execute("PING")
    time[0] += room.LOOK
    with pytest.raises(StoreUnavailable):
        link.execute("PING")
    assert link.execute("PING") == b"PONG"


@pytest.mark.parametrize(
    ("told", "said"),
    [
        (b"*0\r\n", "knows of no slots"),
        (b"+OK\r\n", "list of slots has an unknown form"),
        (b"*1\r\n*2\r\n:0\r\n:5\r\n", "list of slots has an unknown form"),
        (b"*1\r\n*3\r\n:0\r\n:99999\r\n*2\r\n$1\r\nh\r\n:1\r\n", "lists slots 0 to 99999"),
        (b"-ERR unknown command 'CLUSTER'\r\n", "unknown command"),
        (b"-NOPERM this user has no permissions to run the 'cluster|slots' command\r\n", "has no permissions"),
    ],
)
def test_where_no_node_tells_where_slots_are_that_is_said(nodes, cluster, time, told, said):
    for node in nodes:
        node.answer("CLUSTER", told)
    there = cluster()
    with pytest.raises(StoreUnavailable, match=said):
        there.link(5).execute("PING")
    with pytest.raises(StoreUnavailable, match=said):
        there.of("a", 0).execute("PING")
    assert looks(*nodes) == 2, "both, and not again within a second"
    assert there.link(5).server is there.link(5)
    assert there.link(5).away


def test_a_slot_that_nobody_serves_is_refused_and_others_go_on(nodes, cluster, time):
    first, second = nodes
    for node in nodes:
        node.serves((0, 5, HERE, first.port))
    there = cluster()
    assert there.link(5).execute("PING") == b"PONG"
    with pytest.raises(StoreRefused, match="slot 6 is served by no node") as caught:
        there.link(6).execute("PING")
    assert caught.value.soon
    second.serves((0, 6, HERE, first.port))
    first.serves((0, 6, HERE, first.port))
    time[0] += room.LOOK
    assert there.link(6).execute("PING") == b"PONG"


def test_a_node_rests_for_those_who_have_more_to_do_and_hurries_with_all(nodes, cluster, time):
    first, second = nodes
    for node in nodes:
        node.serves((0, 5, HERE, first.port), (6, 16_383, HERE, second.port))
    there = cluster()
    link, other = there.link(5), there.link(7)
    link.set_cooldown(3.0)
    assert (other.execute("PING"), link.execute("PING"), other.cooldown.seconds) == (b"PONG", b"PONG", 3.0)
    first.close()
    for _ in range(2):
        with pytest.raises(StoreUnavailable):
            link.execute("PING")
    with pytest.raises(StoreUnavailable) as caught:
        link.execute("PING")
    assert caught.value.code == "redis_cooldown"
    assert other.execute("PING") == b"PONG"
    other.hurry(time[0] + 1)
    assert (link.away, other.away) == (True, False)
    assert other.execute("PING") == b"PONG"


def test_redirects_are_read_from_what_new_and_old_clients_make_of_them():
    old = Exception("MOVED 3999 10.0.0.2:6381")
    assert error_replies.redirect(old) == error_replies.Redirect(True, 3999, "10.0.0.2", 6381)
    assert error_replies.redirect(Exception("ASK 1 ::1:6381")) == error_replies.Redirect(False, 1, "::1", 6381)
    new = type("AskError", (Exception,), {})("12 node-2.example:7000")
    assert error_replies.redirect(new) == error_replies.Redirect(False, 12, "node-2.example", 7000)
    for text in ("3999 10.0.0.2:6381", "MOVED 99999 h:1", "MOVED 1 h:99999", "MOVED", "the slot MOVED 1 h:1"):
        assert error_replies.redirect(Exception(text)) is None


def test_who_has_no_patience_finds_the_successor_of_a_master_that_says_it_is_down(nodes, cluster, time):
    first, second = nodes
    link = cluster().link(5)
    assert link.execute("GET", "there") is None
    for node in nodes:
        node.serves((0, 16_383, HERE, second.port))
    first.refuse("GET", "CLUSTERDOWN The cluster is down", times=100)
    time[0] += room.LOOK
    with pytest.raises(StoreRefused):
        link.execute("GET", "there")
    assert link.execute("GET", "there") is None


def test_whose_breaker_it_is_is_known_without_a_question(nodes, cluster):
    there = cluster()
    assert there.link(5).met is there.link(7).met is there.shared
    assert looks(*nodes) == 0
    assert there.link(5).server.address == (HERE, nodes[0].port)
    assert there.link(5).met is there.link(7).met is there.link(5).server


def test_who_has_waited_for_a_look_that_took_long_does_not_look_again(nodes, cluster, time, monkeypatch):
    there = cluster()
    asked = []

    def nobody_tells(away):
        asked.append(away)
        time[0] += 3 * room.LOOK

    monkeypatch.setattr(there, "_ask", nobody_tells)
    there.look()
    there.look()
    assert len(asked) == 1


def test_a_hurried_look_takes_no_longer_than_a_hurried_call(nodes, cluster, monkeypatch):
    there = cluster()
    given = []
    make = there._make
    monkeypatch.setattr(there, "_make", lambda host, port, seconds: given.append(seconds) or make(host, port, seconds))
    there.hurry(clock.monotonic())
    there.look()
    assert given == [HURRIED]


def test_a_process_that_was_forked_has_locks_of_its_own(nodes, cluster, monkeypatch):
    there = cluster()
    with there._locks.making, there._locks.looking:
        monkeypatch.setattr(os, "getpid", lambda: -1)
        assert there.link(5).execute("GET", "there") is None
