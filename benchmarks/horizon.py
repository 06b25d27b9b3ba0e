"""Far rows on PostgreSQL: how large they are, how fast they are written and brought in, and how long a cancel takes.

    python -m benchmarks.horizon [--rows 200000] [--keyed]

Starts a PostgreSQL and a Redis server. The rows are due over a year; the first tenth of them, at most 50,000, is brought in. `--keyed`
gives each a key, so that they are written one by one. Also measured: passes of a relay and of a bring-in loop that find nothing in a
table full of far rows. At the end, Redis is wiped, and the near jobs are restored.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

YEAR = 365 * 86_400
CHANGES, LOOKS = 2_000, 20
MOST_BROUGHT = 50_000
PORTION = 100_000  # rows per call: it returns a job for each


def main() -> int:
    """Fills, measures, prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--keyed", action="store_true")
    options = parser.parse_args()
    set_up()
    measure(options.rows, keyed=options.keyed)
    return 0


def set_up() -> None:
    """Servers, a queue with a horizon, tables."""
    sys.path.insert(0, str(Path(__file__).parents[1]))
    os.environ |= {"DELAYQ_TEST_DB": "postgres", "DJANGO_SETTINGS_MODULE": "tests.settings"}
    import django
    from django.conf import settings
    from django.core.management import call_command

    settings.DELAYQ = {**settings.DELAYQ, "QUEUES": {"default": {"HORIZON": "1h"}}}
    django.setup()
    call_command("migrate", verbosity=0)


def measure(rows: int, *, keyed: bool) -> None:
    """With Django set up."""
    from datetime import timedelta

    from django.core.management import call_command

    from benchmarks.tasks import nothing
    from django_delayq import clock, conf, schedule_many
    from django_delayq.mirror.bring_in import BATCH, BringInLoop
    from django_delayq.mirror.mirror_loop import MirrorLoop
    from django_delayq.mirror.relay import RelayLoop
    from django_delayq.mirror.restore import RestoreLoop
    from django_delayq.models import Job
    from django_delayq.producer import acts
    from django_delayq.producer.stores import stores
    from django_delayq.store.reads.queue_depth import summed

    config = conf.get()
    common: Any = {"prefix": config.prefix}
    loop = BringInLoop(stores.link, config.queue("default"), **common)
    relay = RelayLoop(stores.link, config.queue("default"), **common)
    loop.poll()
    memory = used_memory()

    step = YEAR / rows

    def write(first: int) -> None:
        numbers = range(first, min(first + PORTION, rows))
        schedule_many(nothing.using(delay=7200 + n * step, key=f"order:{n}" if keyed else "").bind(f"order {n}") for n in numbers)

    took = sum(timed(partial(write, first)) for first in range(0, rows, PORTION))
    said("rows written", rows / took, "a second")
    call_command("delayq", "indexes", "--yes", stdout=sys.stderr)
    query("VACUUM ANALYZE delayq_job")
    size = query("SELECT pg_total_relation_size('delayq_job')")
    said("a far row, with its indexes", size / rows, "bytes")
    said("memory of Redis for them", (used_memory() - memory) / rows, "bytes a row")

    some = list(Job.objects.filter(far=True).order_by("-run_at").values_list("id", flat=True)[:CHANGES])
    spent = sorted(timed(partial(acts.cancel, id)) for id in some)
    said("cancel, median", statistics.median(spent) * 1000, "ms")
    said("cancel, 99 of 100 within", spent[len(spent) * 99 // 100] * 1000, "ms")
    said("look of a bring-in loop that finds nothing", fastest(lambda: loop.bring_in(clock.now())), "ms")
    said("look of a relay that finds nothing", fastest(relay.poll), "ms")

    wanted, brought = min(rows // 10, MOST_BROUGHT), 0
    until = clock.now() + timedelta(seconds=7200 + wanted * step - 3600)
    began = time.perf_counter()
    while len(some := loop.bring_in(until)) == BATCH:
        brought += len(some)
    brought += len(some)
    said("brought in by one loop", brought / (time.perf_counter() - began), "a second")

    mirror = MirrorLoop(stores.link, config.queue("default"), **common)
    restore = RestoreLoop(stores.link, config.queue("default"), **common)

    def work_off() -> None:  # as a worker does
        for _ in restore.drain():
            mirror.poll()

    work_off()
    mirror.drain()
    said("memory of Redis for what is near", (used_memory() - memory) / brought, "bytes a job")
    wipe()
    said("all that is near is back in a wiped Redis after", timed(work_off), "s")
    if (back := summed(stores.inspector().by_partition(["default"])[0]).scheduled) != brought:
        raise RuntimeError(f"{back} of {brought} jobs are back")


def timed(work: Callable[[], object]) -> float:
    """Seconds that it takes."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def fastest(work: Callable[[], object]) -> float:
    """Milliseconds of the median of some."""
    return statistics.median(timed(work) for _ in range(LOOKS)) * 1000


def query(sql: str) -> int:
    """The first value that it returns; 0 for none."""
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute(sql)
        return int(cursor.fetchone()[0]) if cursor.description else 0


def used_memory() -> int:
    """Bytes that Redis uses."""
    from django_delayq.producer.stores import stores

    return stores.inspector().server().used_memory


def wipe() -> None:
    """The memory of Redis."""
    from django.conf import settings

    from django_delayq.store.connection.link import connect

    link = connect(settings.REDIS_URL, name="benchmark")
    try:
        link.execute("FLUSHALL")
    finally:
        link.close()


def said(what: str, value: float, unit: str) -> None:
    """Prints a line."""
    print(f"{what:46}{value:12,.1f} {unit}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
