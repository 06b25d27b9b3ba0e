"""Redis's work per job and the lateness of jobs, with one queue on three masters, compared with the same queue on one server."""

from __future__ import annotations

import time

from benchmarks.metrics import Column, Figures, Metric, counted
from benchmarks.servers import Masters
from benchmarks.sightings import EVERY, Watch
from benchmarks.stage import Stage
from benchmarks.systems import System

PARTITIONS = (1, 6, 16)  # 1: on one server


def measure(system: System, size: float) -> Figures:
    """All of them in turn."""
    found: dict[str, float | None] = {}
    for partitions in PARTITIONS:
        taken = _taken(system, partitions, counted(50_000, size, 2000), counted(2000, size, 200))
        found |= {f"{name}_{partitions}": value for name, value in taken.items()}
    for partitions in PARTITIONS[1:]:
        one, several = found["life_1"], found[f"life_{partitions}"]
        found[f"life_{partitions}"] = several / one if several is not None and one else None
    return found


def _taken(system: System, partitions: int, many: int, few: int) -> dict[str, float | None]:
    masters = Masters(partitions) if partitions > 1 else None
    with Stage(system, partitions=partitions, masters=masters) as stage:
        worker = stage.worker()
        stage.warm(worker)
        stage.quiet([worker])
        before, began = _cpu(stage), time.monotonic()
        time.sleep(3)
        idle = _rates(before, _cpu(stage), time.monotonic() - began)

        before, began = _cpu(stage), time.monotonic()
        stage.put(many, due=time.time() + 2 + many / 10_000, many=True)
        stage.wait_marks(many, 120.0, worker)
        time.sleep(0.3)  # the last ends are recorded
        life = _worked(before, idle, stage, began)
        stage.forget()

        origin = float(stage.run("seen", f"--count={few}")["seconds"])
        marks = stage.wait_marks(few, origin - time.time() + few * EVERY + 60.0, worker)
        late = Watch(marks, origin).lateness()
        return {
            "life": sum(life) / many * 1e6,
            "busiest": max(life) / sum(life) if masters else None,
            "p50": late[len(late) // 2] * 1000,
            "p99": late[int(len(late) * 0.99)] * 1000,
        }


def _cpu(stage: Stage) -> list[float]:
    return stage.servers.each_cpu()


def _rates(before: list[float], after: list[float], passed: float) -> list[float]:
    return [(new - old) / passed for old, new in zip(before, after, strict=True)]


def _worked(before: list[float], idle: list[float], stage: Stage, began: float) -> list[float]:
    """Seconds of CPU of each server, without what it works when there is nothing to do."""
    now, passed = _cpu(stage), time.monotonic() - began
    return [new - old - rate * passed for old, new, rate in zip(before, now, idle, strict=True)]


METRIC = Metric(
    name="masters",
    title="A queue on three masters",
    text=(
        "One queue on a single server is compared with queues of 6 and 16 partitions on three masters that share one machine. "
        "One worker runs with default options. Redis CPU is measured for 50,000 empty jobs due at the same moment, from "
        "scheduling until they have ended, without the servers' idle load. Lateness is measured for 2,000 jobs, with 200 due "
        "per second. The 16 partitions are split 6, 5 and 5, so the busiest master handles at least 37.5% of the work."
    ),
    columns={
        "life_1": Column(title="one server: Redis CPU per job life", unit="µs", better="less", digits=1),
        "life_6": Column(title="6 partitions: ratio", better="less", digits=2, reach="≤ 1.15"),
        "life_16": Column(title="16 partitions", better="less", digits=2, reach="≤ 1.15"),
        "busiest_6": Column(title="6 partitions: share of the busiest master", better="less", digits=3, reach="≤ 0.36"),
        "busiest_16": Column(title="16 partitions", better="less", digits=3),
        "p50_1": Column(title="one server: p50 of lateness", unit="ms", better="less", digits=1),
        "p50_6": Column(title="6 partitions", unit="ms", better="less", digits=1, reach="≤ 2"),
        "p50_16": Column(title="16 partitions", unit="ms", better="less", digits=1, reach="≤ 2"),
        "p99_1": Column(title="one server: p99", unit="ms", better="less", digits=1),
        "p99_6": Column(title="6 partitions", unit="ms", better="less", digits=1, reach="≤ 10"),
        "p99_16": Column(title="16 partitions", unit="ms", better="less", digits=1, reach="≤ 10"),
    },
    measure=measure,
    own_only=True,
    slow=True,
)
