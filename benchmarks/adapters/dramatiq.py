"""Dramatiq on Redis, on its defaults."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import dramatiq
from dramatiq.brokers.redis import RedisBroker

from benchmarks.adapters import base

dramatiq.set_broker(RedisBroker(url=base.REDIS))
TASKS = {name: dramatiq.actor(getattr(base, name), actor_name=name) for name in ("nothing", "late", "nap")}


class Dramatiq(base.Adapter):
    """Jobs with a date are fetched at once and wait in the worker."""

    name = "Dramatiq"
    version = dramatiq.__version__
    settings = "defaults: acknowledged after the run, retries, 8 threads"
    waits_in = "worker memory"
    can_cancel = False

    def put(self, task: str, args: Sequence[Any], due: float | None) -> None:
        """send_with_options."""
        delay = None if due is None else max(0, round((due - time.time()) * 1000))
        TASKS[task].send_with_options(args=tuple(args), delay=delay)

    def worker(self, processes: int, threads: int) -> list[str]:
        """The command that it comes with."""
        words = ["--processes", str(processes), "--threads", str(threads or 8)]
        return base.python("-m", "dramatiq", "benchmarks.adapters.dramatiq", *words)


if __name__ == "__main__":
    base.main(Dramatiq())
