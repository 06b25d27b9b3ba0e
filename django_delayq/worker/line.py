"""The lines that a worker serves, one per partition of each queue, and the links to their servers."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final

from django_delayq.conf import Config
from django_delayq.ladder import Ladder
from django_delayq.signing import Signer
from django_delayq.store.connection.places import Nodes, Places
from django_delayq.store.scripts.queue import QueueStore

ALL: Final[Mapping[str, Collection[int]]] = MappingProxyType({})  # the partitions of each queue


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Line:
    """One partition of one queue, with the settings that the worker needs. Durations are in seconds.

    `signer`: if set, only jobs that it verifies are run. `max_events`: how many jobs the mirror may lag behind, 0 for any number.
    `weight`: its share of the threads that become free, compared with the other lines.

    `store`: its jobs in Redis. Each process makes the store by `on`, with a separate link, when it starts to serve the line. Two
    lines are never equal, so a line can be the key of a dict.
    """

    queue: str
    partition: int
    lease: float
    lease_ms: int
    max_crashes: int
    max_result: int
    backoff: Ladder
    timeout: float | None
    max_events: int = 0
    signer: Signer | None = None
    weight: int = 1
    store: QueueStore = field(init=False, repr=False)

    def on(self, places: Places, prefix: str) -> Line:
        """A copy of the line with its store, on the server of its queue."""
        served = replace(self)
        store = QueueStore(places, prefix=prefix, queue=self.queue, partition=self.partition, signer=self.signer)
        object.__setattr__(served, "store", store)
        return served


def lines_of(config: Config, queues: Mapping[str, int], shares: Mapping[str, Collection[int]] = ALL) -> tuple[Line, ...]:
    """The lines of these queues, which are given with their weights. `shares`: the only partitions to serve, for some queues.

    Raises:
        QueueUnknown: the settings do not list the queue.
    """
    found = []
    for name, weight in queues.items():
        queue = config.queue(name)
        found += [
            Line(
                queue=name,
                partition=partition,
                lease=queue.lease,
                lease_ms=queue.lease_ms,
                max_crashes=queue.max_crashes,
                max_result=queue.max_payload,
                backoff=queue.backoff,
                timeout=queue.timeout,
                max_events=config.most_events_in(name),
                signer=config.signer,
                weight=weight,
            )
            for partition in shares.get(name, queue.served)
        ]
    return tuple(found)


def links_of(config: Config, name: str) -> Nodes:
    """The servers of the queues, for a process with that name."""
    return Nodes(config.redis, config.own_servers, name=name)
