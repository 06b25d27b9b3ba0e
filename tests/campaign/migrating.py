"""Faults of a deploy: what a migration does to those who work meanwhile, and a schema that is not the one of the code."""

from __future__ import annotations

import sqlite3
from typing import Any

from tests.campaign.faults import Fault
from tests.campaign.outages import patient
from tests.campaign.stage import Stage


class MigrateTable(Fault):
    """A migration adds a column to the table of jobs and holds it until it commits; later the column goes again."""

    kind = "migrate table"
    meets = "database"
    lasts = (2.0, 5.0)

    @classmethod
    def possible(cls, stage: Stage) -> bool:
        return stage.kind in ("postgres", "sqlite")

    def begin(self) -> None:
        self.connection = connect(self.stage)
        self.connection.execute("BEGIN")
        self.connection.execute("ALTER TABLE delayq_job ADD COLUMN campaign_extra integer")

    def end(self) -> None:
        self.connection.execute("COMMIT")
        self.connection.execute("ALTER TABLE delayq_job DROP COLUMN campaign_extra")
        self.connection.close()


class MissingColumn(MigrateTable):
    """The mirror is of a release whose migration has not run: a column that it writes is not there. Web processes do not need it."""

    kind = "missing column"
    lasts = (2.0, 6.0)

    def begin(self) -> None:
        self.connection = connect(self.stage)
        self.connection.execute("ALTER TABLE delayq_attempt RENAME COLUMN traceback TO traceback_away")

    def end(self) -> None:
        self.connection.execute("ALTER TABLE delayq_attempt RENAME COLUMN traceback_away TO traceback")
        self.connection.close()


def connect(stage: Stage) -> Any:
    """To the stage's database; each statement commits itself."""
    return (
        patient(stage)
        if stage.kind == "postgres"
        else sqlite3.connect(stage.sqlite, timeout=30, isolation_level=None, check_same_thread=False)
    )
