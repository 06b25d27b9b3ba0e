"""Rows that the end of a job makes due: the job of `then=`, and jobs with on_conflict="after"."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Final, NamedTuple
from uuid import UUID

from django_delayq import clock, ids
from django_delayq.failpoints import failpoint
from django_delayq.models import UNPUBLISHED, Job, database
from django_delayq.producer.outbox import rows
from django_delayq.producer.outbox.shapes import unpacked
from django_delayq.states import UNFINISHED, State

WAITS: Final = {"follow_up__startswith": "{"}  # the follow-up is not written yet
CHUNK: Final = 100  # rows in one statement
MOST: Final = 200  # waiting jobs that are published together; the relay finds the others


class DueRow(NamedTuple):
    """A row that Redis should get at once."""

    queue: str
    id: UUID


def write(jobs: Sequence[UUID], at_ms: int = 0) -> list[DueRow]:
    """Writes the follow-ups of these jobs that have succeeded, and the id of each into the row of its job, so that there is only one.
    Call it in the transaction in which the jobs succeed. `at_ms`: the time; 0: now, by the database's clock.
    """
    found: list[DueRow] = []
    for start in range(0, len(jobs), CHUNK):
        those = Job.objects.filter(pk__in=jobs[start : start + CHUNK], state=State.SUCCEEDED.value, **WAITS)
        waiting: dict[UUID, Any] = dict(those.select_for_update().order_by("pk").values_list("pk", "follow_up"))
        if waiting:
            at_ms = at_ms or clock.to_ms(database.now())
            items = {job: unpacked(then, f"{job} then", at_ms) for job, then in waiting.items()}
            failpoint("follow_ups.write")
            known = {job: str(item.id) for job, item in items.items()}
            Job.objects.filter(pk__in=list(known)).update(follow_up=rows.each("follow_up", known))
            rows.insert(list(items.values()))
            found += (DueRow(item.queue, item.id) for item in items.values())
    return found


def succeed(among: Any, values: dict[str, Any]) -> None:
    """Ends these rows as succeeded, without an event, and writes their follow-ups."""
    with database.atomic():
        waiting = list(among.filter(**WAITS).values_list("pk", flat=True))
        among.update(state=State.SUCCEEDED.value, **values)
        if waiting:
            write(waiting)


def await_end(holders: Collection[UUID]) -> None:
    """Notes that rows wait for the ends of these jobs."""
    Job.objects.filter(pk__in=list(holders), awaited=False, state__in=UNFINISHED).update(awaited=True)


def behind(jobs: Collection[UUID], queue: str) -> list[DueRow]:
    """The rows that wait for these jobs, which have ended."""
    keys = list(Job.objects.filter(pk__in=list(jobs)[:MOST]).exclude(key="").values_list("key", flat=True))
    found = Job.objects.filter(UNPUBLISHED, queue=queue, key__in=keys, on_conflict="after").exclude(key="")
    return [DueRow(queue, id) for id in found.values_list("pk", flat=True)[:MOST]] if keys else []


def by_home(due: Collection[DueRow]) -> dict[tuple[str, int], list[UUID]]:
    """The rows by queue and partition."""
    found: dict[tuple[str, int], list[UUID]] = {}
    for queue, id in due:
        found.setdefault((queue, ids.partition(id)), []).append(id)
    return found
