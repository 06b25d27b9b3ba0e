"""The rows that a restore reads and changes: jobs that Redis must have, changes whose events are lost, and jobs that are lost."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal
from uuid import UUID

from django.db.models import F, Q
from django.db.models.functions import Coalesce, Left

from django_delayq import clock, ids
from django_delayq.conf import QueueConfig
from django_delayq.failpoints import failpoint
from django_delayq.logger import Logger
from django_delayq.mirror.checkpoint import note_restored
from django_delayq.models import UNRESOLVED, Attempt, Event, Job, database
from django_delayq.producer.outbox import follow_ups
from django_delayq.producer.outbox.jobs import changed_values
from django_delayq.producer.outbox.rows import UnfinishedRow
from django_delayq.states import FINISHED, UNFINISHED, AttemptOutcome, EndingKind, EventKind, State
from django_delayq.store.scripts.decode import position
from django_delayq.store.scripts.events import EventLog
from django_delayq.store.scripts.queue import MOST
from django_delayq.store.scripts.record import first_ms
from django_delayq.store.scripts.recovery import EpochStore

logger = Logger("django_delayq.restore")

RECENT_MS: Final = 3_600_000  # such a change may be this much older than the last folded event
MS: Final = 13  # digits of the milliseconds in the id of an entry, until the year 2286
LISTED: Final = 100_000  # ids per query
LOST: Final = "Redis lost this job, which was of redis durability; whether it has run is not known"
WAIT: Final = 0.25  # seconds between steps of the wait for workers that may adopt a job


@dataclass(frozen=True, slots=True)
class PendingChange:
    """The last change of a job that was answered with "done" and is not folded. `run_at`: the new date of a rescheduled job.
    `stream_id`: the id of its event, on the server that wrote it; "" if it is not known.
    """

    job: UUID
    kind: EventKind
    run_at: datetime | None
    actor: str
    reason: str
    stream_id: str


def pending_changes(
    queue: str, partition: int, folded: str, *, after: int | None = None, jobs: Collection[UUID] = ()
) -> list[PendingChange]:
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
    notes = events.filter(job__last_event__lt="a").exclude(job__last_event=F("stream_id"))
    notes = notes.annotate(folded=Left("job__last_event", MS), noted=Left("stream_id", MS)).filter(folded__lte=F("noted"))
    fields = ("job_id", "kind", "detail", "actor", "reason", "stream_id", "job__last_event")
    latest: dict[UUID, PendingChange] = {}
    for job, kind, detail, actor, reason, stream_id, last_event in notes.values_list(*fields):
        before = latest.get(job)
        if position(last_event) < position(stream_id) and (before is None or position(before.stream_id) < position(stream_id)):
            latest[job] = PendingChange(job, EventKind(kind), _date(detail), actor, reason, stream_id)
    return list(latest.values())


def changes_unknown_to(log: EventLog, queue: str, partition: int, folded: str) -> list[PendingChange]:
    """The changes of `pending_changes` that are not in the stream of this server: another server has answered them."""
    changes = pending_changes(queue, partition, folded)
    notes = log.tells({change.stream_id for change in changes if change.stream_id})
    return [change for change in changes if (change.stream_id, ids.short(change.job)) not in notes]


def _date(detail: object) -> datetime | None:
    text = detail.get("run_at") if isinstance(detail, dict) else None
    return None if text is None else datetime.fromisoformat(str(text))


@dataclass(slots=True)
class RestoreProgress:
    """The progress of a restore. `done` of about `total` rows are processed; `back`: jobs that Redis did not have."""

    done: int = 0
    total: int = 0
    back: int = 0
    began: float = 0.0


def apply_pending_changes(queue: str, partition: int, folded: str) -> None:
    """Applies changes that were answered with "done" and whose events are lost. All events of Redis are folded before."""
    failpoint("restore.take_in")
    for change in pending_changes(queue, partition, folded):
        if change.kind is EventKind.CANCELLED or change.run_at is not None:
            row = Job.objects.filter(pk=change.job, state__in=UNFINISHED, settled="")
            row.update(**changed_values(change.kind, change.run_at, change.reason))
    failpoint("restore.taken_in")


def settle_rows(queue: str, partition: int) -> None:
    """Ends jobs whose atomic run has committed, and runs that no event will end."""
    now = database.ago()
    known = Job.objects.filter(queue=queue, partition=partition, state__in=UNFINISHED).exclude(settled="")
    follow_ups.succeed(known, {"finished_at": Coalesce("finished_at", now), "error": "", "fingerprint": ""})
    runs = Attempt.objects.filter(finished_at__isnull=True, job__queue=queue, job__partition=partition)
    over = list(runs.filter(job__state__in=FINISHED).values_list("id", "fence", "job__settled"))
    for start in range(0, len(over), MOST):
        some = over[start : start + MOST]
        for done in (True, False):
            outcome = AttemptOutcome.SUCCEEDED if done else AttemptOutcome.CRASHED
            those = [id for id, fence, settled in some if (fence == settled) is done]
            runs.filter(pk__in=those).update(
                finished_at=now, outcome=outcome.value, message="" if done else "Redis lost its contents while it ran"
            )


def unfinished_rows(queue: str, partition: int) -> Any:
    """The rows of jobs that Redis must have: unfinished, durable, published, and not ended by an atomic run."""
    held = Job.objects.filter(published__isnull=False, settled="")
    return held.filter(queue=queue, partition=partition, state__in=UNFINISHED, durable=True)


def read_rows(wanted: Sequence[UUID]) -> list[UnfinishedRow]:
    """The rows with these ids, at most 200, oldest due first."""
    found = fields_of(Job.objects.filter(published__isnull=False, settled="", pk__in=wanted).order_by("run_at", "id"))
    return [row for row in found if row.state in UNFINISHED and row.durable]


def fields_of(found: Any) -> list[UnfinishedRow]:
    """The fields of these rows that Redis gets. It does not filter; see `unfinished_rows`."""
    return list(map(UnfinishedRow._make, found.values_list(*UnfinishedRow._fields)))


def first_dates(wanted: Sequence[UUID]) -> dict[UUID, int | Literal[""]]:
    """The first dates of these rows with `at_most`, at most 200."""
    found = Job.objects.filter(pk__in=wanted).values_list("id", "on_conflict", "created_at") if wanted else ()
    return {id: first_ms(on_conflict, created_at) for id, on_conflict, created_at in found}


def pages(wanted: Any) -> Iterator[list[UnfinishedRow]]:
    """Yields rows, oldest due first, as many as one script call takes. A page may be empty. A database without fresh statistics sorts
    all rows to find the next one, so each query asks for many rows. The query is fast only if it reads nothing but ids: to read a
    date takes as long as to read the whole row. A row whose date moves later meanwhile comes twice. A row whose date moves earlier
    may be missed.
    """
    found = wanted.order_by("run_at", "id")
    while True:
        last = list(found.values_list("run_at", "id")[LISTED - 1 : LISTED])
        page = found.filter(run_at__lte=last[0][0]).exclude(run_at=last[0][0], pk__gt=last[0][1]) if last else found
        listed = list(page.values_list("id", flat=True))
        for start in range(0, len(listed), MOST):
            yield read_rows(listed[start : start + MOST])
        if not last:
            return
        date, id = last[0]
        found = wanted.filter(run_at__gte=date).exclude(run_at=date, pk__lte=id).order_by("run_at", "id")


def unfinished_redis_only(queue: str, partition: int) -> Any:
    """The rows of unfinished jobs of redis durability, which Redis may have lost. The caller must know whether Redis has them, and
    whether the mirror has folded all events.
    """
    found = Job.objects.filter(queue=queue, partition=partition, state__in=UNFINISHED, durable=False, settled="")
    return found.exclude(UNRESOLVED)


def mark_lost(log: EventLog, queue: QueueConfig, partition: int, way_back: str) -> Iterator[float]:
    """Makes the rows of jobs that Redis has lost unresolved, after everything else is restored and confirmed. A worker that runs such
    a job has the time of one lease to adopt it. Yields seconds to wait; one step per page.
    Then notes that the restore is complete; `way_back`: see `note_restored`.
    """
    found: list[UUID] = []
    after = UUID(int=0)
    while page := list(
        unfinished_redis_only(queue.name, partition).filter(pk__gt=after).order_by("pk").values_list("pk", flat=True)[:MOST]
    ):
        found += log.unknown(page)
        after = page[-1]
        yield 0.0
    until = clock.monotonic() + queue.lease
    while found and clock.monotonic() < until:
        yield WAIT
    for start in range(0, len(found), MOST):
        give_up(queue.name, partition, log.unknown(found[start : start + MOST]))
        yield 0.0
    if found:
        logger.error(
            "queue %s: Redis has lost jobs with redis durability (%d). To list them, run manage.py delayq list --state unresolved",
            queue.name,
            len(found),
        )
    note_restored(queue.name, partition, way_back)


def give_up(queue: str, partition: int, jobs: Sequence[UUID]) -> int:
    """Makes these rows unresolved, except those that have ended. Returns the number of rows."""
    now = database.ago()
    with database.atomic():
        found = list(unfinished_redis_only(queue, partition).filter(pk__in=jobs).select_for_update().values_list("id", flat=True))
        leave_to_a_person(Job.objects.filter(pk__in=found), LOST)
        Attempt.objects.filter(job_id__in=found, finished_at__isnull=True).update(
            finished_at=now, outcome=AttemptOutcome.CRASHED.value, message=LOST
        )
    return len(found)


def drop_ended(log: EventLog, epoch: EpochStore) -> Iterator[None]:
    """Removes jobs from Redis that an old copy has, but whose rows have ended: they have run. One step per page."""
    for held in log.jobs():
        known = Job.objects.filter(pk__in=[ids.full(id) for id, _ in held])
        over = [ids.short(id) for id, *row in known.values_list("id", "state", "settled") if end_of(*row)]
        failpoint("restore.drop")
        for start in range(0, len(over), MOST):
            epoch.drop(over[start : start + MOST], actor="restore")
        failpoint("restore.dropped")
        yield


def end_of(state: str, settled: str) -> str:
    """The final state of a job by its row; "" if it has not ended."""
    if settled:
        return State.SUCCEEDED.value
    return state if state in FINISHED else ""


_SAID: Final = {"cancelled": "was cancelled", "displaced": "was displaced by another job, or expired", "finished": "ended"}


def unknown_end(status: str) -> str:
    """The error text of a row whose job has ended without an event of this site. `status`: the answer of Redis when the job is sent
    again.
    """
    return f"how it ended is not known: Redis says that it {_SAID.get(status, status)}, and no event of this site reports it"


def leave_to_a_person(jobs: Any, why: str) -> int:
    """Makes these rows unresolved, see `models.UNRESOLVED`. Returns the number of rows."""
    changed: int = jobs.update(published=None, ending=EndingKind.UNKNOWN.value, error=why)
    return changed
