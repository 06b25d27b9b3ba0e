"""taskiq with a Redis stream, and its scheduler for dates."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from typing import Any

from taskiq import TaskiqScheduler
from taskiq_redis import ListRedisScheduleSource, RedisStreamBroker

from benchmarks.adapters import base

broker = RedisStreamBroker(url=base.REDIS, consumer_id="0")  # from the beginning, also what came before the worker
source = ListRedisScheduleSource(url=base.REDIS)
scheduler = TaskiqScheduler(broker, sources=[source])
ONCE = 100


@broker.task("nothing")
async def nothing(text: str) -> None:
    """Does nothing."""
    base.nothing(text)


@broker.task("late")
async def late(due: float) -> None:
    """Notes its lateness."""
    base.late(due)


@broker.task("nap")
async def nap(number: int, seconds: float) -> None:
    """Takes a while."""
    await base.async_nap(number, seconds)


TASKS: dict[str, Any] = {"nothing": nothing, "late": late, "nap": nap}


class Taskiq(base.Adapter):
    """A separate scheduler process sends jobs with a date. It polls every second."""

    name = "taskiq"
    version = version("taskiq")
    settings = "Redis stream (unacknowledged jobs run again after ten minutes), concurrency 100 (default), scheduler polls every second"
    at_once = 100
    many_by = "100 concurrent calls"

    async def open(self) -> None:
        """Connects."""
        await broker.startup()
        await source.startup()

    async def put(self, task: str, args: Sequence[Any], due: float | None) -> None:
        """kiq, schedule_by_time."""
        if due is None:
            await TASKS[task].kiq(*args)
        else:
            await TASKS[task].schedule_by_time(source, base.at(due), *args)

    async def put_many(self, task: str, jobs: Iterable[tuple[Sequence[Any], float | None]]) -> None:
        """Calls side by side: there is no other way."""
        todo = list(jobs)
        for start in range(0, len(todo), ONCE):
            await asyncio.gather(*(self.put(task, args, due) for args, due in todo[start : start + ONCE]))

    def worker(self, processes: int, threads: int) -> list[str]:
        """Its worker and its scheduler."""
        limit = ["--max-async-tasks", str(threads or 100), "--workers", str(processes), "--log-level", "WARNING"]
        works = base.python("-m", "taskiq", "worker", "benchmarks.adapters.taskiq:broker", *limit)
        dates = base.python(
            "-m",
            "taskiq",
            "scheduler",
            "benchmarks.adapters.taskiq:scheduler",
            "--update-interval",
            "1",
            "--log-level",
            "WARNING",
        )
        return base.both(works, dates)


if __name__ == "__main__":
    base.main(Taskiq())
