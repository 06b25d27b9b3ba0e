"""Changes that were answered with "done", and that the rows have not folded. Redis may have forgotten them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Final
from uuid import UUID

from django.db.models import F, Q
from django.db.models.functions import Left

from django_delayq import clock, ids
from django_delayq.models import Event, database
from django_delayq.producer.outbox.rows import REQUEUE_ASKED
from django_delayq.states import EventKind
from django_delayq.store.scripts.decode import position
from django_delayq.store.scripts.events import EventLog

RECENT_MS: Final = 3_600_000  # such a change may be this much older than the last folded event
CHUNK: Final = 500  # ids per query
MS: Final = 13  # digits of the milliseconds in the id of an entry, until the year 2286


@dataclass(frozen=True, slots=True)
class UnfoldedChange:
    """The last change of a job that was answered with "done" and is not folded. `run_at`: the new date of a rescheduled job.
    `stream_id`: the id of its event, on the server that wrote it; "" if it is not known.
    """

    job: UUID
    kind: EventKind
    run_at: datetime | None
    actor: str
    reason: str
    stream_id: str


def requeues_asked(jobs: Collection[UUID]) -> dict[UUID, list[int]]:
    """The notes of requeues of these jobs that were asked for here, oldest first. Runs within a transaction, and locks the notes: it
    then reads them as they are now, and not as they were when the transaction began.
    """
    found: dict[UUID, list[int]] = {}
    wanted = list(set(jobs))
    for start in range(0, len(wanted), CHUNK):
        notes = Event.objects.filter(job_id__in=wanted[start : start + CHUNK], kind=REQUEUE_ASKED)
        for id, note in notes.select_for_update().order_by("pk").values_list("job_id", "pk"):
            found.setdefault(id, []).append(note)
    return found


def unfolded_changes(
    queue: str, partition: int, folded: str, *, after: int | None = None, jobs: Collection[UUID] = ()
) -> list[UnfoldedChange]:
    """The last unfolded change of each job of a partition, from an hour before `folded` on. `folded` is the last event that was
    folded, however far behind the mirror is.

    A process that changes a job writes the Event row itself, under the id of the stream entry of the change. The change is pending
    until the row folds that entry or a later one. `after`: only changes after this Event row, and changes of these `jobs`.
    """
    present_ms = clock.to_ms(database.now())
    recent_ms = max(0, min(position(folded)[0], present_ms) - RECENT_MS)
    events = Event.objects.filter(
        queue=queue,
        job__partition=partition,
        kind__in=(EventKind.CANCELLED.value, EventKind.RESCHEDULED.value),
        job__isnull=False,
        stream_id__gte=str(recent_ms).zfill(MS),
        stream_id__lt="a",  # ids that begin with a letter are not stream entries
    )
    if after is not None:
        events = events.filter(Q(pk__gt=after) | Q(job_id__in=jobs))
    # The query leaves out changes that are certainly folded. Ids can be compared as text up to the milliseconds.
    told = events.filter(job__last_event__lt="a").exclude(job__last_event=F("stream_id"))
    told = told.annotate(folded=Left("job__last_event", MS), said=Left("stream_id", MS)).filter(folded__lte=F("said"))
    fields = ("job_id", "kind", "detail", "actor", "reason", "stream_id", "job__last_event")
    latest: dict[UUID, UnfoldedChange] = {}
    for job, kind, detail, actor, reason, stream_id, last_event in told.values_list(*fields):
        before = latest.get(job)
        if position(last_event) < position(stream_id) and (before is None or position(before.stream_id) < position(stream_id)):
            latest[job] = UnfoldedChange(job, EventKind(kind), _date(detail), actor, reason, stream_id)
    return list(latest.values())


def changes_unknown_to(log: EventLog, queue: str, partition: int, folded: str) -> list[UnfoldedChange]:
    """The changes of `unfolded_changes` that are not in the stream of this server: another server has answered them."""
    changes = unfolded_changes(queue, partition, folded)
    told = log.tells({change.stream_id for change in changes if change.stream_id})
    return [change for change in changes if (change.stream_id, ids.short(change.job)) not in told]


def _date(detail: object) -> datetime | None:
    text = detail.get("run_at") if isinstance(detail, dict) else None
    return None if text is None else datetime.fromisoformat(str(text))
