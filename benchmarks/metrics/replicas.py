"""The cost of a call that waits until a replica has its jobs."""

from __future__ import annotations

import json
import time

from benchmarks.metrics import Column, Figures, Metric, counted
from benchmarks.servers import QUEUE, Masters
from benchmarks.stage import Stage
from benchmarks.systems import System

PARTITIONS = 3


def measure(system: System, size: float) -> Figures:
    """Single calls and bulk, without and with it, in turn on the same servers."""
    singles, many = counted(5000, size), counted(50_000, size, 1000)
    found: dict[str, float | None] = {}
    with Stage(system, partitions=PARTITIONS, masters=Masters(PARTITIONS, replicas=True)) as stage:
        stage.put(50, due=time.time() + 3600)
        for wanted in (0, 1):
            queues = json.dumps({QUEUE: {"PARTITIONS": PARTITIONS, "REPLICAS": wanted}})
            with stage.lent(BENCH_QUEUES=queues, BENCH_DURABILITY="redis"):
                found[f"single_{wanted}"] = singles / stage.put(singles, due=time.time() + 3600)
                found[f"many_{wanted}"] = many / stage.put(many, due=time.time() + 3600, many=True)
    return found


METRIC = Metric(
    name="replicas",
    title="Waiting for replicas",
    text=(
        "A Redis-only queue has 3 partitions on three masters, each with a replica, all on this machine. It is measured in turn "
        "without `REPLICAS` and with `REPLICAS` set to 1. One process has one connection to each master. Arguments have 100 "
        "bytes, and jobs are due in an hour."
    ),
    columns={
        "single_0": Column(title="without: `schedule()` per second"),
        "single_1": Column(title="with"),
        "many_0": Column(title="without: `schedule_many()`, jobs per second"),
        "many_1": Column(title="with"),
    },
    measure=measure,
    own_only=True,
    slow=True,
)
