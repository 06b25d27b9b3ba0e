"""Steps of the clock of Redis' host, by libfaketime; the clocks of workers and web processes go on. An hour forward stays; an hour back
is put right again, since what was scheduled before would wait for an hour.
"""

from __future__ import annotations

from tests.campaign.faketime import HOUR
from tests.campaign.faults import Fault
from tests.campaign.stage import Stage


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
    """What is due is an hour away, and leases last an hour longer."""

    kind = "clock back"
    lasts = (2.0, 5.0)
    step = -HOUR
    stays = False
