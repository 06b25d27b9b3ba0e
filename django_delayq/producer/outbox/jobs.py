"""The rows of jobs that the producer writes and reads. They count as unpublished until the mirror sees Redis' event."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from django.db.models import Case, Exists, F, OuterRef, Q, QuerySet, Subquery, Value, When
from django.db.models.functions import Coalesce

from django_delayq import clock, ids
from django_delayq.exceptions import PayloadError
from django_delayq.failpoints import failpoint
from django_delayq.models import SUCCEEDED_HERE, UNENDED, UNPUBLISHED, UNRESOLVED, Checkpoint, CommitRequest, Event, Job, Step, database
from django_delayq.models.database import FixedQuery, Placeholder
from django_delayq.producer.outbox import follow_ups, requests, rows
from django_delayq.producer.outbox.rows import REQUEUE_ASKED
from django_delayq.producer.outbox.rows import insert as insert
from django_delayq.producer.outbox.shapes import RowUpdate, StoredJob, WaitingRow
from django_delayq.states import REQUEUEABLE, UNFINISHED, EndingKind, EventKind, State
from django_delayq.store.scripts.decode import position

_waiting: dict[tuple[str, bool], FixedQuery] = {}  # by database alias, and whether it looks for requests
TRIES: Final = 3  # the mirror may fold another event of the job in the meantime, but not often
ENDED: Final = 100  # rows in one statement: each takes five variables, and older builds of SQLite allow 999
EDITED: Final = "edited"  # an event that no script writes: the arguments were changed. Its detail has the old ones
HOLDING: Final = Q(durable=True) | Q(ending=EndingKind.UNKNOWN.value)  # the unfinished rows that hold their keys
# Columns of rows that may wait. The database sees only the conditions that leave few rows: PostgreSQL takes longer to plan the others
# than to find the rows.
WAITING: Final = ("created_at", "id", "key", "ending", "task", "state", "durable", "far", "settled")
RESOLVED: Final = "resolved"  # also without a script: a person decided how a job ended. Its detail has the state
PAYLOAD: Final = ("args", "kwargs", "options")  # columns
WHOLE: Final = ""  # the name of the step that is the whole run, if it is atomic


class _TakenBack(Exception):
    """Rolls back a transaction that must change nothing."""


def read(jobs: Collection[UUID], *, payloads: bool = True) -> dict[UUID, StoredJob]:
    """The readable rows of these jobs by id, oldest first by the database's clock. Stubs are left out. Without `payloads`, which can
    have megabytes each, the records have none.
    """
    read, now = {}, None
    found = Job.objects.filter(pk__in=jobs).defer("result", "error", *(() if payloads else PAYLOAD))
    for row in found.order_by("created_at", "id") if jobs else ():
        if now is None and row.delay_ms is not None and row.published is None:
            now = database.now()
        with contextlib.suppress(PayloadError):
            read[row.id] = _read(row, now, payloads)
    return read


def find(job: UUID) -> Job | None:
    """The row of a job, with the columns about its end."""
    wanted = ("state", "result", "error", "attempts", "asked", "merged_into", "published", "durable", "ending")
    return Job.objects.only(*wanted).filter(pk=job).first()


def keyed(queue: str, keys: Collection[str]) -> list[tuple[UUID, str]]:
    """The ids and keys of the unfinished rows that hold these keys, oldest first. Keys are compared in Python: some databases ignore
    case.
    """
    found = Job.objects.filter(HOLDING, queue=queue, key__in=keys, state__in=UNFINISHED, settled="").exclude(key="")
    return [(id, key) for id, key in found.order_by("created_at", "id").values_list("id", "key") if key in keys]


def waiting(queue: str, keys: Collection[str], *, with_requests: bool = False) -> list[WaitingRow]:
    """The rows of these keys that Redis has not confirmed, and the unresolved rows, oldest first. One query reads both, and, if
    `with_requests`, looks for stored requests.
    """
    if len(keys) == 1:  # every call of schedule() with a key
        query = _waiting.get(place := (database.alias(), with_requests))
        if query is None:
            fixed = _unconfirmed(with_requests).filter(queue=Placeholder("queue"), key=Placeholder("key"))
            query = _waiting[place] = FixedQuery(fixed)
        found = query.rows(queue=queue, key=next(iter(keys)))
    else:
        # No key is "". PostgreSQL does not derive that itself for more than a hundred keys, and the indexes leave out rows without a
        # key.
        found = list(_unconfirmed(with_requests).filter(queue=queue, key__in=keys).exclude(key=""))
    waiting = []
    for _, id, key, ending, task, state, durable, far, settled, *asked in sorted(found):
        unresolved = ending == EndingKind.UNKNOWN
        if (unresolved or (durable and state == State.SCHEDULED)) and not far and settled == "" and key in keys:
            waiting.append(WaitingRow(id, key, unresolved, task, any(asked)))
    return waiting


def find_latest(queue: str, key: str) -> UUID | None:
    """The latest row of that key. Rows that were merged into another job do not count: many may have arrived while it waited."""
    told = Event.objects.filter(job=OuterRef("pk"), kind=EventKind.MERGED)  # for rows of a release without `ending`
    merged = Q(ending=EndingKind.MERGED) | Q(Exists(told), ending=None, state=State.CANCELLED)
    found = Job.objects.exclude(merged).filter(queue=queue, key=key)
    latest = found.order_by("-created_at", "-id").values_list("id", "key")
    return next((id for id, own in latest[:20] if own == key), None)


def unpublished(queue: str, after: UUID | None, limit: int) -> list[UUID]:
    """Scheduled rows of a queue that Redis has not confirmed, in the order of their ids, after the id `after`."""
    found = Job.objects.filter(UNPUBLISHED, queue=queue)
    if after is not None:
        found = found.filter(pk__gt=after)
    return list(found.order_by("id").values_list("id", flat=True)[:limit])


def apply(row: StoredJob, told: RowUpdate) -> bool:
    """Writes the same values and the same event as the mirror would. So the row has the change even if Redis forgets the job before
    the mirror has read the event. Events that the mirror applies in the meantime are older, or are this change itself; the row is
    correct in both cases. A success is final.
    """
    job, seen = row.record.id, row.seen
    run_at = clock.from_ms(told.run_at_ms) if told.kind == EventKind.RESCHEDULED else None
    values = changed_values(told.kind, run_at, told.reason)
    own = Job.objects.filter(pk=job)
    mine = without_committed_run(own.filter(durable=True, settled="")).exclude(state=State.SUCCEEDED.value)
    with database.atomic():
        for _ in range(TRIES):
            if position(seen) >= position(told.event):
                return True  # the mirror was first
            failpoint("outbox.tell")
            if mine.filter(last_event=seen).update(**values):
                _note([(row, told)])
                break
            if told.kind == EventKind.CANCELLED and committed_runs([job]):
                end_committed(own)
                return False
            now = own.values_list("last_event", "state", "settled").first()
            if now is None:
                return True  # the row was deleted
            seen, *end = now
            over = end == [State.SUCCEEDED.value, ""] or end[1] != ""
            if over and position(seen) < position(told.event):
                return False
        if told.request:
            requests.end([told.request])
        failpoint("outbox.tell_commit")
    failpoint("outbox.told")
    return True


def apply_all(changes: Sequence[tuple[StoredJob, RowUpdate]]) -> list[bool]:
    """Like `apply`, for at most 200 different jobs. Rows that another transaction has changed or locked are updated one by one, so two
    batches never wait for each other.
    """
    if len(changes) == 1:
        return [apply(*changes[0])]
    own = Job.objects.filter(pk__in=[row.record.id for row, _ in changes], durable=True, settled="")
    mine = without_committed_run(own).exclude(state=State.SUCCEEDED.value)
    with database.atomic():
        if database.connection().features.has_select_for_update_skip_locked:
            mine = mine.select_for_update(skip_locked=True)
        else:
            mine.update(last_event=F("last_event"))  # takes the lock on all databases
        there = dict(mine.values_list("pk", "last_event"))
        free = [
            (row, told) for row, told in changes if there.get(row.record.id) == row.seen and position(row.seen) < position(told.event)
        ]
        for kind in sorted({told.kind for _, told in free}):
            same = [(row, told) for row, told in free if told.kind == kind]
            for batch in (same[start : start + ENDED] for start in range(0, len(same), ENDED)):
                dates = {row.record.id: clock.from_ms(told.run_at_ms) for row, told in batch}
                run_at = rows.each("run_at", dates) if kind == EventKind.RESCHEDULED else None
                Job.objects.filter(pk__in=list(dates)).update(**changed_values(kind, run_at, batch[0][1].reason))
            _note(same)
    done = {row.record.id for row, _ in free}
    return [row.record.id in done or apply(row, told) for row, told in changes]


def _note(changes: Sequence[tuple[StoredJob, RowUpdate]]) -> None:
    """Writes the events of changes of one kind by one actor."""
    if not changes:
        return
    _, one = changes[0]
    if one.proposed:
        jobs = [row.record.id for row, _ in changes]
        Event.objects.filter(job__in=jobs, kind=one.kind, actor=one.actor, reason=one.reason).delete()
    events = []
    for row, told in changes:
        detail: Any = {"abort": True} if told.abort else None
        if told.kind == EventKind.RESCHEDULED:
            detail = {"run_at": clock.from_ms(told.run_at_ms).isoformat()}
        events.append(rows.event_of(row.record.id, row.queue, told.kind, told.actor, told.reason, detail, told.event, told.item))
    Event.objects.bulk_create(events, ignore_conflicts=True)


def committed_runs(jobs: Iterable[UUID]) -> dict[UUID, Any]:
    """Those of these jobs whose atomic run has committed, with the result. For a few hundred jobs at most."""
    steps = Step.objects.filter(job_id__in=list(jobs), name=WHOLE)
    return dict(steps.values_list("job_id", "result"))


def without_committed_run(among: Any) -> Any:
    """Those of these rows without a committed atomic run."""
    return among.exclude(Exists(Step.objects.filter(job_id=OuterRef("pk"), name=WHOLE)))


def end_committed(among: Any) -> None:
    """Ends the unfinished rows among these whose atomic run has committed. Redis may have lost the outcome."""
    steps = Step.objects.filter(job_id=OuterRef("pk"), name=WHOLE)
    rows = among.filter(Exists(steps), state__in=UNFINISHED, settled="")
    failpoint("restore.end")
    values = {
        "settled": Subquery(steps.values("fence")),
        "published": Coalesce("published", Subquery(steps.values("at"))),  # the job has run, so Redis had it
        "finished_at": Subquery(steps.values("at")),
        "result": Subquery(steps.values("result")),
    }
    follow_ups.succeed(rows, {**values, "error": "", "fingerprint": "", "cancel_requested": False, "ending": None})
    failpoint("restore.ended")


def now_ms() -> int:
    """The time of the database's clock in milliseconds."""
    return clock.to_ms(database.now())


