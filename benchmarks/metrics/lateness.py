"""How late do jobs start on an idle system? `python -m benchmarks.lateness` prints our own figures."""

from __future__ import annotations

import time

from benchmarks.metrics import SLOW, Column, Figures, Metric, counted
from benchmarks.stage import Stage, Worker
from benchmarks.systems import System


def measure(system: System, size: float) -> Figures:
    """2,000 jobs over 20 seconds, one worker with default options."""
    return lateness(system, counted(400 if system.name in SLOW else 2000, size), 20.0 * min(1.0, size))


def lateness(system: System, count: int, seconds: float, workers: int = 1) -> dict[str, float]:
    """The quantiles of lateness in ms."""
    with Stage(system) as stage:
        started = [stage.worker() for _ in range(workers)]
        return on_stage(stage, started[0], count, seconds)


def on_stage(stage: Stage, worker: Worker, count: int, seconds: float) -> dict[str, float]:
    """The same with workers that have been started, and with what waits already."""
    stage.warm(worker)
    due = time.time() + 3.0 + count / 500
    stage.put(count, task="late", due=due, spread=seconds, many=True)
    if time.time() > due:
        due = time.time()  # too slow to be ready in time: the first ones are late for that reason
    found = stage.wait_marks(count, due - time.time() + seconds + 60.0, worker)
    late = sorted(number * 1000 for number in found if number < 1e8)  # others are moments, of warming up
    return {
        "p50": late[len(late) // 2],
        "p99": late[int(len(late) * 0.99)],
        "max": late[-1],
        "early": float(sum(number < 0 for number in late)),
    }


METRIC = Metric(
    name="lateness",
    title="Lateness",
    text=(
        "How long after its date a job starts. 2,000 jobs are due over 20 seconds (400 for RQ and django-q2) and run on one "
        "worker with default options."
    ),
    columns={
        "p50": Column(title="p50", unit="ms", better="less", digits=1, reach="≤ 1.5"),
        "p99": Column(title="p99", unit="ms", better="less", digits=1, reach="≤ 5"),
        "max": Column(title="worst", unit="ms", better="less", digits=1),
        "early": Column(title="early jobs", better="less", reach="0"),
    },
    measure=measure,
)
