"""A crowd of jobs in one queue, while others have few."""

from __future__ import annotations

from itertools import count

from tests.campaign.faults import Fault

CROWD = 2_500
_numbers = count(1)


class Flood(Fault):
    """One queue gets more jobs at once than the workers do in some seconds. The others must not wait for that."""

    meets = "web"
    kind = "flood"
    lasts = (2.0, 4.0)
    weight = 1

    def begin(self) -> None:
        from tests.campaign.load import Web

        web = Web(self.stage.folder, f"flood.{next(_numbers)}", "")
        web.flood(CROWD)
        web.record.close()
