"""How the queue's figures change with the number of workers on one machine."""

from __future__ import annotations

import time

from benchmarks.metrics import Column, Figures, Metric, counted
from benchmarks.metrics.lateness import on_stage
from benchmarks.stage import Stage
from benchmarks.systems import System

WORKERS = (1, 2, 10, 50)


def measure(system: System, size: float) -> Figures:
    """All workers are up and idle: then jobs over five seconds, then jobs due at one instant."""
    found: dict[str, float | None] = {}
    for count in WORKERS:
        with Stage(system) as stage:
            workers = [stage.worker() for _ in range(count)]
            stage.warm(workers[0])
            stage.quiet(workers)
            late = on_stage(stage, workers[0], counted(500, size), 5.0)
            stage.forget()
            found[f"late_{count}"] = late["p99"]
            jobs = counted(50_000, size, 5000)
            stage.put(jobs, due=time.time() + 3.0 + jobs / 20_000, many=True)
            moments = sorted(stage.wait_marks(jobs, 180.0, workers[0]))
            found[f"rate_{count}"] = jobs * 0.9 / (moments[-jobs // 20] - moments[jobs // 20])
    return found


METRIC = Metric(
    name="workers",
    title="Growth with the workers",
    text=(
        "Measured with different numbers of workers with default options on one machine: p99 of lateness (500 jobs over five "
        "seconds), and empty jobs per second when 50,000 jobs are due at the same moment. The workers and Redis share the "
        "cores."
    ),
    columns={
        **{f"late_{n}": Column(title=f"{n} workers: p99", unit="ms", better="less", digits=1) for n in WORKERS},
        **{f"rate_{n}": Column(title=f"{n} workers: jobs/s") for n in WORKERS},
    },
    measure=measure,
    own_only=True,
    rounds=1,
)
