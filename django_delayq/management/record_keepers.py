"""The processes of a worker that keep records, and what they report to the supervisor for the metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from django.db import close_old_connections

from django_delayq import clock, codec
from django_delayq.conf import Config
from django_delayq.console import health, operation_loop
from django_delayq.console.health import Sample
from django_delayq.console.operation_loop import OperationLoop
from django_delayq.console.overview import DOWN
from django_delayq.logger import Logger
from django_delayq.mirror import database_connections
from django_delayq.mirror.batches import BatchLoop
from django_delayq.mirror.declared_rates import DeclaredRates
from django_delayq.mirror.mirror_loop import MirrorLoop
from django_delayq.mirror.pause_loop import PauseLoop
from django_delayq.mirror.prune import OldOperationsLoop, OldTicksLoop
from django_delayq.mirror.relay import CommitRequestLoop
from django_delayq.mirror.service import LoopRunner, Service
from django_delayq.periodic import due_ticks
from django_delayq.periodic.due_ticks import TickLoop, UnendingLoop
from django_delayq.producer.stores import stores
from django_delayq.worker.hanging_calls import PatientThread
from django_delayq.worker.line import links_of
from django_delayq.worker.loop import LoopProcess, PipeStop
from django_delayq.worker.spec import Hooks
from django_delayq.worker.tally import LatestText

NODE_COOLDOWN: Final = 4.0  # seconds without calls to a node of a Cluster that did not answer
APART: Final = 10.0  # seconds without calls to the shared server after it did not answer, in processes for other servers
logger = Logger("django_delayq.worker")
EVERY: Final = 5.0  # seconds
SAMPLES_EVERY: Final = 10.0


def record_keepers(
    config: Config,
    queues: Iterable[str],
    shares: Mapping[str, range],
    roles: Sequence[str],
    options: Mapping[str, Any],
    measured: Hooks,
) -> list[tuple[LoopProcess, LatestText | None]]:
    """A process per server, so that no server delays another; with its report, if there are metrics. The only process also does what
    belongs to no queue. With several servers, a separate process does that.
    """
    places, groups = links_of(config, "delayq-records"), dict[int, list[str]]()
    for queue in queues:
        groups.setdefault(places.number(queue), []).append(queue)
    alone = len(groups) == 1
    found = []
    for number, (_, names) in enumerate(sorted(groups.items()), 1):
        report = None if measured.metrics is None else LatestText()
        counted = health.all_samples if options["metrics_queues"] and number == 1 else None
        name = "records" if number == 1 else f"records-{number}"
        kept = partial(_keep_records, config, names, shares, roles, report, counted, alone)
        found.append((LoopProcess(name, kept, tuple(names)), report))
    if not alone:
        found.append((LoopProcess("operations", partial(_keep_records, config, (), {}, roles, None, None, True)), None))
    return found


def _keep_records(
    config: Config,
    queues: Sequence[str],
    shares: Mapping[str, range],
    roles: Sequence[str],
    report: LatestText | None,
    counted: Callable[[], list[Sample]] | None,
    common: bool,
    stop: PipeStop,
) -> None:
    """The function of one of these processes. `common`: it also does what belongs to no queue."""
    places = links_of(config, "delayq-records")
    if any(places.number(queue) for queue in queues):
        places.shared.set_cooldown(APART)
    for link in {places.of(queue, partition) for queue in queues for partition in config.queue(queue).served}:
        if link.moves:  # one of its nodes can hang
            link.set_cooldown(NODE_COOLDOWN)
    call_within = PatientThread(close_old_connections).run
    service = Service(places, config, [config.queue(name) for name in queues], roles, call_within=call_within, shares=shares)
    if common and "mirror" in roles:
        service.add(LoopRunner("operations", OperationLoop(), idle=operation_loop.IDLE, asleep=operation_loop.ORDERS))
        service.add(LoopRunner("prune of operations", OldOperationsLoop(places, config), link=places.shared))
        service.add(LoopRunner("prune of ticks", OldTicksLoop(places, config), link=places.shared))
        service.add(LoopRunner("batches", BatchLoop(service.hand_over)))
    if common and "relay" in roles:
        for name, queue in config.queues.items():
            for partition in queue.served:
                stores.places.of(name, partition).set_cooldown(NODE_COOLDOWN)  # many changes can be for a server that is unreachable
        service.add(LoopRunner("changes at commits", CommitRequestLoop()))
        service.add(LoopRunner("rates of tasks", DeclaredRates()))
        service.add(LoopRunner("pauses", PauseLoop()))
        service.add(LoopRunner("schedules", UnendingLoop(TickLoop()), idle=due_ticks.IDLE))
    if report is not None:
        service.add(LoopRunner("the report of records", RecordsReport(report, service.mirrors, counted)))
    service.run(stop=stop.is_set, wait=stop.wait)
    database_connections.close_all()


class RecordsReport:
    """1. Every five seconds, it reports the progress and the lag of the mirrors. 2. With `samples`, it also reports the samples of all
    queues every ten seconds. It leaves out what Redis cannot answer. It ends with its process; then its last report becomes too old.
    """

    def __init__(self, page: LatestText, mirrors: Sequence[MirrorLoop], samples: Callable[[], list[Sample]] | None = None) -> None:
        self._page = page
        self._mirrors = mirrors
        self._samples = samples
        self._latest: list[Sample] = []
        self._next = 0.0

    def poll(self) -> float:
        if self._samples is not None and clock.monotonic() >= self._next:
            self._latest = self._samples()
            self._next = clock.monotonic() + SAMPLES_EVERY
        report = {"at": clock.monotonic(), "mirrors": list(map(_mirror, self._mirrors)), "samples": self._latest}
        if not self._page.write(codec.dumps(report)):
            logger.warning("the metrics of these queues are too long to report")
        return EVERY


def _mirror(mirror: MirrorLoop) -> dict[str, Any]:
    progress: dict[str, Any] = {"queue": mirror.queue.name, "folded": mirror.folded}
    try:
        lag = mirror.lag()
    except DOWN:
        return progress
    return {**progress, "entries": lag.entries, "seconds": lag.seconds}
