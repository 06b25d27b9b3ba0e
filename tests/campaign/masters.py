"""Masters with a replica each, on which a campaign plays: a Cluster of three, or one that Sentinels watch over."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from django_delayq.store.connection.cluster import slot_of
from django_delayq.store.connection.places import place
from django_delayq.store.keys import Keys, tag
from tests.servers import RedisServer
from tests.stage import eventually, spawned
from tests.topologies import PROGRAMS, ClusterNode, ClusterServers, Trio
from tests.wires import Wires

BANDS = ("high", "normal", "low")
QUEUES = ("default", "orders", "redis")


@dataclass(frozen=True, slots=True)
class Pair:
    """The current masters and replicas, and by tag the partitions on them."""

    master: RedisServer
    replica: RedisServer
    parts: tuple[str, ...]


class Masters(ABC):
    """`parts`: all keys of partitions."""

    url: str
    servers: Any
    loses_by_hand = False  # whether a failover that a person asks for may lose the last writes
    wires: Wires | None = None  # between all of them and the processes, where the network may be split

    def __init__(self, partitions: int) -> None:
        self.keys = [Keys("delayq", queue, partition) for queue in QUEUES for partition in range(partitions)]

    def open(self) -> None:
        """Starts all of them."""
        spawned(self.servers.__enter__)

    def close(self) -> None:
        """Ends them."""
        self.servers.__exit__()

    @property
    @abstractmethod
    def all(self) -> Sequence[RedisServer]:
        """Every server but the Sentinels."""

    @abstractmethod
    def pairs(self) -> list[Pair]:
        """As they are now, if each has a replica that keeps up; else none."""

    @abstractmethod
    def by_hand(self, pair: Pair) -> None:
        """Asks for a failover."""

    def settled(self) -> list[Pair]:
        """The same, when all is well."""
        found: list[Pair] = []

        def well() -> bool:
            found[:] = self.pairs()
            return bool(found)

        eventually(well, "the servers do not come to rest")
        return found

    def due(self) -> int:
        """How many jobs are due and not running.

        Raises:
            StoreUnavailable, StoreError: somebody does not say.
        """
        found = 0
        there = place(self.url, name="campaign")
        try:
            for keys in self.keys:
                link = there.of(keys.queue, keys.partition)
                seconds, micros = link.execute("TIME")
                now = int(seconds) * 1000 + int(micros) // 1000
                found += sum(link.execute("ZCOUNT", keys[band], "-inf", now) for band in BANDS)
        finally:
            there.close()
        return found


class ClusterMasters(Masters):
    """Three, each with a replica; `engine`: redis7 or valkey9. `splits`: its network may be split."""

    def __init__(self, engine: str, partitions: int, fsync: str, *, splits: bool) -> None:
        super().__init__(partitions)
        options = {"appendonly": "yes", "appendfsync": fsync}
        # A replica stays with its master: a master that has none would be lost with the next fault.
        options |= {"cluster_require_full_coverage": "no", "cluster_allow_replica_migration": "no"}
        self.atomic = engine == "valkey9"
        self.wires = Wires() if splits else None
        self.servers = ClusterServers(replicas=True, program=PROGRAMS[engine](), wires=self.wires, **options)
        self.url = self.servers.root_url

    @property
    def all(self) -> Sequence[ClusterNode]:
        return self.servers.nodes

    def pairs(self) -> list[Pair]:
        leading = self.servers.leading
        found = [Pair(node, other, self._parts(node)) for node in leading if (other := self.servers.replica_of(node)) is not None]
        well = all("cluster_state:ok" in node.call("CLUSTER", "INFO", whole=True) for node in self.all)
        agreed = len({node.epoch() for node in self.all}) == 1 and sum(len(pair.parts) for pair in found) == len(self.keys)
        return found if well and agreed and len(found) == len(self.all) // 2 else []

    def by_hand(self, pair: Pair) -> None:
        pair.replica.call("CLUSTER", "FAILOVER")

    def _parts(self, node: ClusterNode) -> tuple[str, ...]:
        tags = (tag(keys.queue, keys.partition) for keys in self.keys)
        return tuple(one for one in tags if node.tells(slot_of(f"{{{one}}}")) == "me")


class SentinelMasters(Masters):
    """One with its replica, and three Sentinels."""

    loses_by_hand = True

    def __init__(self, partitions: int, fsync: str) -> None:
        super().__init__(partitions)
        self.servers = Trio(appendfsync=fsync)

    def open(self) -> None:
        super().open()
        self.url = f"redis+sentinel://{self.servers.hosts}/{self.servers.name}/0"

    @property
    def all(self) -> Sequence[RedisServer]:
        return [self.servers.master, self.servers.replica]

    def pairs(self) -> list[Pair]:
        named = {sentinel.call("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self.servers.name) for sentinel in self.servers.sentinels}
        for master, replica in (self.all, self.all[::-1]):
            leads = "role:master" in master.call("INFO", "replication", whole=True)
            told = all(answer.endswith(b"\r\n%d" % master.port) for answer in named)
            if leads and told and "master_link_status:up" in replica.call("INFO", "replication", whole=True):
                return [Pair(master, replica, ())]  # of all partitions
        return []

    def by_hand(self, pair: Pair) -> None:
        self.servers.sentinels[0].call("SENTINEL", "FAILOVER", self.servers.name)


def made(*, cluster: str, splits: bool, sentinel: bool, partitions: int, fsync: str) -> Masters | None:
    """As the command line says it; None where it says neither."""
    if cluster:
        return ClusterMasters(cluster, partitions, fsync, splits=splits)
    return SentinelMasters(partitions, fsync) if sentinel else None
