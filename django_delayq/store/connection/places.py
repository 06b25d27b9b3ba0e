"""The places of queues: one link per server, and which partition of which queue is on which. Nothing else in the package knows how
many servers there are.

A `Link` is such a place, too: of a project on one server, and of a test, it is the place of all queues.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol, TypeVar

from redis.connection import Connection

from django_delayq.store.connection.address import RedisSpec, resolve
from django_delayq.store.connection.connection_options import unconnected
from django_delayq.store.connection.link import Link, link_to


class Partitioned(Protocol):
    """An object that names its queue and partition, as `Keys` and the lines of a worker do."""

    @property
    def queue(self) -> str:
        """The name of the queue."""

    @property
    def partition(self) -> int:
        """The number of the partition, from 0."""


PartitionedT = TypeVar("PartitionedT", bound=Partitioned)


class Places(Protocol):
    """Finds the server of each partition of a queue."""

    @property
    def shared(self) -> Link:
        """The server of what belongs to no queue: the workers, and locks that name none."""

    def of(self, queue: str, partition: int) -> Link:
        """The server of that partition; the shared one if no other is known."""

    def on_shared(self, queue: str, partition: int) -> Link:
        """The link to the keys of that partition on the shared server, wherever its jobs are."""

    def nodes(self, queue: str = "") -> Sequence[Link]:
        """All servers to which that value of the settings leads which is the queue's, or the shared one; several, of a Cluster.

        Raises:
            StoreUnavailable: no node of that Cluster tells who they are.
        """

    def close(self) -> None:
        """Closes what is open there; it may be used again."""


class Nodes:
    """The servers of a project. Nothing is connected, nor is an embedded server started, before its link is asked for.

    Args:
        shared: `DELAYQ["REDIS"]`.
        own: by queue, of those that are elsewhere. Equal values share a link.
        name, timeout: see `connect`.
        patience: see `Cluster`.
    """

    def __init__(
        self, shared: RedisSpec, own: Mapping[str, RedisSpec], *, name: str, timeout: float = 2.0, patience: float = 0.0
    ) -> None:
        self._specs: list[RedisSpec] = [shared]
        self._numbers: dict[str, int] = {}
        for queue, spec in own.items():
            if spec not in self._specs:
                self._specs.append(spec)
            self._numbers[queue] = self._specs.index(spec)
        self._name = name
        self._timeout = timeout
        self._patience = patience
        self._lock = threading.Lock()
        self._places: dict[int, Places] = {}

    @property
    def shared(self) -> Link:
        """See `Places`."""
        return self._place(0).shared

    def of(self, queue: str, partition: int) -> Link:
        """See `Places`."""
        return self._place(self._numbers.get(queue, 0)).of(queue, partition)

    def on_shared(self, queue: str, partition: int) -> Link:
        """See `Places`."""
        return self._place(0).of(queue, partition)

    def nodes(self, queue: str = "") -> Sequence[Link]:
        """See `Places`."""
        return self._place(self._numbers.get(queue, 0)).nodes(queue)

    def number(self, queue: str) -> int:
        """Which of the values in the settings is that queue's; 0 for the shared one. Without a look at any server."""
        return self._numbers.get(queue, 0)

    def close(self) -> None:
        """Closes the links that there are."""
        for place in list(self._places.values()):
            place.close()

    def _place(self, number: int) -> Places:
        found = self._places.get(number)
        if found is None:
            with self._lock:
                found = self._places.get(number)
                if found is None:
                    spec = self._specs[number]
                    found = self._places[number] = place(spec, name=self._name, timeout=self._timeout, patience=self._patience)
        return found


def place(spec: RedisSpec, *, name: str, timeout: float = 2.0, patience: float = 0.0) -> Places:
    """The place that a value of `DELAYQ["REDIS"]` names: a link to a server, or a Cluster. Nothing is sent yet.

    Args:
        spec, name, timeout: see `connect`.
        patience: see `Cluster`.

    Raises:
        ConfigError: see `connect`.
    """
    connection_class, kwargs = resolve(spec)
    if "cluster" not in kwargs:
        return link_to(connection_class, kwargs, name=name, timeout=timeout)
    rest = {key: value for key, value in kwargs.items() if key != "cluster"}

    def make(host: str, port: int, seconds: float) -> Connection:
        return unconnected(connection_class, {**rest, "host": host, "port": port}, name=name, timeout=seconds, where=f"{host}:{port}")

    from django_delayq.store.connection.cluster import Cluster  # where one is used

    return Cluster(make, kwargs["cluster"], timeout=timeout, patience=patience)


def by_node(places: Places, parts: Iterable[PartitionedT]) -> dict[Link, list[PartitionedT]]:
    """These partitions by their servers, in the order in which the first one of each is given. The link is one that leads there: on a
    Cluster that of the first partition, which finds the others, too.
    """
    found: dict[Link, tuple[Link, list[PartitionedT]]] = {}
    for part in parts:
        link = places.of(part.queue, part.partition)
        found.setdefault(link.server, (link, []))[1].append(part)
    return dict(found.values())
