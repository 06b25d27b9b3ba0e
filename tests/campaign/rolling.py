"""The number of partitions changes under load: workers and web processes leave and come back one by one with other settings, as
docs/topics/scaling.md says.
"""

from __future__ import annotations

import json
import time
from typing import Any, ClassVar, Final

from tests.campaign.faults import Fault
from tests.campaign.stage import ROLL, manage
from tests.laws.history import ROLLING

PATIENCE: Final = 20.0  # seconds in which doctor may come to say that the former number may go
NEEDED: Final = {"D028", "D026"}  # what it says else


class Deploy(Fault):
    """Nobody waits between two processes: keys are wanted meanwhile."""

    def deploy(self, settings: str) -> None:
        """Each worker and web process comes back with this APP_PARTITIONS."""
        stage = self.stage
        stage.settings = settings
        for worker in stage.workers:
            worker.environment["APP_PARTITIONS"] = settings
            worker.terminate()
            worker.start()
        for web in stage.webs:
            web.environment["APP_PARTITIONS"] = settings
            stage.renew(web)


class Roll(Deploy):
    """From few partitions to many, and the next time back. First all serve all partitions, and look for keys there; then they put jobs
    there.
    """

    kind = ROLLING
    kills: ClassVar[bool] = True

    def begin(self) -> None:
        now, *former = self.stage.settings.split()
        other = former[0] if former else next(number for number in ROLL if number != now)
        steps = [f"{other} {now}"] if former else [f"{now} {other}", f"{other} {now}"]
        self.detail = f"{self.stage.settings} -> {' -> '.join(steps)}"
        for settings in steps:
            self.deploy(settings)


class DropFormer(Deploy):
    """The former number is removed from the settings when `delayq doctor` reports that it can be. While keys are in other partitions,
    it stays.
    """

    kind = "drop former partitions"

    def begin(self) -> None:
        settings = self.stage.settings
        self.detail = f"{settings}: still needed"
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            told = self._doctor()
            if "D027" in told and not told & NEEDED:
                self.deploy(settings.split()[0])
                self.detail = f"{settings} -> {self.stage.settings}"
                return
            time.sleep(1.0)

    def _doctor(self) -> set[str]:
        answer: dict[str, Any] = json.loads(
            manage("delayq", "doctor", "--json", environment={"APP_PARTITIONS": self.stage.settings}, codes=(0, 1))
        )
        return {found["code"] for found in answer["findings"]}
