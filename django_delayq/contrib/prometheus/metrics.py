"""All metrics, and their text for Prometheus. A metric that is not in `METRICS` cannot be exported."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import accumulate
from types import SimpleNamespace
from typing import Any, Final, Literal, NamedTuple

from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

from django_delayq.console import health
from django_delayq.console.health import Sample
from django_delayq.console.overview import FRESH, MOST_COUNTED
from django_delayq.producer.task import registry
from django_delayq.store.scripts.queue import Kind
from django_delayq.worker.tally import BOUNDS, ENDS, MOST_TASKS, Histogram, WorkerFigures

OTHER: Final = "other"
HISTOGRAMS: Final = ("delayq_worker_run_seconds", "delayq_worker_lateness_seconds")
COMMON: Final = ("succeeded", "retried", "failed", "crashed")  # outcomes that each task reports from the start
Shape = tuple[str, Mapping[str, str], Histogram]


class Metric(NamedTuple):
    """A metric."""

    kind: Literal["gauge", "counter", "histogram"]
    labels: list[str]
    meaning: str


def _table(**rows: tuple[str, str]) -> dict[str, Metric]:
    """Metrics by name. A row has the labels and the meaning. The names of counters, and of no other metrics, end in `_total`."""
    return {
        name: Metric("counter" if name.endswith("_total") else "histogram" if name in HISTOGRAMS else "gauge", labels.split(), meaning)
        for name, (labels, meaning) in rows.items()
    }


OF_WORKERS: Final = _table(
    delayq_worker_info=("version", "Always 1. The label is the version of django-delayq that the worker runs."),
    delayq_worker_start_time_seconds=("", "When the worker started, in seconds since 1970."),
    delayq_worker_state=("state", "1 for the worker's current state (working, quiet or leaving), and 0 for the other states."),
    delayq_worker_redis_reached=("", "1 if the worker has reached one of its queues' servers in the last 15 seconds."),
    delayq_worker_processes=("kind", "Running processes. The kind is task (runs jobs) or loop (writes records)."),
    delayq_worker_process_restarts_total=("process cause", "Processes that replaced a process that died or was recycled."),
    delayq_worker_memory_bytes=("", "The resident memory of all its processes. Shared memory is counted once for each process."),
    delayq_worker_slots=("", "Jobs that the worker can run at the same time."),
    delayq_worker_slots_busy=("", "Jobs that the worker is running."),
    delayq_worker_leases=("queue state", "Leases that the worker holds, for jobs that are waiting, running or being settled."),
    delayq_worker_leases_lost_total=("queue", "Leases that the worker lost. Another worker may have run these jobs."),
    delayq_worker_runs_total=("queue task outcome", f"Runs that ended. Tasks after the first {MOST_TASKS} by name count as other."),
    delayq_worker_run_seconds=("queue", "The duration of runs."),
    delayq_worker_lateness_seconds=("queue", "The time between a job's date and the start of its run, measured with Redis's clock."),
    delayq_worker_events_folded_total=("queue", "Events that the worker has written to the database."),
    delayq_worker_mirror_lag_seconds=("queue", "The age of the oldest event that is not in the database yet."),
    delayq_worker_mirror_lag_events=("queue", "Events that are not in the database yet."),
)
OF_QUEUES: Final = _table(
    delayq_up=("part", "1 if Redis (all servers) or the database responded. Otherwise, its metrics are missing."),
    delayq_jobs=("queue state", "Jobs in Redis that are scheduled, running or failed (failed ones for at least seven days)."),
    delayq_jobs_due=("queue", "Scheduled jobs that are due."),
    delayq_jobs_delayed=("queue", "Scheduled jobs that are not due yet."),
    delayq_jobs_retrying=("queue", "Scheduled jobs that have run before, except those that raised NotYet."),
    delayq_jobs_failed_lately=("queue within", "Jobs that failed within the last hour (1h) or day (1d) and have not been requeued."),
    delayq_jobs_last_minute=("queue kind", "Jobs to which this happened in the last full minute, in all workers and processes."),
    delayq_oldest_late_seconds=("queue", "How late the oldest due job is, or 0 if there is none."),
    delayq_jobs_held=("queue", "Due jobs that wait because their task or concurrency name is paused. They are not late."),
    delayq_jobs_behind=("queue", "Jobs that wait for the turn of their fair word, including those that are not due."),
    delayq_jobs_rate_limited=("queue", "Due jobs that wait because their rate allows no more starts now. They are not late."),
    delayq_queue_paused=("queue", "1 if the queue is paused."),
    delayq_queue_partitions=("queue", "Partitions of the queue, if it has or had several."),
    delayq_queue_partitions_away=("queue", "Partitions that cannot be reached. The other metrics do not include them."),
    delayq_queue_workers=("queue", "Workers that claim jobs from the queue. This is missing for queues of messages."),
    delayq_queue_slots=("queue", "Jobs that these workers can run at the same time."),
    delayq_mirror_lag_events=("queue", "Events that are not in the database yet."),
    delayq_mirror_lag_jobs=("queue", "Changes to jobs in these events. The limit is MIRROR_MAX_EVENTS."),
    delayq_mirror_lag_seconds=("queue", "The age of the oldest of these events."),
    delayq_tombstones=("queue", "Recently ended jobs that Redis still remembers (tombstones)."),
    delayq_outbox_rows=("queue", f"Committed jobs not in Redis after {FRESH:.0f} s. At most {MOST_COUNTED + 1} are counted in all."),
    delayq_outbox_oldest_seconds=("", "Age of the oldest of these jobs, or 0."),
    delayq_unresolved_jobs=("queue", f"Jobs that ended without an event. At most {MOST_COUNTED + 1} are counted for all queues."),
    delayq_far_jobs=("queue", f"Jobs beyond the queue's HORIZON, only in the database. At most {MOST_COUNTED + 1} are counted."),
    delayq_far_late=("queue", "1 if the first of these jobs should already be in Redis."),
    delayq_set_aside_events=("queue", f"Events that the database rejected. At most {MOST_COUNTED + 1} are counted for all queues."),
    delayq_schedules_wrong=(
        "why",
        "Schedules without jobs (trouble), over a minute late (late), or retired within a week (retired).",
    ),
    delayq_workers=("state", "Workers in each state: working, quiet, leaving, or silent if they have not reported for half a minute."),
    delayq_slots=("", "Jobs that all workers can run at the same time, except silent workers."),
    delayq_slots_busy=("", "Jobs that these workers are running."),
    delayq_redis_round_trip_seconds=("", "How long Redis took to respond."),
    delayq_redis_clock_skew_seconds=("", "The difference between Redis's clock and the clock of the process that exports this metric."),
    delayq_redis_memory_bytes=("", "The memory that Redis uses."),
    delayq_redis_memory_limit_bytes=("", "The maxmemory setting of Redis, or 0 if there is no limit."),
    delayq_redis_evicts=("", "1 if Redis can evict jobs, because its policy is not noeviction."),
    delayq_redis_append_only=("", "1 if Redis writes an append-only file."),
)
METRICS: Final[Mapping[str, Metric]] = {**OF_WORKERS, **OF_QUEUES}


def queues_page(found: Iterable[Sample]) -> bytes:
    """The metrics of the queues."""
    return _text(sample for sample in found if sample[0] in OF_QUEUES)


def worker_page(seen: WorkerFigures, *, with_queues: bool = False) -> bytes:
    """The metrics of a worker, and those of the queues if `with_queues`."""
    samples, shapes = _runs(seen)
    records = seen.records or {}
    for mirror in records.get("mirrors", ()):
        of = {"queue": mirror["queue"]}
        samples.append(("delayq_worker_events_folded_total", of, mirror["folded"]))
        if "seconds" in mirror:
            samples.append(("delayq_worker_mirror_lag_seconds", of, mirror["seconds"]))
            samples.append(("delayq_worker_mirror_lag_events", of, mirror["entries"]))
    if with_queues:  # there is no report yet, or its process hangs
        samples += records.get("samples") or [*health.down_sample("redis"), *health.down_sample("database")]
    return _text([*_worker_samples(seen), *samples], shapes)


def _worker_samples(seen: WorkerFigures) -> list[Sample]:
    facts = seen.facts
    return [
        ("delayq_worker_info", {"version": facts["version"]}, 1),
        ("delayq_worker_start_time_seconds", {}, facts["started"] / 1000),
        *(("delayq_worker_state", {"state": state}, facts["state"] == state) for state in health.STATES if state != "silent"),
        ("delayq_worker_redis_reached", {}, seen.reached),
        *(("delayq_worker_processes", {"kind": kind}, count) for kind, count in seen.processes.items()),
        *(
            ("delayq_worker_process_restarts_total", {"process": process, "cause": cause}, count)
            for (process, cause), count in seen.restarts.items()
        ),
        ("delayq_worker_memory_bytes", {}, facts["memory"]),
        ("delayq_worker_slots", {}, facts["processes"] * facts["threads"]),
        ("delayq_worker_slots_busy", {}, facts["busy"]),
    ]


def _runs(seen: WorkerFigures) -> tuple[list[Sample], list[Shape]]:
    """The counters and histograms by queue. It adds up the partitions of a queue."""
    named = seen.tasks[:MOST_TASKS]
    served = list(dict.fromkeys(line.queue for line in seen.lines))
    # Prometheus does not see an increase from no value to 1, so each task starts with its default queue, if this worker serves it.
    homes = [(known.queue, task) for task in named if (known := registry.find(task)) is not None and known.queue in served]
    runs = Counter({(queue, task, outcome): 0 for queue, task in homes for outcome in COMMON})
    lost, ran, late = Counter(seen.lost), dict[str, Histogram](), dict[str, Histogram]()

    def count(queue: str, task: int, kind: Kind, number: int) -> None:
        runs[queue, named[task] if task < len(named) else OTHER, ENDS[kind]] += number

    for line in seen.lines:
        lost[line.queue] += line.lost
        ran[line.queue], late[line.queue] = _sum(ran.get(line.queue), line.ran), _sum(late.get(line.queue), line.late)
        for (task, kind), number in line.ended.items():
            count(line.queue, task, kind, number)
    for (queue, task, kind), number in seen.given_back.items():
        count(queue, task, kind, number)
    leases = {(queue, state): 0 for queue in served for state in ("waiting", "running", "settling")} | dict(seen.leases)
    samples: list[Sample] = [
        *(
            ("delayq_worker_runs_total", {"queue": queue, "task": task, "outcome": outcome}, number)
            for (queue, task, outcome), number in runs.items()
        ),
        *(("delayq_worker_leases_lost_total", {"queue": queue}, number) for queue, number in lost.items()),
        *(("delayq_worker_leases", {"queue": queue, "state": state}, number) for (queue, state), number in leases.items()),
    ]
    shapes: list[Shape] = [
        *(("delayq_worker_run_seconds", {"queue": queue}, shape) for queue, shape in ran.items()),
        *(("delayq_worker_lateness_seconds", {"queue": queue}, shape) for queue, shape in late.items()),
    ]
    return samples, shapes


def _sum(so_far: Histogram | None, more: Histogram) -> Histogram:
    if so_far is None:
        return more
    return Histogram([a + b for a, b in zip(so_far.counts, more.counts, strict=True)], so_far.seconds + more.seconds)


def _text(found: Iterable[Sample], shapes: Iterable[Shape] = ()) -> bytes:
    """The text of these values, in the order of the catalogue."""
    families: dict[str, Any] = {}

    def add(name: str, labels: Mapping[str, str], *value: Any) -> None:
        metric = METRICS[name]
        if name not in families:
            make: Any = {"gauge": GaugeMetricFamily, "counter": CounterMetricFamily, "histogram": HistogramMetricFamily}[metric.kind]
            families[name] = make(name, metric.meaning, labels=metric.labels)
        families[name].add_metric([labels[label] for label in metric.labels], *value)

    for name, labels, value in found:
        add(name, labels, float(value))
    for name, labels, shape in shapes:
        bounds = (*map(str, BOUNDS), "+Inf")
        add(name, labels, list(zip(bounds, accumulate(shape.counts), strict=True)), shape.seconds)
    collector: Any = SimpleNamespace(collect=lambda: (families[name] for name in METRICS if name in families))
    return generate_latest(collector)
