"""Moves of slots in the middle of load: key by key, half of it only for a while, and (Valkey 9) at once."""

from __future__ import annotations

import random

from django_delayq.store.connection.cluster import slot_of
from tests.campaign.failovers import MasterFault
from tests.campaign.masters import ClusterMasters, Pair
from tests.campaign.stage import Stage
from tests.stage import eventually
from tests.topologies import ClusterNode

FEW = 4  # keys


class MoveSlot(MasterFault):
    """One partition goes to another master, key by key."""

    kind = "move slot"
    lasts = (0.2, 1.0)

    def __init__(self, stage: Stage, dice: random.Random) -> None:
        super().__init__(stage, dice)
        self.moved = dice.random()
        self.goes = dice.random()

    @classmethod
    def possible(cls, stage: Stage) -> bool:
        return isinstance(stage.masters, ClusterMasters)

    @property
    def parts(self) -> tuple[str, ...]:
        return (self.part,) if self.pair is not None else ()

    def harm(self, pair: Pair) -> None:
        """It is open from here on, and has moved in part."""
        parts = sorted(part for other in self.masters.settled() for part in other.parts)
        self.part = parts[int(self.moved * len(parts))]
        self.slot = slot_of(f"{{{self.part}}}")
        source = self.masters.servers.serving(self.slot)
        others = [other.master for other in self.masters.settled() if other.master is not source]
        self.to: ClusterNode = others[int(self.goes * len(others))]
        self.detail = f"{self.seconds:.1f} s, {self.part}"
        self.leave(source)

    def leave(self, source: ClusterNode) -> None:
        """Begins the move."""
        self.masters.servers.open(self.slot, self.to)
        self.masters.servers.carry(self.slot, self.to, FEW)

    def undo(self, pair: Pair) -> None:
        self.masters.servers.carry(self.slot, self.to)
        self.masters.servers.settle(self.slot, self.to)


class HalfMove(MoveSlot):
    """The process that moves the slot dies half-way, and another one completes the move later."""

    kind = "half a move"
    lasts = (4.0, 8.0)


class MoveAtOnce(MoveSlot):
    """All keys, by the engine."""

    kind = "move slot at once"

    @classmethod
    def possible(cls, stage: Stage) -> bool:
        return isinstance(stage.masters, ClusterMasters) and stage.masters.atomic

    def leave(self, source: ClusterNode) -> None:
        slot = str(self.slot)
        assert source.call("CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", slot, slot, "NODE", self.to.id) == "+OK"

    def undo(self, pair: Pair) -> None:
        eventually(lambda: self.to.tells(self.slot) == "me", "the slot does not come")


ALL: tuple[type[MasterFault], ...] = (MoveSlot, HalfMove, MoveAtOnce)
