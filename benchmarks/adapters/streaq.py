"""streaQ, with its defaults except for results."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import streaq

from benchmarks.adapters import base

worker = streaq.Worker(redis_url=base.REDIS, concurrency=base.THREADS or 100)
ONCE = 200


@worker.task(ttl=0, silent=True)
async def nothing(text: str) -> None:
    """Does nothing."""
    base.nothing(text)


@worker.task(ttl=0, silent=True)
async def late(due: float) -> None:
    """Notes its lateness."""
    base.late(due)


@worker.task(ttl=0, silent=True)
async def nap(number: int, seconds: float) -> None:
    """Takes a while."""
    await base.async_nap(number, seconds)


TASKS: dict[str, Any] = {"nothing": nothing, "late": late, "nap": nap}


class Streaq(base.Adapter):
    """Tasks are coroutines."""

    name = "streaQ"
    version = streaq.__version__
    settings = "defaults (a worker loses its jobs if it doesn't respond for a minute), no results, concurrency 100 (tuned)"
    at_once = 100
    many_by = "enqueue_many"

    async def open(self) -> None:
        """Connects, for the life of this process."""
        await worker.__aenter__()

    async def put(self, task: str, args: Sequence[Any], due: float | None) -> None:
        """enqueue."""
        await self._made(task, args, due)

    async def put_many(self, task: str, jobs: Iterable[tuple[Sequence[Any], float | None]]) -> None:
        """enqueue_many."""
        made = [self._made(task, args, due) for args, due in jobs]
        for start in range(0, len(made), ONCE):
            await worker.enqueue_many(made[start : start + ONCE])

    def _made(self, task: str, args: Sequence[Any], due: float | None) -> Any:
        found = TASKS[task].enqueue(*args)
        return found if due is None else found.start(schedule=base.at(due))

    def worker(self, processes: int, threads: int) -> list[str]:
        """The command that it comes with."""
        words = ["run", "benchmarks.adapters.streaq:worker", "--workers", str(processes)]
        return base.python("-m", "streaq", *words)


if __name__ == "__main__":
    base.main(Streaq())
