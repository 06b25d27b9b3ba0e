"""The cost of scheduling a job in the database (outbox durability), compared with the bare INSERT of the same row."""

from __future__ import annotations

import time

from benchmarks import servers
from benchmarks.metrics import Column, Figures, Metric, counted
from benchmarks.projects import project
from benchmarks.stage import Stage
from benchmarks.systems import System


def measure(system: System, size: float) -> Figures:
    """2,000 calls and 20,000 jobs in bulk, on PostgreSQL and on SQLite."""
    found: dict[str, float | None] = {}
    for name in ("postgres", "sqlite"):
        try:
            with servers.DATABASES[name]() as database, Stage(system, project(database, DURABILITY="outbox")) as stage:
                single, many = counted(2000, size), counted(20_000, size, 400)
                bare = float(stage.run("insert", f"--count={single}")["seconds"])
                stage.put(20, due=time.time() + 3600)
                took = stage.put(single, due=time.time() + 3600)
                bulk = stage.put(many, due=time.time() + 3600, many=True)
        except servers.ServerMissing:
            found |= {f"{name}_rate": None, f"{name}_times": None, f"{name}_bulk": None}
            continue
        found |= {f"{name}_rate": single / took, f"{name}_times": took / bare, f"{name}_bulk": many / bulk}
    return found


METRIC = Metric(
    name="outbox",
    title="Scheduling with the outbox",
    text=(
        "Each call is one transaction that inserts the job's row, followed by a call to Redis. For comparison, the bare INSERT "
        "of the same row in one transaction is measured. Bulk uses `schedule_many()`."
    ),
    columns={
        "postgres_rate": Column(title="PostgreSQL, jobs/s"),
        "postgres_times": Column(title="PostgreSQL, time × bare INSERT", better="less", digits=2, reach="≤ 1.6"),
        "postgres_bulk": Column(title="PostgreSQL, bulk jobs/s", reach="≥ 15,000"),
        "sqlite_rate": Column(title="SQLite, jobs/s"),
        "sqlite_times": Column(title="SQLite, time × bare INSERT", better="less", digits=2),
        "sqlite_bulk": Column(title="SQLite, bulk jobs/s"),
    },
    measure=measure,
    own_only=True,
    rounds=2,
)
