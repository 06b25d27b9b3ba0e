"""The cost of rates, and whether all of them together are used up."""

from __future__ import annotations

import time

from benchmarks.metrics import Column, Figures, Metric, counted
from benchmarks.stage import Stage
from benchmarks.systems import System
from benchmarks.tasks import RATED_PER_SECOND

VERBS = {"none": "unrated", "rated": "rated1000"}


def measure(system: System, size: float) -> Figures:
    """Each kind once, with as many jobs at the same pace. The whole life of a job counts: schedule, claim, settle and fold."""
    count = counted(10_000, size, 2000)
    found: dict[str, float | None] = {}
    for kind, verb in VERBS.items():
        with Stage(system) as stage:
            worker = stage.worker()
            stage.warm(worker)
            before = stage.redis.cpu()
            due = float(stage.run(verb, f"--count={count}")["seconds"])
            time.sleep(max(0.0, due - time.time() - 0.2))
            moments = stage.wait_marks(count, count / RATED_PER_SECOND + 120.0, worker)
            time.sleep(0.3)  # the last ends are recorded
            found[f"{kind}_redis"] = (stage.redis.cpu() - before) / count * 1e6
            found[f"{kind}_rate"] = count / (max(moments) - due)
    rated, none = found["rated_redis"], found["none_redis"]
    found["ratio"] = rated / none if rated and none else None
    return found


METRIC = Metric(
    name="rates",
    title="Rates",
    text=(
        "10,000 empty jobs have one of 1,000 rates of one start in a second. All are due at once, so most of them wait. The other "
        "jobs have no rate, and 1,000 of them become due in each second. CPU is that of Redis for the whole life of a job."
    ),
    columns={
        "none_redis": Column(title="without a rate: Redis CPU per job", unit="µs", better="less", digits=1),
        "rated_redis": Column(title="1,000 rates", unit="µs", better="less", digits=1),
        "ratio": Column(title="ratio", better="less", digits=2, reach="≤ 1.5"),
        "none_rate": Column(title="without a rate: jobs/s"),
        "rated_rate": Column(title="1,000 rates: jobs/s", reach="≥ 950"),
    },
    measure=measure,
    own_only=True,
)
