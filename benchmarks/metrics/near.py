"""The memory that a million near jobs take on three masters."""

from __future__ import annotations

from benchmarks.metrics import Column, Figures, Metric, counted
from benchmarks.servers import Masters
from benchmarks.stage import Stage
from benchmarks.systems import System

PARTITIONS = 16


def measure(system: System, size: float) -> Figures:
    """On three masters, and on one server."""
    count = counted(1_000_000, size, 1000)
    spread, one = _bytes(system, count, PARTITIONS), _bytes(system, count, 1)
    return {"each": spread / count, "all": spread / 2**20, "one": one / count}


def _bytes(system: System, count: int, partitions: int) -> int:
    masters = Masters(partitions) if partitions > 1 else None
    with Stage(system, partitions=partitions, masters=masters) as stage:
        empty = stage.servers.memory()
        stage.fill(count)
        return stage.servers.memory() - empty


METRIC = Metric(
    name="near",
    title="A million jobs on three masters",
    text=(
        "1,000,000 jobs for tomorrow, each with an argument of 100 bytes, are stored in 16 partitions on three masters, and in "
        "one partition on one server. The memory is that of all masters, minus the memory of empty masters."
    ),
    columns={
        "each": Column(title="three masters, each job", unit="bytes", better="less"),
        "all": Column(title="all of them", unit="MB", better="less", reach="≤ 512"),
        "one": Column(title="one server, each job", unit="bytes", better="less"),
    },
    measure=measure,
    own_only=True,
    slow=True,
    rounds=1,
)
