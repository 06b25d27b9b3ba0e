"""Where the queues are: one link per server, and which partition of which queue is on which. Nothing else in the package knows how
many servers there are.

A `Link` is such a place, too: of a project on one server, and of a test, it is the place of all queues.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol, TypeVar

from django_delayq.store.address import RedisSpec
from django_delayq.store.connection import Link, connect


class Partitioned(Protocol):
    """What says which partition of which queue it is about, as `Keys` and the lines of a worker do."""

    @property
    def queue(self) -> str:
        """The name of the queue."""

    @property
    def partition(self) -> int:
        """The number of the partition, from 0."""


PartitionedT = TypeVar("PartitionedT", bound=Partitioned)


class Places(Protocol):
    """What leads to the server of each partition of a queue."""

    @property
    def shared(self) -> Link:
        """The server of what belongs to no queue: the workers, and locks that name none."""

    def of(self, queue: str, partition: int) -> Link:
        """The server of that partition; the shared one if no other is known."""

    def nodes(self) -> Sequence[Link]:
        """All servers, each once, the shared one first."""

    def close(self) -> None:
        """Closes what is open there; it may be used again."""


class Nodes:
    """The servers of a project. Nothing is connected, nor is an embedded server started, before its link is asked for.

    Args:
        shared: `DELAYQ["REDIS"]`.
        own: by queue, of those that are elsewhere. Equal values share a link.
        name, timeout: see `connect`.
    """

    def __init__(self, shared: RedisSpec, own: Mapping[str, RedisSpec], *, name: str, timeout: float = 2.0) -> None:
        self._specs: list[RedisSpec] = [shared]
        self._numbers: dict[str, int] = {}
        for queue, spec in own.items():
            if spec not in self._specs:
                self._specs.append(spec)
            self._numbers[queue] = self._specs.index(spec)
        self._name = name
        self._timeout = timeout
        self._lock = threading.Lock()
        self._links: dict[int, Link] = {}

    @property
    def shared(self) -> Link:
        """See `Places`."""
        return self._link(0)

    def of(self, queue: str, partition: int) -> Link:
        """See `Places`. All partitions of a queue are on one server here."""
        return self._link(self._numbers.get(queue, 0))

    def nodes(self) -> Sequence[Link]:
        """See `Places`."""
        return [self._link(number) for number in range(len(self._specs))]

    def number(self, queue: str) -> int:
        """Which of the servers is that queue's; 0 for the shared one. Without a look at any."""
        return self._numbers.get(queue, 0)

    def close(self) -> None:
        """Closes the links that there are."""
        for link in list(self._links.values()):
            link.close()

    def _link(self, number: int) -> Link:
        link = self._links.get(number)
        if link is None:
            with self._lock:
                link = self._links.get(number)
                if link is None:
                    link = self._links[number] = connect(self._specs[number], name=self._name, timeout=self._timeout)
        return link


def by_node(places: Places, parts: Iterable[PartitionedT]) -> dict[Link, list[PartitionedT]]:
    """These partitions by their servers, in the order in which the first one of each is given."""
    found: dict[Link, list[PartitionedT]] = {}
    for part in parts:
        found.setdefault(places.of(part.queue, part.partition), []).append(part)
    return found
