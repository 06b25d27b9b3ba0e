"""The cost of a different key for each job, in the systems that have keys."""

from __future__ import annotations

import json
import time

from benchmarks import servers
from benchmarks.metrics import Column, Figures, Metric, counted
from benchmarks.stage import Stage
from benchmarks.systems import System


def measure(system: System, size: float) -> Figures:
    """2,000 calls without a key, then 2,000 with one."""
    if system.name != "procrastinate":
        return _measure(Stage(system), size)
    with servers.DATABASES["postgres"]() as database:
        return _measure(Stage(system, {"BENCH_DATABASE": json.dumps(database.database())}), size)


def _measure(stage: Stage, size: float) -> Figures:
    count, due = counted(2000, size), time.time() + 3600
    with stage:
        if stage.system.source == "own":
            stage.put(20, due=due)
            stage.run("confirm")  # as the first worker does
        stage.put(50, due=due)
        plain = stage.put(count, due=due)
        keyed = stage.put(count, due=due, keyed=True)
    return {"rate": count / keyed, "times": keyed / plain}


METRIC = Metric(
    name="unique",
    title="Unique jobs",
    text=(
        "One process schedules 2,000 jobs with one call each. Each job has a different key (BullMQ: `jobId`, arq: `_job_id`, "
        "SAQ: `key`, Procrastinate: `queueing_lock`). The time is compared with the same calls without a key. "
        "Procrastinate stores its jobs in PostgreSQL."
    ),
    columns={
        "rate": Column(title="jobs per second with a key"),
        "times": Column(title="time × without a key", better="less", digits=2),
    },
    measure=measure,
    peers=("bullmq", "arq", "saq", "procrastinate"),
)
