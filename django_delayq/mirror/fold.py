"""Folding turns event items into row changes. It runs no queries: the loop loads the rows before and writes them after.

An entry that a row has already folded (`last_event`) does not change the row, so a batch may be folded twice. After Redis has lost
data, and if its clock is also behind, new entries have older ids. Folding then recognizes an event by its Event row, and the end of a
run by its Attempt or, if AUDIT keeps none, by the row.

Items that no release could have written (an unknown kind, an event of a job without a job, or of another queue's job) are returned in
`aside`. Items that cannot be read raise `Unfoldable`, and the loop finds the item.

Events have no signature. So with a signer no event takes a row out of its end, except the requeues that were asked for here.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from itertools import islice
from typing import Any, Final, NamedTuple, TypeVar
from uuid import UUID

from django_delayq import clock, ids
from django_delayq.codec import MAX_DEPTH
from django_delayq.exceptions import PayloadError
from django_delayq.mirror.database_errors import FOLDING, Unfoldable
from django_delayq.models import Event
from django_delayq.producer.outbox import rows
from django_delayq.producer.outbox.rows import JobRow, RunRow
from django_delayq.signing import Signer
from django_delayq.states import FINISHED, PARKED, PUT_OFF, UNFINISHED, AttemptOutcome, EndingKind, EventKind, State
from django_delayq.store.scripts.decode import position
from django_delayq.store.scripts.events import Entry, Item
from django_delayq.store.scripts.record import JobRecord

# LOGGED: kinds of events outside of a run, with an actor. They become Event rows. Runs become Attempt rows. A merge becomes neither:
# the row of the proposal records it, if it has one, and on a hot key each call would add an Event row.
OF_QUEUES: Final = frozenset({EventKind.PAUSED, EventKind.RESUMED, EventKind.PURGED})
LOGGED: Final = OF_QUEUES | {
    EventKind.RESCHEDULED,
    EventKind.CANCELLED,
    EventKind.CANCEL_REQUESTED,
    EventKind.REQUEUED,
    EventKind.EXPIRED,
    EventKind.ASIDE,
    EventKind.RESTORED,
    EventKind.DROPPED,
}
ENDED_BADLY: Final = frozenset({EventKind.FAILED, EventKind.ASIDE})
ENDS: Final = frozenset({EventKind.CRASHED, EventKind.SUCCEEDED, EventKind.RETRIED, EventKind.SNOOZED, EventKind.FAILED})
ENDED_OTHERWISE: Final = ENDED_BADLY | {EventKind.CANCELLED, EventKind.EXPIRED}
OF_RUNS: Final = ENDS | {EventKind.CLAIMED, EventKind.CANCELLED}  # their fourth field is the fence
LAST_ENDS: Final = frozenset({EventKind.SUCCEEDED, EventKind.FAILED})
CANCELLING: Final = frozenset({EventKind.CANCELLED, EventKind.EXPIRED, EventKind.MERGED})
CARRYING: Final = frozenset({EventKind.SCHEDULED, EventKind.REQUEUED, EventKind.RESTORED})  # the record, without durability
KINDS: Final[Mapping[str, EventKind]] = {kind.value: kind for kind in EventKind}
UNKNOWN_KIND: Final = "unknown kind"
EXPIRED: Final = "Expired"  # the class that claim.lua gives to the end of a job that has run before
NO_SUCH_JOB: Final = "no job"
MOST_COUNTED: Final = 2**31 - 1  # what a column of counts holds
MOST_FIELDS: Final = 20  # of an error
LONGEST_FIELD: Final = 2_100  # characters; an answer of a host has 2 KB
NOBODY: Final = UUID(int=0)
# The codes of claim.lua for items that it has set aside, as far as they decide anything: a date without a record, or a second date.
NO_JOB: Final = "no_job"
SECOND_DATE: Final = "second_date"
OTHER_QUEUE: Final = "other queue"  # an entry of one queue contains an event of a job of another
# Fields that an event may not change in a row that has ended: everything that people read about the end.
KEPT = ("state", "run_at", "finished_at", "error", "fingerprint", "result", "cancel_requested", "published", "ending", "merged_into")
SILENT: Final = frozenset({EventKind.DROPPED, EventKind.ASIDE})  # these kinds report neither that the job lives nor how it ended
NO_PROBLEM: Final = PUT_OFF | {AttemptOutcome.SUCCEEDED}
ENDED: Final = "ended"  # the row has ended, and with SIGNING no event takes it out of that state, unless a requeue was asked for here
OUT_OF_ENDS: Final = frozenset({EventKind.REQUEUED, EventKind.RESTORED})  # these kinds only mean that a job continues
_full: Final = lru_cache(maxsize=20_000)(ids.full)  # a batch asks for each id half a dozen times


DateT = TypeVar("DateT", bound=datetime | None)


class RefusedItem(NamedTuple):
    """An item that is not folded, and why: a code for programs, a text for people."""

    entry: Entry
    item: Item
    code: str
    text: str = ""


def is_strange(entry: Entry) -> bool:
    """Whether an item is of a kind that this release does not know."""
    return any(item.kind not in KINDS for item in entry.items)


def perhaps_logged(entries: list[Entry], jobs: Mapping[UUID, JobRow]) -> set[tuple[UUID, str]]:
    """Pairs of a job and an entry that reports on it, if the row of the job has already folded this entry id or a later one. The row
    may have folded the entry before, or not; see `fold.py`.
    """
    found = set()
    for entry in entries:
        at = position(entry.id)
        for item in entry.items:
            job = jobs.get(item_job(item) or NOBODY) if item.kind in LOGGED else None
            if job is not None and position(job.last_event) >= at:
                found.add((job.id, entry.id))
    return found


def ids_of(entries: list[Entry], kinds: Collection[EventKind] | None = None) -> list[UUID]:
    """The ids of the jobs of these entries, or of the items of these kinds, each once."""
    found: dict[UUID, None] = {}
    for entry in entries:
        for item in entry.items:
            if (kinds is None or item.kind in kinds) and (id := item_job(item)) is not None:
                found[id] = None
    return list(found)


def item_job(item: Item) -> UUID | None:
    """The job of an item; None if the item names none."""
    if not item.fields:
        return None
    try:
        return _full(item.fields[0])
    except ValueError:
        return None


def is_debounced(kind: EventKind, item: Item) -> bool:
    """Whether another proposal, and not a person, has moved the job. On a hot key this would add a row per call."""
    return kind is EventKind.RESCHEDULED and len(item.fields) > 2


def count(text: str) -> int:
    """A number of attempts or crashes, as scripts write it."""
    number = int(text)
    if not 0 <= number <= MOST_COUNTED:
        raise ValueError(f"{text[:20]} is not a number of attempts or crashes")
    return number


def detail_of(body: bytes) -> dict[str, Any]:
    try:
        detail = json.loads(body) if body else {}  # less strict than the codec: an incomplete character must not hide the rest
    except (ValueError, RecursionError):
        return {"m": body[:500].decode("utf-8", "replace")}
    if body.count(b"[") + body.count(b"{") > MAX_DEPTH and _is_deeper(detail, MAX_DEPTH + 1):
        return {"m": body[:500].decode("utf-8", "replace")}  # we did not write it, and could not write it again
    return detail if isinstance(detail, dict) else {"m": str(detail)}


def problem_of(detail: Mapping[str, Any]) -> dict[str, Any] | None:
    """The value for `Attempt.problem` from the detail of an end; None if the detail has nothing for it, or something that we do not
    write.
    """
    code, fields, wait_ms = detail.get("k"), detail.get("v"), detail.get("w")
    found: dict[str, Any] = {}
    if isinstance(code, str) and isinstance(fields, dict):
        named = islice(fields.items(), MOST_FIELDS)
        found = {"code": rows.clean(code, 60), "fields": {rows.clean(name, 60): _plain(value) for name, value in named}}
    if type(wait_ms) is int and 0 <= wait_ms <= clock.LAST_MS:
        found["wait_ms"] = wait_ms
    return found or None


def _plain(value: Any) -> str | int | None:
    return value if value is None or (isinstance(value, int) and abs(value) < 2**53) else rows.clean(str(value), LONGEST_FIELD)


def _is_deeper(value: Any, most: int) -> bool:
    level = [value]
    for _ in range(most + 1):
        level = [part for one in level if isinstance(one, (list, dict)) for part in (one.values() if isinstance(one, dict) else one)]
    return bool(level)


def moment(ms: Any, otherwise: DateT) -> datetime | DateT:
    try:
        return clock.from_ms(int(ms)) if isinstance(ms, (int, float)) and ms > 0 else otherwise
    except (ValueError, OverflowError):
        return otherwise


def clamped(date: datetime, first: datetime | None, last: datetime) -> datetime:
    """The date, but not before `first` or after `last`. The end of a job decides how long its row is kept, so a wrong date in the
    detail must not.
    """
    return min(max(date, first or date), last)


def event_detail(kind: EventKind, item: Item) -> Any:
    if kind in (EventKind.RESCHEDULED, EventKind.REQUEUED):
        return {"run_at": clock.from_ms(int(item.fields[1])).isoformat()}
    if kind is EventKind.ASIDE:
        return {"reason": item.body.decode("utf-8", "replace")}
    if kind is EventKind.CANCEL_REQUESTED:
        return {"abort": True} if "abort" in item.fields[1:] else None
    detail = detail_of(item.body)
    return {"message": rows.clean(str(detail["m"]))} if detail.get("m") else None


@dataclass(slots=True)
class EventBatch:
    """Rows under change. The loop fills these fields. `jobs` and `attempts`: the rows of the database, keyed by id and by (id,
    fence). `records`: the records that Redis keeps of failed jobs without a row. `logged`: the pairs of `perhaps_logged` that have
    Event rows. `committed`: for jobs that ended without success although an atomic run has committed, the result of that run.
    `asked`: the notes of requeues that were asked for. The batch returns in `answered` the notes of requeues that were carried out.
    `keys_wait`: period keys may wait for the ends of their jobs. `rowless`: the last such event of each job that has no row;
    `reopened`: jobs that were put back after their end.
    """

    queue: str
    partition: int
    audit: str
    jobs: dict[UUID, JobRow]
    attempts: dict[tuple[UUID, str], RunRow]
    records: Mapping[UUID, bytes] = field(default_factory=dict)
    logged: set[tuple[UUID, str]] = field(default_factory=set)
    committed: Mapping[UUID, Any] = field(default_factory=dict)
    signer: Signer | None = None
    asked: Mapping[UUID, list[int]] = field(default_factory=dict)
    answered: list[int] = field(default_factory=list)
    changed: dict[UUID, JobRow] = field(default_factory=dict)
    changed_attempts: dict[tuple[UUID, str], RunRow] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    runs: dict[UUID, list[RunRow]] = field(default_factory=dict)
    aside: list[RefusedItem] = field(default_factory=list)
    failed: list[tuple[UUID, Entry]] = field(default_factory=list)  # jobs that have failed for good, each with its entry
    keys_wait: bool = True
    rowless: dict[UUID, EventKind] = field(default_factory=dict)
    reopened: set[UUID] = field(default_factory=set)
    followed: dict[UUID, Entry] = field(default_factory=dict)  # jobs with a follow-up that have succeeded
    awaited: set[UUID] = field(default_factory=set)  # jobs that have ended, and for which others wait
    batches: set[UUID] = field(default_factory=set)  # those of members that have ended

    def __post_init__(self) -> None:
        for (id, _), run in self.attempts.items():
            self.runs.setdefault(id, []).append(run)

    def fold(self, entry: Entry) -> None:
        """Folds one entry.

        Raises:
            Unfoldable: an item was not written by us. The caller must drop the changes of this entry.
        """
        try:
            self._fold(entry)
        except FOLDING as error:
            raise Unfoldable(f"entry {entry.id}: {error}") from error

    def _fold(self, entry: Entry) -> None:
        at = clock.from_ms(entry.at_ms)
        folded: set[UUID] = set()
        for item in entry.items:
            kind = KINDS.get(item.kind)
            if kind is None:
                self.aside.append(RefusedItem(entry, item, UNKNOWN_KIND))
                continue
            if kind in OF_QUEUES:
                self._log(entry, item.number, kind, None, at, {"count": int(item.fields[0])} if item.fields else None)
                continue
            id = item_job(item)
            if id is None:
                if kind is EventKind.ASIDE:  # the item that was set aside had no valid job id
                    self._log(entry, item.number, kind, None, at, event_detail(kind, item))
                else:
                    self.aside.append(RefusedItem(entry, item, NO_SUCH_JOB))
                continue
            job = self.jobs.get(id)
            if job is not None and id not in folded and self._folded_before(job, kind, item, entry):
                continue
            if job is not None and job.queue != self.queue:
                self.aside.append(RefusedItem(entry, item, OTHER_QUEUE))
                continue
            stays = self.signer is not None and self._stays(job, id, kind)
            if stays and kind in OUT_OF_ENDS:
                self.aside.append(RefusedItem(entry, item, ENDED))
                continue
            if job is None:
                job = self._missing(id, item, at)
                if job is None:
                    self._note_rowless(id, kind)
                    continue
                self.jobs[id] = job
            folded.add(id)
            kept = [getattr(job, name) for name in KEPT] if stays else ()
            before = job.state
            if job.ending == EndingKind.UNKNOWN and kind not in SILENT:
                job.ending, job.error = None, ""  # the event of its end has arrived after all
            _APPLY[kind](self, job, item, entry, at)
            for name, value in zip(KEPT, kept, strict=False):
                setattr(job, name, value)
            if (job.settled or id in self.committed) and job.state != State.SUCCEEDED:
                # An atomic run has committed its effect, or a person says so. Events of other runs do not undo that.
                job.state, job.finished_at, job.error = State.SUCCEEDED.value, job.finished_at or at, ""
                job.fingerprint, job.result = "", self.committed.get(id, job.result)
            if job.state != before:
                self._note_state(job, before, entry)
            job.last_event = entry.id
            self.changed[id] = job
            if kind in LOGGED and not is_debounced(kind, item):
                self._log(entry, item.number, kind, id, at, event_detail(kind, item))

    def _note_state(self, job: JobRow, before: str, entry: Entry) -> None:
        if job.state == State.FAILED:
            self.failed.append((job.id, entry))
        elif job.state == State.SUCCEEDED and job.follow_up is not None:
            self.followed[job.id] = entry
        if before in FINISHED and job.state in UNFINISHED:
            self.reopened.add(job.id)
        if job.state in FINISHED:
            if job.awaited:
                self.awaited.add(job.id)
            if job.batch is not None:
                self.batches.add(job.batch)

    def ends_of_keys(self, drop: Collection[UUID]) -> tuple[list[UUID], list[UUID]] | None:
        """The jobs whose periods begin, since they succeeded or failed, and the cancelled jobs without a row. `drop`: the jobs whose
        rows are deleted. None: there are none.
        """
        over = [id for id, job in self.changed.items() if job.state in (State.SUCCEEDED, State.FAILED)]
        over += [id for id, kind in self.rowless.items() if kind in LAST_ENDS]
        cancelled = [id for id in drop if self.changed[id].state == State.CANCELLED]
        cancelled += [id for id, kind in self.rowless.items() if kind in CANCELLING]
        return (over, cancelled) if over or cancelled else None

    def _note_rowless(self, id: UUID, kind: EventKind) -> None:
        if kind in LAST_ENDS or kind in CANCELLING:
            self.rowless[id] = kind
        elif kind is EventKind.REQUEUED:
            self.rowless.pop(id, None)
            self.reopened.add(id)

    def _stays(self, job: JobRow | None, id: UUID, kind: EventKind) -> bool:
        """Whether the row has ended, and this event may not change that. Each note of a requeue allows one requeue."""
        notes = self.asked.get(id) if kind is EventKind.REQUEUED else None
        if notes:
            self.answered.append(notes.pop(0))
            return False
        return job is not None and job.state in FINISHED

    def _folded_before(self, job: JobRow, kind: EventKind, item: Item, entry: Entry) -> bool:
        if position(job.last_event) < position(entry.id):
            return False
        if kind in LOGGED and not is_debounced(kind, item):
            return (job.id, entry.id) in self.logged
        run = self.attempts.get((job.id, item.fields[3])) if kind in ENDS else None
        if run is not None:
            return run.finished_at is not None
        if self.audit == "full" or kind not in LAST_ENDS:
            return True
        # There are no Attempt rows for runs that are not over. The row itself shows whether this run is.
        return (job.state, job.attempts, job.crashes) != (State.RUNNING, *map(count, item.fields[1:3]))

    def _missing(self, id: UUID, item: Item, at: datetime) -> JobRow | None:
        """Returns a row for a job that has none, made from the record that the event carries or that Redis keeps."""
        if self.audit == "failures" and item.kind not in ENDED_BADLY:
            return None
        if item.kind == EventKind.MERGED:
            return None  # a proposal without a row: nothing to show
        carried = item.body if item.kind in CARRYING else b""
        raw = carried or self.records.get(id, b"")
        if self.signer is not None and raw and not self.signer.verifies(raw, queue=self.queue, id=ids.short(id)):
            # Otherwise data that somebody else wrote into Redis would become a row, and relay, restore and requeue would sign it.
            return rows.stub(id, self.queue, at, why="the record of this job in Redis is not signed by this project")
        try:
            record = JobRecord.decode(id, raw)
        except PayloadError:
            return rows.stub(id, self.queue, at)
        return rows.new_row(record, self.queue, at, published=at)

    def _log(self, entry: Entry, number: int, kind: EventKind, job: UUID | None, at: datetime, detail: Any) -> None:
        self.events.append(
            Event(
                job_id=job,
                queue=self.queue,
                at=at,
                kind=kind.value,
                actor=rows.clean(entry.by, 200),
                reason=rows.clean(entry.why),
                detail=detail,
                stream_id=entry.id,
                item=rows.item_of(self.partition, number),
            )
        )

    # --- one method per kind, in the order of a job's life ---

    def _scheduled(self, job: JobRow, item: Item, entry: Entry, at: datetime) -> None:
        if job.state in FINISHED:
            return  # it came late, after Redis has forgotten the end; only a requeue or a restore takes a job out of its end
        job.state, job.published = State.SCHEDULED.value, at
        job.run_at = clock.from_ms(int(item.fields[1]))

    def _merged(self, job: JobRow, item: Item, entry: Entry, at: datetime) -> None:
        holder = None if item.fields[1] == "-" else ids.full(item.fields[1])
        if holder == job.id or job.state in FINISHED:
            return  # forged, because no job is merged into itself; or it came late
        job.state, job.published, job.finished_at = State.CANCELLED.value, at, at
        job.ending, job.merged_into, job.error = EndingKind.MERGED.value, holder, rows.displaced(EndingKind.MERGED, holder)

    def _rescheduled(self, job: JobRow, item: Item, entry: Entry, at: datetime) -> None:
        job.run_at = clock.from_ms(int(item.fields[1]))

    def _claimed(self, job: JobRow, item: Item, entry: Entry, at: datetime) -> None:
        attempt, crashes, fence = count(item.fields[1]), count(item.fields[2]), item.fields[3]
        job.state, job.attempts, job.crashes = State.RUNNING.value, attempt, crashes
        job.worker, job.started_at, job.finished_at = rows.clean(entry.by, 200), at, None
        job.published = job.published or at
        if job.fingerprint in PARKED:
            job.error = job.fingerprint = ""
        self._close_runs(job, at, "the event of its end was lost", but=fence)
        if self.audit == "full":
            self._attempt(job, fence, attempt, entry.by, at)

    def _ended(self, job: JobRow, item: Item, entry: Entry, at: datetime, outcome: AttemptOutcome) -> dict[str, Any]:
        """Applies the changes that all ends of a run have in common. Returns the detail."""
        attempt, crashes, fence = count(item.fields[1]), count(item.fields[2]), item.fields[3]
        detail = detail_of(item.body)
        if outcome is AttemptOutcome.SNOOZED and detail.get("e") == AttemptOutcome.EVICTED:
            outcome = AttemptOutcome.EVICTED
        job.cancel_requested = False
        if fence != "-":  # otherwise the sender did not check how often the job has run
            job.attempts, job.crashes = attempt, crashes
            if began := moment(detail.get("s"), job.started_at):  # of the run; so far it was that of the claim
                job.started_at = clamped(began, job.started_at, at)
        self._close_runs(job, at, "the event of its end was lost", but="" if fence == "-" else fence)
        problem = outcome not in NO_PROBLEM
        if fence != "-" and (self.audit == "full" or problem):
            run = self._attempt(job, fence, attempt, job.worker, job.started_at or at)
            run.started_at = clamped(moment(detail.get("s"), run.started_at), run.started_at, at)
            run.finished_at, run.outcome = clamped(moment(detail.get("f"), at), run.started_at, at), outcome.value
            run.error_class, run.problem = rows.clean(str(detail.get("c", "")), 200), problem_of(detail)
            run.message = rows.clean(str(detail.get("m") or detail.get("d") or ""))
            run.traceback = rows.clean(str(detail.get("t", "")))
        if problem:
            job.error = rows.error_of(detail)
            job.fingerprint = rows.clean(str(detail.get("p") or rows.fingerprint(job.error)), 64)
        return detail

    def _crashed(self, job: JobRow, item: Item, entry: Entry, at: datetime) -> None:
        how = self._ended(job, item, entry, at, AttemptOutcome.CRASHED).get("d")
        job.error = f"its worker {job.worker} vanished while it ran" + (f": {rows.clean(str(how))}" if how else "")
        job.state, job.run_at = State.SCHEDULED.value, clock.from_ms(int(item.fields[4]))
        job.attempts = max(0, count(item.fields[1]) - 1)

    def _succeeded(self, job: JobRow, item: Item, entry: Entry, at: datetime) -> None:
        detail = self._ended(job, item, entry, at, AttemptOutcome.SUCCEEDED)
        job.state, job.result = State.SUCCEEDED.value, detail.get("r")
        job.finished_at = clamped(moment(detail.get("f"), at), job.started_at, at)
        job.error = job.fingerprint = ""

    def _retried(self, job: JobRow, item: Item, entry: Entry, at: datetime) -> None:
        self._ended(job, item, entry, at, AttemptOutcome.RETRIED)
        job.state, job.run_at = State.SCHEDULED.value, clock.from_ms(int(item.fields[4]))

    def _snoozed(self, job: JobRow, item: Item, entry: Entry, at: datetime) -> None:
        asked = count(item.fields[5]) if len(item.fields) > 5 else None
        detail = self._ended(job, item, entry, at, AttemptOutcome.SNOOZED if asked is None else AttemptOutcome.ASKED)
        if detail.get("e") == "parked" and detail.get("p") in PARKED:
            job.error, job.fingerprint = rows.clean(str(detail.get("d", ""))), str(detail["p"])
        job.asked = job.asked if asked is None else asked
        job.state, job.run_at = State.SCHEDULED.value, clock.from_ms(int(item.fields[4]))
        job.attempts = max(0, count(item.fields[1]) - 1)

    def _failed(self, job: JobRow, item: Item, entry: Entry, at: datetime) -> None:
        last, fingerprint = job.error, job.fingerprint
        detail = self._ended(job, item, entry, at, AttemptOutcome.FAILED)
        job.state, job.finished_at = State.FAILED.value, clamped(moment(detail.get("f"), at), job.started_at, at)
        if detail.get("c") == EXPIRED and last:  # it says why the job has not run again; the last error says why it did not succeed
            job.error, job.fingerprint = rows.clean(f"{job.error}. Its last error: {last}"), fingerprint

    def _cancelled(self, job: JobRow, item: Item, entry: Entry, at: datetime) -> None:
        if job.state == State.SUCCEEDED:
            return  # the event came late; only a requeue or a restore takes a job out of its end
        detail = self._ended(job, item, entry, at, AttemptOutcome.CANCELLED)
        job.state, job.finished_at, job.published = State.CANCELLED.value, at, job.published or at
        job.error = rows.clean(entry.why or job.error or str(detail.get("m", "")))
        if item.fields[3] == "-" and "r" in detail:  # another proposal cancelled it; for a run, "r" is its return value
            job.ending, job.merged_into = EndingKind.REPLACED.value, ids.full(str(detail["r"]))
            if job.merged_into == job.id:
                job.ending = job.merged_into = None  # forged

    def _cancel_requested(self, job: JobRow, item: Item, entry: Entry, at: datetime) -> None:
        job.cancel_requested = True

    def _requeued(self, job: JobRow, item: Item, entry: Entry, at: datetime) -> None:
        job.state, job.run_at = State.SCHEDULED.value, clock.from_ms(int(item.fields[1]))
        job.attempts = job.crashes = 0
        job.asked = None
        job.finished_at, job.cancel_requested, job.published = None, False, at
        job.ending = job.merged_into = None

    def _expired(self, job: JobRow, item: Item, entry: Entry, at: datetime) -> None:
        job.state, job.finished_at, job.error = State.CANCELLED.value, at, "expired before it could run"
        job.ending = EndingKind.EXPIRED.value

    def _aside(self, job: JobRow, item: Item, entry: Entry, at: datetime) -> None:
        code, reason = item.fields[1] if len(item.fields) > 1 else "", item.body.decode("utf-8", "replace")
        if code == SECOND_DATE:
            return  # the date was set aside; the job runs
        if code == NO_JOB and job.durable and job.state == State.SCHEDULED.value:
            job.published = None  # Redis lost the record; the relay brings it back
            return
        if job.state in UNFINISHED:
            job.state, job.finished_at, job.error = State.FAILED.value, at, rows.clean(f"set aside: {reason}")
            job.fingerprint, job.ending = rows.fingerprint(job.error), None

    def _restored(self, job: JobRow, item: Item, entry: Entry, at: datetime) -> None:
        date, attempt, crashes, fence = (clock.from_ms(int(item.fields[1])), *map(count, item.fields[2:4]), item.fields[4])
        job.attempts, job.crashes, job.published, job.finished_at = attempt, crashes, at, None
        if fence != "-":
            job.state, job.worker, job.started_at = State.RUNNING.value, rows.clean(entry.by, 200), job.started_at or at
            if self.audit == "full":
                run = self._attempt(job, fence, attempt, entry.by, job.started_at)
                run.finished_at, run.outcome, run.message = None, AttemptOutcome.RUNNING.value, ""
            return
        if len(item.fields) > 5:  # its row says that it runs; its worker may still adopt it
            job.state, job.attempts = State.RUNNING.value, attempt + 1
            return
        # This also applies if the row has ended: an atomic run may have committed without a report to Redis.
        self._close_runs(job, at, "Redis lost its contents while it ran")
        job.state, job.run_at = State.SCHEDULED.value, date

    def _dropped(self, job: JobRow, item: Item, entry: Entry, at: datetime) -> None:
        pass  # the row is right; Redis did not have the end

    def _close_runs(self, job: JobRow, at: datetime, why: str, *, but: str = "") -> None:
        """Ends all other open runs. A job has one run at a time, so they are over, whatever their events were."""
        for run in self.runs.get(job.id, ()):
            if run.finished_at is None and run.fence != rows.clean(but, 64):
                run.finished_at, run.outcome, run.message = at, AttemptOutcome.CRASHED.value, why
                self.changed_attempts[job.id, run.fence] = run

    def _attempt(self, job: JobRow, fence: str, number: int, worker: str, at: datetime) -> RunRow:
        fence = rows.clean(fence, 64)
        run = self.attempts.get((job.id, fence))
        if run is None:
            run = RunRow(job_id=job.id, fence=fence, number=number, worker=rows.clean(worker, 200), started_at=at)
            self.attempts[job.id, fence] = run
            self.runs.setdefault(job.id, []).append(run)
        self.changed_attempts[job.id, fence] = run
        return run


_APPLY: Final[Mapping[EventKind, Callable[[EventBatch, JobRow, Item, Entry, datetime], None]]] = {
    EventKind.SCHEDULED: EventBatch._scheduled,
    EventKind.MERGED: EventBatch._merged,
    EventKind.RESCHEDULED: EventBatch._rescheduled,
    EventKind.CLAIMED: EventBatch._claimed,
    EventKind.CRASHED: EventBatch._crashed,
    EventKind.SUCCEEDED: EventBatch._succeeded,
    EventKind.RETRIED: EventBatch._retried,
    EventKind.SNOOZED: EventBatch._snoozed,
    EventKind.FAILED: EventBatch._failed,
    EventKind.CANCELLED: EventBatch._cancelled,
    EventKind.CANCEL_REQUESTED: EventBatch._cancel_requested,
    EventKind.REQUEUED: EventBatch._requeued,
    EventKind.EXPIRED: EventBatch._expired,
    EventKind.ASIDE: EventBatch._aside,
    EventKind.RESTORED: EventBatch._restored,
    EventKind.DROPPED: EventBatch._dropped,
}
