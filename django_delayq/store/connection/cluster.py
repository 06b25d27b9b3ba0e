"""Redis Cluster: links that follow their slot. The client library has this too; its cluster client sends again by itself, and knows
no script in a pipeline.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from redis.connection import Connection
from redis.exceptions import ResponseError

from django_delayq import clock
from django_delayq.exceptions import StoreUnavailable
from django_delayq.store import keys
from django_delayq.store.connection import cluster_slots
from django_delayq.store.connection.cluster_map import ClusterMap, MakesConnection, Node
from django_delayq.store.connection.cluster_slots import Address, slot_of
from django_delayq.store.connection.cooldown import Cooldown
from django_delayq.store.connection.error_replies import StoreRefused
from django_delayq.store.connection.link import Link, Reply

MOST_HOPS: Final = 5  # redirects that one command follows: more of them are a circle
SHORTEST: Final = 0.05  # seconds; the first pause of who waits for what passes, the next ones are twice as long


class SlotLink(Link):
    """What leads to one slot, wherever that is. A node that says that the slot is elsewhere is believed, and the same bytes go there:
    any of our calls may be sent again.

    A pipeline goes to the node of this slot, also with what is about others that are there; what is not is led to its own.
    """

    moves = True
    misplaced = "redis_slot"

    def __init__(self, cluster: Cluster, slot: int) -> None:
        super().__init__(self._unconnected, cluster.where)
        self.slot = slot
        self._cluster = cluster

    @property
    def server(self) -> Link:
        """See `Link`: the node, for which the map is asked if nobody has; this link itself where nobody knows."""
        return self._cluster.known(self.slot, asks=True) or self

    @property
    def met(self) -> Link:
        """See `Link`."""
        return self._cluster.known(self.slot) or self._cluster.shared

    @property
    def where(self) -> str:
        """See `Link`."""
        node = self._cluster.known(self.slot)
        return self._cluster.where if node is None else node.where

    @where.setter
    def where(self, value: str) -> None:
        pass  # that of its node

    @property
    def cooldown(self) -> Cooldown:
        """See `Link`: of its node."""
        node = self._cluster.known(self.slot)
        return self._unknown if node is None else node.cooldown

    @cooldown.setter
    def cooldown(self, value: Cooldown) -> None:
        self._unknown = value

    def set_cooldown(self, seconds: float, late: float = 0.0, longest: float = 0.0) -> None:
        """See `Link`; all nodes."""
        self._cluster.set_cooldown(seconds, late, longest)

    @property
    def away(self) -> bool:
        """See `Link`."""
        node = self._cluster.known(self.slot)
        return node is None or node.away

    @property
    def home(self) -> str:
        """See `Link`."""
        return self._cluster.where

    def beside(self, key: str) -> Link:
        """See `Link`."""
        return self._cluster.link(slot_of(key))

    def hurry(self, deadline: float) -> None:
        """See `Link`."""
        self._cluster.hurry(deadline)

    def close(self) -> None:
        """See `Link`; those of all nodes."""
        self._cluster.close()

    def leads(self, connection: Connection) -> bool:
        """See `Link`."""
        node = self._cluster.known(self.slot)
        return node is None or node.address == (connection.host, int(connection.port))

    def dedicated(self) -> Connection:
        """See `Link`."""
        node = self._cluster.serving(self.slot)
        try:
            return node.dedicated()
        except StoreUnavailable:
            self._cluster.look(node)
            raise

    def heard(self, error: Exception) -> None:
        """See `Link`: of a slot that has moved, and of a node that is gone."""
        told = cluster_slots.redirect(error) if isinstance(error, ResponseError) else None
        node = self._cluster.known(self.slot)
        if told is None:
            self._cluster.look(node)
        elif told.moved and node is not None:
            self._cluster.note(told.slot, self._cluster.node_at((told.host or node.address[0], told.port)))

    def execute_many(self, commands: Sequence[tuple[Any, ...]]) -> list[Reply]:
        """See `Link`."""
        node = self._cluster.serving(self.slot)
        replies = self._sent(commands, node)
        for reply in replies:
            if isinstance(reply, StoreRefused):
                return self._resent(commands, replies, node)
        return replies

    def start(self, *commands: tuple[Any, ...]) -> Callable[[], list[Reply]]:
        """See `Link`."""
        node = self._cluster.serving(self.slot)
        try:
            receive = node.start(*commands)
        except StoreUnavailable as error:
            self._look(node, error)
            raise

        def answer() -> list[Reply]:
            try:
                replies = receive()
            except StoreUnavailable as error:
                self._look(node, error)
                raise
            return self._resent(commands, replies, node) if any(isinstance(reply, StoreRefused) for reply in replies) else replies

        return answer

    def _resent(self, commands: Sequence[tuple[Any, ...]], replies: list[Reply], node: Node) -> list[Reply]:
        """The replies, when all redirects are followed, and who has patience has waited for what passes."""
        try:
            return self._patient(commands, self._led(commands, replies, node), node)
        except StoreUnavailable as error:
            error.nothing_done = False  # part of it may have been done before
            raise

    def _patient(self, commands: Sequence[tuple[Any, ...]], replies: list[Reply], node: Node) -> list[Reply]:
        until, pause = clock.monotonic() + self._cluster.patience, SHORTEST
        while any(isinstance(reply, StoreRefused) and reply.soon for reply in replies):
            left = until - clock.monotonic()
            if left <= 0:
                self._cluster.look(node)  # it may have a successor by now; who has no patience finds it with the next call
                break
            clock.sleep(min(pause, left))
            pause *= 2
            self._cluster.look()
            parts = [_part(commands, number) for number, reply in enumerate(replies) if isinstance(reply, StoreRefused) and reply.soon]
            refused = [number for part in parts for number in part]
            again = [commands[number] for number in refused]
            node = self._cluster.serving(self.slot)
            answers = self._led(again, self._sent(again, node), node)
            for number, answer in zip(refused, answers, strict=True):
                replies[number] = answer
        return replies

    def _sent(self, commands: Sequence[tuple[Any, ...]], node: Node) -> list[Reply]:
        try:
            return node.execute_many(commands)
        except StoreUnavailable as error:
            self._look(node, error)
            raise

    def _look(self, node: Node, error: StoreUnavailable) -> None:
        if error.code != "redis_cooldown":  # that was not waited for, and this would be
            self._cluster.look(node)

    def _led(self, commands: Sequence[tuple[Any, ...]], replies: list[Reply], node: Node) -> list[Reply]:
        """Follows redirects. Once this slot has moved, all goes there anew: what is said of a server must not be of another."""
        for _ in range(MOST_HOPS):
            moved = self._moved(replies, node)
            if moved is None:
                break
            node = moved
            replies = self._sent(commands, node)
        for number, reply in enumerate(replies):
            told = reply.redirect if isinstance(reply, StoreRefused) else None
            if told is not None and not (told.moved and told.slot == self.slot):
                part = slice(number, _part(commands, number).stop)
                replies[part] = self._follow(commands[part], replies[part], node)
        return replies

    def _moved(self, replies: Sequence[Reply], node: Node) -> Node | None:
        for reply in replies:
            told = reply.redirect if isinstance(reply, StoreRefused) else None
            if told is not None and told.moved and told.slot == self.slot:
                found = self._cluster.node_at((told.host or node.address[0], told.port))
                self._cluster.note(told.slot, found)
                return found
        return None

    def _follow(self, commands: Sequence[tuple[Any, ...]], replies: list[Reply], node: Node) -> list[Reply]:
        """Where the first of them is led, what goes with it goes, too."""
        try:
            for _ in range(MOST_HOPS):
                told = replies[0].redirect if isinstance(replies[0], StoreRefused) else None
                if told is None:
                    break
                node = self._cluster.node_at((told.host or node.address[0], told.port))
                if told.moved:
                    self._cluster.note(told.slot, node)
                    replies = node.execute_many(commands)
                else:
                    replies = node.execute_many((("ASKING",), *commands))[1:]
        except StoreUnavailable as error:
            self._cluster.look(node)
            return [error] * len(commands)
        return replies

    def _unconnected(self) -> Connection:
        raise NotImplementedError("a link to a slot has no connections: the link of its node has them")


def _part(commands: Sequence[tuple[Any, ...]], number: int) -> range:
    """Of these the one of that number and what goes with it: WAIT is about what was written before it, by the same connection."""
    waits = number + 1 < len(commands) and commands[number + 1][0] == "WAIT"
    return range(number, number + 1 + waits)


class Cluster(ClusterMap):
    """A place, see `store/connection/places.py`: the links of a Cluster by its map."""

    def __init__(self, make: MakesConnection, seeds: Sequence[Address], *, timeout: float, patience: float = 0.0) -> None:
        super().__init__(make, seeds, timeout=timeout, patience=patience)
        self._links: dict[int, SlotLink] = {}

    @property
    def shared(self) -> SlotLink:
        """See `Places`: of the workers."""
        return self.link(slot_of(keys.workers_key("")))

    def of(self, queue: str, partition: int) -> SlotLink:
        """See `Places`: the link of the slot in which that partition stands."""
        return self.link(slot_of(f"{{{keys.tag(queue, partition)}}}"))

    def on_shared(self, queue: str, partition: int) -> SlotLink:
        """See `Places`."""
        return self.of(queue, partition)

    def link(self, slot: int) -> SlotLink:
        """The link that follows that slot."""
        found = self._links.get(slot)
        if found is None:
            with self._locks.making:
                found = self._links.setdefault(slot, SlotLink(self, slot))
        return found
