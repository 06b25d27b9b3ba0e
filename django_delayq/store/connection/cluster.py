"""Redis Cluster: links that follow their slot. The client library also has a cluster client. But that client resends commands by
itself, and does not support scripts in a pipeline.
"""

from __future__ import annotations

import os
import threading
from binascii import crc_hqx
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

from redis.connection import Connection
from redis.exceptions import ResponseError

from django_delayq import clock
from django_delayq.exceptions import StoreUnavailable
from django_delayq.store import keys
from django_delayq.store.connection.error_replies import SLOTS, UNKNOWN, StoreError, StoreRefused, redirect
from django_delayq.store.connection.link import HURRIED, Cooldown, Link, Reply

LOOK: Final = 1.0  # seconds between looks at the map, at least
PATIENCE: Final = 0.5  # seconds for one node to report the map; another node also knows it

Address = tuple[str, int]  # host and port
MakesConnection = Callable[[str, int, float], Connection]  # host, port, seconds for the connection and for a reply


def slot_of(key: str) -> int:
    """The slot of a key: computed from the text in its first braces if that is not empty, else from the whole key."""
    _, opened, rest = key.partition("{")
    tag, closed, _ = rest.partition("}")
    return crc_hqx((tag if opened and closed and tag else key).encode(), 0) % SLOTS


class SlotRange(NamedTuple):
    """A range of slots that one master serves, with the addresses of the master and its replicas."""

    first: int
    last: int
    master: Address
    replicas: tuple[Address, ...]


def slot_ranges(reply: Any, asked: str) -> list[SlotRange]:
    """Reads the answer to CLUSTER SLOTS of the node at the host `asked`.

    Raises:
        ValueError: the answer is not a valid list of slots.
    """
    try:
        found = [SlotRange(int(first), int(last), *_nodes(nodes, asked)) for first, last, *nodes in reply]
    except (TypeError, ValueError, IndexError, AttributeError) as error:
        raise ValueError(f"its list of slots has an unknown form: {error}") from None
    for one in found:
        if not 0 <= one.first <= one.last < SLOTS:
            raise ValueError(f"it lists slots {one.first} to {one.last}")
    return found


def _nodes(nodes: Sequence[Any], asked: str) -> tuple[Address, tuple[Address, ...]]:
    master, *replicas = (_address(node, asked) for node in nodes)
    return master, tuple(replicas)


def _address(node: Any, asked: str) -> Address:
    host = "" if node[0] is None else node[0].decode()
    return asked if host in UNKNOWN else host, int(node[1])


class Node(Link):
    """A master of the Cluster, by its address."""

    misplaced = "redis_slot"

    def __init__(self, make: MakesConnection, address: Address, timeout: float) -> None:
        super().__init__(lambda: make(*address, timeout), f"{address[0]}:{address[1]}, node of a Cluster")
        self.address = address


