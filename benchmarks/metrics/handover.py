"""How soon the next job of a name begins when the one before has ended, beside what this machine needs for any job to begin."""

from __future__ import annotations

from itertools import pairwise

from benchmarks.metrics import Column, Figures, Metric, counted
from benchmarks.stage import Stage
from benchmarks.systems import System

WORKERS = 2
TIMES = 3


def measure(system: System, size: float) -> Figures:
    """Both kinds in turn, several times, on the same workers."""
    count = counted(300, size, 50)
    gaps: dict[str, list[float]] = {"in_turn": [], "relayed": []}
    with Stage(system) as stage:
        for worker in [stage.worker() for _ in range(WORKERS)]:
            stage.warm(worker)
        for _ in range(TIMES):
            for verb, found in gaps.items():
                stage.forget()
                stage.run(verb, f"--count={count}")
                moments = sorted(stage.wait_marks(2 * count, 180.0), key=abs)
                found += [1000 * (begin + end) for end, begin in pairwise(moments) if end < 0 < begin]
    figures: dict[str, float | None] = {}
    for kind, found in (("", gaps["in_turn"]), ("other_", gaps["relayed"])):
        found.sort()
        for share in (50, 90, 99):
            figures[f"{kind}p{share}"] = found[len(found) * share // 100]
        figures[f"{kind}max"] = found[-1]
    return figures


METRIC = Metric(
    name="handover",
    title="From one job of a name to the next",
    text=(
        "900 jobs of 5 ms share a name and run one at a time on two workers. The table shows the time from the end of one job "
        "until the next job starts. For comparison, there are 900 jobs without a name, each of which schedules the next one "
        "when it ends."
    ),
    columns={
        "p50": Column(title="p50", unit="ms", better="less", digits=2, reach="≤ 5"),
        "p90": Column(title="p90", unit="ms", better="less", digits=2, reach="≤ 5"),
        "p99": Column(title="p99", unit="ms", better="less", digits=2, reach="≤ 5"),
        "max": Column(title="worst", unit="ms", better="less", digits=1),
        "other_p50": Column(title="without a name: p50", unit="ms", better="less", digits=2),
        "other_p90": Column(title="p90", unit="ms", better="less", digits=2),
        "other_p99": Column(title="p99", unit="ms", better="less", digits=2),
        "other_max": Column(title="worst", unit="ms", better="less", digits=1),
    },
    measure=measure,
    own_only=True,
)
