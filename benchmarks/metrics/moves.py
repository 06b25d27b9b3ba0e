"""The cost for a partition, and for the others, of moving its slot to another master under load."""

from __future__ import annotations

import time
from collections.abc import Callable

from benchmarks import servers
from benchmarks.metrics import Column, Figures, Metric, counted
from benchmarks.metrics.failover import wait_runs
from benchmarks.projects import project
from benchmarks.servers import Masters, ask
from benchmarks.sightings import EVERY, Watch
from benchmarks.stage import Failed, Stage, wait
from benchmarks.systems import System
from tests.topologies import ClusterNode

PARTITIONS, WORKERS = 6, 2
KEYS_AT_ONCE = 10  # as redis-cli moves them
PATIENCE = 120.0


def key_by_key(masters: Masters, slot: int, to: ClusterNode) -> None:
    """As `redis-cli --cluster reshard` does it."""
    masters.open(slot, to)
    while masters.carry(slot, to, KEYS_AT_ONCE):
        pass
    masters.settle(slot, to)


def as_a_whole(masters: Masters, slot: int, to: ClusterNode) -> None:
    """The server does it by itself."""
    answer = ask(masters.serving(slot).port, "CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", slot, slot, "NODE", to.id)
    if answer != "OK":
        raise Failed(f"the slot does not begin to move: {answer}")
    wait(lambda: to.tells(slot) == "me", PATIENCE, "the slot has moved")


def measure(system: System, size: float) -> Figures:
    """On Redis key by key, on Valkey as a whole."""
    roads: dict[str, tuple[str, Callable[[Masters, int, ClusterNode], None]]] = {"keys": ("", key_by_key)}
    if whole := servers.valkey_program():
        roads["whole"] = whole, as_a_whole
    found: dict[str, float | None] = {}
    for name, (program, move) in roads.items():
        try:
            taken = _taken(system, Masters(PARTITIONS, program=program), move, size)
        except servers.ServerMissing:
            return {}
        found |= {f"{name}_{figure}": value for figure, value in taken.items()}
    return found


def _taken(system: System, masters: Masters, move: Callable[[Masters, int, ClusterNode], None], size: float) -> dict[str, float]:
    waiting, count = counted(100_000, size, 1000), counted(3000, min(size, 1), 1000)
    with servers.Postgres() as database:
        given = project(database, ROLES="move,mirror,relay", DURABILITY="outbox")
        with Stage(system, given, partitions=PARTITIONS, masters=masters) as stage:
            with stage.lent(BENCH_QUEUES="null", BENCH_DURABILITY="redis"):  # all of it into the partition that is to move
                stage.fill(waiting)
            workers = [stage.worker() for _ in range(WORKERS)]
            for worker in workers:
                stage.warm(worker)
            stage.quiet(workers)
            origin = float(stage.run("seen", f"--count={count}")["seconds"])
            time.sleep(max(0.0, origin + count / 4 * EVERY - time.time()))
            began = time.time()
            move(masters, servers.slot(0), masters.masters[1])
            moved = time.time()
            wait_runs(stage, count, max(moved, origin + count * EVERY) + 60.0)
            watch = Watch(stage.numbers(), origin)
            return {
                "took": moved - began,
                "moved": max(watch.lateness([0], since=began - EVERY)),
                "others": max(watch.lateness(range(1, PARTITIONS), since=began - EVERY)),
                "before": max(watch.lateness(until=began - 1.0)),
                "lost": float(count - watch.distinct()),
                "twice": float(watch.twice()),
            }


def _columns(name: str, title: str, reach: str) -> dict[str, Column]:
    return {
        f"{name}_took": Column(title=f"{title}: the move took", unit="s", better="less", digits=2),
        f"{name}_moved": Column(title="its latest job", unit="s", better="less", digits=3, reach=reach),
        f"{name}_others": Column(title="latest job of the others", unit="s", better="less", digits=3),
        f"{name}_before": Column(title="latest job before that", unit="s", better="less", digits=3),
        f"{name}_lost": Column(title="jobs lost", better="less", reach="0"),
        f"{name}_twice": Column(title="run twice", better="less", reach="0"),
    }


METRIC = Metric(
    name="moves",
    title="A slot moves",
    text=(
        "A queue has 6 partitions and outbox durability on three masters. The mirror writes to PostgreSQL, and two workers run "
        "the jobs. 3,000 jobs are due, one every 5 ms. One partition's slot is moved to a different master while it also holds "
        "100,000 jobs for tomorrow. The slot is moved in two ways: ten keys at a time, as `redis-cli` does, and as a whole, as "
        "Valkey 9 does."
    ),
    columns={**_columns("keys", "key by key", ""), **_columns("whole", "as a whole", "≤ 1")},
    measure=measure,
    own_only=True,
    slow=True,
    rounds=1,
)
