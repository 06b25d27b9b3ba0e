"""How fast one process puts jobs in, one call after the other."""

from __future__ import annotations

import time

from benchmarks.metrics import Column, Figures, Metric, counted
from benchmarks.stage import Stage
from benchmarks.systems import System


def measure(system: System, size: float) -> Figures:
    """5,000 jobs due in an hour."""
    with Stage(system) as stage:
        stage.put(50, due=time.time() + 3600)
        count = counted(5000, size)
        before, commands = stage.redis.cpu(), stage.redis.commands()
        seconds = stage.put(count, due=time.time() + 3600)
        server = stage.redis.cpu() - before
        return {
            "rate": count / seconds,
            "redis_us": server / count * 1e6,
            "commands": (stage.redis.commands() - commands) / count,
        }


METRIC = Metric(
    name="single",
    title="Scheduling one job at a time",
    text="One process with one connection makes one call per job. Each job has an argument of 100 bytes and is due in an hour.",
    columns={
        "rate": Column(title="jobs per second", reach="≥ 10,000"),
        "redis_us": Column(title="Redis CPU per job", unit="µs", better="less", digits=1),
        "commands": Column(title="Redis commands per job", better="less", digits=1),
    },
    measure=measure,
)
