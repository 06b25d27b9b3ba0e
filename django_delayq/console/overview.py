"""The whole at a glance, for the admin and the commands: every queue with its depth, its mirror and its workers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from django.db import models
from django.utils.formats import number_format

from django_delayq import clock, conf
from django_delayq.console import counting
from django_delayq.exceptions import DelayqError, StoreUnavailable
from django_delayq.models import UNPUBLISHED, Job
from django_delayq.producer.stores import stores
from django_delayq.states import State
from django_delayq.store.connection import StoreError
from django_delayq.store.events import Lag
from django_delayq.store.inspector import QueueDepth
from django_delayq.store.worker_registry import WorkerRegistry

DOWN: Final = (StoreUnavailable, StoreError)
MOST_COUNTED: Final = 10_000  # rows: more would read the whole table
MOST_FAILED: Final = 1_000
NO_LAG: Final = Lag(0, 0.0)
FRESH: Final = 10.0  # seconds; a younger row is not yet said to be unpublished


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueView:
    """One queue. `depth` and `lag` come from Redis; `workers` is how many claim from it, `slots` how many jobs they run at once;
    `pulled`: consumers of the project's own do.
    """

    name: str
    depth: QueueDepth
    lag: Lag
    workers: int
    slots: int
    pulled: bool = False

    @property
    def oldest_late(self) -> float:
        """Seconds since the oldest due job should have run; 0 for none."""
        return self.depth.oldest_late_ms / 1000

    @property
    def paused_at(self) -> datetime | None:
        """Since when it is paused."""
        return clock.from_ms(self.depth.paused_ms) if self.depth.paused_ms else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """`error` tells why Redis could not be asked; there are no queues and no workers then."""

    error: DelayqError | None = None
    queues: list[QueueView] = field(default_factory=list)
    workers: list[dict[str, Any]] = field(default_factory=list)

    @property
    def trouble(self) -> str:
        """The same in English; "" for none."""
        return str(self.error or "")

    @property
    def present(self) -> list[dict[str, Any]]:
        """The workers that have not fallen silent."""
        return [worker for worker in self.workers if not worker["silent"]]


def look() -> Overview:
    """Asks Redis about every queue of the settings."""
    config = conf.get()
    try:
        with stores.guarded():
            workers = WorkerRegistry(stores.link, prefix=config.prefix).all()
            depths = stores.inspector().depths(list(config.queues))
    except DOWN as error:
        return Overview(error=error)
    return Overview(queues=[_queue(depth, workers) for depth in depths], workers=workers)


def mirror_lag() -> Lag:
    """How far behind the rows are over all queues of the settings; none while Redis cannot be asked."""
    try:
        with stores.guarded():
            entries, oldest_ms = stores.inspector().unread(list(conf.get().queues))
    except DOWN:
        return NO_LAG
    return Lag(entries, oldest_ms / 1000)


def count_rows(queues: Sequence[str]) -> dict[str, dict[str, int]]:
    """Per queue and state, how many rows the database has, each counted up to MOST_COUNTED + 1: a statement per 20 queues."""
    using = conf.get().database
    found: dict[str, dict[str, int]] = {}
    for start in range(0, len(queues), 20):
        chunk = queues[start : start + 20]
        parts = [Job.objects.using(using).filter(queue=queue, state=state.value) for queue in chunk for state in State]
        counts = iter(counting.count_many(parts, MOST_COUNTED, using))
        found |= {queue: {state.value: next(counts) for state in State} for queue in chunk}
    return found


def failing_tasks() -> list[tuple[str, int]]:
    """The tasks of the latest MOST_FAILED jobs that failed within a day, the worst first, with how many jobs each."""
    yesterday = clock.from_ms(clock.wall_ms() - 86_400_000)
    failed = Job.objects.using(conf.get().database).filter(state=State.FAILED, finished_at__gte=yesterday)
    return Counter(failed.order_by("-finished_at").values_list("task", flat=True)[:MOST_FAILED]).most_common(5)


def count_unpublished(queue: str | None = None) -> int:
    """Committed rows that Redis has not confirmed for some time, of one queue or of all, counted up to MOST_COUNTED + 1."""
    old = clock.from_ms(clock.wall_ms() - int(FRESH * 1000))
    waiting = Job.objects.using(conf.get().database).filter(UNPUBLISHED, durable=True, created_at__lt=old)
    return bounded(waiting if queue is None else waiting.filter(queue=queue))


def bounded(rows: models.QuerySet[Any]) -> int:
    """How many rows, but not beyond MOST_COUNTED + 1."""
    return rows.order_by()[: MOST_COUNTED + 1].count()


def count_text(count: int) -> str:
    """A bounded count for a person."""
    return f"{MOST_COUNTED:,}+" if count > MOST_COUNTED else f"{count:,}"


def count_shown(count: int) -> str:
    """The same on a page, whose language says how thousands are set apart."""
    return number_format(min(count, MOST_COUNTED), force_grouping=True) + "+" * (count > MOST_COUNTED)


def slots(worker: dict[str, Any]) -> int:
    """How many jobs a worker runs at once."""
    return whole(worker, "processes") * whole(worker, "threads")


def whole(facts: dict[str, Any], name: str) -> int:
    """A number that a worker has said; 0 if it is none: whoever can write to Redis could have said it."""
    value = facts.get(name, 0)
    return value if isinstance(value, int) and 0 <= value < 2**53 else 0


def served(worker: dict[str, Any]) -> list[str]:
    """The queues that a worker says it serves."""
    queues = worker.get("queues", ())
    return [queue for queue in queues if isinstance(queue, str)] if isinstance(queues, list) else []


def claims(worker: dict[str, Any], queue: str) -> bool:
    """Whether a worker takes jobs of that queue: one that is silent, quiet or leaving takes none, nor one that only keeps records."""
    works = worker.get("state", "working") == "working" and worker.get("processes", 1) != 0
    return works and not worker["silent"] and queue in served(worker)


def _queue(depth: QueueDepth, workers: Iterable[dict[str, Any]]) -> QueueView:
    serving = [worker for worker in workers if claims(worker, depth.queue)]
    lag = Lag(depth.events, depth.events_late_ms / 1000)
    pulled = conf.get().queue(depth.queue).pulled
    return QueueView(name=depth.queue, depth=depth, lag=lag, workers=len(serving), slots=sum(map(slots, serving)), pulled=pulled)
