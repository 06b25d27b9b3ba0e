"""Far jobs, as people and machines ask for them: how many there are, when they are due, and whether they are brought in in time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from typing import Any, Final

from django.db import connections
from django.db.models import Count, Q

from django_delayq import clock, conf
from django_delayq.console import counting, overview
from django_delayq.models import FAR, Job, database_clock
from django_delayq.producer.outbox.far_rows import is_late

MOST_AHEAD: Final = 100_000  # far rows that a forecast reads, the first that are due


@dataclass(frozen=True, slots=True, kw_only=True)
class FarQueue:
    """The far jobs of a queue. `count`: up to MOST_COUNTED + 1; `first`: when the first is due, None without one; `late`: whether the
    first should be in Redis by now.
    """

    name: str
    horizon: float | None
    count: int
    first: datetime | None
    late: bool


def far_queues() -> list[FarQueue]:
    """The queues that have a horizon.

    Raises:
        DatabaseError: it cannot be asked.
    """
    config = conf.get()
    named = [queue for queue in config.queues.values() if queue.horizon is not None]
    if not named:
        return []
    at = database_clock.now(connections[config.database])
    parts = [Job.objects.using(config.database).filter(FAR, queue=queue.name) for queue in named]
    counts = counting.count_many(parts, overview.MOST_COUNTED, config.database)
    found = []
    for queue, rows, count in zip(named, parts, counts, strict=True):
        first = rows.order_by("run_at").values_list("run_at", flat=True).first() if count else None
        late = first is not None and is_late(first, at, queue)
        found.append(FarQueue(name=queue.name, horizon=queue.horizon, count=count, first=first, late=late))
    return found


def due_between(queues: Sequence[str], edges_ms: Sequence[int]) -> list[int]:
    """How many far jobs of these queues are due between one moment and the next.

    Raises:
        DatabaseError: it cannot be asked.
    """
    config = conf.get()
    named = [name for name in queues if config.queue(name).horizon is not None]
    steps = len(edges_ms) - 1
    if not named:
        return [0] * steps
    edges = [clock.from_ms(ms) for ms in edges_ms]
    found = Job.objects.using(config.database).filter(FAR, queue__in=named, run_at__gte=edges[0], run_at__lt=edges[-1])
    counts: dict[str, Any] = {
        f"step{number}": Count("pk", filter=Q(run_at__gte=start, run_at__lt=end)) for number, (start, end) in enumerate(pairwise(edges))
    }
    counted = found.order_by("run_at")[:MOST_AHEAD].aggregate(**counts)
    return [counted[f"step{number}"] for number in range(steps)]
