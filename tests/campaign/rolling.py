"""The number of partitions changes under load: workers and web processes leave and come back one by one with other settings, as
docs/scaling.md says.
"""

from __future__ import annotations

from typing import ClassVar

from tests.campaign.faults import Fault
from tests.campaign.stage import ROLL
from tests.laws.history import ROLLING

UP = ROLL[1:]  # all serve all partitions, and look for keys there, before anybody puts jobs there
DOWN = ROLL[1:2]


class Roll(Fault):
    """From few partitions to many, and the next time back. Nobody waits between two processes: keys are wanted meanwhile."""

    kind = ROLLING
    kills: ClassVar[bool] = True

    def begin(self) -> None:
        stage = self.stage
        steps = DOWN if stage.settings == ROLL[-1] else UP
        self.detail = f"{stage.settings} -> {' -> '.join(steps)}"
        for settings in steps:
            stage.settings = settings
            for worker in stage.workers:
                worker.environment["APP_PARTITIONS"] = settings
                worker.terminate()
                worker.start()
            for web in stage.webs:
                web.environment["APP_PARTITIONS"] = settings
                stage.renew(web)
