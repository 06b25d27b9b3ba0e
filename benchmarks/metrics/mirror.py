"""How fast the mirror turns events into rows, and what a worker still runs beside it."""

from __future__ import annotations

import time

from benchmarks import servers
from benchmarks.metrics import Column, Figures, Metric, counted
from benchmarks.projects import project
from benchmarks.stage import Failed, Stage, wait
from benchmarks.systems import System

PER_JOB = 3  # events in a job's life: scheduled, claimed, succeeded
STEADY = 9000  # jobs per second


def measure(system: System, size: float) -> Figures:
    """20,000 jobs run without a mirror, then folded; 90,000 that come due over 10 s, and 40,000 at once, with it beside them."""
    found: dict[str, float | None] = {}
    for name in servers.DATABASES:
        try:
            found[name] = _fold(system, name, counted(20_000, size, 1000))
        except servers.ServerMissing:
            found[name] = None
    try:
        found["steady"], found["steady_lag"] = _beside(system, counted(10 * STEADY, size, STEADY), steady=True)
        found["beside"], found["lag"] = _beside(system, counted(40_000, size, 1000), steady=False)
    except servers.ServerMissing:
        found |= {"steady": None, "steady_lag": None, "beside": None, "lag": None}
    return found


def _fold(system: System, name: str, count: int) -> float:
    with servers.DATABASES[name]() as database, Stage(system, project(database)) as stage:
        stage.put(count, many=True)
        worker = stage.worker()
        stage.wait_marks(count, 120.0, worker)
        worker.stop()
        return count * PER_JOB / float(stage.run("fold")["seconds"])


def _beside(system: System, count: int, *, steady: bool) -> tuple[float, float]:
    with servers.Postgres() as database, Stage(system, project(database, ROLES="move,mirror,relay")) as stage:
        if steady:
            worker = stage.worker()
            stage.warm(worker)
            due = time.time() + 5.0 + count / 4000
            stage.put(count, due=due, spread=count / STEADY, many=True)
            if time.time() > due:
                raise Failed(f"{count} jobs were put in too slowly to come due at a steady rate")
            _caught_up(stage, due - time.time())
        else:
            stage.put(count, many=True)
            worker = stage.worker()
        moments = sorted(stage.wait_marks(count, 180.0, worker))
        last = moments[-1]
        _caught_up(stage, 180.0)
        return count * 0.9 / (moments[-count // 20] - moments[count // 20]), time.time() - last


def _caught_up(stage: Stage, seconds: float) -> None:
    wait(lambda: stage.redis.ask("XLEN", "delayq:{default}:events") == "0", seconds, "the mirror caught up")


METRIC = Metric(
    name="mirror",
    title="The mirror",
    text=(
        "Events that the mirror writes per second, for 20,000 jobs with three events each and nothing else running. The other "
        "columns show empty jobs per second while the mirror writes every job and attempt to PostgreSQL, and the mirror's lag "
        "after the last job. This is measured with 90,000 jobs, of which 9,000 are due per second, and then with 40,000 jobs "
        "that are due when the worker starts."
    ),
    columns={
        "postgres": Column(title="PostgreSQL, events/s"),
        "mariadb": Column(title="MariaDB, events/s"),
        "sqlite": Column(title="SQLite, events/s"),
        "steady": Column(title="9,000 due per second: jobs/s with the mirror", reach="≥ 8,000"),
        "steady_lag": Column(title="its lag at the end", unit="s", better="less", digits=2),
        "beside": Column(title="all due at once: jobs/s with the mirror"),
        "lag": Column(title="lag at the end, all at once", unit="s", better="less", digits=2),
    },
    measure=measure,
    own_only=True,
    rounds=1,
)
