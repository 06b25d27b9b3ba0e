"""All metrics, and their text for Prometheus. A metric that is not in `METRICS` cannot be exported."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
COMMON: Final = ("succeeded", "retried", "failed", "crashed")  # outcomes that each task reports from the start
Shape = tuple[str, Mapping[str, str], Histogram]


class Metric(NamedTuple):
    """A metric. The names of counters end in `_total`."""

    kind: Literal["gauge", "counter", "histogram"]
    labels: tuple[str, ...]
    meaning: str


OF_WORKERS: Final[Mapping[str, Metric]] = {
    "delayq_worker_info": Metric("gauge", ("version",), "Always 1. The label is the version of django-delayq that the worker runs."),
    "delayq_worker_start_time_seconds": Metric("gauge", (), "When the worker started, in seconds since 1970."),
    "delayq_worker_state": Metric(
        "gauge", ("state",), "1 for the worker's current state (working, quiet or leaving), and 0 for the other states."
    ),
    "delayq_worker_redis_reached": Metric(
        "gauge", (), "1 if the worker has reached one of its queues' servers in the last 15 seconds."
    ),
    "delayq_worker_processes": Metric(
        "gauge", ("kind",), "The number of running processes. The kind is task (runs jobs) or loop (writes records)."
    ),
    "delayq_worker_process_restarts_total": Metric(
        "counter", ("process", "cause"), "The number of processes that replaced a process that died or was recycled."
    ),
    "delayq_worker_memory_bytes": Metric(
        "gauge", (), "The resident memory of all processes of the worker. Shared memory is counted once for each process."
    ),
    "delayq_worker_slots": Metric("gauge", (), "The number of jobs that the worker can run at the same time."),
    "delayq_worker_slots_busy": Metric("gauge", (), "The number of jobs that the worker is running."),
    "delayq_worker_leases": Metric(
        "gauge", ("queue", "state"), "The number of leases that the worker holds, for jobs that are waiting, running or being settled."
    ),
    "delayq_worker_leases_lost_total": Metric(
        "counter", ("queue",), "The number of leases that the worker lost. Another worker may have run these jobs."
    ),
    "delayq_worker_runs_total": Metric(
        "counter",
        ("queue", "task", "outcome"),
        f"Runs that ended in the worker. If there are more than {MOST_TASKS} tasks, tasks after the first {MOST_TASKS} by name count "
        "as other.",
    ),
    "delayq_worker_run_seconds": Metric("histogram", ("queue",), "The duration of runs."),
    "delayq_worker_lateness_seconds": Metric(
        "histogram", ("queue",), "The time between a job's date and the start of its run, measured with Redis's clock."
    ),
    "delayq_worker_events_folded_total": Metric(
        "counter", ("queue",), "The number of events that the worker has written to the database."
    ),
    "delayq_worker_mirror_lag_seconds": Metric("gauge", ("queue",), "The age of the oldest event that is not in the database yet."),
    "delayq_worker_mirror_lag_events": Metric("gauge", ("queue",), "The number of events that are not in the database yet."),
}
OF_QUEUES: Final[Mapping[str, Metric]] = {
    "delayq_up": Metric("gauge", ("part",), "1 if Redis (all servers) or the database responded. Otherwise, its metrics are missing."),
    "delayq_jobs": Metric(
        "gauge",
        ("queue", "state"),
        "The number of jobs in Redis that are scheduled, running or failed. Failed jobs are included for at least seven days.",
    ),
    "delayq_jobs_due": Metric("gauge", ("queue",), "The number of scheduled jobs that are due."),
    "delayq_jobs_delayed": Metric("gauge", ("queue",), "The number of scheduled jobs that are not due yet."),
    "delayq_jobs_retrying": Metric(
        "gauge", ("queue",), "The number of scheduled jobs that have run before, except those that raised NotYet."
    ),
    "delayq_jobs_failed_lately": Metric(
        "gauge", ("queue", "within"), "The number of jobs that failed within the last hour (1h) or day (1d) and have not been requeued."
    ),
    "delayq_jobs_last_minute": Metric(
        "gauge", ("queue", "kind"), "The number of jobs to which this happened in the last full minute, in all workers and processes."
    ),
    "delayq_oldest_late_seconds": Metric("gauge", ("queue",), "How late the oldest due job is, or 0 if there is none."),
    "delayq_queue_paused": Metric("gauge", ("queue",), "1 if the queue is paused."),
    "delayq_queue_partitions": Metric("gauge", ("queue",), "The number of the queue's partitions, if it has or had several."),
    "delayq_queue_partitions_away": Metric(
        "gauge", ("queue",), "The number of partitions that cannot be reached. The other metrics do not include them."
    ),
    "delayq_queue_workers": Metric(
        "gauge", ("queue",), "The number of workers that claim jobs from the queue. This is missing for queues of messages."
    ),
    "delayq_queue_slots": Metric("gauge", ("queue",), "The number of jobs that these workers can run at the same time."),
    "delayq_mirror_lag_events": Metric("gauge", ("queue",), "The number of events that are not in the database yet."),
    "delayq_mirror_lag_jobs": Metric(
        "gauge", ("queue",), "The number of changes to jobs in these events. The limit is MIRROR_MAX_EVENTS."
    ),
    "delayq_mirror_lag_seconds": Metric("gauge", ("queue",), "The age of the oldest of these events."),
    "delayq_tombstones": Metric("gauge", ("queue",), "The number of recently ended jobs that Redis still remembers (tombstones)."),
    "delayq_outbox_rows": Metric(
        "gauge",
        ("queue",),
        f"The number of committed jobs that are older than {FRESH:.0f} s and are not in Redis yet. At most {MOST_COUNTED + 1} are "
        "counted for all queues.",
    ),
    "delayq_outbox_oldest_seconds": Metric("gauge", (), "Age of the oldest of these jobs, or 0."),
    "delayq_unresolved_jobs": Metric(
        "gauge",
        ("queue",),
        f"The number of unresolved jobs. No event shows how they ended. At most {MOST_COUNTED + 1} are counted for all queues.",
    ),
    "delayq_far_jobs": Metric(
        "gauge",
        ("queue",),
        f"The number of jobs beyond the queue's HORIZON, which are only in the database. At most {MOST_COUNTED + 1} are counted.",
    ),
    "delayq_far_late": Metric("gauge", ("queue",), "1 if the first of these jobs should already be in Redis."),
    "delayq_set_aside_events": Metric(
        "gauge", ("queue",), f"The number of events that the database rejected. At most {MOST_COUNTED + 1} are counted for all queues."
    ),
    "delayq_schedules_wrong": Metric(
        "gauge",
        ("why",),
        "The number of schedules that cannot create jobs (trouble), whose ticks are more than a minute late (late), or that "
        "were retired in the last week (retired).",
    ),
    "delayq_workers": Metric(
        "gauge",
        ("state",),
        "The number of workers in each state: working, quiet, leaving, or silent if they have not reported for half a minute.",
    ),
    "delayq_slots": Metric("gauge", (), "The number of jobs that all workers can run at the same time, except silent workers."),
    "delayq_slots_busy": Metric("gauge", (), "The number of jobs that these workers are running."),
    "delayq_redis_round_trip_seconds": Metric("gauge", (), "How long Redis took to respond."),
    "delayq_redis_clock_skew_seconds": Metric(
        "gauge", (), "The difference between Redis's clock and the clock of the process that exports this metric."
    ),
    "delayq_redis_memory_bytes": Metric("gauge", (), "The memory that Redis uses."),
    "delayq_redis_memory_limit_bytes": Metric("gauge", (), "The maxmemory setting of Redis, or 0 if there is no limit."),
    "delayq_redis_evicts": Metric("gauge", (), "1 if Redis can evict jobs, because its policy is not noeviction."),
    "delayq_redis_append_only": Metric("gauge", (), "1 if Redis writes an append-only file."),
}
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
    runs = Counter({(queue, task, outcome): 0 for queue, task in _default_queues(named, served) for outcome in COMMON})
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


def _default_queues(tasks: Sequence[str], served: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Tasks with their default queue, if this worker serves it. Prometheus does not see an increase from no value to 1."""
    for task in tasks:
        known = registry.find(task)
        if known is not None and known.queue in served:
            yield known.queue, task


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
