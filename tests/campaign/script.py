"""Which fault comes when: the same seed gives the same sequence. Calm scenes, in which faults come one at a time and recovery can be
measured, take turns with storms, in which workers, web processes, Redis, proxy and database are harmed side by side.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from tests.app.record import Recorder
from tests.campaign import clocks, crowds, failovers, faults, forgetting, migrating, outages, slot_moves
from tests.campaign.faults import Fault
from tests.campaign.recovery import PROMISED
from tests.campaign.rolling import DropFormer, Roll
from tests.campaign.stage import Stage

CALM = 6  # faults in a calm scene
LEASE = 4.0  # of SETTINGS in tests/campaign/stage.py
STORM = 20.0  # seconds of a storm
PAUSES = (0.1, 0.3, 1.0, 2.0)
ALL: list[type[Fault]] = [
    faults.KillWorker,
    faults.LoseHost,
    faults.KillTaskProcess,
    faults.KillSideProcess,
    faults.KillSupervisor,
    faults.StopWorker,
    faults.StopTaskProcess,
    faults.StopSupervisor,
    faults.RestartWorker,
    faults.Deploy,
    faults.TaskMissing,
    faults.KillWeb,
    faults.StopWeb,
    faults.AnotherSite,
    crowds.Flood,
    outages.KillRedis,
    outages.RestartRedis,
    outages.PauseRedis,
    outages.FullRedis,
    outages.FlushScripts,
    outages.KillClients,
    forgetting.FailOver,
    forgetting.RollBack,
    forgetting.Wipe,
    clocks.ClockForward,
    clocks.ClockBack,
    clocks.SkewedHost,
    outages.ProxyResets,
    outages.ProxySwallows,
    outages.ProxyDelays,
    outages.PauseDatabase,
    outages.DatabaseAway,
    outages.RestartDatabase,
    outages.KillDatabase,
    outages.CrowdedDatabase,
    outages.LockTables,
    outages.StatementTimeouts,
    outages.LockTimeouts,
    migrating.MigrateTable,
    migrating.MissingColumn,
    outages.LockDatabase,
    *failovers.ALL,
    *slot_moves.ALL,
]


@dataclass(frozen=True, slots=True)
class Scene:
    """Faults of bands that are played side by side: one band in a calm scene. Each with the pause before it."""

    calm: bool
    bands: list[list[tuple[float, Fault]]]


class Bag:
    """Kinds in random order, all of them (by their weight) before any comes again."""

    def __init__(self, kinds: list[type[Fault]], dice: random.Random) -> None:
        self.kinds = kinds
        self.dice = dice
        self._left: list[type[Fault]] = []

    def draw(self, stage: Stage) -> Fault:
        """The next one."""
        if not self._left:
            self._left = [kind for kind in self.kinds for _ in range(kind.weight)]
            self.dice.shuffle(self._left)
        return self._left.pop()(stage, random.Random(self.dice.random()))


class Script:
    """The scenes of one seed."""

    def __init__(self, stage: Stage, seed: str, only: tuple[str, ...] = (), without: tuple[str, ...] = ()) -> None:
        self.stage = stage
        kinds = [kind for kind in ALL if kind.possible(stage) and (not only or kind.kind in only)]
        kinds = [kind for kind in kinds if kind.kind not in without]
        self.kinds = kinds
        self._alone = Bag(kinds, random.Random(f"{seed}/alone"))
        self._bands: list[tuple[Bag, float | None]] = []
        for meets in dict.fromkeys(kind.meets for kind in kinds):
            here = [kind for kind in kinds if kind.meets == meets]
            count = len(stage.workers) if meets == "worker" else 1
            for number in range(count):
                place = (number + 0.5) / count if meets == "worker" else None
                self._bands.append((Bag(here, random.Random(f"{seed}/{meets}/{number}")), place))

    def scenes(self) -> Iterator[Scene]:
        """For ever."""
        while self.kinds or self.stage.rolls:
            rolls = [(0.0, kind(self.stage, random.Random())) for kind in (Roll, DropFormer)] if self.stage.rolls else []
            yield Scene(True, [[*rolls, *((0.0, self._alone.draw(self.stage)) for _ in range(CALM if self.kinds else 0))]])
            if self.kinds:
                yield Scene(False, [self._band(bag, place) for bag, place in self._bands])

    def _band(self, bag: Bag, place: float | None) -> list[tuple[float, Fault]]:
        band: list[tuple[float, Fault]] = []
        length = 0.0
        while length < STORM:
            pause, fault = bag.dice.choice(PAUSES), bag.draw(self.stage)
            if place is not None:
                fault.confine(place)
            band.append((pause, fault))
            length += pause + fault.seconds
        return band


def play(scene: Scene, record: Recorder, end: float, rest: Callable[[], None], slack: float = 1.0) -> None:
    """Plays a scene, until `end` (monotonic) at most. `rest`: called after each fault of a calm scene. `slack`: how many times what is
    promised recovery may take.
    """

    def perform(band: list[tuple[float, Fault]]) -> None:
        until = min(end, time.monotonic() + STORM)
        for pause, fault in band:
            if time.monotonic() + pause + fault.seconds > (end if scene.calm else until):
                continue
            time.sleep(pause)
            _perform(fault, record, scene.calm)
            if scene.calm:
                time.sleep(_aftermath(fault, slack))
                rest()

    with ThreadPoolExecutor(len(scene.bands)) as threads:
        for band in [threads.submit(perform, band) for band in scene.bands]:
            band.result()


def _aftermath(fault: Fault, slack: float) -> float:
    """Seconds in which the next fault would not come alone: the recovery; and where Redis could not be reached, one lease, in which
    workers do not take each other's jobs over.
    """
    return max(PROMISED.get(fault.kind, 0.0) * max(1.0, slack), LEASE if fault.meets in ("redis", "proxy") else 0.0)


def _perform(fault: Fault, record: Recorder, calm: bool) -> None:
    at = time.monotonic_ns()
    fault.begin()
    since = time.monotonic_ns()
    time.sleep(fault.seconds)
    fault.end()
    until = time.monotonic_ns()
    record.write(
        kind=fault.kind, at=at, since=since if fault.kills else until, until=until, detail=fault.detail, alone=calm, parts=fault.parts
    )
    print(f"{'' if calm else '    '}{fault.kind} ({fault.detail})", flush=True)
