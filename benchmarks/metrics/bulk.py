"""How fast one process puts many jobs in, by the way that the system has for that; and what they weigh in Redis."""

from __future__ import annotations

import time

from benchmarks.metrics import Column, Figures, Metric, counted
from benchmarks.stage import Stage
from benchmarks.systems import System


def measure(system: System, size: float) -> Figures:
    """200,000 jobs due in an hour."""
    with Stage(system) as stage:
        stage.put(200, due=time.time() + 3600, many=True)
        count = counted(200_000 if system.source == "own" else 20_000, size)
        memory, before = stage.redis.memory(), stage.redis.cpu()
        seconds = stage.put(count, due=time.time() + 3600, spread=600, many=True)
        server = stage.redis.cpu() - before
        stage.forget_events()
        return {
            "rate": count / seconds,
            "bytes": (stage.redis.memory() - memory) / count,
            "redis_us": server / count * 1e6,
        }


METRIC = Metric(
    name="bulk",
    title="Scheduling many jobs",
    text=(
        "One process uses the system's bulk call. Arguments have 100 bytes. The jobs' dates are spread over ten minutes, "
        "starting in an hour. django-delayq schedules 200,000 jobs, and the other systems 20,000. The memory doesn't include "
        "events that the mirror has already written."
    ),
    columns={
        "rate": Column(title="jobs per second", reach="≥ 100,000"),
        "bytes": Column(title="Redis memory per job", unit="bytes", better="less", reach="≤ 345"),
        "redis_us": Column(title="Redis CPU per job", unit="µs", better="less", digits=1),
    },
    measure=measure,
)
