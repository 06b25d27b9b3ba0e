"""Huey on Redis, on its defaults."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

from huey import RedisHuey

from benchmarks.adapters import base

huey = RedisHuey("bench", url=base.REDIS, results=False)
TASKS = {name: huey.task(name=name)(getattr(base, name)) for name in ("nothing", "late", "nap")}


class Huey(base.Adapter):
    """A job is taken off before it runs."""

    name = "Huey"
    version = version("huey")
    settings = "defaults (polls for due jobs every second; a job is removed before it runs), no results, 8 threads (tuned)"
    at_least_once = False

    def put(self, task: str, args: Sequence[Any], due: float | None) -> None:
        """Calls the task, or schedules it."""
        if due is None:
            TASKS[task](*args)
        else:
            TASKS[task].schedule(args=tuple(args), delay=max(0.0, due - time.time()))

    def worker(self, processes: int, threads: int) -> list[str]:
        """The command that it comes with."""
        program = os.path.join(os.path.dirname(base.python()[0]), "huey_consumer")
        kind = ["-k", "process", "-w", str(processes)] if processes > 1 else ["-k", "thread", "-w", str(threads or 8)]
        return [program, "benchmarks.adapters.huey.huey", *kind, "--quiet"]


if __name__ == "__main__":
    base.main(Huey())
