"""Procrastinate, which keeps its jobs in PostgreSQL."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any

import procrastinate
from procrastinate.exceptions import ConnectorException

from benchmarks.adapters import base

DATABASE = json.loads(os.environ.get("BENCH_DATABASE", "{}"))
NAMES = {"NAME": "dbname", "HOST": "host", "PORT": "port", "USER": "user", "PASSWORD": "password"}
known = {NAMES[name]: value for name, value in DATABASE.items() if name in NAMES and value}
app = procrastinate.App(connector=procrastinate.SyncPsycopgConnector(kwargs=known))


class Procrastinate(base.Adapter):
    """One INSERT per job, through a function of the database."""

    name = "Procrastinate"
    version = procrastinate.__version__
    settings = "defaults"
    waits_in = "PostgreSQL"
    unique = "`queueing_lock`"

    def open(self) -> None:
        """Connects, and creates its tables the first time."""
        app.open()
        try:
            app.schema_manager.apply_schema()
        except ConnectorException:
            pass  # they exist

    def put(self, task: str, args: Sequence[Any], due: float | None) -> None:
        """defer."""
        when = None if due is None else base.at(due)
        app.configure_task(task, queueing_lock=self.key(), schedule_at=when).defer(args=list(args))

    def worker(self, processes: int, threads: int) -> list[str]:
        """Its jobs are not run here."""
        raise NotImplementedError


if __name__ == "__main__":
    base.main(Procrastinate())
