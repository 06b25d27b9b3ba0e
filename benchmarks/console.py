"""The console with two million jobs on PostgreSQL: how long each page takes at the server, and how many queries it needs.

    python -m benchmarks.console [--rows 2000000] [--repeat 15]

Starts a PostgreSQL and a Redis server. The database creates the rows, with the indexes of the migration: jobs, an attempt for each
ended run, events and operations. Scheduled jobs are also in Redis, and workers report what they run; running jobs are only rows. A
staff user with every permission requests each page. The limit is 150 ms and 12 queries per page: as the median or, on a busy machine,
as the CPU time of this process and its PostgreSQL backend, which has no parallel workers here.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote_plus

BOUND_MS, BOUND_QUERIES = 150, 12
QUEUES, TASKS, CAUSES, WORKERS, OPERATIONS = 40, 20, 200, 20, 2_000

FILL = """
INSERT INTO delayq_job (id, queue, task, args, kwargs, options, key, state, priority, run_at, created_at, started_at, finished_at,
  attempts, max_attempts, crashes, worker, error, fingerprint, durable, on_conflict, settled, cancel_requested, published, last_event)
SELECT
  (lpad(to_hex((extract(epoch FROM made) * 1000)::bigint), 12, '0') || '7' || substr(md5(n::text), 1, 3) || '8'
    || substr(md5('b' || n), 1, 15))::uuid,
  -- One queue has half of all jobs, the others share the rest; so with the tasks.
  CASE WHEN n %% 2 = 0 THEN 'q0' ELSE 'q' || (n / 2 %% %(queues)s) END,
  CASE WHEN n %% 3 = 0 THEN 'shop.tasks.t0' ELSE 'shop.tasks.t' || (n / 3 %% %(tasks)s) END,
  '[' || n || ']', '{"note":"' || md5(n::text) || '"}', '{}', 'order:' || n, state, 0,
  CASE WHEN state = 'scheduled' THEN now() + ((n %% 100000) - 5000) * interval '10 s' ELSE made + interval '30 min' END,
  made, CASE WHEN state = 'scheduled' AND n %% 100 <> 1 THEN NULL ELSE made + interval '30 min' END,
  CASE WHEN state IN ('scheduled', 'running') THEN NULL ELSE made + interval '31 min' END,
  CASE WHEN state = 'scheduled' THEN (n %% 100 = 1)::int * (1 + n %% 5) WHEN state = 'cancelled' THEN 0 ELSE 1 + n %% 3 END,
  10, 0, 'host:1:abcdef/1',
  CASE WHEN state = 'failed' OR (state = 'scheduled' AND n %% 100 = 1) THEN 'TimeoutError: no answer to ' || n ELSE '' END,
  CASE WHEN state = 'failed' OR (state = 'scheduled' AND n %% 100 = 1) THEN substr(md5((n %% %(causes)s)::text), 1, 12) ELSE '' END,
  true, 'keep', '', false, made, n || '-0'
FROM (
  SELECT n, now() - (%(rows)s - n) * interval '0.5 s' AS made,
    CASE WHEN n > %(rows)s - 500 THEN 'running' WHEN n %% 10 = 1 THEN 'scheduled' WHEN n %% 40 = 2 THEN 'failed'
      WHEN n %% 40 = 3 THEN 'cancelled' ELSE 'succeeded' END AS state
  FROM generate_series(%(first)s, %(last)s) AS n
) AS numbers
"""

# One per run that has ended; events for each fiftieth job, and as many for one job as its page shows.
ATTEMPTS = """
INSERT INTO delayq_attempt (job_id, number, fence, worker, started_at, finished_at, outcome, error_class, message, traceback)
SELECT id, number, 'f' || number, worker, started_at, started_at + interval '5 s',
  CASE WHEN number < attempts OR state IN ('scheduled', 'running') THEN 'retried'
    WHEN state = 'failed' THEN 'failed' ELSE 'succeeded' END,
  CASE WHEN error = '' THEN '' ELSE 'TimeoutError' END, error, CASE WHEN error = '' THEN '' ELSE repeat(error || E'\\n', 20) END
