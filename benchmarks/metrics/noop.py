"""How many jobs a second a worker can run that do nothing, and what a job's life costs."""

from __future__ import annotations

from benchmarks.metrics import SLOW, Column, Figures, Metric, counted
from benchmarks.stage import Stage
from benchmarks.systems import System

FAST = {"delayq", "bullmq"}


def measure(system: System, size: float) -> Figures:
    """Jobs that are due when the worker starts; with one process, with two, with one of ten threads."""
    found: dict[str, float | None] = {}
    jobs, least = (2000, 500) if system.name in SLOW else (50_000, 20_000) if system.name in FAST else (20_000, 2000)
    count = counted(jobs, size, least)
    for name, processes, threads in (("one", 1, 0), ("two", 2, 0), ("ten", 1, 10)):
        with Stage(system) as stage:
            before = stage.redis.cpu()
            stage.put(count, many=True)
            put = stage.redis.cpu() - before
            worker = stage.worker(processes=processes, threads=threads)
            moments = sorted(stage.wait_marks(count, 180.0, worker))
            # From the first to the last tenth: starting and the last stragglers are another matter.
            first, last = moments[count // 20], moments[-count // 20]
            found[name] = count * 0.9 / (last - first)
            if name == "one":
                found["worker_us"] = worker.cpu() / count * 1e6
                found["redis_us"] = (stage.redis.cpu() - before - put) / count * 1e6
                found["life_us"] = (stage.redis.cpu() - before) / count * 1e6
    return found


METRIC = Metric(
    name="noop",
    title="Empty jobs",
    text=(
        "All jobs are due when the worker starts. There are 50,000 jobs for django-delayq and BullMQ, 2,000 for RQ and "
        "django-q2, and 20,000 for the other systems. Arguments have 100 bytes. CPU is measured with one process and includes "
        "the worker's start."
    ),
    columns={
        "one": Column(title="one process, jobs/s", reach="≥ 25,000"),
        "two": Column(title="two processes", reach="≥ 1.3 × one"),
        "ten": Column(title="one process, ten threads"),
        "worker_us": Column(title="worker CPU per job", unit="µs", better="less"),
        "redis_us": Column(title="Redis CPU per run", unit="µs", better="less", digits=1),
        "life_us": Column(title="Redis CPU per job life", unit="µs", better="less", digits=1, reach="≤ 20"),
    },
    measure=measure,
)
