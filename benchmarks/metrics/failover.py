"""The cost of a master's death for its partitions, and for the others."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

from benchmarks import servers
from benchmarks.metrics import Column, Figures, Metric, counted
from benchmarks.projects import project
from benchmarks.sightings import AT_ONCE, EVERY, Watch
from benchmarks.stage import Stage
from benchmarks.systems import System

PARTITIONS, WORKERS = 6, 2
PATIENCE = 60.0  # seconds for what is late


def measure(system: System, size: float) -> Figures:
    """Jobs that are due each 5 ms; when a quarter of them was due a master is killed, and more are scheduled for now."""
    count = counted(4000, size, 1600)
    at_once = round(count * EVERY / 2 / AT_ONCE)
    try:
        return _taken(system, count, at_once)
    except servers.ServerMissing:
        return {}


def _taken(system: System, count: int, at_once: int) -> Figures:
    masters = servers.Masters(PARTITIONS, replicas=True)
    with servers.Postgres() as database:
        given = project(database, ROLES="move,mirror,relay", DURABILITY="outbox")
        with Stage(system, given, partitions=PARTITIONS, masters=masters) as stage, ThreadPoolExecutor(1) as pool:
            workers = [stage.worker() for _ in range(WORKERS)]
            for worker in workers:
                stage.warm(worker)
            stage.quiet(workers)
            origin = float(stage.run("seen", f"--count={count}")["seconds"])
            time.sleep(max(0.0, origin + count / 4 * EVERY - time.time()))
            killed = time.time()
            masters.masters[0].kill()
            calls = pool.submit(stage.run, "at_once", f"--count={at_once}")
            wait_runs(stage, count + at_once, origin + count * EVERY + PATIENCE)
            watch = Watch(stage.numbers(), origin)
            lost = [number for number in range(PARTITIONS) if number % len(masters.masters) == 0]  # as `Masters` deals them
            others = [number for number in range(PARTITIONS) if number not in lost]
            return {
                "again": watch.again(lost, killed),
                "others": max(watch.lateness(others, since=killed - EVERY)),
                "before": max(watch.lateness(since=0.0, until=killed - 1.0)),
                "lost": float(count + at_once - watch.distinct()),
                "twice": float(watch.twice()),
                "call": float(calls.result()["seconds"]),
            }


def wait_runs(stage: Stage, jobs: int, until: float) -> None:
    """Until so many different ones have run, or the time is up: what is missing then is lost."""
    while time.time() < until and Watch(stage.numbers(), time.time()).distinct() < jobs:
        time.sleep(0.25)
    time.sleep(1)  # for what runs twice


METRIC = Metric(
    name="failover",
    title="A master is killed",
    text=(
        "A queue has 6 partitions and outbox durability on three masters, each with a replica, and a `cluster-node-timeout` of "
        "2 s. The mirror writes to PostgreSQL, and two workers run the jobs. 4,000 jobs are due, one every 5 ms. After a "
        "quarter of them, a master is killed while another process schedules 500 jobs that are due immediately. The lateness of "
        "jobs in the other partitions shows how long these partitions paused."
    ),
    columns={
        "again": Column(title="its partitions run again after", unit="s", better="less", digits=2, reach="≤ 5"),
        "others": Column(title="latest job of the others", unit="s", better="less", digits=3, reach="≤ 0.25"),
        "before": Column(title="latest job before that", unit="s", better="less", digits=3),
        "lost": Column(title="jobs lost", better="less", reach="0"),
        "twice": Column(title="run twice", better="less"),
        "call": Column(title="longest `schedule()` meanwhile", unit="s", better="less", digits=2),
    },
    measure=measure,
    own_only=True,
    slow=True,
    rounds=1,
)
