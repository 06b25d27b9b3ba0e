"""Whether tenants get equal shares, and how late small ones are beside a large one."""

from __future__ import annotations

import time
from collections import Counter

from benchmarks import sightings
from benchmarks.metrics import Column, Figures, Metric, counted
from benchmarks.stage import Stage
from benchmarks.systems import System
from benchmarks.tasks import TENANTS

BESIDE = {"alone": "beside_one", "beside": "beside", "unfair": "beside_unfair"}


def measure(system: System, size: float) -> Figures:
    """The shares once, and the small tenants in turn: alone, beside a large one, and beside it without turns."""
    count = counted(100, size, 2) * TENANTS
    found: dict[str, float | None] = {"share": _share(system, count)}
    for kind, verb in BESIDE.items():
        runs, origin, cpu = _taken(system, verb, count, TENANTS if kind == "alone" else count + TENANTS - 1)
        first = sightings.FIRST_OF_OTHERS
        late = sorted(one.moment - origin - (one.number - first) * sightings.EVERY for one in runs if one.number >= first)
        found[f"{kind}_p99"] = late[int(len(late) * 0.99)] * 1000
        if kind != "alone":
            found[f"{kind}_redis"] = cpu / len(runs) * 1e6
    return found


def _share(system: System, count: int) -> float:
    """By how many percent a tenant has more or fewer of the first half of the starts than the others on average."""
    runs, _, _ = _taken(system, "tenants", count, count)
    runs.sort(key=lambda one: one.moment)
    each = count // TENANTS
    started = Counter((one.number - 1) // each for one in runs[: count // 2])
    return max(abs(started[tenant] - each / 2) for tenant in range(TENANTS)) / (each / 2) * 100


def _taken(system: System, verb: str, count: int, jobs: int) -> tuple[list[sightings.Sighting], float, float]:
    """The runs of so many jobs, the time of the first date, and the CPU of Redis from the scheduling on, in seconds."""
    with Stage(system) as stage:
        worker = stage.worker()
        stage.warm(worker)
        before = stage.redis.cpu()
        due = float(stage.run(verb, f"--count={count}")["seconds"])
        time.sleep(max(0.0, due - time.time() - 0.2))
        marks = stage.wait_marks(jobs, 300.0, worker)
        time.sleep(0.3)  # the last ends are recorded
        return sightings.read(marks, due - 10), due, stage.redis.cpu() - before


METRIC = Metric(
    name="fair",
    title="Fair share",
    text=(
        "1,000 tenants have 100 empty jobs each, all due at once. The share is that of the first half of the starts. Then one tenant "
        "has 100,000 jobs that are due at once, and each of the others has one, due over five seconds from then on. Their "
        "lateness is compared with that beside one job, and beside the 100,000 without fair words. CPU is that of Redis "
        "for the whole life of a job."
    ),
    columns={
        "share": Column(title="largest difference of a share", unit="%", better="less", digits=1, reach="≤ 10"),
        "alone_p99": Column(title="small tenants beside one job: p99 late", unit="ms", better="less", digits=1),
        "beside_p99": Column(title="beside 100,000 jobs", unit="ms", better="less", digits=1),
        "unfair_p99": Column(title="the same without fair words", unit="ms", better="", digits=1),
        "beside_redis": Column(title="Redis CPU per job", unit="µs", better="less", digits=1),
        "unfair_redis": Column(title="without fair words", unit="µs", better="less", digits=1),
    },
    measure=measure,
    own_only=True,
)
