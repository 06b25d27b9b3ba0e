"""The map of a Redis Cluster: which master serves a slot just now, and who is asked for that."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from redis.connection import Connection

from django_delayq import clock
from django_delayq.exceptions import StoreUnavailable
from django_delayq.store.connection import cluster_slots
from django_delayq.store.connection.cluster_slots import SLOTS, Address
from django_delayq.store.connection.error_replies import StoreError, StoreRefused
from django_delayq.store.connection.link import HURRIED, Link

LOOK: Final = 1.0  # seconds between looks at the map, at least
PATIENCE: Final = 0.5  # seconds for one node to tell of the map: another knows it too

MakesConnection = Callable[[str, int, float], Connection]  # host, port, seconds for the connection and for a reply


class Node(Link):
    """A master of the Cluster, by its address."""

    misplaced = "redis_slot"

    def __init__(self, make: MakesConnection, address: Address, timeout: float) -> None:
        super().__init__(lambda: make(*address, timeout), f"{address[0]}:{address[1]}, node of a Cluster")
        self.address = address


class MapLocks:
    """Those of a process."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.looking = threading.Lock()
        self.making = threading.Lock()


class ClusterMap:
    """Which node of a Cluster serves which slot. Thread-safe; survives a fork.

    Args:
        make: makes an unconnected client connection.
        seeds: some of its nodes; they tell of the others.
        timeout: see `connect`.
        patience: seconds for which a call waits for what passes by itself, such as an election; 0: the caller has a loop for that.
    """

    def __init__(self, make: MakesConnection, seeds: Sequence[Address], *, timeout: float, patience: float = 0.0) -> None:
        self.patience = patience
        self._make = make
        self._timeout = timeout
        self._seeds = list(seeds)
        self.where = f"the Cluster of {', '.join(f'{host}:{port}' for host, port in seeds)}"
        self._nodes: dict[Address, Node] = {}
        self._served: list[Node | None] = [None] * SLOTS
        self._heard_of: list[Address] = []  # all nodes as told last, replicas behind: whom to ask next
        self._teller: list[Address] = []  # who told that, if anybody did
        self._known = False
        self._looked_at = -LOOK
        self._trouble: StoreUnavailable | None = None  # of the last look, if nobody could tell
        self._cooldown_policy = 0.0, 0.0, 0.0
        self._deadline: float | None = None
        self._own_locks = MapLocks()

    def nodes(self, queue: str = "") -> Sequence[Link]:
        """See `Places`: all masters that serve slots."""
        if not self._known:
            self.look(anew=True)
            self._raise_unknown()
        return list(dict.fromkeys(node for node in self._served if node is not None))

    @property
    def _locks(self) -> MapLocks:
        locks = self._own_locks
        if locks.pid != os.getpid():  # a thread of the parent's, which this process has not, may have held them
            locks = self._own_locks = MapLocks()
        return locks

    def close(self) -> None:
        """Closes the idle connections."""
        for node in list(self._nodes.values()):
            node.close()

    def set_cooldown(self, seconds: float, late: float, longest: float) -> None:
        """See `Link.set_cooldown`: each node, and the way to the map."""
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
            StoreUnavailable: nobody knows; StoreRefused if the Cluster says that none does.
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
        """The same; None where nobody knows. `asks`: nodes, if none has told of the map."""
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
        """That node serves the slot from now on."""
        self._served[slot] = node

    def look(self, away: Node | None = None, *, anew: bool = False) -> None:
        """Asks some node for the map, once a second at most, and one thread at a time: the others go by what is known. `away`: one that
        does not answer, which is asked last. `anew`: also if that was done a moment ago.
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
                self._looked_at = clock.monotonic()  # when it ended: those who have waited for it do not ask again
        finally:
            looking.release()

    def _ask(self, away: Node | None) -> None:
        # Whoever told something old, since it is cut off from the others, is not asked again at once.
        last = [*self._teller, *([away.address] if away is not None else [])]
        self._trouble = None
        longest = min(self._timeout, self._cooldown_policy[2] or self._timeout)
        patience = min(PATIENCE, longest / 2)
        until = clock.monotonic() + longest
        if self._deadline is not None:  # as `Link.hurry` has it: once for all of them
            until = min(until, max(self._deadline, clock.monotonic() + HURRIED))
            patience = min(patience, HURRIED)
        for address in dict.fromkeys([*(one for one in (*self._heard_of, *self._seeds) if one not in last), *last]):
            asked = Node(self._make, address, patience)
            try:
                told = cluster_slots.served(asked.execute("CLUSTER", "SLOTS"), address[0])
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

    def _take(self, told: Iterable[cluster_slots.SlotRange], teller: Address) -> None:
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
        for address in list(self._nodes):  # a copy: who follows a redirect meanwhile puts one in
            if address not in masters and (node := self._nodes.pop(address, None)) is not None:
                node.close()

    def _raise_unknown(self) -> None:
        if not self._known:
            trouble = self._trouble or StoreUnavailable(code="redis_cooldown", where=self.where)
            unknown = StoreUnavailable(code=trouble.code, **trouble.fields)  # one of this thread's: what is raised keeps its frames
            unknown.nothing_done = True
            raise unknown