FROM delayq_job, generate_series(1, attempts) AS number WHERE started_at IS NOT NULL
"""
EVENTS = """
INSERT INTO delayq_event (job_id, queue, at, kind, actor, reason, detail, stream_id, item)
SELECT id, queue, created_at, 'rescheduled', 'admin:kim', 'later', NULL, last_event, 0 FROM (
  SELECT *, row_number() OVER () AS n FROM delayq_job) AS jobs WHERE n %% 50 = 0
UNION ALL
SELECT %(job)s, 'q0', now(), 'requeued', 'admin:kim', 'again', NULL, 'many-' || n, 0 FROM generate_series(1, 300) AS n
"""


def main() -> int:
    """Fills, asks, prints. Returns 1 when a page is out of bounds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--repeat", type=int, default=15)
    options = parser.parse_args()
    set_up()
    fill(options.rows)
    steps()
    redis()
    return measure(options.rows, options.repeat)


def set_up() -> None:
    """Servers, settings with forty queues, tables."""
    sys.path.insert(0, str(Path(__file__).parents[1]))
    os.environ |= {"DELAYQ_TEST_DB": "postgres", "DJANGO_SETTINGS_MODULE": "tests.settings"}
    import django
    from django.conf import settings
    from django.core.management import call_command

    settings.DELAYQ = {**settings.DELAYQ, "QUEUES": {f"q{n}": {} for n in range(QUEUES)}}
    django.setup()
    call_command("migrate", verbosity=0)


def fill(rows: int) -> None:
    """The rows first and their indexes after: that is quicker."""
    from django.db import connection

    started = time.monotonic()
    with connection.cursor() as cursor:
        cursor.execute("SELECT indexname, indexdef FROM pg_indexes WHERE tablename = 'delayq_job' AND indexname NOT LIKE '%pkey'")
        indexes = cursor.fetchall()
        for name, _ in indexes:
            cursor.execute(f'DROP INDEX "{name}"')
        for first in range(1, rows + 1, 250_000):
            last = min(rows, first + 249_999)
            given = {"rows": rows, "first": first, "last": last, "queues": QUEUES, "tasks": TASKS, "causes": CAUSES}
            cursor.execute(FILL, given)
        for _, definition in indexes:
            cursor.execute(definition)
        cursor.execute("SELECT id FROM delayq_job WHERE state = 'failed' ORDER BY id LIMIT 1")
        [job] = cursor.fetchone()
        cursor.execute(ATTEMPTS)
        cursor.execute(EVENTS, {"job": job})
        for name in ("job", "attempt", "event"):
            cursor.execute(f"VACUUM ANALYZE delayq_{name}")
        cursor.execute("SELECT pg_size_pretty(pg_table_size('delayq_job')), pg_size_pretty(pg_indexes_size('delayq_job'))")
        table, size = cursor.fetchone()
    print(f"{rows:,} rows in {time.monotonic() - started:.0f} s: {table} of rows, {size} in {len(indexes) + 1} indexes\n")


def steps() -> None:
    """Operations in every stage."""
    from django_delayq.models import Operation

    stages = list(Operation.Stage)
    fields: list[dict[str, Any]] = [{"selection": {"view": "failed"}, "counts": {"done": n}} for n in range(OPERATIONS)]
    Operation.objects.bulk_create(
        Operation(**given, verb="requeue", stage=stages[n % len(stages)], actor="admin:kim", expected=2 * n, seen=n)
        for n, given in enumerate(fields)
    )


