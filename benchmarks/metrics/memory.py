"""The memory of a worker while many jobs wait for their date."""

from __future__ import annotations

import time

from benchmarks.metrics import Column, Figures, Metric, counted
from benchmarks.stage import Stage, Worker
from benchmarks.systems import System


def measure(system: System, size: float) -> Figures:
    """The worker's memory with nothing scheduled, and with 1,000,000 (others: 20,000) jobs due tomorrow."""
    count = counted(1_000_000 if system.source == "own" else 20_000, size, 1000)
    with Stage(system) as stage:
        worker = stage.worker()
        stage.warm(worker)
        time.sleep(3)
        empty = worker.memory()
        memory = stage.redis.memory()
        stage.fill(count)
        each = (stage.redis.memory() - memory) / count
        _settled(worker)
        full = worker.memory()
    return {"empty": empty / 2**20, "growth": (full - empty) / 2**20, "per_job": (full - empty) / count, "bytes": each}


def _settled(worker: Worker) -> None:
    last = -1
    for _ in range(60):  # until it grows no more
        time.sleep(1)
        now = worker.memory()
        if abs(now - last) < 1 << 18:
            return
        last = now


METRIC = Metric(
    name="memory",
    title="Memory with many waiting jobs",
    text=(
        "The memory of all processes of one worker with default options, before and after jobs are scheduled for tomorrow. "
        "There are 1,000,000 jobs for django-delayq, and 20,000 for the other systems."
    ),
    columns={
        "empty": Column(title="worker, empty", unit="MB", better="less", digits=1),
        "growth": Column(title="growth", unit="MB", better="less", digits=1, reach="0"),
        "per_job": Column(title="growth per job", unit="bytes", better="less"),
        "bytes": Column(title="Redis memory per job", unit="bytes", better="less", reach="≤ 345"),
    },
    measure=measure,
    rounds=1,
    side_by_side=True,
)
