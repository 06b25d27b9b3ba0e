"""How the queue's figures change with the backlog."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.metrics import Column, Figures, Metric, counted
from benchmarks.metrics.lateness import on_stage
from benchmarks.stage import Stage
from benchmarks.systems import System

BACKLOGS = (1_000, 10_000, 100_000, 1_000_000)


def measure(system: System, size: float) -> Figures:
    """Rate and lateness while jobs wait for tomorrow."""
    return of(system, size, BACKLOGS)


def of(system: System, size: float, backlogs: Sequence[int]) -> Figures:
    """The same for given backlogs."""
    found: dict[str, float | None] = {}
    for backlog in backlogs:
        with Stage(system) as stage:
            stage.fill(20)  # what Redis needs once, for the scripts, is not what a job weighs
            empty = stage.redis.memory()
            waiting = counted(backlog, size, 100)
            stage.fill(waiting)
            found[f"bytes_{backlog}"] = (stage.redis.memory() - empty) / waiting
            worker = stage.worker()
            found[f"late_{backlog}"] = on_stage(stage, worker, counted(1000, size), 10.0 * min(1.0, size))["p99"]
            worker.stop()
            stage.forget()
            count = counted(50_000, size, 5000)
            stage.put(count, many=True)
            moments = sorted(stage.wait_marks(count, 180.0, stage.worker()))
            found[f"rate_{backlog}"] = count * 0.9 / (moments[-count // 20] - moments[count // 20])
    return found


def columns(backlogs: Sequence[int]) -> dict[str, Column]:
    """Their columns."""
    return {
        **{f"rate_{n}": Column(title=f"{n:,} waiting: jobs/s") for n in backlogs},
        **{f"late_{n}": Column(title=f"{n:,} waiting: p99", unit="ms", better="less", digits=1) for n in backlogs},
        **{f"bytes_{n}": Column(title=f"{n:,} waiting: each", unit="bytes", better="less") for n in backlogs},
    }


METRIC = Metric(
    name="growth",
    title="Growth with the backlog",
    text=(
        "Measured with different numbers of jobs waiting for tomorrow: empty jobs per second (50,000 jobs), p99 of lateness "
        "(1,000 jobs over 10 seconds), and Redis memory per waiting job."
    ),
    columns=columns(BACKLOGS),
    measure=measure,
    own_only=True,
    rounds=1,
)
