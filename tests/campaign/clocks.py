"""Wrong clocks, by libfaketime. Steps of the clock of Redis' host: an hour forward stays; an hour back is put right again, since jobs
that were scheduled before would wait for an hour. And workers on hosts whose clock is hours or days off.
"""

from __future__ import annotations

import random

from tests.campaign.faketime import HOUR, ahead
from tests.campaign.faults import Fault
from tests.campaign.stage import Stage

SKEWS = (-2 * HOUR, 25 * HOUR, 31 * 24 * HOUR)  # seconds by which the clock of a worker's host is ahead


class ClockForward(Fault):
    """All dates have come at once, and all leases have ended an hour ago."""

    meets = "redis"
    kind = "clock forward"
    weight = 1
    step = HOUR
    stays = True

    @classmethod
    def possible(cls, stage: Stage) -> bool:
        return stage.clock is not None

    def begin(self) -> None:
        self._step(self.step)

    def end(self) -> None:
        if not self.stays:
            self._step(-self.step)

    def _step(self, seconds: int) -> None:
        assert self.stage.clock is not None
        self.stage.clock.step(seconds, [node.server for node in self.stage.nodes])


class ClockBack(ClockForward):
    """Jobs are due in an hour, and leases last an hour longer."""

    kind = "clock back"
    lasts = (2.0, 5.0)
    step = -HOUR
    stays = False


class SkewedHost(Fault):
    """A deploy to a host whose clock is wrong, and back. By Redis' clock nothing is early, late, or past its time."""

    kind = "skewed clock"
    lasts = (4.0, 8.0)
    weight = 3

    def __init__(self, stage: Stage, dice: random.Random) -> None:
        super().__init__(stage, dice)
        self.ahead = dice.choice(SKEWS)
        self.detail += f", {self.ahead / HOUR:+.0f} h"

    @classmethod
    def possible(cls, stage: Stage) -> bool:
        return stage.skews

    def begin(self) -> None:
        self.worker().terminate()
        self.worker().start(**ahead(self.ahead))

    def end(self) -> None:
        self.worker().terminate()
        self.worker().start()
