"""Projects that share a Redis, each with a database and an id."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.links import opened
from tests.servers import RedisServer, as_package
from tests.stage import MANAGE, ROOT, Actor, project, sqlite
from tests.worker.conftest import tables

TABLES = "SELECT * FROM delayq_job ORDER BY id", "SELECT * FROM delayq_attempt ORDER BY id", "SELECT * FROM delayq_event ORDER BY id"


class Site:
    """A project with a database, an id and a ledger of its runs. `of`: whose database it gets a copy of."""

    def __init__(self, folder: Path, url: str, of: Site | None = None) -> None:
        folder.mkdir()
        self.folder = folder
        self.url = url
        self.database = folder / "db.sqlite3"
        self.settings: dict[str, Any] = {"QUEUES": {"default": {}, "fast": {"DURABILITY": "redis"}}}
        self.workers: list[Actor] = []
        if of is None:
            shutil.copy(tables(), self.database)
            self.rows(f"UPDATE delayq_site SET site = '{secrets.token_hex(8)}'")  # as a migration of its own would do it
        else:
            with closing(sqlite3.connect(of.database)) as source, closing(sqlite3.connect(self.database)) as target:
                source.backup(target)

    @property
    def environment(self) -> dict[str, str]:
        return {**project(self.folder, as_package(self.url), sqlite(self.database), self.settings), "APP_SITE": "own"}

    def manage(self, *words: str, code: int = 0) -> str:
        """Runs a command of the project; returns its output, errors and log included."""
        done = subprocess.run(
            [*MANAGE, *words], cwd=ROOT, env={**os.environ, **self.environment}, capture_output=True, text=True, check=False
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout if "--json" in words else done.stdout + done.stderr

    def schedule(self, number: int, *options: str, code: int = 0) -> str:
        words = ("delayq", "schedule", "tests.app.shop.tasks.write_down", "--args", f"[{number}, 0]", *options)
        return self.manage(*words, code=code)

    def work(self, *options: str) -> Actor:
        command = [sys.executable, "-W", "error", "-m", "django", "delayq_worker", *options]
        worker = Actor(self.folder / f"worker{len(self.workers)}.log", command, self.environment)
        worker.start()
        self.workers.append(worker)
        return worker

    def refused(self, *options: str) -> str:
        """Starts a worker, which is refused; returns its output."""
        worker = self.work(*options)
        assert worker.wait() == 1, worker.text()
        assert "Traceback" not in worker.text()
        self.workers.remove(worker)
        worker.kill_tree()
        return worker.text()

    def ran(self) -> list[int]:
        ledger = self.folder / "ledger"
        return sorted(int(line.split()[0]) for line in ledger.read_text().splitlines()) if ledger.exists() else []

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(self.database, timeout=20)) as connection, connection:
            return connection.execute(query).fetchall()

    def states(self) -> dict[str, int]:
        return dict(self.rows("SELECT state, count(*) FROM delayq_job GROUP BY state"))

    def everything(self) -> list[list[tuple[Any, ...]]]:
        return [self.rows(query) for query in TABLES]

    @property
    def id(self) -> str:
        return str(self.rows("SELECT site FROM delayq_site")[0][0])

    def stop(self) -> None:
        for worker in self.workers:
            worker.signal(signal.SIGTERM)
            assert worker.wait() == 0, worker.text()
            worker.kill_tree()
        self.workers = []


MakeSite = Callable[..., Site]


@pytest.fixture
def site(tmp_path: Path) -> Iterator[MakeSite]:
    made: list[Site] = []

    def make(name: str, server: RedisServer, of: Site | None = None) -> Site:
        made.append(Site(tmp_path / name, server.url, of))
        return made[-1]

    yield make
    for one in made:
        for worker in one.workers:
            worker.kill_tree()


def contents(server: RedisServer) -> dict[bytes, Any]:
    """All that Redis has."""
    link = opened(server.url)
    return {key: link.execute("DUMP", key) for key in sorted(link.execute("KEYS", "*"))}
