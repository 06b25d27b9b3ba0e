"""The systems that are measured: where each comes from, and the environment it runs in."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import venv
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PEERS = ROOT / ".venv-peers"


class NotInstalled(Exception):
    """A system could not be had here; the text says why."""


@dataclass(frozen=True)
class System:
    """One system. `source`: own, pypi, npm or debian; `packages` as that calls them."""

    name: str
    source: str
    packages: tuple[str, ...] = ()
    metrics: tuple[str, ...] = ()  # the only ones that measure it; (): all

    @property
    def home(self) -> Path:
        """The folder where a peer is installed."""
        return PEERS / self.name

    def command(self, verb: str) -> list[str]:
        """The command line of one of its verbs."""
        module = self.name.replace("-", "_")
        if self.source == "npm":
            return ["node", str(ROOT / "benchmarks" / "adapters" / f"{module}.js"), verb]
        if self.source == "debian":
            return ["ruby", str(ROOT / "benchmarks" / "adapters" / f"{module}.rb"), verb]
        program = sys.executable if self.source == "own" else str(self.home / "bin" / "python")
        return [program, "-m", f"benchmarks.adapters.{module}", verb]

    @property
    def environment(self) -> dict[str, str]:
        """The environment of its programs."""
        paths = {"PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "0", "NODE_PATH": str(self.home / "node_modules")}
        return {**os.environ, **paths, "PATH": f"{self.home / 'bin'}:{os.environ['PATH']}"}

    def install(self) -> None:
        """Installs it, if it is not installed yet.

        Raises:
            NotInstalled: it cannot be had here.
        """
        ready = self.home / "installed"
        if self.source == "own" or ready.exists():
            return
        self.home.mkdir(parents=True, exist_ok=True)
        if self.source == "pypi":
            venv.create(self.home, with_pip=True)
            _run([str(self.home / "bin" / "pip"), "install", "--quiet", "--disable-pip-version-check", *self.packages])
        elif self.source == "npm":
            _need("npm")
            _run(["npm", "install", "--silent", "--prefix", str(self.home), *self.packages])
        elif not shutil.which("sidekiq"):
            _need("apt-get")
            _run(["apt-get", "install", "-y", "-qq", "--no-install-recommends", *self.packages])
        ready.touch()

    @cached_property
    def facts(self) -> dict[str, Any]:
        """The facts of its adapter: version, settings, whether it can cancel.

        Raises:
            NotInstalled: the adapter does not start.
        """
        done = subprocess.run(self.command("facts"), cwd=ROOT, env=self.environment, capture_output=True, text=True)
        if done.returncode:
            raise NotInstalled(f"its adapter does not start: {done.stderr.strip()[-300:]}")
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return found


def _need(program: str) -> None:
    if not shutil.which(program):
        raise NotInstalled(f"{program} is not on PATH")


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NotInstalled(f"`{' '.join(command[:4])} …` failed: {(done.stderr or done.stdout).strip()[-300:]}")


OWN = System("delayq", "own")
ALL = {
    system.name: system
    for system in (
        OWN,
        System("celery", "pypi", ("celery[redis]", "hiredis")),
        System("bullmq", "npm", ("bullmq", "ioredis")),
        System("dramatiq", "pypi", ("dramatiq[redis]", "hiredis")),
        System("saq", "pypi", ("saq[redis,hiredis]", "typing_extensions")),
        System("arq", "pypi", ("arq", "hiredis")),
        System("rq", "pypi", ("rq", "hiredis")),
        System("huey", "pypi", ("huey[redis]", "hiredis")),
        System("streaq", "pypi", ("streaq",)),
        System("taskiq", "pypi", ("taskiq[uv]", "taskiq-redis", "hiredis")),
        System("django-q2", "pypi", ("django-q2", "redis", "hiredis")),
        System("sidekiq", "debian", ("ruby-sidekiq",)),
        System("procrastinate", "pypi", ("procrastinate", "psycopg[binary]"), ("unique",)),
    )
}
