"""The cost of idle workers."""

from __future__ import annotations

import contextlib
import time

from benchmarks import servers
from benchmarks.metrics import Column, Figures, Metric, counted
from benchmarks.projects import project
from benchmarks.stage import Stage
from benchmarks.systems import System


def measure(system: System, size: float) -> Figures:
    """One worker, and (own) 50, and one that keeps the records in PostgreSQL besides, for 20 seconds each."""
    seconds = max(5.0, 20.0 * min(1.0, size))
    found = dict(_idle(system, 1, seconds))
    if system.source == "own":
        many = _idle(system, counted(50, size, 3), seconds)
        found |= {f"{name}_50": value for name, value in many.items()}
        with contextlib.suppress(servers.ServerMissing), servers.Postgres() as database:
            mirrored = _idle(system, 1, seconds, project(database, ROLES="move,mirror,relay"))
            found |= {f"{name}_mirror": mirrored[name] for name in ("requests", "cpu", "memory")}
    return found


def _idle(system: System, count: int, seconds: float, environment: dict[str, str] | None = None) -> Figures:
    with Stage(system, environment) as stage:
        workers = [stage.worker() for _ in range(count)]
        stage.warm(workers[0])
        stage.quiet(workers)
        time.sleep(2)
        began = time.monotonic()
        commands, cpu = stage.redis.commands(), sum(worker.cpu() for worker in workers)
        server = stage.redis.cpu()
        time.sleep(seconds)
        passed = time.monotonic() - began
        # The answers to our own INFO and the connections' PINGs are a few commands of thousands; ours are taken off.
        asked = stage.redis.commands() - commands - 2
        found: dict[str, float | None] = {
            "commands": asked / passed / count,
            "cpu": (sum(worker.cpu() for worker in workers) - cpu) / passed / count * 100,
            "redis_cpu": (stage.redis.cpu() - server) / passed * 100,
            "memory": sum(worker.memory() for worker in workers) / count / 2**20,
        }
        return {"requests": stage.redis.requests(seconds / 2) / count, **found}


METRIC = Metric(
    name="idle",
    title="Idle",
    text=(
        "Workers with default options are idle for 20 seconds. django-delayq runs first without the mirror and then with it. "
        "Requests are those that the workers send. Commands also include those that scripts call in Redis."
    ),
    columns={
        "requests": Column(title="requests to Redis/s", better="less", digits=1, reach="≤ 2"),
        "commands": Column(title="Redis commands/s", better="less", digits=1),
        "cpu": Column(title="CPU", unit="%", better="less", digits=2, reach="≤ 0.2"),
        "redis_cpu": Column(title="Redis CPU", unit="%", better="less", digits=2),
        "memory": Column(title="memory", unit="MB", better="less", digits=1),
        "requests_50": Column(title="50 workers: requests/s each", better="less", digits=1, reach="≤ 2"),
        "commands_50": Column(title="50 workers: commands/s each", better="less", digits=1),
        "cpu_50": Column(title="50 workers: CPU each", unit="%", better="less", digits=2, reach="≤ 0.2"),
        "redis_cpu_50": Column(title="50 workers: Redis CPU", unit="%", better="less", digits=2),
        "memory_50": Column(title="50 workers: memory each", unit="MB", better="less", digits=1),
        "requests_mirror": Column(title="with the mirror: requests/s", better="less", digits=1),
        "cpu_mirror": Column(title="with the mirror: CPU", unit="%", better="less", digits=2),
        "memory_mirror": Column(title="with the mirror: memory", unit="MB", better="less", digits=1),
    },
    measure=measure,
    rounds=1,
    side_by_side=True,
)
