"""Numbers as Prometheus reads them, written by its own client."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric as Family

from django_delayq.console import samples as queues
from django_delayq.console.samples import Sample
from django_delayq.contrib.prometheus.catalogue import METRICS, OF_QUEUES
from django_delayq.producer.task import registry
from django_delayq.store.queue import Kind
from django_delayq.worker.tally import BOUNDS, ENDS, MOST_TASKS, Histogram, WorkerFigures

OTHER: Final = "other"
INFINITE: Final = float("inf")
COMMON: Final = ("succeeded", "retried", "failed", "crashed")  # of each task there is a count of these from the start

Shape = tuple[str, Mapping[str, str], Histogram]


class _Page:
    """What the client asks for all that is to be written."""

    def __init__(self, found: Iterable[Sample], shapes: Iterable[Shape] = ()) -> None:
        self._families: dict[str, Any] = {}
        for name, labels, value in found:
            self._family(name).add_metric([labels[label] for label in METRICS[name].labels], float(value))
        for name, labels, shape in shapes:
            buckets, below = [], 0
            for bound, count in zip((*BOUNDS, INFINITE), shape.counts, strict=True):
                below += count
                buckets.append((str(bound) if bound < INFINITE else "+Inf", below))
            self._family(name).add_metric([labels[label] for label in METRICS[name].labels], buckets, shape.seconds)

    def collect(self) -> Iterator[Family]:
        """In the order of the catalogue."""
        return (self._families[name] for name in METRICS if name in self._families)

    def _family(self, name: str) -> Any:
        if name not in self._families:
            metric = METRICS[name]
            make: Any = {"gauge": GaugeMetricFamily, "counter": CounterMetricFamily, "histogram": HistogramMetricFamily}[metric.kind]
            self._families[name] = make(name, metric.meaning, labels=metric.labels)
        return self._families[name]


def queues_page(found: Iterable[Sample]) -> bytes:
    """What the queues' samples say."""
    return _written(_Page(sample for sample in found if sample[0] in OF_QUEUES))


def worker_page(seen: WorkerFigures, *, with_queues: bool = False) -> bytes:
    """What a worker tells of itself, and `with_queues` of these, too."""
    samples, shapes = _runs(seen)
    said = seen.records or {}
    for mirror in said.get("mirrors", ()):
        of = {"queue": mirror["queue"]}
        samples.append(("delayq_worker_events_folded_total", of, mirror["folded"]))
        if "seconds" in mirror:
            samples.append(("delayq_worker_mirror_lag_seconds", of, mirror["seconds"]))
            samples.append(("delayq_worker_mirror_lag_events", of, mirror["entries"]))
    if with_queues:  # without a report who asks is not there yet, or hangs
        samples += said.get("samples") or [*queues.down("redis"), *queues.down("database")]
    return _written(_Page([*_itself(seen), *samples], shapes))


def _itself(seen: WorkerFigures) -> list[Sample]:
    facts = seen.facts
    return [
        ("delayq_worker_info", {"version": facts["version"]}, 1),
        ("delayq_worker_start_time_seconds", {}, facts["started"] / 1000),
        *(("delayq_worker_state", {"state": state}, facts["state"] == state) for state in queues.STATES if state != "silent"),
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
    """What was counted, by queue: partitions of a queue are added up."""
    named = seen.tasks[:MOST_TASKS]
    served = list(dict.fromkeys(line.queue for line in seen.lines))
    runs = Counter({(queue, task, outcome): 0 for queue, task in _homes(named, served) for outcome in COMMON})
    lost, ran, late = Counter(seen.lost), dict[str, Histogram](), dict[str, Histogram]()

    def count(queue: str, task: int, kind: Kind, number: int) -> None:
        runs[queue, named[task] if task < len(named) else OTHER, ENDS[kind]] += number

    for line in seen.lines:
        lost[line.queue] += line.lost
        ran[line.queue], late[line.queue] = _added(ran.get(line.queue), line.ran), _added(late.get(line.queue), line.late)
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


def _homes(tasks: Sequence[str], served: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Tasks with the queue of their own, if it is served here. An increase from nothing to one is one that nobody sees."""
    for task in tasks:
        known = registry.find(task)
        if known is not None and known.queue in served:
            yield known.queue, task


def _added(so_far: Histogram | None, more: Histogram) -> Histogram:
    if so_far is None:
        return more
    return Histogram([a + b for a, b in zip(so_far.counts, more.counts, strict=True)], so_far.seconds + more.seconds)


def _written(page: _Page) -> bytes:
    asked: Any = page
    return generate_latest(asked)
