"""The Redis servers of a campaign: for each, the address that clients know, the server that it leads to, and the proxy that some
clients use.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable
from pathlib import Path

from django_delayq.store.connection.link import connect
from django_delayq.store.keys import Keys, tag
from tests import servers
from tests.ports import free_port
from tests.stage import WAIT, Actor, spawned

BANDS = ("high", "normal", "low")


class Node:
    """A server.

    Args:
        folder: where its addresses are. number: 0 for the shared one.
        queues: those that are on it. partitions: how many each of them has.
        made: makes a server that is not started yet.
    """

    def __init__(
        self, folder: Path, number: int, queues: tuple[str, ...], made: Callable[[], servers.RedisServer], partitions: int
    ) -> None:
        self.queues = queues
        self.parts = tuple(tag(queue, partition) for queue in queues for partition in range(partitions))
        self.partitions = partitions
        self.made = made
        self.address = folder / f"redis-{number}.sock"  # leads to the server in charge
        self.server = made()
        self._port = free_port()
        command = [sys.executable, "-m", "tests.campaign.proxy", str(self._port), str(self.address)]
        self.proxy = Actor(folder / f"proxy-{number}.log", command, {})

    @property
    def url(self) -> str:
        """Past the proxy."""
        return f"unix://{self.address}"

    @property
    def proxied(self) -> str:
        """The URL by way of the proxy."""
        return f"redis://127.0.0.1:{self._port}"

    def open(self) -> None:
        """Starts it, and the proxy."""
        self.replace(self.server)
        self.proxy.start()

    def close(self) -> None:
        """Ends both."""
        self.proxy.kill_tree()
        self.server.stop()

    def copy(self, other: servers.RedisServer) -> float:
        """Starts the other server with what the present one holds. Returns when that was (monotonic)."""
        spawned(other.start)
        other.call("REPLICAOF", "127.0.0.1", str(self.server.port))
        deadline = time.monotonic() + WAIT
        while "master_link_status:up" not in other.call("INFO", "replication", whole=True):
            if time.monotonic() > deadline:
                raise RuntimeError("the other Redis does not get a copy")
            time.sleep(0.02)
        at = time.monotonic()
        other.call("REPLICAOF", "NO", "ONE")
        return at

    def replace(self, other: servers.RedisServer) -> None:
        """From now on clients reach the other server."""
        before = self.server
        if other.process is None:
            spawned(other.start)
        new = self.address.with_suffix(".new")
        new.symlink_to(other.socket)
        new.rename(self.address)
        self.server = other
        if before is not other:
            before.stop()

    def used_memory(self) -> int:
        """In bytes."""
        link = connect(self.url, name="campaign")
        try:
            text = link.execute("INFO", "memory").decode()
        finally:
            link.close()
        return int(re.search(r"used_memory:(\d+)", text)[1])

    def due(self) -> int:
        """How many jobs are due there, and not running.

        Raises:
            StoreUnavailable, StoreError: it does not say.
        """
        link = connect(self.url, name="campaign")
        try:
            seconds, micros = link.execute("TIME")
            now = int(seconds) * 1000 + int(micros) // 1000
            parts = [Keys("delayq", queue, partition) for queue in self.queues for partition in range(self.partitions)]
            return sum(link.execute("ZCOUNT", keys[band], "-inf", now) for keys in parts for band in BANDS)
        finally:
            link.close()
