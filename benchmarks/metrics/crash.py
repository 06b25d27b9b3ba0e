"""The cost of a kill -9 of a worker: lost jobs, and the time until jobs run again."""

from __future__ import annotations

import time

from benchmarks.metrics import Column, Figures, Metric, counted
from benchmarks.stage import Failed, Stage
from benchmarks.systems import System

PATIENCE = 90.0
NAP = 0.05


def measure(system: System, size: float) -> Figures:
    """Jobs of 50 ms each; in the middle all processes of the worker are killed, and another worker is started at once."""
    at_once = int(system.facts["at_once"])
    count = counted(max(200, min(5000, 100 * at_once)), size, max(100, 50 * at_once))
    with Stage(system) as stage:
        stage.put(count, task="nap", seconds=NAP, many=True)  # first: a fast worker would be done before all are in
        worker = stage.worker()
        stage.wait_marks(count // 2, 60.0, worker)  # each leaves two
        worker.kill()
        killed = time.time()
        begun = {number for number in stage.numbers() if number > 0}
        ended = {-number for number in stage.numbers() if number < 0}
        running = begun - ended
        again = stage.worker()
        recovered: float | None = None
        done = set(ended)
        while time.time() - killed < PATIENCE and len(done) < count:
            time.sleep(0.1)
            done = {-number for number in stage.numbers() if number < 0}
            if running <= done and recovered is None:
                recovered = time.time() - killed
        if again.started.poll() is not None:
            raise Failed(f"the second worker ended with code {again.started.returncode}")
        if running <= done and recovered is None:
            recovered = time.time() - killed
        if not running:
            recovered = None  # killed between two jobs: there is nothing to wait for
        return {"running": float(len(running)), "lost": float(count - len(done)), "recovered": recovered}


METRIC = Metric(
    name="crash",
    title="kill -9",
    text=(
        "Jobs take 50 ms. There are 100 jobs for each job that a worker can run concurrently. Halfway through, all of the "
        "worker's processes are killed, and another worker starts. Jobs that haven't run within 90 seconds are either lost or "
        "run much later on another worker."
    ),
    columns={
        "running": Column(title="jobs running at the kill", better=""),
        "lost": Column(title="jobs not run within 90 s", better="less", reach="0"),
        "recovered": Column(title="interrupted jobs run again after", unit="s", better="less", digits=1, reach="≤ 2 after its start"),
    },
    measure=measure,
    rounds=1,
    side_by_side=True,
)
