"""Faults of a master with a replica, or of its replica, in a Cluster or with Sentinels.

With `--split`, a network split leaves clients on both sides (see tests/wires.py). Otherwise, SIGSTOP simulates each side. On the
majority side, a replica is elected because its master is stopped. When the master resumes, it first executes what clients have sent
to it, although it is no longer the master; those writes are lost. On the minority side, a master loses contact and serves until it
gives up, because all others are stopped.
"""

from __future__ import annotations

import random
import threading
import time
from typing import ClassVar

from tests.app.record import FORGOTTEN
from tests.campaign.faults import Fault
from tests.campaign.masters import Masters, Pair
from tests.campaign.stage import Stage
from tests.servers import RedisServer
from tests.stage import spawned
from tests.topologies import ClusterNode
from tests.wires import FEW

STALLED = 1.2  # seconds, less than until a node counts as lost
SLOW_MS = 2000


class MasterFault(Fault):
    """Meets one of the masters, or its replica. The next one finds all of them well again."""

    meets = "redis"
    lasts = (6.0, 8.0)  # an election takes two or three
    stops: ClassVar[bool] = True  # all servers are stopped for a while

    def __init__(self, stage: Stage, dice: random.Random) -> None:
        super().__init__(stage, dice)
        self.pair: Pair | None = None

    @classmethod
    def possible(cls, stage: Stage) -> bool:
        return stage.masters is not None

    @property
    def masters(self) -> Masters:
        """The partitions of this stage."""
        assert self.stage.masters is not None
        return self.stage.masters

    @property
    def parts(self) -> tuple[str, ...]:
        return self.pair.parts if self.pair is not None and self.stops else ()

    def begin(self) -> None:
        """The new master is not known earlier."""
        found = self.masters.settled()
        self.pair = found[int(self.place * len(found))]
        self.detail += f", master of {' '.join(self.pair.parts)}" if self.pair.parts else ""
        self.harm(self.pair)

    def end(self) -> None:
        assert self.pair is not None
        self.undo(self.pair)
        self.masters.settled()
        (self.stage.folder / FORGOTTEN).touch()

    def harm(self, pair: Pair) -> None:
        """Does it to these two."""

    def undo(self, pair: Pair) -> None:
        """Ends it."""


class KillMaster(MasterFault):
    """SIGKILL of a master, which then returns as a replica."""

    kind = "kill master"
    kills = True
    weight = 3

    def harm(self, pair: Pair) -> None:
        pair.master.kill()

    def undo(self, pair: Pair) -> None:
        spawned(pair.master.start)


class KillAheadMaster(KillMaster):
    """The same, when its replica has not kept up for a while."""

    kind = "kill master ahead"

    def harm(self, pair: Pair) -> None:
        pair.replica.pause()
        time.sleep(STALLED)
        pair.master.kill()
        pair.replica.resume()


class PauseMaster(MasterFault):
    """SIGSTOP of a master until after the election: the half of the many."""

    kind = "pause master"

    def harm(self, pair: Pair) -> None:
        pair.master.pause()

    def undo(self, pair: Pair) -> None:
        pair.master.resume()


class PauseAheadMaster(PauseMaster):
    """The same, when its replica has not kept up for a while."""

    kind = "pause master ahead"
    weight = 1

    def harm(self, pair: Pair) -> None:
        pair.replica.pause()
        time.sleep(STALLED)
        pair.master.pause()
        pair.replica.resume()


class PauseOthers(MasterFault):
    """SIGSTOP of all but one master: the half of the few."""

    kind = "pause all others"
    lasts = (4.0, 6.0)
    stops = False  # no server responds meanwhile

    def harm(self, pair: Pair) -> None:
        for server in self._others(pair):
            server.pause()

    def undo(self, pair: Pair) -> None:
        for server in self._others(pair):
            server.resume()

    def _others(self, pair: Pair) -> list[RedisServer]:
        return [server for server in self.masters.all if server is not pair.master]


class SplitNetwork(MasterFault):
    """A master and some of the clients are cut off from the others, sometimes with the replica of another master. Both sides go on: the
    one until its master gives up, the other when it has elected his replica.
    """

    kind = "split network"
    stops = False  # clients on the minority side can use no other partition

    @classmethod
    def possible(cls, stage: Stage) -> bool:
        return stage.masters is not None and stage.masters.wires is not None

    def harm(self, pair: Pair) -> None:
        assert self.masters.wires is not None
        few = [pair.master]
        if self.place < 0.5:
            few += [other.replica for other in self.masters.pairs() if other.master is not pair.master][:1]
        self.masters.wires.split([FEW, *(node.address for node in few if isinstance(node, ClusterNode))])

    def undo(self, pair: Pair) -> None:
        assert self.masters.wires is not None
        self.masters.wires.heal()


class KillReplica(MasterFault):
    """SIGKILL of a replica: no call waits for it."""

    kind = "kill replica"
    lasts = (1.0, 4.0)
    weight = 1
    stops = False

    def harm(self, pair: Pair) -> None:
        pair.replica.kill()

    def undo(self, pair: Pair) -> None:
        spawned(pair.replica.start)


class FailOverByHand(MasterFault):
    """A manual failover before maintenance. In a Cluster, the master waits for its replica, and nothing is lost."""

    kind = "fail over by hand"
    lasts = (1.0, 2.0)

    @classmethod
    def possible(cls, stage: Stage) -> bool:
        return stage.masters is not None and not stage.masters.loses_by_hand

    def harm(self, pair: Pair) -> None:
        self.masters.by_hand(pair)


class FailOverBySentinel(FailOverByHand):
    """The same with Sentinels, which do not wait."""

    kind = "fail over by sentinel"

    @classmethod
    def possible(cls, stage: Stage) -> bool:
        return stage.masters is not None and stage.masters.loses_by_hand


class SlowMaster(MasterFault):
    """A master answers clients up to two seconds late, again and again; its bus and its replica notice nothing."""

    kind = "slow master"

    def harm(self, pair: Pair) -> None:
        self.over = threading.Event()
        self.thread = threading.Thread(target=self._slow, args=(pair.master,), daemon=True)
        self.thread.start()

    def undo(self, pair: Pair) -> None:
        self.over.set()
        self.thread.join()

    def _slow(self, master: RedisServer) -> None:
        while not self.over.is_set():
            master.call("CLIENT", "PAUSE", str(SLOW_MS), "ALL")
            self.over.wait(SLOW_MS / 1000 + 0.05)


ALL: tuple[type[MasterFault], ...] = (
    KillMaster,
    KillAheadMaster,
    PauseMaster,
    PauseAheadMaster,
    PauseOthers,
    SplitNetwork,
    KillReplica,
    FailOverByHand,
    FailOverBySentinel,
    SlowMaster,
)
