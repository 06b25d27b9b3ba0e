"""The cost of many partitions for many idle processes."""

from __future__ import annotations

import time

from benchmarks.metrics import Column, Figures, Metric
from benchmarks.servers import Masters
from benchmarks.stage import Stage
from benchmarks.systems import System
from django_delayq.store.scripts import loader

PARTITIONS = 16
PROCESSES = (1, 100)


def measure(system: System, size: float) -> Figures:
    """On three masters, and with one partition on one server."""
    found: dict[str, float | None] = {}
    seconds, least = max(2.0, 20.0 * min(1.0, size)), min(1.0, size)
    for processes in PROCESSES:
        several = max(1, round(processes * least))
        found |= {f"{name}_{processes}": value for name, value in _idle(system, PARTITIONS, several, seconds).items()}
    found["one"] = _idle(system, 1, max(1, round(PROCESSES[-1] * least)), seconds)["claims"]
    return found


def _idle(system: System, partitions: int, processes: int, seconds: float) -> dict[str, float | None]:
    masters = Masters(partitions) if partitions > 1 else None
    with Stage(system, partitions=partitions, masters=masters) as stage:
        worker = stage.worker(processes=processes)
        stage.warm(worker)
        time.sleep(seconds / 4 + processes / 10)  # they start; what is counted goes on by the clock
        began, cpu, redis = time.monotonic(), worker.cpu(), sum(stage.servers.each_cpu())
        time.sleep(seconds)
        passed = time.monotonic() - began
        cpu, redis = worker.cpu() - cpu, sum(stage.servers.each_cpu()) - redis
        return {
            "claims": stage.servers.calls(loader.built("claim", stage.site).sha, seconds) / partitions,
            "cpu": cpu / passed / processes * 100,
            "redis": redis / passed * 100,
        }


METRIC = Metric(
    name="partitions",
    title="Idle with many partitions",
    text=(
        "A queue has 16 partitions on three masters. A worker with one process, and then with a hundred processes, is idle for "
        "20 seconds. For comparison, a hundred processes are measured with one partition on one server."
    ),
    columns={
        "claims_1": Column(title="one process: claims/s of each partition", better="less", digits=2),
        "cpu_1": Column(title="CPU", unit="%", better="less", digits=2),
        "redis_1": Column(title="CPU of all masters", unit="%", better="less", digits=2),
        "claims_100": Column(title="100 processes: claims/s of each partition", better="less", digits=1, reach="≤ 9"),
        "cpu_100": Column(title="CPU each", unit="%", better="less", digits=2),
        "redis_100": Column(title="CPU of all masters", unit="%", better="less", digits=1),
        "one": Column(title="100 processes, one partition on one server: claims/s", better="less", digits=1, reach="≤ 9"),
    },
    measure=measure,
    own_only=True,
    slow=True,
    rounds=1,
)
