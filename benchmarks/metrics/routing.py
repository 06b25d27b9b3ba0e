"""The cost of finding a call's key in a Cluster."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

from benchmarks.metrics import Column, Figures, Metric, counted
from benchmarks.servers import QUEUE, Masters
from benchmarks.systems import System
from django_delayq.store.connection.places import Places, place

PARTITIONS = 16


def measure(system: System, size: float) -> Figures:
    """Both kinds take turns call by call on the same node. The cost of waking that server's process depends on the core on which it
    sleeps, so it must be the same for both. Each figure is a median.
    """
    count = counted(36_000, size, 5_000)
    with Masters(PARTITIONS) as masters:
        port = masters.ports[0]
        there = range(0, PARTITIONS, len(masters.ports))  # as `Masters` deals them
        kinds = {"plain": place(f"redis://127.0.0.1:{port}/0", name="benchmark"), "led": place(masters.url, name="benchmark")}
        calls = {kind: _call(to, there) for kind, to in kinds.items()}
        took = {kind: list[int]() for kind in kinds}
        for turn in range(count):
            for kind, call in calls.items():
                began = time.process_time_ns()
                call(turn)
                took[kind].append(time.process_time_ns() - began)
        for one in kinds.values():
            one.close()
    plain, led = (statistics.median(took[kind]) / 1000 for kind in ("plain", "led"))
    return {"plain": plain, "led": led, "difference": led - plain}


def _call(to: Places, partitions: range) -> Callable[[int], object]:
    links = [to.of(QUEUE, partition) for partition in partitions]  # which all of the package keep, too
    return lambda turn: links[turn % len(links)].execute("PING")


METRIC = Metric(
    name="routing",
    title="A call to a Cluster",
    text=(
        "36,000 PINGs are sent to one node of a Cluster for each of its partitions in turn, either over a direct connection to "
        "that server or through the Cluster's slot map. The figures are the median CPU time per call."
    ),
    columns={
        "plain": Column(title="over a connection", unit="µs", better="less", digits=1),
        "led": Column(title="through the map", unit="µs", better="less", digits=1),
        "difference": Column(title="difference", unit="µs", better="less", digits=2, reach="≤ 3"),
    },
    measure=measure,
    own_only=True,
    slow=True,
)
