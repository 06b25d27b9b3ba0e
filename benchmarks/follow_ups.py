"""How long do jobs wait that the end of another job makes due? On an idle system, with one worker and defaults:

    python -m benchmarks.follow_ups [--jobs 40]

Three kinds: `then=`, `on_failure=`, and on_conflict="after". Prints p50, p95 and the maximum of the time from the commit that makes
the job due to the start of its task, in ms. This process sees the commit a few ms late, since it polls the database.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

KINDS = ("then", "on_failure", "after")


def main() -> int:
    """Starts the servers and a worker, measures, prints."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    from benchmarks import servers
    from benchmarks.projects import project
    from benchmarks.stage import Stage
    from benchmarks.systems import OWN

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=40)
    jobs = parser.parse_args().jobs
    given = {"DURABILITY": "outbox", "ROLES": "move,mirror,relay"}
    with servers.DATABASES["postgres"]() as database, Stage(OWN, project(database, **given)) as stage:
        os.environ |= stage.environment
        import django

        django.setup()
        worker = stage.worker()
        stage.warm(worker)
        for kind in KINDS:
            waits = sorted(waited(kind) for _ in range(jobs))
            p95 = waits[max(0, round(len(waits) * 0.95) - 1)]
            print(f"{kind:12} p50 {statistics.median(waits):6.1f} ms   p95 {p95:6.1f} ms   max {waits[-1]:6.1f} ms", flush=True)
    return 0


def waited(kind: str) -> float:
    """The ms from the commit of the end to the start of the job that it makes due."""
    import django_delayq as delayq
    from benchmarks.tasks import broken, nothing, stayer
    from django_delayq.models import Job

    time.sleep(1.0)  # idle
    mark, key = time.time_ns(), "k" if kind == "after" else ""
    if kind == "then":
        first = delayq.schedule(nothing, "a", then=nothing.bind(f"b{mark}"))
    elif kind == "on_failure":
        first = delayq.schedule(broken)
    else:
        first = delayq.schedule(stayer, 0.5, key=key)
        until(lambda: first.state == "running")
        second = delayq.schedule(nothing, f"b{mark}", key=key, on_conflict="after")
    ended = until(lambda: Job.objects.filter(pk=first.id, finished_at__isnull=False).exists())
    if kind == "after":
        wanted = Job.objects.filter(pk=second.id)
    elif kind == "then":
        wanted = Job.objects.filter(pk=Job.objects.get(pk=first.id).follow_up)
    else:
        wanted = Job.objects.filter(task="bench.mended", args=[str(first.id)])
    until(lambda: wanted.filter(finished_at__isnull=False).exists())
    row: Any = wanted.first()
    return float((row.started_at.timestamp() - ended) * 1000)


def until(found: Callable[[], bool]) -> float:
    """Polls until it is true. Returns the time."""
    deadline = time.monotonic() + 30
    while not found():
        if time.monotonic() > deadline:
            raise TimeoutError
        time.sleep(0.001)
    return time.time()


if __name__ == "__main__":
    raise SystemExit(main())
