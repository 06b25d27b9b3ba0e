"""`REPLICAS`: what redis durability answers is on replicas, and survives a failover to them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from redis.exceptions import ConnectionError
from redis.typing import EncodableT

import django_delayq as delayq
from django_delayq import clock
from django_delayq.exceptions import StoreUnavailable
from django_delayq.ids import short
from django_delayq.models import Job
from django_delayq.producer import acts
from django_delayq.producer.breaker import CircuitOpen
from django_delayq.producer.changes import ChangeTarget
from django_delayq.producer.stores import TIMEOUT, stores
from django_delayq.store.connection.cluster import slot_of
from django_delayq.store.connection.link import Link, Wire
from django_delayq.store.scripts import replicas
from django_delayq.store.scripts.queue import QueueStore
from django_delayq.store.scripts.record import ClaimedJob
from django_delayq.store.scripts.replicas import COOLDOWN, Replicas, ReplicasLack
from tests.links import opened
from tests.servers import RedisServer, as_package
from tests.stage import eventually
from tests.tasks_for_tests import close_order
from tests.topologies import ClusterServers, Trio

CLUSTER = "abcdefgh"  # queues, of which some are on each master
LACKING = r"on 0 of 1 replicas"
QUEUES = {
    "sure": {"DURABILITY": "redis", "REPLICAS": 1},
    "plain": {"DURABILITY": "redis"},
    "orders": {},
    **{queue: {"DURABILITY": "redis", "REPLICAS": 1} for queue in CLUSTER},
}

pytestmark = [pytest.mark.slow, pytest.mark.django_db(transaction=True)]


class Pair:
    """A master and its replica."""

    def __init__(self) -> None:
        options = {"repl_diskless_sync_delay": "0"}
        self.master, self.replica = (RedisServer(port=True, **options) for _ in range(2))

    def follow(self) -> None:
        assert self.replica.call("REPLICAOF", "127.0.0.1", str(self.master.port)).startswith("+OK")
        eventually(self._equal, "the replica does not follow")

    def _equal(self) -> bool:
        told = dict(
            line.partition(":")[::2] for line in self.master.call("INFO", "replication", whole=True).splitlines() if ":" in line
        )
        return f"state=online,offset={told.get('master_repl_offset', '?')}," in told.get("slave0", "")

    def waits(self) -> int:
        """How often the master was asked to wait."""
        told = self.master.call("INFO", "commandstats", whole=True).partition("cmdstat_wait:calls=")[2]
        return int(told.partition(",")[0] or 0)


@pytest.fixture(scope="module")
def own_pair() -> Iterator[Pair]:
    pair = Pair()
    with pair.master, pair.replica:
        pair.follow()
        yield pair


@pytest.fixture
def pair(own_pair, settings) -> Iterator[Pair]:
    """It is empty, and its replica follows."""
    own_pair.master.call("FLUSHALL")
    own_pair.master.call("CONFIG", "RESETSTAT")
    with project(settings, as_package(own_pair.master.url)):
        yield own_pair
    own_pair.replica.resume()
    own_pair.follow()


@contextmanager
def project(settings, url: str) -> Iterator[None]:
    settings.DELAYQ = {**settings.DELAYQ, "REDIS": url, "QUEUES": QUEUES, "DURABILITY": "outbox"}
    stores.reset()
    for queue in ("sure", *CLUSTER):  # as outside of tests, in which links have more patience
        stores._replicas[queue] = Replicas(1, TIMEOUT)
    yield
    stores.reset()


@pytest.fixture
def written(monkeypatch) -> list[list[EncodableT]]:
    """The names of the commands of each write to a server."""
    found: list[list[EncodableT]] = []
    real = Link._send

    def watched(link: Link, commands: list[tuple[EncodableT, ...]]) -> Wire:
        found.append([command[0] if isinstance(command[0], str) else "script" for command in commands])
        return real(link, commands)

    monkeypatch.setattr(Link, "_send", watched)
    return found


def has(server: RedisServer, job: delayq.Job, queue: str = "sure") -> bool:
    link = opened(server.url)
    try:  # a replica of a Cluster wants to be told that it will be read from
        return link.execute_many([("READONLY",), ("HEXISTS", f"delayq:{{{queue}}}:jobs", short(job.id))])[1] == 1
    finally:
        link.close()


def lose_next_answer(monkeypatch) -> None:
    """Drops the next reply, other than those for opening a connection, together with its connection."""
    real = Link._receive

    def lost(link: Link, wire: Wire, count: int) -> list[object]:
        monkeypatch.setattr(Link, "_receive", real)
        real(link, wire, count)
        raise link._broken(wire, ConnectionError("a test has lost it"))

    monkeypatch.setattr(Link, "_receive", lost)


# An acknowledged change is on the replica


def test_what_was_answered_is_on_the_replica(pair):
    job = delayq.schedule(close_order, 1, delay="1h", queue="sure")
    assert job.created
    assert has(pair.replica, job)
    many = delayq.schedule_many(close_order.using(delay="1h", queue="sure").bind(n) for n in range(450))
    assert all(has(pair.replica, job) for job in many)
    assert delayq.reschedule(job, delay="3h") == "done"
    moved = pair.replica.call("ZSCORE", "delayq:{sure}:schedule:normal", short(job.id), whole=True)
    assert float(moved.split("\r\n")[1]) > clock.wall_ms() + 2 * 3_600_000
    assert delayq.cancel(job) == "done"
    assert not has(pair.replica, job)
    assert delayq.schedule(close_order, 1, key="k", delay="1h", queue="sure").created
    assert delayq.schedule(close_order, 1, key="k", delay="2h", queue="sure").created is False


def test_it_goes_in_the_same_write_and_nobody_else_waits(pair, written):
    delayq.schedule(close_order, 1, delay="1h", queue="sure")  # script and connection are there
    del written[:]
    job = delayq.schedule(close_order, 1, delay="1h", queue="sure")
    delayq.reschedule(job, delay="2h")
    delayq.cancel(job)
    assert [sent for sent in written if "script" in sent] == [["script", "WAIT"]] * 3
    jobs = [delayq.schedule(close_order, n, delay="1h", queue="sure") for n in range(3)]
    del written[:]
    assert list(acts.cancel_each(ChangeTarget(job.id, job.queue) for job in jobs)) == ["done"] * 3
    assert [sent for sent in written if "script" in sent] == [["script", "script", "script", "WAIT"]]
    del written[:]
    for queue in ("plain", "orders"):
        job = delayq.schedule(close_order, 1, delay="1h", queue=queue)
        delayq.reschedule(job, delay="2h")
        delayq.cancel(job)
    durable = delayq.schedule(close_order, 1, delay="1h", queue="sure", durability="outbox")
    delayq.cancel(durable)
    assert written
    assert not any("WAIT" in sent for sent in written)


# A frozen replica


def test_what_the_replica_lacks_is_raised_with_the_job_which_is_there_once(pair):
    pair.replica.pause()
    with pytest.raises(ReplicasLack, match=LACKING) as error:
        delayq.schedule(close_order, 1, delay="1h", queue="sure")
    assert error.value.job is not None
    assert short(error.value.job) in str(error.value)
    assert error.value.jobs == (error.value.job,)
    assert pair.waits() > 2, "the same was sent again"
    assert pair.master.call("HLEN", "delayq:{sure}:jobs") == ":1"
    found = delayq.get(error.value.job, queue="sure")
    assert found is not None
    pair.replica.resume()
    assert delayq.cancel(found) == "done"


def test_what_was_taken_and_is_refused_when_it_is_sent_again_is_not_said_to_be_refused(pair, monkeypatch):
    real, sent = Link._send, []
    delayq.schedule(close_order, 0, delay="1h", queue="sure")  # the server has the script from now on

    def watched(link: Link, commands: list[tuple[EncodableT, ...]]) -> Wire:
        if any(command[0] == "WAIT" for command in commands):
            sent.append(link)
            if len(sent) == 2:
                pair.master.call("CONFIG", "SET", "min-replicas-to-write", "9")
        return real(link, commands)

    monkeypatch.setattr(Link, "_send", watched)
    pair.replica.pause()
    try:
        with pytest.raises(ReplicasLack, match=LACKING) as error:
            delayq.schedule(close_order, 1, delay="1h", queue="sure")
    finally:
        pair.master.call("CONFIG", "SET", "min-replicas-to-write", "0")
        pair.replica.resume()
    assert len(sent) > 2, "it was tried again"
    assert pair.master.call("HLEN", "delayq:{sure}:jobs") == ":2"
    assert delayq.get(error.value.job, queue="sure") is not None


def test_a_master_that_becomes_a_replica_while_it_waits_has_not_refused_what_it_has_taken(pair, monkeypatch):
    delayq.schedule(close_order, 0, delay="1h", queue="sure")  # the server has the script from now on
    monkeypatch.setattr(replicas, "WAIT_MS", 5000)
    pair.replica.pause()

    def demote() -> None:
        eventually(lambda: "blocked_clients:0" not in pair.master.call("INFO", "clients", whole=True), "nobody waits")
        pair.master.call("REPLICAOF", "127.0.0.1", "1")

    thread = threading.Thread(target=demote)
    thread.start()
    try:
        with pytest.raises(ReplicasLack, match=LACKING) as error:
            delayq.schedule(close_order, 1, delay="1h", queue="sure")
    finally:
        thread.join()
        pair.master.call("REPLICAOF", "NO", "ONE")
        pair.replica.resume()
        pair.follow()
    assert error.value.job is not None
    assert pair.master.call("HLEN", "delayq:{sure}:jobs") == ":2"


@pytest.mark.parametrize("change", [delayq.cancel, delayq.run_now, lambda job: delayq.reschedule(job, delay="2h")])
def test_a_change_that_the_replica_lacks_is_raised_each_time_it_is_asked_for(pair, change: Callable[[delayq.Job], str]):
    """On newer servers, WAIT counts only the writes of its connection, and a repeated call finds the change done."""
    job = delayq.schedule(close_order, 1, delay="1h", queue="sure")
    pair.replica.pause()
    for _ in range(2):
        with pytest.raises(ReplicasLack, match=LACKING) as error:
            change(job)
        assert error.value.job == job.id
    pair.replica.resume()
    assert change(job) == "done"


def test_a_batch_that_the_replica_lacks_names_all_of_it(pair):
    pair.replica.pause()
    with pytest.raises(ReplicasLack, match=f"20 jobs are in Redis and {LACKING}") as error:
        delayq.schedule_many(close_order.using(delay="1h", queue="sure").bind(n) for n in range(20))
    assert len(error.value.jobs) == 20


def test_who_comes_next_does_not_wait_as_long_and_leaves_nothing(pair, monkeypatch):
    pair.replica.pause()
    with pytest.raises(ReplicasLack):
        delayq.schedule(close_order, 1, delay="1h", queue="sure")
    with pytest.raises(CircuitOpen, match="next attempt") as error:
        delayq.schedule(close_order, 2, delay="1h", queue="sure")
    assert len(error.value.jobs) == 1
    assert pair.master.call("HLEN", "delayq:{sure}:jobs") == ":1"
    # The server answered, so its other queues stay available.
    assert delayq.schedule(close_order, 3, delay="1h", queue="plain").created
    assert delayq.schedule(close_order, 3, delay="1h", queue="orders").created
    pair.replica.resume()
    later = clock.monotonic() + COOLDOWN
    monkeypatch.setattr(clock, "monotonic", lambda: later)
    assert delayq.schedule(close_order, 2, delay="1h", queue="sure").created


def test_a_replica_that_comes_back_in_time_is_waited_for(pair):
    pair.replica.pause()

    def come_back() -> None:
        eventually(lambda: pair.waits() >= 2, "nobody asks again")
        pair.replica.resume()

    thread = threading.Thread(target=come_back)
    thread.start()
    job = delayq.schedule(close_order, 1, delay="1h", queue="sure")
    thread.join()
    assert job.created
    assert has(pair.replica, job)
    assert pair.master.call("HLEN", "delayq:{sure}:jobs") == ":1"
    assert pair.master.call("XLEN", "delayq:{sure}:events") == ":1"


def test_a_job_that_begins_before_the_replica_has_its_new_date_was_moved(pair):
    job = delayq.schedule(close_order, 1, delay="1h", queue="sure")
    pair.replica.pause()
    band, claimed = "delayq:{sure}:schedule:normal", list[ClaimedJob]()

    def begin() -> None:
        eventually(lambda: pair.master.call("ZCOUNT", band, "-inf", str(clock.wall_ms())) == ":1", "nobody moves it")
        link = opened(pair.master.url)
        store = QueueStore(link, prefix="delayq", queue="sure")
        claimed.extend(store.claim("host:1:w", "p1", want=1, lease_ms=30_000, max_crashes=3).jobs)
        link.close()
        pair.replica.resume()

    thread = threading.Thread(target=begin)
    thread.start()
    answer = delayq.run_now(job)
    thread.join()
    assert [one.id for one in claimed] == [job.short_id]
    assert answer == "done"
    assert delayq.run_now(job) == "running", "what comes behind that moves nothing"


# A lost answer


def test_a_lost_answer_is_asked_for_once_more(pair, monkeypatch):
    delayq.schedule(close_order, 0, delay="1h", queue="sure")
    lose_next_answer(monkeypatch)
    job = delayq.schedule(close_order, 1, delay="1h", queue="sure")
    assert job.created
    assert pair.master.call("HLEN", "delayq:{sure}:jobs") == ":2"


def test_what_answers_behind_a_lost_answer_is_not_believed_before_the_replica_has_it(pair, monkeypatch):
    delayq.schedule(close_order, 0, delay="1h", queue="sure")
    pair.replica.pause()
    lose_next_answer(monkeypatch)
    with pytest.raises(ReplicasLack, match=LACKING) as error:
        delayq.schedule(close_order, 1, delay="1h", queue="sure")
    assert error.value.job is not None
    assert pair.master.call("HLEN", "delayq:{sure}:jobs") == ":2"


def test_behind_a_commit_it_is_logged_and_the_commit_stands(pair, caplog):
    from django.db import transaction

    pair.replica.pause()
    with transaction.atomic():
        job = delayq.schedule(close_order, 1, delay="1h", queue="sure")
        row = delayq.schedule(close_order, 1, delay="1h", queue="orders")
    assert (job.created, row.created) == (None, True)
    assert Job.objects.filter(pk=row.id).exists()
    assert "on 0 of 1 replicas" in caplog.text
    assert short(job.id) in caplog.text


# Failover


def acknowledged(queue: str, most: int = 200) -> list[delayq.Job]:
    """Jobs that were answered for, until one is not; at most so many."""
    found: list[delayq.Job] = []
    while len(found) < most:
        try:
            found.append(delayq.schedule(close_order, len(found), delay="1h", queue=queue))
        except StoreUnavailable:
            break
    return found


@pytest.mark.parametrize("queue", ["sure", "plain"])
def test_what_was_answered_survives_a_failover_to_a_replica_that_had_stood_still(pair, queue):
    """Without `REPLICAS` it does not: that is what it is for."""
    before = [delayq.schedule(close_order, n, delay="1h", queue=queue) for n in range(20)]
    eventually(lambda: all(has(pair.replica, job, queue) for job in before), "the replica does not keep up")
    pair.replica.pause()
    pair.master.call("CLIENT", "KILL", "TYPE", "replica")  # else it finds in its socket what came while it stood still
    jobs = acknowledged(queue)
    pair.master.kill()
    pair.replica.resume()
    assert pair.replica.call("REPLICAOF", "NO", "ONE") == "+OK"
    try:
        assert all(has(pair.replica, job, queue) for job in before)
        assert [has(pair.replica, job, queue) for job in jobs] == ([] if queue == "sure" else [False] * 200)
    finally:
        pair.master.start()


@pytest.fixture
def trio(settings) -> Iterator[Trio]:
    with Trio() as trio, project(settings, trio.url):
        yield trio


def test_by_sentinel_all_that_was_answered_is_there_and_the_new_master_has_no_replica(trio):
    jobs = acknowledged("sure")
    trio.master.kill()
    assert len(jobs) == 200
    trio.wait_promoted(trio.replica)  # a failover closes all connections to it
    assert all(has(trio.replica, job) for job in jobs)
    with pytest.raises(ReplicasLack, match=LACKING):
        delayq.schedule(close_order, 1, delay="1h", queue="sure")


# Redis Cluster


@pytest.fixture
def cluster(settings) -> Iterator[ClusterServers]:
    with ClusterServers(replicas=True, cluster_require_full_coverage="no") as cluster, project(settings, cluster.url):
        yield cluster


def of(cluster: ClusterServers, queue: str) -> tuple[RedisServer, RedisServer]:
    """The master of that queue, and its replica."""
    number = cluster.masters.index(cluster.serving(slot_of(f"{{{queue}}}")))
    return cluster.masters[number], cluster.replicas[number]


def test_of_a_cluster_the_replicas_of_the_queues_own_master_are_waited_for(cluster):
    one = CLUSTER[0]
    other = next(name for name in CLUSTER if of(cluster, name) != of(cluster, one))
    beside = of(cluster, other)[1]
    job = delayq.schedule(close_order, 1, delay="1h", queue=one)
    master, replica = of(cluster, one)
    assert has(replica, job, one)
    replica.pause()
    with pytest.raises(ReplicasLack, match=LACKING):
        delayq.schedule(close_order, 2, delay="1h", queue=one)
    with pytest.raises(ReplicasLack, match=LACKING):
        delayq.cancel(job)
    assert has(beside, delayq.schedule(close_order, 3, delay="1h", queue=other), other)
    replica.resume()
    assert delayq.cancel(job) == "done"
    jobs = acknowledged(one)
    assert len(jobs) == 200
    master.kill()
    eventually(lambda: "role:master" in replica.call("INFO", "replication", whole=True), "the replica is not elected")
    assert all(has(replica, job, one) for job in jobs)
