"""SAQ on Redis: three attempts, so that jobs of a lost worker run again, and no results."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from typing import Any

import saq

from benchmarks.adapters import base

queue = saq.Queue.from_url(base.REDIS)
ONCE = 100  # calls under way at once where many jobs are put in


async def nothing(ctx: Any, *, args: list[Any]) -> None:
    """Does nothing."""
    base.nothing(*args)


async def late(ctx: Any, *, args: list[Any]) -> None:
    """Notes its lateness."""
    base.late(*args)


async def nap(ctx: Any, *, args: list[Any]) -> None:
    """Takes a while."""
    await base.async_nap(*args)


settings = {"queue": queue, "functions": [nothing, late, nap], "concurrency": base.THREADS or 100}


class Saq(base.Adapter):
    """Tasks are coroutines."""

    name = "SAQ"
    version = version("saq")
    settings = (
        "three attempts (lost workers' jobs are collected every minute, after a timeout of 10 s), no results, concurrency "
        "100 (tuned); dates are whole seconds"
    )
    at_once = 100
    many_by = "100 concurrent calls"
    unique = "`key`"

    async def open(self) -> None:
        """Connects."""
        await queue.connect()

    async def put(self, task: str, args: Sequence[Any], due: float | None) -> None:
        """enqueue."""
        await queue.enqueue(task, args=list(args), scheduled=math.ceil(due or 0), retries=3, ttl=-1, **self._unique())

    def _unique(self) -> dict[str, str]:
        key = self.key()
        return {} if key is None else {"key": key}

    async def put_many(self, task: str, jobs: Iterable[tuple[Sequence[Any], float | None]]) -> None:
        """Calls side by side: there is no other way."""
        todo = list(jobs)
        for start in range(0, len(todo), ONCE):
            await asyncio.gather(*(self.put(task, args, due) for args, due in todo[start : start + ONCE]))

    def worker(self, processes: int, threads: int) -> list[str]:
        """The command that it comes with."""
        return base.several(base.python("-m", "saq", "benchmarks.adapters.saq.settings", "--quiet"), processes)


if __name__ == "__main__":
    base.main(Saq())
