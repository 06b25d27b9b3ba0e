"""What a worker serves: its lines, one per partition of each queue."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final

from django_delayq.conf import Config
from django_delayq.ladder import Ladder
from django_delayq.signing import Signer
from django_delayq.store.connection.places import Places
from django_delayq.store.scripts.queue import QueueStore

ALL: Final[Mapping[str, Collection[int]]] = MappingProxyType({})  # partitions, of each queue


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Line:
    """One partition of one queue, with the settings that matter to the worker. Durations in seconds; with a `signer`
    only what it verifies is run. `max_events`: by how many jobs the mirror may be behind, 0 for any number. `weight`: its share of the
    threads that become free, beside those of the other lines.

    `store`: its jobs in Redis. A line has one once it is served: each process makes its own by `on`, with a link of its own. Two lines
    are never equal, so that what is known of one may be kept under it.
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
        """The line as it is served where its queue is."""
        served = replace(self)
        store = QueueStore(places, prefix=prefix, queue=self.queue, partition=self.partition, signer=self.signer)
        object.__setattr__(served, "store", store)
        return served


def lines_of(config: Config, queues: Mapping[str, int], shares: Mapping[str, Collection[int]] = ALL) -> tuple[Line, ...]:
    """The lines of these queues, which are given with their weights. `shares`: of some queues, which partitions alone. QueueUnknown for
    a name that the settings do not list.
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
