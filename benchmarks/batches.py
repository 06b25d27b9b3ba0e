"""What does a batch cost? On PostgreSQL, with one worker and defaults:

    python -m benchmarks.batches [--jobs 100000] [--rounds 4]

Each round runs the jobs once as a batch and once as other jobs of one transaction, and prints the CPU per job of all processes: this
one, the worker and the database. Then it prints the ratios, and the CPU of the queries of the admin's page while the batch is open.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")
LOOKS = 10


def main() -> int:
    """Starts the servers, measures, prints."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    from benchmarks import servers
    from benchmarks.projects import project
    from benchmarks.stage import Stage
    from benchmarks.systems import OWN

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=4)
    given = parser.parse_args()
    settings = {"DURABILITY": "outbox", "ROLES": "move,mirror,relay"}
    with servers.DATABASES["postgres"]() as database, Stage(OWN, project(database, **settings)) as stage:
        os.environ |= stage.environment
        import django

        django.setup()
        ratios = []
        for number in range(given.rounds):
            took = {}
            for batched in (number % 2 == 0, number % 2 == 1):
                took[batched] = run(stage, given.jobs, batched=batched)
            ratios.append(took[True] / took[False])
            print(f"CPU per job: {took[True]:.0f} us in a batch, {took[False]:.0f} us without, x {ratios[-1]:.3f}", flush=True)
        print(f"median x {statistics.median(ratios):.3f}")
    return 0


def run(stage: object, jobs: int, *, batched: bool) -> float:
    """Schedules the jobs, and runs them. Returns the us of CPU per job."""
    from django.db import connection, transaction

    import django_delayq as delayq
    from benchmarks.tasks import nothing
    from django_delayq.models import Batch, Job
    from django_delayq.producer.outbox import batches

    began = cpu()
    bindings = (nothing.bind(f"{number}") for number in range(jobs))
    if batched:
        with delayq.batch(nothing.bind("next")) as batch:
            batch.schedule_many(bindings)
    else:
        with transaction.atomic():
            delayq.schedule_many(bindings)
    scheduled = cpu() - began
    if batched:
        began = cpu()
        for _ in range(LOOKS):
            batches.counts([Batch.objects.get(pk=batch.id)])
            for state, order in (("running", "started_at"), ("scheduled", "-run_at"), ("failed", "-run_at")):
                list(Job.objects.filter(batch=batch.id, state=state).order_by(order)[:5])
        print(f"the page: {(cpu() - began) / LOOKS * 1000:.0f} ms of CPU", flush=True)
    began = cpu()
    worker = stage.worker()  # type: ignore[attr-defined]  # a Stage, which is imported later
    while Job.objects.filter(finished_at__isnull=True)[:1]:
        connection.close()
        time.sleep(2.0)
    worker.stop()
    took = scheduled + cpu() - began
    Job.objects.all()._raw_delete("default")
    with connection.cursor() as cursor:
        cursor.execute("VACUUM ANALYZE delayq_job")
    return took / jobs * 1e6


def cpu(root: int = os.getpid()) -> float:
    """Seconds of CPU of this process and all its descendants, also of those that have ended."""
    parents: dict[int, list[int]] = {}
    used = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                words = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            parents.setdefault(int(words[1]), []).append(int(entry))
            used[int(entry)] = sum(map(int, words[11:15]))
    found = [root]
    for pid in found:
        found += parents.get(pid, [])
    return sum(used.get(pid, 0) for pid in found) / TICKS


if __name__ == "__main__":
    raise SystemExit(main())
