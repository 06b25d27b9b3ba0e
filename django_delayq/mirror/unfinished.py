"""The rows that Redis must have: unfinished, durable, published, and not ended by an atomic run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from django_delayq.models import Job
from django_delayq.states import UNFINISHED, State
from django_delayq.store.queue import MOST

LISTED: Final = 100_000  # ids per query
FIELDS: Final = (
    "id", "task", "args", "kwargs", "options", "key", "state", "priority", "run_at", "expires_at", "attempts",
    "max_attempts", "crashes", "cancel_requested", "durable", "published", "settled",
)  # fmt: skip


def rows(queue: str, using: str) -> Any:
    """All of a queue."""
    return Job.objects.using(using).filter(
        queue=queue, state__in=(State.RUNNING, State.SCHEDULED), durable=True, published__isnull=False, settled=""
    )


def read(wanted: Sequence[UUID], using: str) -> list[Job]:
    """Those of these ids, at most 200, oldest due first."""
    found = Job.objects.using(using).filter(pk__in=wanted).only(*FIELDS)
    return sorted((row for row in found if _is_one(row)), key=lambda row: (row.run_at, row.id))


def pages(wanted: Any, using: str) -> Iterator[tuple[datetime, list[Job]]]:
    """Oldest due first, a script call at a time, and the date of its first. A database without fresh statistics sorts all rows to
    find the next, so it is asked for many of these; and it is quick to find rows only if nothing but ids is asked for. A row whose
    date is moved on meanwhile comes twice, one whose date is moved back perhaps not at all.
    """
    found = wanted
    while True:
        listed = list(found.order_by("run_at", "id").values_list("run_at", "id")[:LISTED])
        for start in range(0, len(listed), MOST):
            some = listed[start : start + MOST]
            yield some[0][0], read([id for _, id in some], using)
        if len(listed) < LISTED:
            return
        date, last = listed[-1]
        found = wanted.filter(run_at__gte=date).exclude(run_at=date, pk__lte=last)


def _is_one(row: Job) -> bool:
    """As `rows`, of a row that is here."""
    return row.state in UNFINISHED and row.durable and row.published is not None and not row.settled