def redis() -> None:
    """Schedules the jobs of the rows, and registers workers that report them."""
    from django_delayq import clock, conf, ids
    from django_delayq.models import Job
    from django_delayq.producer.outbox import rows
    from django_delayq.producer.stores import stores
    from django_delayq.store.scripts.events import EventLog
    from django_delayq.store.scripts.queue import MOST, QueueStore
    from django_delayq.store.scripts.record import ScheduleItem
    from django_delayq.store.scripts.worker_registry import WorkerRegistry

    started, count, config = time.monotonic(), 0, conf.get()
    for queue in config.queues:
        store = QueueStore(stores.link, prefix=config.prefix, queue=queue)
        found = Job.objects.filter(state="scheduled", queue=queue)
        items = [ScheduleItem.of(rows.record_of(row), due_ms=clock.to_ms(row.run_at)) for row in found.iterator()]
        for first in range(0, len(items), MOST):
            store.schedule(items[first : first + MOST])
        count += len(items)
        log = EventLog(stores.link, store.keys)
        log.trim(log.last_id())  # the rows have them
    registry, running = (
        WorkerRegistry(stores.link, prefix=config.prefix),
        list(Job.objects.filter(state="running")[:500]),
    )
    for number in range(WORKERS):
        jobs = [
            {"id": ids.short(job.pk), "task": job.task, "queue": job.queue, "attempt": 1, "started": clock.wall_ms()}
            for job in running[number::WORKERS][:20]
        ]
        facts = {
            "queues": list(config.queues),
            "processes": 4,
            "threads": 8,
            "busy": len(jobs),
            "jobs": jobs,
            "state": "working",
        }
        registry.beat(f"host:{number}:w", facts)
    print(f"{count:,} jobs in Redis in {time.monotonic() - started:.0f} s\n")


def pages(rows: int) -> dict[str, str]:
    """Names and addresses."""
    from django_delayq.models import Job, Operation

    jobs, queues, workers = "/admin/delayq/job/", "/admin/delayq/queue/", "/admin/delayq/worker/"
    operations = "/admin/delayq/operation/"
    start = f"{operations}start"
    found = {
        f"jobs: {view or 'all'}": f"{jobs}?state={view}"
        for view in ("", "due", "scheduled", "running", "retrying", "failed", "cancelled", "succeeded", "unpublished")
    }
    for view in ("", "scheduled", "failed", "succeeded", "retrying"):
        found[f"jobs: {view or 'all'} of a queue"] = f"{jobs}?state={view}&queue=q7"
        found[f"jobs: {view or 'all'} of a task"] = f"{jobs}?state={view}&task=shop.tasks.t3"
    found["jobs: failed of a queue and a task"] = f"{jobs}?state=failed&queue=q7&task=shop.tasks.t3"
    for text in (
        f"id:{Job.objects.order_by('pk')[rows // 2].pk}",
        "key:order:77",
        "key:order:77*",
        "order:123",
        "t5",
        "task:t5 state:failed",
        "error:answer",
        "error:nowhere",
        "error:nowhere state:failed",
        f"arg:order_id={rows // 2}",
        f"arg:note={rows // 2} queue:q7",
        "after:-1h",
        "state:scheduled after:+1h before:+2h",
        "state:failed after:-2d before:-1d",
        f"{rows // 2}",
        f"{rows // 2} state:failed",
        "t5 nowhere",
        "state:failed not task:t5",
        "state:failed not task:t5 error:nowhere OR key:order:123",
        "queue:q7 OR queue:q8",
        "worker:nowhere OR meta:tenant=7",
        "stat:failed",
    ):
        found[f"jobs: {text[:40]}"] = f"{jobs}?q={quote_plus(text)}"
    found["failures"] = f"{jobs}failures/"
    found["failures: of an hour"] = f"{jobs}failures/?since=-3h&until=-2h"
    found["export: failed"] = f"{jobs}export/?state=failed"
    for state in ("failed", "running", "scheduled", "succeeded"):
        found[f"a job: {state}"] = f"{jobs}{Job.objects.filter(state=state).order_by('pk')[0].pk}/change/"
    failed = Job.objects.filter(state="failed").order_by("-pk")[0].pk
    found["a job: edit"] = f"{jobs}{failed}/edit/"
    found["a job: copy"] = f"{jobs}{failed}/copy/"
    found["preview: requeue all failed"] = f"{start}/requeue/?state=failed"
    found["preview: cancel all scheduled of a queue"] = f"{start}/cancel/?state=scheduled&queue=q7"
    found["preview: reschedule all scheduled"] = f"{start}/reschedule/?state=scheduled"
    found["preview: run all of a task now"] = f"{start}/run_now/?state=scheduled&task=shop.tasks.t3"
    found["preview: cancel what a search finds"] = f"{start}/cancel/?q=arg:note={rows // 2}"
    found["operations"] = operations
    found["operations: running"] = f"{operations}?stage__exact=running"
    for stage in ("running", "finished"):
        found[f"an operation: {stage}"] = f"{operations}{Operation.objects.filter(stage=stage)[0].pk}/change/"
    found["queues"] = queues
    found["queues: forecast of one"] = f"{queues}?queue=q0"
    found["queues: remedies"] = f"{queues}remedies/"
    found["queues: purge"] = f"{queues}q0/purge/"
    for given in ("span=1h", "span=1d&with=week", "span=7d", "span=1d&queue=q0"):
        found[f"queues: trends, {given}"] = f"{queues}trends/?{given}"
    for queue in ("q0", "q7"):
        found[f"queues: page of {queue}"] = f"{queues}{queue}/change/?span=7d"
    for task in ("t0", "t3"):
        found[f"a task: {task}"] = f"{jobs}task/shop.tasks.{task}/?span=1d"
    found["workers"] = workers
    found["targets"] = "/admin/delayq/target/"
    found["schedules"] = "/admin/delayq/periodic/"
    found["rejected events"] = "/admin/delayq/setaside/"
    fresh = (
        "jobs: all",
        "jobs: scheduled",
        "jobs: failed",
        "a job: scheduled",
        "an operation: running",
        "queues",
        "workers",
    )
    return found | {f"{name}, fresh": f"{found[name]}{'&' if '?' in found[name] else '?'}live=1" for name in fresh}