def servers(queue: str, partition: int) -> list[str]:
    """The run ids of the servers that were confirmed for that partition, the last one first."""
    known = Checkpoint.objects.filter(queue=queue, partition=partition).values_list("servers", flat=True).first()
    return (known or "").split()


def end(ending: EndingKind, holders: Mapping[UUID, UUID | None]) -> None:
    """Ends unpublished rows as cancelled: each is merged into the job that holds its key, or replaced by it."""
    given = list(holders.items())
    for batch in (given[start : start + ENDED] for start in range(0, len(given), ENDED)):
        failpoint("outbox.end")
        _unpublished([job for job, _ in batch]).update(
            state=State.CANCELLED.value,
            finished_at=database.ago(),
            ending=ending.value,
            merged_into=rows.each("merged_into", dict(batch)),
            error=rows.each("error", {job: rows.displaced(ending, holder) for job, holder in batch}),
        )
        failpoint("outbox.ended")


def withdraw(job: UUID, actor: str, reason: str) -> None:
    """Cancels a row of the caller's open transaction, in that transaction."""
    now = database.ago()
    failpoint("outbox.withdraw")
    _unpublished([job]).update(state=State.CANCELLED.value, finished_at=now, error=rows.clean(reason), published=now)
    rows.note(job, "", EventKind.CANCELLED, actor, reason)