class MapLocks:
    """The locks of one process."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.looking = threading.Lock()
        self.making = threading.Lock()


class Cluster:
    """A Cluster as a place, see `store/connection/places.py`, with the map of which node serves which slot. It is thread-safe, and
    survives a fork.

    Args:
        make: makes an unconnected client connection.
        seeds: some of its nodes; they report the others.
        timeout: see `connect`.
        patience: seconds for which a call waits for a temporary problem, such as an election; 0: the caller repeats the call itself.
    """

    def __init__(self, make: MakesConnection, seeds: Sequence[Address], *, timeout: float, patience: float = 0.0) -> None:
        self.patience = patience
        self._make = make
        self._timeout = timeout
        self._seeds = list(seeds)
        self.where = f"the Cluster of {', '.join(f'{host}:{port}' for host, port in seeds)}"
        self._nodes: dict[Address, Node] = {}
        self._served: list[Node | None] = [None] * SLOTS
        self._heard_of: list[Address] = []  # all nodes as reported last, masters before replicas: the order for the next look
        self._teller: list[Address] = []  # the node that reported them, if any did
        self._known = False
        self._looked_at = -LOOK
        self._trouble: StoreUnavailable | None = None  # the error of the last look, if no node reported the map
        self._cooldown_policy = 0.0, 0.0, 0.0
        self._deadline: float | None = None
        self._own_locks = MapLocks()
        self._links: dict[int, SlotLink] = {}

    @property
    def shared(self) -> SlotLink:
        """See `Places`. The link for the keys of the workers."""
        return self.link(slot_of("{workers}"))

    def of(self, queue: str, partition: int) -> SlotLink:
        """See `Places`. The link of the slot of that partition."""
        return self.link(slot_of(f"{{{keys.tag(queue, partition)}}}"))

    on_shared = of

    def link(self, slot: int) -> SlotLink:
        """The link that follows that slot."""
        found = self._links.get(slot)
        if found is None:
            with self._locks.making:
                found = self._links.setdefault(slot, SlotLink(self, slot))
        return found

    def nodes(self, queue: str = "") -> Sequence[Link]:
        """See `Places`: all masters that serve slots."""
        if not self._known:
            self.look(anew=True)
            self._raise_unknown()
        return list(dict.fromkeys(node for node in self._served if node is not None))

    @property
    def _locks(self) -> MapLocks:
        locks = self._own_locks
        if locks.pid != os.getpid():  # a thread of the parent process, which does not exist here, may have held them
            locks = self._own_locks = MapLocks()
        return locks

    def close(self) -> None:
        """Closes the idle connections."""
        for node in list(self._nodes.values()):
            node.close()

    def set_cooldown(self, seconds: float, late: float, longest: float) -> None:
        """See `Link.set_cooldown`. It applies to each node, and to looks at the map."""
        self._cooldown_policy = seconds, late, longest
        for node in list(self._nodes.values()):
            node.set_cooldown(*self._cooldown_policy)

    def hurry(self, deadline: float) -> None:
        """See `Link.hurry`."""
        self._deadline = deadline
        for node in list(self._nodes.values()):
            node.hurry(deadline)

    def serving(self, slot: int) -> Node:
        """The node that serves the slot, as far as is known.

        Raises:
            StoreUnavailable: no node is known; StoreRefused if the Cluster reports that none serves the slot.
        """
        node = self._served[slot]
        if node is None:
            self.look()
            node = self._served[slot]
            if node is None:
                self._raise_unknown()
                refused = StoreRefused(code="redis_slot", where=self.where, cause=f"slot {slot} is served by no node")
                refused.soon = refused.unserved = True
                raise refused
        return node

    def known(self, slot: int, *, asks: bool = False) -> Node | None:
        """Like `serving`, but returns None if no node is known. `asks`: asks the nodes if none has reported the map."""
        if asks and not self._known:
            self.look()
        return self._served[slot]

    def node_at(self, address: Address) -> Node:
        """The node at that address."""
        node = self._nodes.get(address)
        if node is None:
            with self._locks.making:
                node = self._nodes.get(address)
                if node is None:
                    node = Node(self._make, address, self._timeout)
                    node.set_cooldown(*self._cooldown_policy)
                    if self._deadline is not None:
                        node.hurry(self._deadline)
                    self._nodes[address] = node
        return node

    def note(self, slot: int, node: Node) -> None:
        """Notes that the node serves the slot from now on."""
        self._served[slot] = node

    def look(self, away: Node | None = None, *, anew: bool = False) -> None:
        """Asks a node for the map, at most once a second, and in one thread at a time: other threads use the known map. `away`: a
        node that does not answer, which is asked last. `anew`: also asks if the last look was a moment ago.
        """
        looking = self._locks.looking
        if not looking.acquire(blocking=not self._known):
            return
        try:
            if clock.monotonic() - self._looked_at < LOOK and not (anew and not self._known):
                return
            try:
                self._ask(away)
            finally:
                self._looked_at = clock.monotonic()  # the end of the look: threads that have waited for it do not ask again
        finally:
            looking.release()

    def _ask(self, away: Node | None) -> None:
        # A node that is cut off from the others may have reported an old map. It is asked last this time.
        last = [*self._teller, *([away.address] if away is not None else [])]
        self._trouble = None
        longest = min(self._timeout, self._cooldown_policy[2] or self._timeout)
        patience = min(PATIENCE, longest / 2)
        until = clock.monotonic() + longest
        if self._deadline is not None:  # one deadline for all nodes, as in `Link.hurry`
            until = min(until, max(self._deadline, clock.monotonic() + HURRIED))
            patience = min(patience, HURRIED)
        for address in dict.fromkeys([*(one for one in (*self._heard_of, *self._seeds) if one not in last), *last]):
            asked = Node(self._make, address, patience)
            try:
                told = slot_ranges(asked.execute("CLUSTER", "SLOTS"), address[0])
            except (StoreUnavailable, StoreError, ValueError) as error:
                cause = error.fields.get("cause", "") if isinstance(error, StoreUnavailable) else ""
                cause = cause or str(error).rstrip(".")
                self._trouble = self._trouble or StoreUnavailable(code="redis_away", where=self.where, cause=cause)
                if clock.monotonic() > until:
                    return
                continue
            finally:
                asked.close()
            if told:
                self._trouble = None
                self._take(told, address)
                return
            self._trouble = StoreUnavailable(code="redis_away", where=self.where, cause=f"{asked.where}, knows of no slots")

    def _take(self, told: Iterable[SlotRange], teller: Address) -> None:
        served: list[Node | None] = [None] * SLOTS
        masters: list[Address] = []
        replicas: list[Address] = []
        for part in told:
            served[part.first : part.last + 1] = [self.node_at(part.master)] * (part.last + 1 - part.first)
            masters.append(part.master)
            replicas += part.replicas
        self._served = served
        self._heard_of, self._teller = [*masters, *replicas], [teller]
        self._known = True
        for address in list(self._nodes):  # a copy, because a thread that follows a redirect may add a node meanwhile
            if address not in masters and (node := self._nodes.pop(address, None)) is not None:
                node.close()

    def _raise_unknown(self) -> None:
        if not self._known:
            trouble = self._trouble or StoreUnavailable(code="redis_cooldown", where=self.where)
            unknown = StoreUnavailable(code=trouble.code, **trouble.fields)  # a new error: a raised one keeps its frames
            unknown.nothing_done = True
            raise unknown


MOST_HOPS: Final = 5  # redirects that one command follows; more are a circle
SHORTEST: Final = 0.05  # seconds; the first pause while a temporary problem lasts; each later one is twice as long


class SlotLink(Link):
    """A link to one slot, whichever node serves it. If a node redirects a command, the same bytes go to the node that it names: all
    our calls may be sent again.

    A pipeline goes to the node of this slot, together with commands for other slots of that node. Commands for other nodes are
    redirected one by one.
    """

    moves = True
    misplaced = "redis_slot"

    def __init__(self, cluster: Cluster, slot: int) -> None:
        super().__init__(self._unconnected, cluster.where)
        self.slot = slot
        self._cluster = cluster

    @property
    def server(self) -> Link:
        """See `Link`. Returns the node, and asks for the map if no node has reported it. If the node is not known, returns this link
        itself.
        """
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
        pass  # the address of its node

    @property
    def cooldown(self) -> Cooldown:
        """See `Link`. The cooldown of its node."""
        node = self._cluster.known(self.slot)
        return self._unknown if node is None else node.cooldown

    @cooldown.setter
    def cooldown(self, value: Cooldown) -> None:
        self._unknown = value

    def set_cooldown(self, seconds: float, late: float = 0.0, longest: float = 0.0) -> None:
        """See `Link`. Applies to all nodes."""
        self._cluster.set_cooldown(seconds, late, longest)

    @property
    def away(self) -> bool:
        """See `Link`."""
        node = self._cluster.known(self.slot)
        return node is None or node.away

    def beside(self, key: str) -> Link:
        """See `Link`."""
        return self._cluster.link(slot_of(key))

    def hurry(self, deadline: float) -> None:
        """See `Link`."""
        self._cluster.hurry(deadline)

    def close(self) -> None:
        """See `Link`. Closes the connections of all nodes."""
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
        """See `Link`. Handles a slot that has moved, and a node that is gone."""
        told = redirect(error) if isinstance(error, ResponseError) else None
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
        """The replies after all redirects. With patience, it waits for temporary problems to end."""
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
                self._cluster.look(node)  # the node may have a successor by now; a caller without patience finds it with the next call
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
        if error.code != "redis_cooldown":  # the call did not wait for the server, and this look would
            self._cluster.look(node)

    def _led(self, commands: Sequence[tuple[Any, ...]], replies: list[Reply], node: Node) -> list[Reply]:
        """Follows redirects. If this slot has moved, all commands are sent again to its new node, so that all replies are from one
        server.
        """
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
        """If the first command is redirected, the commands after it follow."""
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
    """The range of the command with that number and the commands that belong to it: WAIT is about earlier writes of the same
    connection.
    """
    waits = number + 1 < len(commands) and commands[number + 1][0] == "WAIT"
    return range(number, number + 1 + waits)
