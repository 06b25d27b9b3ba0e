"""A project with its own servers, and processes that run it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from django_delayq.store.connection.link import Link, connect
from tests.servers import RedisServer, as_package

ROOT = Path(__file__).parents[2]
PROJECT = Path(__file__).parent / "project"
PATIENCE = 60.0


class Run(NamedTuple):
    """A line of the ledger."""

    name: str
    job: str
    attempt: int
    began_ms: int
    due_ms: int
    by: str


class Stage:
    """Redis, a database, a ledger."""

    def __init__(self, redis: RedisServer, database: dict[str, Any], folder: Path) -> None:
        self.folder = folder
        self.ledger = folder / "ledger"
        self.link: Link = connect(redis.url, name="stage")
        self._environment = {"ROLLING_REDIS": as_package(redis.url), "ROLLING_DATABASE": json.dumps(database)}
        self.workers: list[subprocess.Popen[bytes]] = []

    def environment(self, name: str) -> dict[str, str]:
        return {
            **os.environ,
            **self._environment,
            "PYTHONPATH": f"{ROOT}{os.pathsep}{PROJECT}",
            "ROLLING_NAME": name,
            "DJANGO_SETTINGS_MODULE": "rolling.settings",
            "ROLLING_LEDGER": str(self.ledger),
            "PYTHONDONTWRITEBYTECODE": "1",
        }

    def run(self, *words: str, expect: int = 0) -> str:
        """`python -m <words>`; returns what it printed, and its errors where those are expected."""
        done = subprocess.run(
            [sys.executable, "-m", *words],
            cwd=PROJECT,
            env=self.environment("command"),
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert done.returncode == expect, done.stdout + done.stderr
        return done.stdout + (done.stderr if expect else "")

    def manage(self, *words: str, expect: int = 0) -> str:
        return self.run("django", *words, expect=expect)

    def start(self, name: str, *words: str) -> subprocess.Popen[bytes]:
        """`python -m <words>`, not waited for."""
        with open(self.folder / f"{name}.log", "ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", *words],
                cwd=PROJECT,
                env=self.environment(name),
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.workers.append(process)
        return process

    def work(self, name: str, *options: str) -> subprocess.Popen[bytes]:
        return self.start(name, "django", "delayq_worker", "--threads", "4", *options)

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def leave(self, process: subprocess.Popen[bytes]) -> None:
        """Tells it to leave, and waits until it has."""
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0

    def runs(self) -> list[Run]:
        lines = self.ledger.read_text().splitlines() if self.ledger.exists() else []
        # The name can contain blanks, the fields after it cannot.
        return [
            Run(name, job, int(attempt), int(began), int(due), by)
            for name, job, attempt, began, due, by in (line.rsplit(" ", 5) for line in lines)
        ]

    def close(self) -> None:
        for process in self.workers:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(PATIENCE)
        self.link.close()


def eventually(check: Callable[[], Any], what: str, patience: float = PATIENCE) -> Any:
    """Polls until `check` returns something true."""
    deadline = time.monotonic() + patience
    while not (found := check()):
        assert time.monotonic() < deadline, f"{what} did not happen within {patience:.0f} s"
        time.sleep(0.05)
    return found