def move(job: UUID, run_at_ms: int, delay_ms: int | None, actor: str, reason: str) -> None:
    """Changes the date of an unpublished row: one of the caller's open transaction, or one that waits for another job."""
    run_at = clock.from_ms(run_at_ms)
    if delay_ms is not None:
        run_at = database.later(database.now(), delay_ms)
    failpoint("outbox.move")
    if _unpublished([job]).update(run_at=run_at, delay_ms=delay_ms):
        rows.note(job, "", EventKind.RESCHEDULED, actor, reason)


def resolve(queue: str, partition: int, jobs: Collection[UUID], state: State, actor: str, reason: str) -> set[UUID]:
    """Ends those of these rows that are unresolved, and returns them. It locks the checkpoint of their partition: otherwise the mirror
    may have read a row already, and would overwrite this.
    """
    error = "" if state is State.SUCCEEDED else rows.clean(f"marked as {state.value} by {actor or 'somebody'}: {reason}".rstrip(": "))
    with database.atomic():
        Checkpoint.objects.filter(queue=queue, partition=partition).update(turns=F("turns") + 1)
        found = set(Job.objects.filter(UNRESOLVED, pk__in=jobs).select_for_update().values_list("pk", flat=True))
        if found:
            now, fingerprint = database.ago(), rows.fingerprint(error) if error else ""
            told = {"state": state.value, "error": error, "fingerprint": fingerprint, "ending": None}
            settled = SUCCEEDED_HERE if state is State.SUCCEEDED else ""
            Job.objects.filter(pk__in=found).update(**told, finished_at=now, published=now, settled=settled)
            detail: Any = {"state": state.value}
            events = [rows.event_of(job, queue, RESOLVED, actor, reason, detail) for job in found]
            Event.objects.bulk_create(events, ignore_conflicts=True)
            follow_ups.write(list(found))
    return found


