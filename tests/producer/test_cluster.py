"""Web processes whose queues are on a Redis Cluster, of which a master hangs or is gone, or a slot is open."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from django.db import transaction

import django_delayq as delayq
from django_delayq import conf, ids, setting_readers
from django_delayq.console import overview, samples, vitals
from django_delayq.exceptions import ConfigError, StoreUnavailable
from django_delayq.locks.lease_keeper import keeper
from django_delayq.management.queue_findings import _left_behind
from django_delayq.models import Job
from django_delayq.producer.stores import stores
from django_delayq.store.cluster_map import Node
from django_delayq.store.cluster_slots import slot_of
from django_delayq.store.keys import tag
from tests.tasks_for_tests import close_order
from tests.topologies import ClusterNode, ClusterServers

QUEUES = ("orders", "redis", "b", "c", "d")

pytestmark = [pytest.mark.django_db(transaction=True)]


@pytest.fixture(scope="module")
def own_cluster() -> Iterator[ClusterServers]:
    """Of three masters, of which one may be away."""
    with ClusterServers(cluster_require_full_coverage="no", cluster_node_timeout="60000") as running:
        yield running


@pytest.fixture
def cluster(own_cluster, settings) -> Iterator[ClusterServers]:
    """The same, empty."""
    for node in own_cluster.masters:
        assert node.call("FLUSHALL") == "+OK"
    queues = {**{queue: {} for queue in QUEUES}, "redis": {"DURABILITY": "redis"}}
    settings.DELAYQ = {**settings.DELAYQ, "REDIS": own_cluster.url, "QUEUES": queues, "DURABILITY": "outbox"}
    stores.reset()
    yield own_cluster
    stores.reset()
    for node in own_cluster.masters:
        node.resume()
        node.wait_ready()


@pytest.fixture
def sent(monkeypatch) -> list[int]:
    """The ports that something was sent to."""
    found: list[int] = []
    real = Node._send

    def watched(node, commands):
        found.append(node.address[1])
        return real(node, commands)

    monkeypatch.setattr(Node, "_send", watched)
    return found


def slot(queue: str) -> int:
    return slot_of(f"{{{queue}}}")


def masters(cluster: ClusterServers) -> dict[str, ClusterNode]:
    return {queue: cluster.serving(slot(queue)) for queue in QUEUES}


def beside(cluster: ClusterServers, queue: str) -> str:
    """A queue on another master."""
    of = masters(cluster)
    return next(other for other in QUEUES if of[other] is not of[queue] and other != "redis")


def test_one_call_puts_jobs_in_wherever_their_queues_are(cluster):
    assert len({node.port for node in masters(cluster).values()}) == 3
    jobs = delayq.schedule_many(close_order.using(delay="1h", queue=queue).bind(n) for n in range(10) for queue in QUEUES)
    assert all(job.created for job in jobs)
    assert [delayq.get(job.id).queue for job in jobs[: len(QUEUES)]] == list(QUEUES)
    assert [delayq.cancel(job) for job in jobs[: len(QUEUES)]] == ["done"] * len(QUEUES)
    assert delayq.cancel(jobs[7].id) == "done"
    seen = overview.look()
    assert sum(queue.depth.scheduled for queue in seen.queues) == 50 - 6
    assert (seen.missing, seen.error) == ({}, None)


def test_a_lock_has_a_slot_whether_or_not_it_names_a_queue(cluster):
    with delayq.lock("a") as one, delayq.lock("a", queue="b") as other:
        keeper().poll()
        assert one.held
        assert other.held


def test_a_master_that_hangs_has_a_breaker_of_its_own(cluster, sent):
    hung, well = "orders", beside(cluster, "orders")
    for queue in (hung, well):  # what asks for grounds
        delayq.schedule(close_order, 0, queue=queue)
    kept = delayq.schedule(close_order, 1, queue=hung, delay="1h")
    node = masters(cluster)[hung]
    node.pause()
    with transaction.atomic():
        away = [delayq.schedule(close_order, n, queue=hung) for n in range(3)]
        there = [delayq.schedule(close_order, n, queue=well) for n in range(3)]
    assert [job.created for job in there] == [True] * 3
    assert [job.created for job in away] == [None] * 3
    assert Job.objects.filter(published=None, pk__in=[job.id for job in away]).count() == 3
    del sent[:]
    assert delayq.schedule(close_order, 9, queue=hung).created is None
    assert sent == [], "it is left alone"
    assert delayq.schedule(close_order, 9, queue=well).created
    with pytest.raises(StoreUnavailable):
        delayq.cancel(kept)
    assert node.port in sent, "who asks by name is not turned away"
    node.resume()
    node.wait_ready()
    assert delayq.cancel(kept) == "done"
    assert delayq.schedule(close_order, 10, queue=hung).created


def test_while_a_slot_is_open_its_jobs_wait_as_rows_and_people_see_all(cluster):
    delayq.schedule(close_order, 0, queue="orders", delay="1h")
    source, to = (masters(cluster)[queue] for queue in ("orders", beside(cluster, "orders")))
    cluster.open(slot("orders"), to)
    cluster.carry(slot("orders"), to, 2)
    waits = delayq.schedule(close_order, 1, queue="orders", delay="1h")
    assert waits.created is None
    assert delayq.schedule(close_order, 1, queue=beside(cluster, "orders")).created
    assert sum(queue.depth.scheduled for queue in overview.look().queues if queue.name == "orders") == 1
    cluster.carry(slot("orders"), to)
    cluster.settle(slot("orders"), to)
    assert delayq.schedule(close_order, 2, queue="orders", delay="1h").created
    cluster.move(slot("orders"), source)


def test_people_see_what_is_there_and_what_is_missing(cluster):
    for queue in QUEUES:
        delayq.schedule(close_order, 1, delay="1h", queue=queue)
    gone = masters(cluster)["orders"]
    missing = {queue for queue, node in masters(cluster).items() if node is gone}
    gone.pause()
    seen = overview.look()
    assert set(seen.missing) == missing
    assert {queue.name for queue in seen.queues} == set(QUEUES) - missing
    assert vitals.of_redis(seen)[0].level == "bad"
    told = {(name, labels.get("queue", "")): value for name, labels, value in samples.of_redis()}
    assert told["delayq_up", ""] == 0
    assert {queue for name, queue in told if name == "delayq_jobs_due"} == set(QUEUES) - missing


def test_a_queue_whose_partitions_are_on_several_masters_is_read_as_a_whole(cluster, settings, monkeypatch, sent):
    monkeypatch.setattr(setting_readers, "MOST_PARTITIONS", 512)
    settings.DELAYQ = {**settings.DELAYQ, "QUEUES": {"orders": {"PARTITIONS": 6}, "redis": {"DURABILITY": "redis"}}}
    for n in range(40):
        delayq.schedule(close_order, n, delay="1h", queue="orders", key=str(n))
    assert len(stores.servers()) == 3
    of = {partition: cluster.serving(slot_of(f"{{{tag('orders', partition)}}}")) for partition in range(6)}
    del sent[:]
    [orders, _] = overview.look().queues
    assert orders.depth.scheduled == 40
    assert set(sent) == {node.port for node in cluster.masters}
    gone = next(node for node in of.values() if node is not masters(cluster)["redis"])
    gone.pause()
    seen = overview.look()
    assert list(seen.missing) == ["orders"]
    assert [queue.name for queue in seen.queues] == ["redis"]
    jobs = [delayq.schedule(close_order, n, delay="1h", queue="orders", key=f"new{n}") for n in range(40)]
    assert {job.created for job in jobs if of[ids.partition(job.id)] is not gone} == {True}
    assert {job.created for job in jobs if of[ids.partition(job.id)] is gone} == {None}


def test_all_is_well_of_a_whole_cluster(cluster):
    stores.reset()
    assert len(stores.servers()) == 3
    assert vitals.of_redis(overview.look())[0].level == "well"
    assert {labels["part"]: value for name, labels, value in samples.of_redis() if name == "delayq_up"} == {"redis": 1}


def test_a_queue_with_a_cluster_of_its_own_leaves_the_shared_server_what_it_was(cluster, settings, redis_server):
    queues = {"orders": {}, "spread": {"REDIS": cluster.url}}
    settings.DELAYQ = {**settings.DELAYQ, "REDIS": redis_server.url, "QUEUES": queues}
    jobs = [delayq.schedule(close_order, 1, delay="1h", queue=queue) for queue in queues]
    assert all(job.created for job in jobs)
    assert redis_server.link.execute("HLEN", "delayq:{orders}:jobs") == 1
    assert cluster.serving(slot("spread")).call("HLEN", "delayq:{spread}:jobs") == ":1"
    assert [type(stores.places.of(queue, 0)).__name__ for queue in queues] == ["Link", "SlotLink"]


def test_the_test_kit_does_not_go_to_a_cluster(cluster, settings):
    with pytest.raises(ConfigError, match="one server"):
        from django_delayq.testing.kit import Kit

        Kit()._link(conf.get())


def test_doctor_takes_no_queue_of_a_cluster_for_one_that_was_left_behind(cluster):
    for queue in QUEUES:
        delayq.schedule(close_order, 1, delay="1h", queue=queue)
    assert [_left_behind(queue) for queue in QUEUES] == [[]] * len(QUEUES)


def test_a_lock_is_guarded_by_the_breaker_of_its_own_node(cluster):
    with delayq.lock("stock") as lock:
        assert lock._holding.node == lock.queue
        assert stores.places.of(lock.queue, 0) is lock._holding.store.link
