"""How late do jobs start on an idle system?

    python -m benchmarks.metrics.lateness [--jobs 2000] [--seconds 20] [--workers 1]

Prints p50, p99 and the maximum of (start of the task - run_at), in ms.
"""

from __future__ import annotations

import argparse
import time

from benchmarks.metrics import Column, Figures, Metric, counted
from benchmarks.stage import Stage
from benchmarks.systems import OWN, System


def measure(system: System, size: float) -> Figures:
    """2,000 jobs over 20 seconds, one worker with default options."""
    return lateness(system, counted(2000, size), 20.0 * min(1.0, size))


def lateness(system: System, count: int, seconds: float, workers: int = 1, backlog: int = 0) -> Figures:
    """The quantiles of lateness in ms. `backlog`: jobs that wait for a later date meanwhile."""
    with Stage(system) as stage:
        if backlog:
            stage.put(backlog, due=time.time() + 86_400, spread=3600, many=True)
        started = [stage.worker() for _ in range(workers)]
        stage.warm(started[0])
        due = time.time() + 3.0 + count / 500
        stage.put(count, task="late", due=due, spread=seconds, many=True)
        if time.time() > due:
            due = time.time()  # too slow to be ready in time: the first ones are late for that reason, and are left out
        found = stage.wait_marks(count, due - time.time() + seconds + 60.0, started[0])
        late = sorted(number * 1000 for number in found if number < 1e8)  # others are moments, of warming up
    return {
        "p50": late[len(late) // 2],
        "p99": late[int(len(late) * 0.99)],
        "max": late[-1],
        "early": float(sum(number < 0 for number in late)),
    }


METRIC = Metric(
    name="lateness",
    title="Lateness",
    text="2,000 jobs over 20 seconds, one worker with default options; how long after its date a job starts.",
    columns={
        "p50": Column(title="p50", unit="ms", better="less", digits=1, reach="≤ 1.5"),
        "p99": Column(title="p99", unit="ms", better="less", digits=1, reach="≤ 5"),
        "max": Column(title="worst", unit="ms", better="less", digits=1),
        "early": Column(title="jobs before their date", better="less", reach="0"),
    },
    measure=measure,
)


def main() -> None:
    """Own figures alone."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--jobs", type=int, default=2000)
    options.add_argument("--seconds", type=float, default=20.0)
    options.add_argument("--workers", type=int, default=1)
    given = options.parse_args()
    found = lateness(OWN, given.jobs, given.seconds, given.workers)
    print(f"{given.jobs} jobs over {given.seconds:g} s, {given.workers} worker(s)")
    print("lateness  p50 {p50:.2f} ms   p99 {p99:.2f} ms   max {max:.2f} ms   early {early:.0f}".format(**found))


if __name__ == "__main__":
    main()