def note_requeues(jobs: Collection[UUID], queue: str, actor: str, reason: str) -> dict[UUID, str]:
    """Writes a note of each requeue before Redis is asked. Returns the marks of the notes, for `forget_requeues`."""
    marks = {job: f"row:{ids.new().hex}" for job in jobs}
    notes = [rows.event_of(job, queue, REQUEUE_ASKED, actor, reason, None, mark) for job, mark in marks.items()]
    Event.objects.bulk_create(notes)
    return marks


def forget_requeues(marks: Mapping[UUID, str]) -> None:
    """Deletes these notes, because Redis has refused the requeues."""
    Event.objects.filter(job__in=list(marks), kind=REQUEUE_ASKED, stream_id__in=list(marks.values())).delete()


def edit(
    job: UUID,
    args: list[Any],
    kwargs: dict[str, Any],
    options: dict[str, Any],
    act: Callable[[], bool],
    actor: str,
    reason: str,
) -> bool:
    """Replaces the arguments of a failed or cancelled row, if `act` returns True. `act` is called while the row is locked. An event
    keeps the old arguments.
    """
    mine = Job.objects.filter(pk=job, state__in=REQUEUEABLE)
    try:
        with database.atomic():
            if not mine.update(last_event=F("last_event")):  # takes the lock on all databases
                return False
            row = mine.get()
            before = {"args": row.args, "kwargs": row.kwargs}
            row.args, row.kwargs, row.options = args, kwargs, options
            row.save(using=database.alias(), update_fields=["args", "kwargs", "options"])
            if not act():
                raise _TakenBack
            rows.note(job, row.queue, EDITED, actor, reason, before)
            failpoint("outbox.edit")
    except _TakenBack:
        return False
    failpoint("outbox.edited")
    return True


def _unpublished(jobs: Collection[UUID]):  # type: ignore[no-untyped-def]  # the queryset's type has no public name
    return Job.objects.filter(UNPUBLISHED, pk__in=jobs)


def changed_values(kind: str, run_at: datetime | Case | None, reason: str) -> dict[str, Any]:
    """The columns that a cancel, a cancel request or a new date changes, as the mirror writes them; see `fold`. A restore uses them,
    too.
    """
    now = database.ago()
    if kind == EventKind.CANCELLED:
        published = Coalesce("published", now)
        return {"state": State.CANCELLED.value, "finished_at": now, "error": rows.clean(reason), "published": published}
    if kind == EventKind.CANCEL_REQUESTED:
        return {"cancel_requested": True}
    waits = Case(When(state=State.RUNNING.value, then=Value(State.SCHEDULED.value)), default=F("state"))  # now waiting, says Redis
    return {"run_at": run_at, "delay_ms": None, "state": waits}


def _unconfirmed(with_requests: bool) -> QuerySet[Job, tuple[Any, ...]]:
    rows = Job.objects.filter(state__in=UNENDED, published__isnull=True).order_by()
    return rows.values_list(*WAITING, Exists(CommitRequest.objects.all())) if with_requests else rows.values_list(*WAITING)


def _read(row: Job, now: datetime | None, payload: bool) -> StoredJob:
    left, run_at_ms = None, clock.to_ms(row.run_at)
    if row.delay_ms is not None and row.published is None and now is not None:
        # Never more than the whole delay: another clock may have dated the row, or the clock was set back since.
        left = min(row.delay_ms, run_at_ms - clock.to_ms(now))
        run_at_ms = clock.to_ms(now) + left
    far, unresolved = row.far and row.published is None and row.last_event == "", row.unresolved
    return StoredJob(
        record=rows.record_of(row, payload=payload),
        queue=row.queue,
        state=State(row.state),
        run_at_ms=run_at_ms,
        left_ms=left,
        on_conflict=row.on_conflict,
        created_at=row.created_at,
        attempts=row.attempts,
        crashes=row.crashes,
        asked=row.asked or 0,
        published=row.published is not None,
        settled=row.settled != "",
        cancel_requested=row.cancel_requested,
        seen=row.last_event,
        ending=row.ending or "",
        holder=row.merged_into,
        far=far,
        unresolved=unresolved,
        unfinished=row.state in UNFINISHED and row.durable and not (row.settled or far or unresolved),
    )
