"""arq, with its defaults except for results."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from typing import Any

import arq
from arq.connections import RedisSettings

from benchmarks.adapters import base

ONCE = 100


async def nothing(ctx: Any, *args: Any) -> None:
    """Does nothing."""
    base.nothing(*args)


async def late(ctx: Any, *args: Any) -> None:
    """Notes its lateness."""
    base.late(*args)


async def nap(ctx: Any, *args: Any) -> None:
    """Takes a while."""
    await base.async_nap(*args)


class WorkerSettings:
    """The settings that its command reads."""

    functions = [nothing, late, nap]
    redis_settings = RedisSettings.from_dsn(base.REDIS)
    max_jobs = base.THREADS or 100
    keep_result = 0


class Arq(base.Adapter):
    """Tasks are coroutines."""

    name = "arq"
    version = version("arq")
    settings = (
        "defaults (polls every half second; lost workers' jobs run again after a timeout of five minutes), no results, "
        "concurrency 100 (tuned)"
    )
    at_once = 100
    many_by = "100 concurrent calls"
    unique = "`_job_id`"

    async def open(self) -> None:
        """Connects."""
        self._pool = await arq.create_pool(WorkerSettings.redis_settings)

    async def put(self, task: str, args: Sequence[Any], due: float | None) -> None:
        """enqueue_job."""
        await self._pool.enqueue_job(task, *args, _job_id=self.key(), _defer_until=None if due is None else base.at(due))

    async def put_many(self, task: str, jobs: Iterable[tuple[Sequence[Any], float | None]]) -> None:
        """Calls side by side: there is no other way."""
        todo = list(jobs)
        for start in range(0, len(todo), ONCE):
            await asyncio.gather(*(self.put(task, args, due) for args, due in todo[start : start + ONCE]))

    def worker(self, processes: int, threads: int) -> list[str]:
        """The command that it comes with, which knows one process."""
        code = "import asyncio, logging; asyncio.set_event_loop(asyncio.new_event_loop()); from arq.cli import cli; cli()"
        return base.several(base.python("-c", code, "benchmarks.adapters.arq.WorkerSettings"), processes)


if __name__ == "__main__":
    base.main(Arq())
