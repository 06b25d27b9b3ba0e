"""How fast the mirror turns events into rows, and what a worker still runs beside it."""

from __future__ import annotations

import time

from benchmarks import servers
from benchmarks.metrics import Column, Figures, Metric, counted
from benchmarks.projects import project
from benchmarks.stage import Stage, wait
from benchmarks.systems import System

PER_JOB = 3  # events in a job's life: scheduled, claimed, succeeded


def measure(system: System, size: float) -> Figures:
    """20,000 jobs run without a mirror, then folded; then 40,000 run with the mirror beside them."""
    found: dict[str, float | None] = {}
    for name in servers.DATABASES:
        try:
            found[name] = _fold(system, name, counted(20_000, size, 1000))
        except servers.ServerMissing:
            found[name] = None
    try:
        found["beside"], found["lag"] = _beside(system, counted(40_000, size, 1000))
    except servers.ServerMissing:
        found["beside"] = found["lag"] = None
    return found


def _fold(system: System, name: str, count: int) -> float:
    with servers.DATABASES[name]() as database, Stage(system, project(database)) as stage:
        stage.put(count, many=True)
        worker = stage.worker()
        stage.wait_marks(count, 120.0, worker)
        worker.stop()
        return count * PER_JOB / float(stage.run("fold")["seconds"])


def _beside(system: System, count: int) -> tuple[float, float]:
    with servers.Postgres() as database, Stage(system, project(database, ROLES="move,mirror,relay")) as stage:
        stage.put(count, many=True)
        worker = stage.worker()
        moments = sorted(stage.wait_marks(count, 180.0, worker))
        last = moments[-1]
        wait(lambda: stage.redis.ask("XLEN", "delayq:{default}:events") == "0", 180.0, "the mirror caught up")
        return count * 0.9 / (moments[-count // 20] - moments[count // 20]), time.time() - last


METRIC = Metric(
    name="mirror",
    title="The mirror",
    text=(
        "Events folded into rows per second, 20,000 jobs of three events each, nothing else running; then jobs that do nothing with "
        "the mirror writing every job and attempt into PostgreSQL meanwhile, and how long after the last job its row is complete."
    ),
    columns={
        "postgres": Column(title="PostgreSQL, events/s"),
        "mariadb": Column(title="MariaDB, events/s"),
        "sqlite": Column(title="SQLite, events/s"),
        "beside": Column(title="jobs/s with the mirror beside", reach="≥ 8,000"),
        "lag": Column(title="lag at the end", unit="s", better="less", digits=2),
    },
    measure=measure,
    own_only=True,
    rounds=1,
)
