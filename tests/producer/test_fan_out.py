"""One call about many partitions, or queues, of which some are refused: as while a slot is half-way, or a master has no successor."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import django_delayq as delayq
from django_delayq import ids
from django_delayq.producer import lookup
from django_delayq.producer.stores import stores
from django_delayq.states import Change
from django_delayq.store.connection.cluster import slot_of
from django_delayq.store.connection.error_replies import StoreRefused
from django_delayq.store.keys import tag
from django_delayq.store.reads.inspector import Inspector
from django_delayq.store.scripts.queue import QueueStore
from tests.tasks_for_tests import close_order
from tests.topologies import ClusterNode, ClusterServers

pytestmark = pytest.mark.django_db(transaction=True)

PARTS = 12
QUEUES = ("orders", "b", "c", "d", "e", "f")  # on three masters two of them are on one


@pytest.fixture(scope="module")
def own_cluster() -> Iterator[ClusterServers]:
    """A Cluster of three masters."""
    with ClusterServers() as running:
        yield running


@pytest.fixture
def cluster(own_cluster, settings) -> Iterator[ClusterServers]:
    """The same, empty."""
    for node in own_cluster.masters:
        assert node.call("FLUSHALL") == "+OK"
    queues = {**{queue: {} for queue in QUEUES}, "orders": {"PARTITIONS": PARTS}}
    settings.DELAYQ = {**settings.DELAYQ, "REDIS": own_cluster.url, "QUEUES": queues, "DURABILITY": "outbox"}
    stores.reset()
    yield own_cluster
    stores.reset()


@pytest.fixture
def refuse(monkeypatch) -> Callable[..., list[Any]]:
    """That method fails if `of` returns true for its arguments. Returns the calls, as named by `of`."""

    def begin(owner: type, name: str, some: Callable[[Any], bool], of: Callable[..., Any]) -> list[Any]:
        asked: list[Any] = []
        real = getattr(owner, name)

        def act(*args: Any, **kwargs: Any) -> Any:
            asked.append(of(*args))
            if some(asked[-1]):
                raise StoreRefused(code="redis_slot", where="there", cause="TRYAGAIN")
            return real(*args, **kwargs)

        monkeypatch.setattr(owner, name, act)
        return asked

    return begin


def partition(store: QueueStore, *_: Any) -> int:
    return store.partition


def slot(part: int) -> int:
    return slot_of(f"{{{tag('orders', part)}}}")


def per_master(cluster: ClusterServers, asked: list[int]) -> dict[ClusterNode, int]:
    return Counter(cluster.serving(slot(part)) for part in asked)


def test_a_partition_whose_slot_is_open_keeps_no_other_one_of_its_master_from_being_paused(cluster):
    source = cluster.serving(slot(0))
    to = next(node for node in cluster.masters if node is not source)
    options = close_order.using(delay="1h", queue="orders")
    delayq.schedule_many(options.bind(n) for n in range(PARTS * 200))  # some of them are in the first
    cluster.open(slot(0), to)
    cluster.carry(slot(0), to, 2)
    assert delayq.pause("orders").unconfirmed == ("orders/0",)
    cluster.carry(slot(0), to)
    cluster.settle(slot(0), to)
    assert delayq.pause("orders")
    cluster.move(slot(0), source)


def test_a_cluster_that_refuses_all_is_waited_for_twice_per_master(cluster, refuse):
    asked = refuse(QueueStore, "pause", lambda _: True, of=partition)
    assert len(delayq.pause("orders").unconfirmed) == PARTS
    assert max(per_master(cluster, asked).values()) == 2


def test_of_many_jobs_two_wait_for_a_master_to_say_who_holds_their_keys_and_two_behind_the_commit(cluster, refuse, caplog):
    asked = refuse(QueueStore, "start_schedule", lambda _: True, of=partition)
    options = close_order.using(delay="1h", queue="orders")
    jobs = delayq.schedule_many(options.using(key=str(n)).bind(n) for n in range(60))
    assert {ids.partition(job.id) for job in jobs} == {*range(PARTS)}
    assert [job.created for job in jobs] == [None] * 60
    assert caplog.text.count("The relay will publish them") == 3
    assert max(per_master(cluster, asked).values()) == 2 + 2


def test_a_job_is_looked_for_in_the_other_queues_of_a_master_that_refuses_one(cluster, refuse):
    of = {queue: stores.places.of(queue, 0).server for queue in QUEUES}
    first, other = next((one, two) for n, one in enumerate(QUEUES) for two in QUEUES[n + 1 :] if of[one] is of[two])

    def ask(queue: str) -> Change:
        if queue == first:
            raise StoreRefused(code="redis_slot", where="there", cause="TRYAGAIN")
        return Change.DONE if queue == other else Change.UNKNOWN

    job = ids.new()
    assert lookup.everywhere(job, ask) is Change.DONE
    asked = refuse(Inspector, "job", lambda queue: queue == first, of=lambda _, queue, __: queue)
    with pytest.raises(StoreRefused):
        delayq.get(job)
    assert asked == [*QUEUES]
