"""The distribution of partitions over the masters of a Cluster, and their size."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from django_delayq import checks
from django_delayq.management.queue_findings import redis_findings
from django_delayq.producer.stores import stores
from django_delayq.store.connection.cluster import slot_of
from django_delayq.store.keys import tag
from django_delayq.store.reads import topology
from django_delayq.store.reads.topology import BY_KEY, moves_as_a_whole
from tests.conftest import missing
from tests.topologies import ClusterServers, valkey_program

Told = Callable[..., dict[str, str]]
TOO_MANY = BY_KEY + 1


@pytest.fixture
def redis7() -> Iterator[ClusterServers]:
    with ClusterServers(cluster_require_full_coverage="no", appendonly="yes") as cluster:
        yield cluster


@pytest.fixture
def told(settings) -> Told:
    """The findings of `check --deploy` about partitions with these options of the queue orders; doctor has the same."""

    def say(cluster: ClusterServers, **options: object) -> dict[str, str]:
        settings.DELAYQ = {**settings.DELAYQ, "REDIS": cluster.root_url, "QUEUES": {"orders": options, "mail": {}}}
        said = {str(one.id): f"{one.msg} {one.hint}" for one in checks.check_server()}
        codes = {f"delayq.{one.code}" for one in redis_findings()}
        ours = {"delayq.W027", "delayq.W028"}
        assert codes & ours == set(said) & ours
        return {code: text for code, text in said.items() if code in ours}

    return say


def hold(partition: int, jobs: int) -> None:
    """That many fields instead of records, which are never read."""
    store = stores.queue("orders", partition)
    for first in range(0, jobs, 10_000):
        pairs = [text for number in range(first, min(jobs, first + 10_000)) for text in (number, "")]
        store.link.execute("HSET", store.keys["jobs"], *pairs)


@pytest.mark.django_db
def test_w027_a_master_with_more_than_twice_its_share(redis7, told):
    slots = [slot_of(f"{{{tag('orders', partition)}}}") for partition in range(16)]
    first = redis7.masters[0]
    there = [slot for slot in slots if redis7.serving(slot) is first]
    others = [slot for slot in slots if slot not in there]
    for slot in others[: 10 - len(there)]:
        redis7.move(slot, first)
    assert told(redis7, PARTITIONS=16) == {}, "10 of 16 are less than twice a third"
    redis7.move(others[10 - len(there)], first)
    said = told(redis7, PARTITIONS=16)["delayq.W027"]
    assert f"11 of the 16 partitions of 'orders' are on one of 3 masters, 127.0.0.1:{first.port}" in said
    assert set(map(str, slots[:1] + there)) <= set(said.rpartition("masters: ")[2].rstrip(". ").split(", "))
    assert told(redis7, PARTITIONS=1) == {}
    assert told(redis7, PARTITIONS=1, FORMER_PARTITIONS=[16]) == {}, "those get no new jobs"


@pytest.mark.django_db
def test_w028_a_partition_that_cannot_be_moved_key_by_key(redis7, told, monkeypatch):
    monkeypatch.setattr(topology, "WHOLE", {"valkey": (99,), "redis": (99,)})  # whatever server the others run on
    assert told(redis7, PARTITIONS=4) == {}
    hold(0, BY_KEY)
    hold(2, BY_KEY)
    assert told(redis7, PARTITIONS=4) == {}
    hold(2, TOO_MANY)
    said = told(redis7, PARTITIONS=4)["delayq.W028"]
    assert f"Partitions of 'orders' are too large to move: orders/2 has {TOO_MANY:,}, and" in said
    assert f"their masters can move {BY_KEY:,} jobs without delays." in said
    hold(0, TOO_MANY)
    assert told(redis7, PARTITIONS=1) == {}
    assert "orders has" in told(redis7, PARTITIONS=1, FORMER_PARTITIONS=[4])["delayq.W028"]
    redis7.serving(slot_of("{orders}")).terminate()
    said = told(redis7, PARTITIONS=4)["delayq.W028"]
    assert "orders/2 has" in said
    assert "orders has" not in said, "nobody can know"


@pytest.mark.django_db
def test_w028_where_slots_move_in_the_background(told, monkeypatch):
    if not (program := valkey_program()):
        missing("Valkey 9 is not installed")
    with ClusterServers(program=program, appendonly="yes") as cluster:
        assert told(cluster, PARTITIONS=4) == {}
        hold(1, TOO_MANY)
        assert told(cluster, PARTITIONS=4) == {}
        monkeypatch.setattr(topology, "AS_A_WHOLE", BY_KEY)
        assert "orders/1" in told(cluster, PARTITIONS=4)["delayq.W028"]


@pytest.mark.parametrize(
    ("told", "whole"),
    [
        (b"redis_version:8.4.0\r\n", True),
        (b"redis_version:8.3.9\r\n", False),
        (b"redis_version:10.0.0\r\n", True),
        (b"server_name:valkey\r\nvalkey_version:9.0.0\r\nredis_version:7.2.4\r\n", True),
        (b"redis_version:7.2.4\r\nvalkey_version:8.1.3\r\n", False),
        (b"", False),
        (ValueError(), False),
    ],
)
def test_which_servers_move_slots_as_a_whole(told, whole):
    assert moves_as_a_whole(told) is whole
