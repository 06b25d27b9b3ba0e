"""The rows of jobs that Redis must have: unfinished, durable, published, and not ended by an atomic run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from django_delayq.models import Job
from django_delayq.producer.outbox.rows import UnfinishedRow
from django_delayq.states import UNFINISHED
from django_delayq.store.scripts.queue import MOST

LISTED: Final = 100_000  # ids per query


def rows(queue: str, partition: int) -> Any:
    """All such rows of a partition of a queue."""
    return _held().filter(queue=queue, partition=partition, state__in=UNFINISHED, durable=True)


def read(wanted: Sequence[UUID]) -> list[UnfinishedRow]:
    """The rows with these ids, at most 200, oldest due first."""
    found = of(_held().filter(pk__in=wanted).order_by("run_at", "id"))
    return [row for row in found if row.state in UNFINISHED and row.durable]


def of(found: Any) -> list[UnfinishedRow]:
    """The fields of these rows that Redis gets. It does not filter; see `rows`."""
    return list(map(UnfinishedRow._make, found.values_list(*UnfinishedRow._fields)))


def pages(wanted: Any) -> Iterator[list[UnfinishedRow]]:
    """Yields rows, oldest due first, as many as one script call takes. A page may be empty. A database without fresh statistics sorts
    all rows to find the next one, so each query asks for many rows. The query is fast only if it reads nothing but ids: to read a
    date takes as long as to read the whole row. A row whose date moves later meanwhile comes twice. A row whose date moves earlier
    may be missed.
    """
    found = wanted.order_by("run_at", "id")
    while True:
        last = list(found.values_list("run_at", "id")[LISTED - 1 : LISTED])
        listed = list((_up_to(found, *last[0]) if last else found).values_list("id", flat=True))
        for start in range(0, len(listed), MOST):
            yield read(listed[start : start + MOST])
        if not last:
            return
        date, id = last[0]
        found = wanted.filter(run_at__gte=date).exclude(run_at=date, pk__lte=id).order_by("run_at", "id")


def _up_to(found: Any, date: datetime, id: UUID) -> Any:
    return found.filter(run_at__lte=date).exclude(run_at=date, pk__gt=id)


def _held() -> Any:
    return Job.objects.filter(published__isnull=False, settled="")