def asking() -> dict[str, Any]:
    """The form that leads to the page that asks before an action, for a page of ticked jobs."""
    from django_delayq.models import Job

    ticked = Job.objects.filter(state="scheduled").order_by("run_at")[:50]
    return {"action": "reschedule", "index": "0", "_selected_action": [str(job.pk) for job in ticked]}


def measure(rows: int, repeat: int) -> int:
    """Asks for each page several times, and far into the longest list."""
    from django.contrib.auth.models import Permission, User
    from django.db import connection
    from django.test import Client
    from django.test.utils import CaptureQueriesContext

    user = User.objects.create_user("clerk", is_staff=True)
    user.user_permissions.set(Permission.objects.filter(content_type__app_label="delayq"))
    client = Client()
    client.force_login(user)

    with connection.cursor() as cursor:
        cursor.execute("SET max_parallel_workers_per_gather = 0")  # their time would not be seen
        cursor.execute("SELECT pg_backend_pid()")
        backend = cursor.fetchone()[0]

    def cpu() -> float:
        """Seconds that this process and its PostgreSQL have computed: what a page costs, however busy the machine is."""
        fields = Path(f"/proc/{backend}/stat").read_text().rpartition(")")[2].split()
        return time.process_time() + (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    form, posted = asking(), "/admin/delayq/job/?state=scheduled&ask"

    def ask(address: str) -> Any:
        response = client.post(address.removesuffix("&ask"), form) if address == posted else client.get(address)
        assert response.status_code == 200, (address, response.status_code)
        return response

    found = pages(rows)
    address = "/admin/delayq/job/?state=succeeded"
    for _ in range(20):
        address = "/admin/delayq/job/" + ask(address).context_data["cl"].later
    found["jobs: succeeded, 20 pages on"] = address
    found["jobs: asks before 50 are rescheduled"] = posted
    print(f"{'page':<48} {'CPU':>9} {'best':>9} {'median':>9} {'worst':>9} {'queries':>8}")
    out = 0
    for name, address in found.items():
        ask(address)
        with CaptureQueriesContext(connection) as queries:
            ask(address)
        asked = len(queries)
        took, spent = [], cpu()
        for _ in range(repeat):
            started = time.perf_counter()
            ask(address)
            took.append((time.perf_counter() - started) * 1000)
        worked, median = (cpu() - spent) / repeat * 1000, statistics.median(took)
        bad = min(median, worked) > BOUND_MS or asked > BOUND_QUERIES
        out += bad
        times = " ".join(f"{number:>6.0f} ms" for number in (worked, min(took), median, max(took)))
        print(f"{name:<48} {times} {asked:>8}{'  <-- out of bounds' if bad else ''}", flush=True)
    print(f"\n{len(found)} pages, {out} out of bounds ({BOUND_MS} ms, {BOUND_QUERIES} queries)")
    return int(out > 0)


if __name__ == "__main__":
    sys.exit(main())
