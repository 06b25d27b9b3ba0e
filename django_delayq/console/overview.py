"""The state of all queues, for the admin and the commands: depths, workers, the lag of the mirror, and far jobs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import pairwise
from typing import Any, Final
from uuid import UUID

from django.core.exceptions import EmptyResultSet
from django.db import models
from django.db.models import Count, Q, QuerySet
from django.utils.formats import number_format

from django_delayq import clock, conf
from django_delayq.exceptions import DelayqError, StoreUnavailable
from django_delayq.models import FAR, PARKED_ROWS, UNPUBLISHED, UNRESOLVED, Job, database
from django_delayq.producer.outbox.far_rows import is_late
from django_delayq.producer.put import batches
from django_delayq.producer.stores import Missing, stores
from django_delayq.states import State
from django_delayq.store.connection.error_replies import StoreError
from django_delayq.store.reads.queue_depth import QueueDepth, summed
from django_delayq.store.reads.reach import Reach
from django_delayq.store.scripts.events import Lag
from django_delayq.store.scripts.worker_registry import WorkerRegistry

DOWN: Final = (StoreUnavailable, StoreError)
MOST_COUNTED: Final = 10_000  # rows; more would scan the whole table
MOST_FAILED: Final = 1_000
NO_LAG: Final = Lag(0, 0.0)
MOST_LEASED: Final = 1_000  # running jobs in a list
MOST_ASKED: Final = 200  # rows that are looked up in Redis, at each end
FRESH: Final = 10.0  # seconds; younger rows do not count as unpublished
MOST_AHEAD: Final = 100_000  # far rows in a forecast, those that are due first


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueView:
    """One queue. `depth` and `lag` come from Redis. `workers`: the workers that claim from it, None if they are unknown; `slots`: the
    jobs that they can run at the same time. `pulled`: consumers of the project take its messages. `parts`: the depth of each
    partition; `away`: the partitions that cannot be reached, with the error. No other value includes them.
    """

    name: str
    depth: QueueDepth
    lag: Lag
    workers: int | None
    slots: int
    pulled: bool = False
    parts: Mapping[int, QueueDepth] = field(default_factory=dict)
    away: Mapping[int, DelayqError] = field(default_factory=dict)

    @property
    def partitions(self) -> int:
        """The number of partitions, including those that cannot be reached."""
        return len(self.parts) + len(self.away)

    @property
    def paused_parts(self) -> int:
        """The number of paused partitions if only some are paused, because a pause did not reach all of them."""
        return 0 if self.depth.paused else sum(part.paused for part in self.parts.values())

    @property
    def oldest_late(self) -> float:
        """Seconds since the oldest due job should have run; 0 if no job is due."""
        return self.depth.oldest_late_ms / 1000

    @property
    def unserved(self) -> bool:
        """Whether workers should claim jobs here and none does."""
        return self.workers == 0 and not self.pulled

    @property
    def backlog(self) -> float:
        """The share of MIRROR_MAX_EVENTS that the mirror has not written; 0 without a limit."""
        most = conf.get().most_events
        return self.depth.untold / most if most else 0.0

    @property
    def paused_at(self) -> datetime | None:
        return clock.from_ms(self.depth.paused_ms) if self.depth.paused_ms else None

    @property
    def paused_until(self) -> datetime | None:
        """When the pause ends by itself."""
        return clock.from_ms(self.depth.paused_until_ms) if self.depth.paused_until_ms else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """`error`: why Redis cannot be reached; then there are no queues and no workers. `missing`: queues on servers that cannot be
    reached, with the error. They are not in `queues`; a queue with some reachable partitions is. `unseen`: why the workers are
    unknown.
    """

    error: DelayqError | None = None
    missing: Mapping[str, DelayqError] = field(default_factory=dict)
    unseen: DelayqError | None = None
    queues: list[QueueView] = field(default_factory=list)
    workers: list[dict[str, Any]] = field(default_factory=list)

    @property
    def trouble(self) -> str:
        """The error in English, or ""."""
        return str(self.error or "")

    @property
    def left_out(self) -> list[tuple[list[str], DelayqError]]:
        """The missing queues and partitions, grouped by server, with the error."""
        found: dict[int, tuple[list[str], DelayqError]] = {}
        parts = ((conf.get().queue(queue.name).label(number), why) for queue in self.queues for number, why in queue.away.items())
        for name, error in [*self.missing.items(), *parts]:
            found.setdefault(id(error), ([], error))[0].append(name)
        return list(found.values())

    def of(self, *names: str) -> Overview:
        """The overview of only these queues."""
        missing = {name: error for name, error in self.missing.items() if name in names}
        return replace(self, queues=[queue for queue in self.queues if queue.name in names], missing=missing)

    def lacking(self, missing: Missing) -> Overview:
        """The overview without what a later read could not reach. Its own values stay."""
        queues = [
            replace(queue, away={**missing.parts.get(queue.name, {}), **queue.away})
            for queue in self.queues
            if queue.name not in missing.queues
        ]
        return replace(self, queues=queues, missing={**missing.queues, **self.missing})

    @property
    def present(self) -> list[dict[str, Any]]:
        """The workers that are not silent."""
        return [worker for worker in self.workers if not worker["silent"]]


def look() -> Overview:
    """Reads all queues of the settings."""
    config, several = conf.get(), len(stores.servers()) > 1
    workers: list[dict[str, Any]] | None = None
    unseen: DelayqError | None = None
    try:
        with stores.guarded(schedules=several):
            workers = WorkerRegistry(stores.link, prefix=config.prefix).all()
    except DOWN as error:
        if not several:
            return Overview(error=error)
        unseen = error
    try:
        queues, missing = queue_views(config.queues, workers)
    except DOWN as error:
        return Overview(error=error)
    return Overview(queues=queues, workers=workers or [], missing=missing.queues, unseen=unseen)


def queue_views(names: Iterable[str], workers: Iterable[dict[str, Any]] | None) -> tuple[list[QueueView], Missing]:
    """These queues, without those that cannot be reached. `workers`: None if they are unknown.

    Raises:
        StoreUnavailable, StoreError: no server can be reached.
    """
    names = list(names)
    found, missing = stores.from_each(names, lambda reach: stores.inspector(reach).parts(names))
    parts: dict[str, dict[int, QueueDepth]] = {}
    for keys, depth in found.items():
        parts.setdefault(keys.queue, {})[keys.partition] = depth
    return [_queue(parts[name], missing.parts.get(name, {}), workers) for name in names if name in parts], missing


def mirror_lags() -> dict[str, Lag]:
    """The lag of the mirror by queue, the largest first; empty if Redis cannot be reached."""
    names = list(conf.get().queues)
    try:
        found, missing = stores.from_each(names, lambda reach: stores.inspector(reach).unread(names))
    except DOWN:
        return {}
    told = ((name, lag) for name, lag in zip(names, found, strict=True) if name not in missing.queues)
    lags = {name: Lag(entries, late_ms / 1000) for name, (entries, late_ms) in told}
    return dict(sorted(lags.items(), key=lambda lag: -lag[1].seconds))


def leased(queue: str = "") -> list[UUID] | None:
    """The running jobs of a queue, or of all queues. None if Redis cannot be reached, or if there are more than MOST_LEASED."""
    known = conf.get().queues
    queues = [queue] if queue in known else [] if queue else list(known)
    try:
        jobs, missing = stores.from_each(queues, lambda reach: stores.inspector(reach).leased(queues, MOST_LEASED + 1))
    except DOWN:
        return None
    return None if missing or len(jobs) > MOST_LEASED else jobs


def count_rows(queues: Sequence[str]) -> dict[str, dict[str, int]]:
    """The number of rows per queue and state, each counted up to MOST_COUNTED + 1, with a statement per 20 queues."""
    found: dict[str, dict[str, int]] = {}
    for start in range(0, len(queues), 20):
        chunk = queues[start : start + 20]
        parts = [Job.objects.filter(queue=queue, state=state.value) for queue in chunk for state in State]
        counts = iter(count_many(parts, MOST_COUNTED))
        found |= {queue: {state.value: next(counts) for state in State} for queue in chunk}
    return found


def failing_tasks() -> list[tuple[str, int]]:
    """The five tasks with the most failures, among the latest MOST_FAILED jobs that failed within a day."""
    yesterday = database.ago(86_400)
    failed = Job.objects.filter(state=State.FAILED, finished_at__gte=yesterday)
    return Counter(failed.order_by("-finished_at").values_list("task", flat=True)[:MOST_FAILED]).most_common(5)


def count_unpublished(queue: str | None = None) -> int:
    """The committed rows that Redis has not confirmed for some time, of one queue or all, counted up to MOST_COUNTED + 1."""
    waiting = _waiting()
    return bounded(waiting if queue is None else waiting.filter(queue=queue))


def count_parked() -> int:
    """The jobs that no worker which looked at them could run, counted up to MOST_COUNTED + 1."""
    return bounded(Job.objects.filter(PARKED_ROWS))


def count_absent() -> int:
    """Those of the same rows that Redis does not have, as far as it can be asked: of many, only the oldest and the newest. A row that
    Redis has waits for the mirror, and for no relay.
    """
    count = count_unpublished()
    if not count:
        return 0
    waiting = _waiting().values_list("pk", "queue")
    ends = [waiting.order_by("id")[:MOST_ASKED], *([waiting.order_by("-id")[:MOST_ASKED]] if count > MOST_ASKED else ())]
    by_queue: dict[str, set[UUID]] = {}
    for id, queue in (row for end in ends for row in end):
        by_queue.setdefault(queue, set()).add(id)
    known = by_queue.keys() & conf.get().queues.keys()

    def count_there(reach: Reach) -> int:
        rows = ((queue, batch) for queue in known for batch in batches(by_queue[queue], 200))
        return sum(view is not None for queue, batch in rows for view in stores.inspector(reach).jobs(queue, batch))

    try:
        there, missing = stores.from_each(known, count_there)
    except DOWN:
        return count
    asked = sum(map(len, by_queue.values()))
    return 0 if there == asked and not missing else count - there


def count_unresolved() -> int:
    return bounded(Job.objects.filter(UNRESOLVED))


def _waiting() -> models.QuerySet[Job]:
    return Job.objects.filter(UNPUBLISHED, durable=True, created_at__lt=database.ago(FRESH))


def bounded(rows: models.QuerySet[Any]) -> int:
    """The number of rows, counted up to MOST_COUNTED + 1."""
    return rows.order_by()[: MOST_COUNTED + 1].count()


def count_many(queries: Sequence[QuerySet[Any]], most: int) -> list[int]:
    """The number of rows of each query, counted up to `most` + 1, in one statement."""
    if not queries:
        return []
    parts: list[str] = []
    given: list[Any] = []
    for number, rows in enumerate(queries):
        compiler = rows.order_by().values_list("pk")[: most + 1].query.get_compiler(using=database.alias())
        try:
            sql, arguments = compiler.as_sql()
        except EmptyResultSet:
            parts.append("0")
            continue
        parts.append(f"(SELECT COUNT(*) FROM ({sql}) AS part{number})")
        given += arguments
    with database.connection().cursor() as cursor:
        cursor.execute(f"SELECT {', '.join(parts)}", given)
        return [int(count) for count in cursor.fetchone()]


def count_text(count: int) -> str:
    """A bounded count for a command."""
    return f"{MOST_COUNTED:,}+" if count > MOST_COUNTED else f"{count:,}"


def count_shown(count: int) -> str:
    """A bounded count for a page, with the thousands separator of its language."""
    return number_format(min(count, MOST_COUNTED), force_grouping=True) + "+" * (count > MOST_COUNTED)


def slots(worker: dict[str, Any]) -> int:
    """The number of jobs that a worker can run at the same time."""
    return whole(worker, "processes") * whole(worker, "threads")


def whole(facts: dict[str, Any], name: str) -> int:
    """A number from the beat of a worker, or 0 if it is not a valid number: any program that can write to Redis can write a beat."""
    value = facts.get(name, 0)
    return value if isinstance(value, int) and 0 <= value < 2**53 else 0


def served(worker: dict[str, Any]) -> list[str]:
    """The queues that a worker serves, by its beat."""
    queues = worker.get("queues", ())
    return [queue for queue in queues if isinstance(queue, str)] if isinstance(queues, list) else []


def state(worker: Mapping[str, Any]) -> str:
    """The state of a worker: "died" if another worker proved it, "gone" if it is silent, or else the state in its beat."""
    if worker["silent"]:
        return "died" if worker.get("died") else "gone"
    return str(worker.get("state", "working"))


def claims(worker: dict[str, Any], queue: str) -> bool:
    """Whether a worker claims jobs of the queue. Silent, quiet and leaving workers do not, nor those that only keep records."""
    works = worker.get("state", "working") == "working" and worker.get("processes", 1) != 0
    return works and not worker["silent"] and queue in served(worker)


def _queue(parts: Mapping[int, QueueDepth], away: Mapping[int, DelayqError], workers: Iterable[dict[str, Any]] | None) -> QueueView:
    depth = summed(list(parts.values()))
    serving = [worker for worker in workers or () if claims(worker, depth.queue)]
    return QueueView(
        name=depth.queue,
        depth=depth,
        lag=Lag(depth.events, depth.events_late_ms / 1000),
        workers=None if workers is None else len(serving),
        slots=sum(map(slots, serving)),
        pulled=conf.get().queue(depth.queue).pulled,
        parts=parts,
        away=away,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class FarQueue:
    """The far jobs of a queue. `count`: up to MOST_COUNTED + 1; `first`: when the first job is due, or None; `late`: whether the first
    job should be in Redis by now.
    """

    name: str
    horizon: float | None
    count: int
    first: datetime | None
    late: bool


def far_queues() -> list[FarQueue]:
    """The queues that have a horizon.

    Raises:
        DatabaseError: the database cannot be reached.
    """
    config = conf.get()
    named = [queue for queue in config.queues.values() if queue.horizon is not None]
    if not named:
        return []
    at = database.now()
    parts = [Job.objects.filter(FAR, queue=queue.name) for queue in named]
    counts = count_many(parts, MOST_COUNTED)
    found = []
    for queue, rows, count in zip(named, parts, counts, strict=True):
        first = rows.order_by("run_at").values_list("run_at", flat=True).first() if count else None
        late = first is not None and is_late(first, at, queue)
        found.append(FarQueue(name=queue.name, horizon=queue.horizon, count=count, first=first, late=late))
    return found


def due_between(queues: Sequence[str], edges_ms: Sequence[int]) -> list[int]:
    """The number of far jobs of these queues that are due in each interval.

    Raises:
        DatabaseError: the database cannot be reached.
    """
    config = conf.get()
    named = [name for name in queues if config.queue(name).horizon is not None]
    steps = len(edges_ms) - 1
    if not named:
        return [0] * steps
    edges = [clock.from_ms(ms) for ms in edges_ms]
    found = Job.objects.filter(FAR, queue__in=named, run_at__gte=edges[0], run_at__lt=edges[-1])
    counts: dict[str, Any] = {
        f"step{number}": Count("pk", filter=Q(run_at__gte=start, run_at__lt=end)) for number, (start, end) in enumerate(pairwise(edges))
    }
    counted = found.order_by("run_at")[:MOST_AHEAD].aggregate(**counts)
    return [counted[f"step{number}"] for number in range(steps)]
