"""The servers that one worker needs: the servers of its queues, and the shared server, where it registers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from django_delayq import conf
from django_delayq.exceptions import StoreUnavailable
from django_delayq.store.connection.link import Link
from django_delayq.store.connection.places import Nodes, Places
from django_delayq.worker.line import Line

COOLDOWN: Final = 0.5  # seconds after a failed call in which no loop of the supervisor waits for that server,
SLOW: Final = 0.5  # and with several servers also after a call that took longer than this
WAITS: Final = 8  # of the shortest lease, the part for which a call waits there: two servers at a time may hang, and the map with them
LEAST: Final = 0.25  # seconds


def links_of(config: conf.Config, name: str) -> Nodes:
    """The servers of the queues, for a process with that name."""
    return Nodes(config.redis, config.own_servers, name=name)


class ServerLinks:
    """The links of a supervisor. A slow server must not delay the work on other servers."""

    def __init__(self, places: Places, lines: Sequence[Line]) -> None:
        self._places = places
        self._held = list(dict.fromkeys(line.store.link for line in lines)) or [places.shared]
        self._all = list(dict.fromkeys([places.shared, *self._held]))
        longest = max(LEAST, min(line.lease for line in lines) / WAITS) if lines else 0.0
        several = len(self._all) > 1 or self._all[0].moves
        for link in self._all:
            link.set_cooldown(COOLDOWN, SLOW if several else 0.0, longest if several else 0.0)

    @property
    def where(self) -> str:
        """The addresses of all servers. They stay the same when masters change and slots move."""
        return " ".join(dict.fromkeys(link.home for link in self._all))

    @property
    def count(self) -> int:
        """The number of servers, or of slots of a Cluster, that have its lines."""
        return len(self._held)

    @property
    def away(self) -> bool:
        """Whether no server answers on which it may hold jobs."""
        return all(link.away for link in self._held)

    def lost(self, queues: Sequence[str]) -> bool:
        """Whether no server answers that has one of these queues. Without queues, the same as `away`."""
        known = conf.get().partitions
        parts = ((queue, partition) for queue in queues for partition in range(known.get(queue, 1)))
        return all(self._places.of(queue, partition).away for queue, partition in parts) if queues else self.away

    def answers(self, shared: bool) -> bool:
        """Whether a server of its lines answers; for a worker without lines, the shared server. `shared`: whether the shared server
        has just answered.
        """
        if shared and any(link.home == self._places.shared.home for link in self._held):
            return True
        asked = self._places.shared.met
        servers = {link.met: link for link in self._held if link.met is not asked}
        return any(map(_answers, sorted(servers.values(), key=lambda link: link.away)))  # a server that hung may hang again

    def hurry(self, deadline: float) -> None:
        """See `Link.hurry`."""
        for link in self._all:
            link.hurry(deadline)


def _answers(link: Link) -> bool:
    try:
        link.execute("PING")
    except StoreUnavailable:
        return False
    return True
