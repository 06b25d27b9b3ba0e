"""Another site on the Redis of the campaign: its worker and its web process come and go, and must change nothing."""

from __future__ import annotations

import json
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

from tests.app.record import lines
from tests.laws.history import Rivalry
from tests.stage import MANAGE, Actor, manage, sqlite

SECRET = "another secret"


class SecondSite:
    """Another project with its database and SECRET_KEY. It uses the same Redis and prefix as the campaign.

    Args:
        campaign: the folder of the campaign.
    """

    def __init__(self, campaign: Path) -> None:
        self.campaign = campaign
        self.folder = campaign / "rival"
        self.database = self.folder / "db.sqlite3"
        self.worker = Actor(campaign / "rival-worker.log", [*MANAGE, "delayq_worker", "--grace", "3s", "-v", "0"], {})
        self.web = Actor(campaign / "rival-web.log", [sys.executable, "-m", "tests.campaign.rival", str(campaign)], {})
        self._life = 0

    def open(self) -> None:
        """Makes its tables."""
        self.folder.mkdir()
        database = json.dumps(sqlite(self.database))
        own = {"APP_FOLDER": str(self.folder), "APP_DATABASE": database, "APP_SECRET": SECRET, "APP_CALENDAR": ""}
        self.worker.environment = self.web.environment = own
        manage("migrate", "--run-syncdb", "-v", "0", environment=own)

    def begin(self) -> None:
        """Starts both. A worker that is refused ends by itself."""
        self._life += 1
        self.worker.start()
        self.web.start(str(self._life))

    def end(self) -> None:
        """Ends both."""
        for actor in (self.worker, self.web):
            actor.kill_tree()


def rivalry(campaign: Path) -> Rivalry | None:
    """The calls of another site in a campaign, its runs and its rows; None if there is no such site."""
    folder = SecondSite(campaign).folder
    if not folder.exists():
        return None
    found = Rivalry(attempts=[(line["what"], line["answer"]) for line in lines(campaign, "rival.jsonl")])
    found.runs = [(line["job"], line["fence"]) for line in lines(folder, "runs-*.jsonl") if line["run"] == "began"]
    with closing(sqlite3.connect(folder / "db.sqlite3", timeout=20)) as connection:
        rows = connection.execute("SELECT id, state, published IS NOT NULL FROM delayq_job").fetchall()
    found.rows = [(job, state, bool(published)) for job, state, published in rows]
    return found
