"""How fast a wiped Redis is filled again from the rows in PostgreSQL."""

from __future__ import annotations

import time

from benchmarks import servers
from benchmarks.metrics import Column, Figures, Metric, counted
from benchmarks.projects import project
from benchmarks.stage import Stage
from benchmarks.systems import System


def measure(system: System, size: float) -> Figures:
    """100,000 jobs of which the database knows, FLUSHALL, and restore."""
    count = counted(100_000, size, 1000)
    with servers.Postgres() as database, Stage(system, project(database, DURABILITY="outbox")) as stage:
        stage.put(count, due=time.time() + 3600, many=True)
        stage.run("fold")
        stage.redis.ask("FLUSHALL")
        before = stage.redis.cpu()
        seconds = float(stage.run("restore", f"--count={count}")["seconds"])
        return {
            "rate": count / seconds,
            "seconds": seconds,
            "redis_us": (stage.redis.cpu() - before) / count * 1e6,
        }


METRIC = Metric(
    name="restore",
    title="Restore of a wiped Redis",
    text=(
        "100,000 jobs with rows in PostgreSQL are waiting for a later date. Then FLUSHALL empties Redis. The table shows the "
        "time until one process, which alternates between restoring and mirroring as a worker does, has restored all jobs."
    ),
    columns={
        "rate": Column(title="jobs per second", reach="≥ 15,000"),
        "seconds": Column(title="all back after", unit="s", better="less", digits=1),
        "redis_us": Column(title="Redis CPU per job", unit="µs", better="less", digits=1),
    },
    measure=measure,
    own_only=True,
    rounds=1,
)
