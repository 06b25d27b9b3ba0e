"""The cost of a concurrency name for jobs that do nothing."""

from __future__ import annotations

import math
import time

from benchmarks.metrics import Column, Figures, Metric, counted
from benchmarks.stage import Stage
from benchmarks.systems import System

VERBS = {"none": "unnamed", "own": "named", "keyed": "named_keyed", "hundred": "named100", "many": "named10000"}
TIMES = 3


def measure(system: System, size: float) -> Figures:
    """Each kind in turn, several times; of each the least counts, since what else goes on only adds."""
    count = counted(20_000, size, 2000)
    cpu = dict.fromkeys(VERBS, math.inf)
    redis, lasted = dict(cpu), dict(cpu)
    for _ in range(TIMES):
        for kind, verb in VERBS.items():
            both, alone, seconds = _taken(system, verb, count)
            cpu[kind], redis[kind], lasted[kind] = min(cpu[kind], both), min(redis[kind], alone), min(lasted[kind], seconds)
    found: dict[str, float | None] = {"cpu_us": cpu["none"] / count * 1e6, "rate": count / lasted["none"]}
    for kind in VERBS:
        if kind != "none":
            found[kind] = cpu[kind] / cpu["none"]
            found[f"{kind}_rate"] = lasted["none"] / lasted[kind]
        found[f"{kind}_redis"] = redis[kind] / count * 1e6
    return found


def _taken(system: System, verb: str, count: int) -> tuple[float, float, float]:
    """Seconds of CPU of worker and Redis, of Redis alone, and from the date of the jobs until the last has begun."""
    with Stage(system) as stage:
        worker = stage.worker()
        stage.warm(worker)
        due = float(stage.run(verb, f"--count={count}")["seconds"])
        time.sleep(max(0.0, due - time.time() - 0.2))
        before, redis_before = worker.cpu(), stage.redis.cpu()
        moments = stage.wait_marks(count, 180.0, worker)
        time.sleep(0.3)  # the last ends are recorded
        redis = stage.redis.cpu() - redis_before
        return worker.cpu() - before + redis, redis, max(moments) - due


METRIC = Metric(
    name="serial",
    title="Concurrency names",
    text=(
        "20,000 empty jobs are due at the same moment on a waiting worker with one process. They have no name, a different name "
        "each, a different name and key each, one of 100 names so that most jobs wait, or one of 10,000 names. The lowest of "
        "three rounds is used. CPU is that of the worker and Redis, from the due date until all jobs have run."
    ),
    columns={
        "cpu_us": Column(title="without a name: CPU per run", unit="µs", better="less"),
        "own": Column(title="a name each: CPU, ratio", better="less", digits=2, reach="≤ 1.25"),
        "keyed": Column(title="a name and a key each: CPU", better="less", digits=2),
        "hundred": Column(title="100 names: CPU", better="less", digits=2, reach="≤ 1.25"),
        "many": Column(title="10,000 names: CPU", better="less", digits=2, reach="≤ 1.25"),
        "rate": Column(title="without a name: jobs/s"),
        "own_rate": Column(title="a name each: jobs/s, ratio", digits=2),
        "keyed_rate": Column(title="a name and a key each: jobs/s", digits=2),
        "hundred_rate": Column(title="100 names: jobs/s", digits=2),
        "many_rate": Column(title="10,000 names: jobs/s", digits=2),
        "none_redis": Column(title="without a name: Redis CPU per run", unit="µs", better="less", digits=1),
        "own_redis": Column(title="a name each", unit="µs", better="less", digits=1),
        "keyed_redis": Column(title="a name and a key each", unit="µs", better="less", digits=1),
        "hundred_redis": Column(title="100 names", unit="µs", better="less", digits=1),
        "many_redis": Column(title="10,000 names", unit="µs", better="less", digits=1),
    },
    measure=measure,
    own_only=True,
)
