"""How the queue's figures change with its size: with the backlog, and with the number of workers."""

from __future__ import annotations

import time

from benchmarks.metrics import Column, Figures, Metric, counted
from benchmarks.metrics.lateness import lateness
from benchmarks.stage import Stage
from benchmarks.systems import System

BACKLOGS = (1_000, 100_000, 1_000_000)
WORKERS = (1, 10, 50)


def measure(system: System, size: float) -> Figures:
    """Rate and lateness while jobs wait for a later date; lateness with more and more idle workers."""
    found: dict[str, float | None] = {}
    for backlog in BACKLOGS:
        found[f"rate_{backlog}"] = _rate(system, counted(20_000, size, 1000), counted(backlog, size, 100))
        late = lateness(system, counted(1000, size), 10.0 * min(1.0, size), backlog=counted(backlog, size, 100))
        found[f"late_{backlog}"] = late["p99"]
    for workers in WORKERS[1:]:
        late = lateness(system, counted(1000, size), 10.0 * min(1.0, size), workers=workers)
        found[f"workers_{workers}"] = late["p99"]
    return found


def _rate(system: System, count: int, backlog: int) -> float:
    with Stage(system) as stage:
        stage.put(backlog, due=time.time() + 86_400, spread=3600, many=True)
        stage.put(count, many=True)
        moments = sorted(stage.wait_marks(count, 180.0, stage.worker()))
        return count * 0.9 / (moments[-count // 20] - moments[count // 20])


METRIC = Metric(
    name="growth",
    title="Growth",
    text="Jobs per second and p99 of lateness while so many jobs wait for tomorrow; p99 of lateness with so many workers.",
    columns={
        **{f"rate_{n}": Column(title=f"{n:,} waiting: jobs/s") for n in BACKLOGS},
        **{f"late_{n}": Column(title=f"{n:,} waiting: p99", unit="ms", better="less", digits=1) for n in BACKLOGS},
        **{f"workers_{n}": Column(title=f"{n} workers: p99", unit="ms", better="less", digits=1) for n in WORKERS[1:]},
    },
    measure=measure,
    own_only=True,
    rounds=1,
    slow=True,
)
