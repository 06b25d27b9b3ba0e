"""How fast one consumer of the project's own pulls and acks messages, and how soon one that waits has what is pushed."""

from __future__ import annotations

import json

from benchmarks.metrics import Column, Figures, Metric, counted
from benchmarks.stage import Stage
from benchmarks.systems import System

QUEUES = {"BENCH_QUEUES": json.dumps({"default": {}, "messages": {"CONSUMER": "pull"}})}


def measure(system: System, size: float) -> Figures:
    """100,000 messages in batches of 100; then 2,000 that come while one waits."""
    found: dict[str, float | None] = {}
    count = counted(100_000, size, 1000)
    with Stage(system, QUEUES) as stage:
        plain = float(stage.run("messages", f"--count={count}")["seconds"])
        between = stage.redis.cpu()
        found["rate"] = count / float(stage.run("pull", f"--count={count}")["seconds"])
        found["redis_us"] = (stage.redis.cpu() - between) / count * 1e6
        found["keyed_times"] = float(stage.run("messages_keyed", f"--count={count}")["seconds"]) / plain
    for share in (50, 99):
        with Stage(system, QUEUES) as stage:
            found[f"p{share}"] = float(stage.run(f"wakes{share}", f"--count={counted(2000, size)}")["seconds"]) * 1000
    return found


METRIC = Metric(
    name="pull",
    title="Pulling messages",
    text=(
        "One Python consumer with one process and one thread pulls and acks 100,000 messages of 100 bytes in batches of 100. "
        "Then another process pushes 2,000 messages, one every 5 ms, to a waiting consumer. The wake-up is the time from the "
        "start of the push until the consumer has the message."
    ),
    columns={
        "keyed_times": Column(title="push with a key, time × without", better="less", digits=2),
        "rate": Column(title="messages per second acked", reach="≥ 10,000"),
        "redis_us": Column(title="Redis CPU per message", unit="µs", better="less", digits=1),
        "p50": Column(title="wake-up p50", unit="ms", better="less", digits=2),
        "p99": Column(title="wake-up p99", unit="ms", better="less", digits=2, reach="≤ 10"),
    },
    measure=measure,
    own_only=True,
)
