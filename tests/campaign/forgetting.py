"""Faults after which Redis has forgotten something that it had acknowledged: for durable jobs the database brings it back."""

from __future__ import annotations

import time

from tests.app.record import FORGOTTEN
from tests.campaign.faults import NodeFault
from tests.campaign.stage import Stage


class Wipe(NodeFault):
    """All is gone."""

    kind = "wipe redis"
    weight = 1

    @classmethod
    def possible(cls, stage: Stage) -> bool:
        """An empty Redis belongs to the first site that comes, which may be another one."""
        return super().possible(stage) and (cls is not Wipe or stage.second_site is None)

    def begin(self) -> None:
        self.node.server.call("FLUSHALL")
        self.told()

    def told(self) -> None:
        """Web processes see that, and cancel something at once."""
        (self.stage.folder / FORGOTTEN).touch()


class FailOver(Wipe):
    """Another server takes over that lags slightly."""

    kind = "fail over"
    lasts = (0.0, 0.5)
    behind = (0.1, 1.0)
    weight = 2

    def begin(self) -> None:
        other = self.node.made()
        copy = self.node.copy(other)
        time.sleep(self.behind[0] + self.place * (self.behind[1] - self.behind[0]))
        self.detail = f"{time.monotonic() - copy:.1f} s behind{self.where}"
        self.node.server.kill()
        self.other = other

    def end(self) -> None:
        self.node.replace(self.other)
        self.told()


class RollBack(FailOver):
    """An old copy is what it starts with."""

    kind = "roll back redis"
    behind = (2.0, 6.0)
    weight = 1
