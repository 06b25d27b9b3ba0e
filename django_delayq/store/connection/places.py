"""The places of queues: one link per server, and the server of each partition. Nothing else in the package knows how many servers
there are.

A `Link` is also a place: in a project with one server, and in tests, it is the place of all queues.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from redis.connection import Connection

from django_delayq.store.connection.address import RedisSpec, resolve
from django_delayq.store.connection.connection_options import unconnected
from django_delayq.store.connection.link import Link, link_to
from django_delayq.store.keys import Keys


class Places(Protocol):
    """Finds the server of each partition of a queue."""

    @property
    def shared(self) -> Link:
        """The server of the workers, and of locks that name no queue."""

    def of(self, queue: str, partition: int) -> Link:
        """The server of that partition; the shared one if no other is known."""

    def on_shared(self, queue: str, partition: int) -> Link:
        """The link to the keys of that partition on the shared server, wherever its jobs are."""

    def nodes(self, queue: str = "") -> Sequence[Link]:
        """All servers of the setting for that queue, or of the shared setting; several for a Cluster.

        Raises:
            StoreUnavailable: no node of that Cluster reports the nodes.
        """

    def close(self) -> None:
        """Closes the open connections. The place may be used again."""


class Nodes:
    """The servers of a project. A server is connected, and an embedded server started, only when its link is requested.

    Args:
        shared: `DELAYQ["REDIS"]`.
        own: the setting of each queue that is on another server. Equal values share a link.
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
        """The number of the setting for that queue; 0 for the shared one. Does not contact a server."""
        return self._numbers.get(queue, 0)

    def close(self) -> None:
        """Closes the existing links."""
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
    """The place that a value of `DELAYQ["REDIS"]` names: a link to a server, or a Cluster. This sends nothing.

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

    from django_delayq.store.connection.cluster import Cluster  # only projects on a Cluster need this module

    return Cluster(make, kwargs["cluster"], timeout=timeout, patience=patience)


def by_node(places: Places, parts: Iterable[Keys]) -> dict[Link, list[Keys]]:
    """Groups these partitions by server, in the order of the first partition of each. The key is the link of that first partition. On
    a Cluster this link also reaches the other partitions.
    """
    found: dict[Link, tuple[Link, list[Keys]]] = {}
    for part in parts:
        link = places.of(part.queue, part.partition)
        found.setdefault(link.server, (link, []))[1].append(part)
    return dict(found.values())
