"""The cost of a key for the caller, compared with the same call without one."""

from __future__ import annotations

import time

from benchmarks import servers
from benchmarks.metrics import Column, Figures, Metric, counted
from benchmarks.projects import project
from benchmarks.stage import Stage
from benchmarks.systems import System

POLICIES = ("kept", "replaced", "latest")


def measure(system: System, size: float) -> Figures:
    """2,000 calls each; 20,000 jobs in bulk. A worker has confirmed the server before."""
    single, many = counted(2000, size), counted(20_000, size, 400)
    found: dict[str, float | None] = {}
    try:
        with servers.DATABASES["postgres"]() as database, Stage(system, project(database, DURABILITY="redis")) as stage:
            plain, keyed = _ready(stage, single), _seconds(stage, "keyed", single)
            found |= {"redis_times": keyed / plain, "redis_bulk": many / _seconds(stage, "keyed_many", many)}
            found |= {policy: _seconds(stage, policy, single) / plain for policy in POLICIES}
        with servers.DATABASES["postgres"]() as database, Stage(system, project(database, DURABILITY="outbox")) as stage:
            _ready(stage, 20)
            bare = _seconds(stage, "insert", single)
            found["outbox_times"] = _seconds(stage, "keyed", single) / bare
            found["atomic_times"] = _seconds(stage, "keyed_atomic", single) / bare
            found["outbox_bulk"] = many / _seconds(stage, "keyed_many", many)
    except servers.ServerMissing:
        return dict.fromkeys(METRIC.columns)
    return found


def _ready(stage: Stage, count: int) -> float:
    """Has the server confirmed, and takes the seconds of calls without a key."""
    stage.put(20, due=time.time() + 3600)
    stage.run("confirm")
    return stage.put(count, due=time.time() + 3600)


def _seconds(stage: Stage, verb: str, count: int) -> float:
    return float(stage.run(verb, f"--count={count}")["seconds"])


METRIC = Metric(
    name="keys",
    title="Scheduling with a key",
    text=(
        "Each call has `key=`. With Redis durability, the time is compared with the same call without a key: first with a "
        "different key for each job, then with the same key for all jobs, for each conflict policy. With outbox durability on "
        "PostgreSQL, the time is compared with the bare INSERT of a row, both in autocommit mode and in `atomic()`. Bulk uses "
        "`schedule_many()`."
    ),
    columns={
        "redis_times": Column(title="redis, time × without a key", better="less", digits=2, reach="≤ 1.2"),
        "kept": Column(title="one key, keep", better="less", digits=2),
        "replaced": Column(title="one key, replace", better="less", digits=2),
        "latest": Column(title="one key, latest", better="less", digits=2),
        "redis_bulk": Column(title="redis, bulk jobs/s"),
        "outbox_times": Column(title="outbox, time × bare INSERT", better="less", digits=2, reach="≤ 3"),
        "atomic_times": Column(title="outbox in atomic(), time × bare INSERT", better="less", digits=2, reach="≤ 3"),
        "outbox_bulk": Column(title="outbox, bulk jobs/s"),
    },
    measure=measure,
    own_only=True,
    rounds=2,
)
