"""The mirror's loop: reads events, writes rows and checkpoint in one transaction, then trims the stream. Several may run at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import starmap
from typing import Any, Final, NamedTuple
from uuid import UUID

from django.db import Error
from django.db.models import F, QuerySet

from django_delayq import clock, ids, signals
from django_delayq.conf import QueueConfig
from django_delayq.failpoints import failpoint
from django_delayq.mirror import bulk_arrays, bulk_values, set_aside
from django_delayq.mirror.checkpoint import CheckpointTaken, check_site, locked_checkpoint, restored_behind
from django_delayq.mirror.database_errors import about_data, may_be_size
from django_delayq.mirror.ends import CallWithin, JobEndedSender, call_directly, schedule_followers
from django_delayq.mirror.fold import (
    ENDED_BADLY,
    ENDED_OTHERWISE,
    OF_RUNS,
    EventBatch,
    RefusedItem,
    ids_of,
    is_strange,
    perhaps_logged,
)
from django_delayq.models import Attempt, Event, Job, SetAside, database
from django_delayq.producer.outbox import batches, follow_ups, period_keys
from django_delayq.producer.outbox.follow_ups import DueRow
from django_delayq.producer.outbox.jobs import committed_runs
from django_delayq.producer.outbox.rows import JOB_COLUMNS, KNOWN, REQUEUE_ASKED, WHOLE, JobRow, RunRow, clean
from django_delayq.signing import Signer
from django_delayq.states import FINISHED, PUT_OFF, EventKind, State
from django_delayq.store.connection.places import Places
from django_delayq.store.scripts.decode import position
from django_delayq.store.scripts.events import FIRST, Entry, EventLog, Lag, NewerEvents
from django_delayq.store.scripts.events import item as item_of
from django_delayq.store.scripts.formats import FORMAT
from django_delayq.store.scripts.queue import MOST, QueueStore
from django_delayq.store.scripts.recovery import EpochStore
from django_delayq.store.scripts.site import last_token, tokens_after

ENTRIES: Final = 200  # per transaction; an entry holds up to 200 jobs
PAGE: Final = 25  # entries per read
ITEMS: Final = 5000  # a batch ends with the entry that reaches this many items
IDLE: Final = 0.25  # seconds between looks at an empty stream
TOKEN_LASTS: Final = 30.0  # seconds; then an idle mirror makes a new token, so that older copies of the database are recognized
TAKEN: Final = 0.3  # seconds until the next look whether another mirror has folded these entries
ARRAYS: Final = ("postgresql",)  # databases that take rows as arrays
PUT_OFF_KEPT: Final = 10  # attempts in a row, of one job
CHUNK: Final = 500  # rows per statement, and ids per query: SQLite takes 999 variables in its older builds

JOB_FIELDS: Final = (
    "state",
    "run_at",
    "started_at",
    "finished_at",
    "attempts",
    "crashes",
    "worker",
    "error",
    "fingerprint",
    "result",
    "cancel_requested",
    "published",
    "last_event",
    "ending",
    "merged_into",
    "asked",
)
ATTEMPT_FIELDS: Final = ("started_at", "finished_at", "outcome", "error_class", "message", "traceback", "problem")
ATTEMPT_COLUMNS: Final = ("job_id", "fence", "number", "worker", *ATTEMPT_FIELDS)  # in the order of `RunRow`


class _Refused(Exception):
    """A batch that cannot be written: because of the data of a row (`code`), or perhaps because of its size."""

    def __init__(self, entries: list[Entry], code: str, error: Exception) -> None:
        super().__init__(str(error))
        self.entries = entries
        self.code = code
        self.error = error


class Passed(NamedTuple):
    """The result of one transaction. `upto`: the position up to which the stream may be trimmed. `server`: the run of the server.
    `surplus`: the number of items beyond one per entry. `more`: whether there may be more entries. `since`: the entries come after
    this one. `found`, `token`: see `EventLog.trim`.
    """

    upto: str | None
    server: str
    surplus: int
    more: bool
    since: str = ""
    entries: Sequence[Entry] = ()
    found: str = ""
    token: str = ""


NOTHING: Final = Passed(None, "", 0, False)
AGAIN: Final = Passed(None, "", 0, True)
Way = Callable[[list[Entry]], bool]
HandOver = Callable[[list[DueRow]], object]  # gets rows, after their commit, that Redis should have at once


class MirrorLoop:
    """1. Locks the checkpoint row by updating it, so that two mirrors take turns. With several partitions it does so only if the row
       is free, because the row of another partition may be free.
    2. Reads the entries after the checkpoint.
    3. Folds them into rows.
    4. Saves the checkpoint and commits.
    5. Sends the ends of jobs.
    6. Trims the stream up to the checkpoint.

    The loop may stop at any point without harm. Before the commit nothing has happened. After it the entries are skipped when they
    are read again.
    """

    def __init__(
        self,
        places: Places,
        queue: QueueConfig,
        *,
        prefix: str,
        partition: int = 0,
        signer: Signer | None = None,
        call_within: CallWithin = call_directly,
        hand_over: HandOver = list,
    ) -> None:
        self.queue = queue
        self.signer = signer
        self.store = QueueStore(places, prefix=prefix, queue=queue.name, partition=partition)
        self.partition = partition
        self.epoch = EpochStore(self.store)
        self.log = EventLog(self.store.link, self.store.keys)
        self.first_commands = (("XLEN", self.log.keys["events"]),)  # the service may send them with those of other loops
        self.ends = JobEndedSender(self.log, queue.name, call_within)
        self.folded = 0  # entries, by this object
        self._token, self._look_at = "", 0.0  # the token in Redis at the last look, and when (monotonic) to look again
        self._hand_over = hand_over
        self._due: list[DueRow] = []  # rows of the open transaction, for the relay,
        self._ended: set[UUID] = set()  # and batches in which members have ended
        self._most = ENTRIES  # halved after a refusal, so that the refused entry is soon alone; then doubled again

    def poll(self, replies: Sequence[Any] = ()) -> float:
        """One batch. Returns seconds to sleep: 0 when more is there. `replies`: to `first_commands`, if known.

        Raises:
            StoreUnavailable, NewerEvents, DatabaseError, InterfaceError: nothing is lost; call again later.
        """
        if (replies[0] if replies else self.log.length()) == 0 and not self._has_old_token():
            return IDLE
        try:
            return 0.0 if self.fold().more else IDLE
        except CheckpointTaken:
            return TAKEN

    def fold(self) -> Passed:
        """Like `poll`, for a stream that is not empty. Raises CheckpointTaken if another mirror holds the checkpoint, and the queue
        has partitions.
        """
        try:
            passed = self._fold_batch()
            self._most = min(ENTRIES, self._most * 2)
        except _Refused as refused:
            if len(refused.entries) > 1:
                self._most = len(refused.entries) // 2
                if not refused.code:
                    raise refused.error from None
                return AGAIN
            passed = self._fold_apart(refused.entries[0])
        self.folded += len(passed.entries)
        if passed.upto is not None:
            if signals.job_ended.has_listeners():
                self.ends.send(passed.entries, passed.since)
            failpoint("mirror.trim")
            self.log.trim(passed.upto, surplus=passed.surplus, server=passed.server, found=passed.found, token=passed.token)
            failpoint("mirror.trimmed")
            self._token = passed.token
        return passed

    def _has_old_token(self) -> bool:
        """Whether no mirror of this queue has made a token for a while."""
        if clock.monotonic() < self._look_at:
            return False
        found, known = self.epoch.look(FIRST).trimmed.token, self._token
        self._token, self._look_at = found, clock.monotonic() + TOKEN_LASTS
        return found == known != ""

    def drain(self) -> int:
        """Folds all entries that can be folded now. Returns the number of batches."""
        batches = 0
        while self.log.length():
            batches += 1
            if self.poll():
                break  # the rest waits, for example for a restore after a rollback of the server
        return batches

    def lag(self) -> Lag:
        """How far the mirror is behind."""
        first = self.log.read(FIRST, 1)
        if not first:
            return Lag(0, 0.0)
        return Lag(self.log.length(), max(0.0, self.log.now_ms() - first[0].at_ms) / 1000)

    def _fold_batch(self, way: Way | None = None) -> Passed:
        """Runs one transaction: writes the entries after the checkpoint, and moves the checkpoint past them. `way`: a function to
        call with one entry instead of writing it; the checkpoint moves if it returns True.
        """
        waits = not self.queue.divided
        self._due, self._ended = [], set()
        with locked_checkpoint(self.queue.name, self.partition, waits=waits) as (mine, checkpoint):
            epoch = self.epoch.look(checkpoint.last_event)
            check_site(self.store, epoch, checkpoint)
            generation = epoch.generation
            after = checkpoint.last_event if checkpoint.generation in ("", generation) else FIRST
            failpoint("mirror.read")
            wiped = not generation and (checkpoint.generation or checkpoint.restored)
            if wiped or (after != FIRST and epoch.older):
                return NOTHING  # or rolled back: the restore comes first and decides by the checkpoint
            entries = self._read(after, 1 if way else self._most)
            failpoint("mirror.fold")
            if self.epoch.look(checkpoint.last_event).server != epoch.server:
                return AGAIN  # the source of these entries is not known: an older server may have taken over
            found = epoch.trimmed.token
            tokens = tokens_after(checkpoint.mirror_tokens or "", found)
            if not entries:  # it trims again, if the trim after the last turn was lost; or it is idle, and moves the token on
                if after == FIRST:
                    return NOTHING
                mine.update(mirror_tokens=tokens)
            elif way is None:
                self._write(entries)
            elif not way(entries):
                return AGAIN
            last = after
            if entries:
                last = entries[-1].id
                mine.update(
                    generation=generation,
                    restored=restored_behind(checkpoint, generation),
                    last_event=last,
                    updated_at=clock.from_ms(entries[-1].at_ms),
                    mirror_tokens=tokens,
                )
            failpoint("mirror.commit")
        failpoint("mirror.committed")
        if self._ended:  # after the commit, so that of two mirrors with the last members one sees the rows of the other
            with suppress(Error):  # the loop of batches ends them later
                self._due += batches.end(self._ended)
        if self._due:
            self._hand_over(self._due)
        surplus = 0
        for entry in entries:
            surplus += max(0, len(entry.items) - 1)
        token = last_token(tokens)
        return Passed(last, epoch.server, surplus, bool(entries), since=after, entries=entries, found=found, token=token)

    def _fold_apart(self, entry: Entry) -> Passed:
        """Folds an entry that was refused alone, job by job. If a job is refused twice more, alone and with rows that were read
        again, its items go into the table of set-aside events. That happens in the transaction in which the checkpoint passes the
        entry.
        """
        refused: list[RefusedItem] = []
        by_job: dict[str, list[Any]] = {}
        for one in entry.items:
            by_job.setdefault(one.fields[0] if one.fields else "", []).append(one)
        for items in by_job.values():
            single = entry._replace(items=tuple(items))
            if trouble := self._refused_twice(single):
                code, error = trouble
                refused += [RefusedItem(single, item, code, str(error)) for item in single.items]

        def leave(entries: list[Entry]) -> bool:
            if entries[0].id != entry.id:
                return False  # another mirror has passed it
            set_aside.write(refused, self.queue.name, self.partition)
            return True

        return self._fold_batch(leave)

    def _refused_twice(self, single: Entry) -> tuple[str, Exception] | None:
        def alone(entries: list[Entry]) -> bool:
            if entries[0].id == single.id:
                self._write([single])
            return False

        for last in (False, True):
            try:
                self._fold_batch(alone)
                return None
            except _Refused as refused:
                code = refused.code or set_aside.larger_than_packets(single)
                if not code:
                    raise refused.error from None
                if last:
                    return code, refused.error
        return None

    def _read(self, after: str, limit: int) -> list[Entry]:
        """Reads at most `limit` entries, up to the size of one batch, and up to the first one that only a newer release understands. It
        reads one page at a time, because one page may hold all items of a batch.

        Raises:
            NewerEvents: the first entry is already such an entry.
        """
        entries: list[Entry] = []
        items = 0
        while len(entries) < limit:
            most = min(PAGE, limit - len(entries))
            page = self.log.read(entries[-1].id if entries else after, most)
            for entry in page:
                if entry.format > FORMAT and is_strange(entry) and self.log.is_newer(FORMAT):
                    if not entries:
                        raise NewerEvents(self.queue.name, entry)
                    return entries
                entries.append(entry)
                items += len(entry.items)
                if items >= ITEMS:
                    return entries
            if len(page) < most:
                break
        return entries

    def _write(self, entries: list[Entry]) -> None:
        try:
            batch = self.load(entries)
            for entry in entries:
                batch.fold(entry)
            self.save(batch)
            if batch.failed:
                self._due += schedule_followers(batch.failed)
        except Exception as error:
            code = about_data(error)
            if not code and not may_be_size(error):
                raise
            raise _Refused(entries, code, error) from error

    def load(self, entries: list[Entry]) -> EventBatch:
        wanted = ids_of(entries)
        jobs: dict[UUID, JobRow] = {}
        attempts: dict[tuple[UUID, str], RunRow] = {}
        waits = 1  # without a row it is not known, and the statement about the keys finds none
        backend = database.connection()
        bulk, columns = (bulk_arrays, KNOWN) if backend.vendor in ARRAYS else (bulk_values, WHOLE)
        for start in range(0, len(wanted), CHUNK):
            chunk = wanted[start : start + CHUNK]
            for row in bulk.found(Job, columns, "id", chunk, "TRUE", backend, period_keys.WAITS):
                job = jobs[row[0]] = JobRow(*row[:-1])
                job.known, waits = True, row[-1]
            for row in bulk.found(Attempt, ATTEMPT_COLUMNS, "job_id", chunk, "finished_at IS NULL", backend):
                attempts[row[0], row[1]] = RunRow(*row)
        logged = perhaps_logged(entries, jobs)
        ended = ids_of(entries, ENDED_OTHERWISE)  # also jobs without a run in their rows: Redis may have forgotten it
        failed = ids_of(entries, ENDED_BADLY)
        return EventBatch(
            queue=self.queue.name,
            partition=self.partition,
            audit=self.queue.audit,
            jobs=jobs,
            attempts=attempts,
            records=self._records([id for id in failed if id not in jobs]) if failed else {},
            logged=logged and self._logged(logged),
            signer=self.signer,
            committed=self._committed(ended) if ended else {},
            asked=self._requested_requeues(entries) if self.signer is not None else {},
            keys_wait=bool(waits),
        )

    def _requested_requeues(self, entries: list[Entry]) -> dict[UUID, list[int]]:
        """The notes of requeues that were asked for here, oldest first; see `fold.py`. It locks the notes: it then reads them as they
        are now, and not as they were when the transaction began.
        """
        found: dict[UUID, list[int]] = {}
        wanted = ids_of(entries, {EventKind.REQUEUED})
        for start in range(0, len(wanted), CHUNK):
            notes = Event.objects.filter(job_id__in=wanted[start : start + CHUNK], kind=REQUEUE_ASKED)
            for id, note in notes.select_for_update().order_by("pk").values_list("job_id", "pk"):
                found.setdefault(id, []).append(note)
        return found

    def _logged(self, wanted: set[tuple[UUID, str]]) -> set[tuple[UUID, str]]:
        """Those of them that have an Event row."""
        found: set[tuple[UUID, str]] = set()
        jobs = list({id for id, _ in wanted})
        for start in range(0, len(jobs), CHUNK):
            events = Event.objects.filter(job_id__in=jobs[start : start + CHUNK])
            found |= wanted & set(events.values_list("job_id", "stream_id"))
        return found

    def _committed(self, ended: Sequence[UUID]) -> dict[UUID, Any]:
        """Those of these jobs, which ended without success, whose atomic run has committed, with the result of that run."""
        found: dict[UUID, Any] = {}
        for start in range(0, len(ended), CHUNK):
            found |= committed_runs(ended[start : start + CHUNK])
        return found

    def _records(self, wanted: Sequence[UUID]) -> dict[UUID, bytes]:
        """The records that Redis keeps of failed jobs, for those without a row. Only these records have the arguments of the jobs."""
        found: dict[UUID, bytes] = {}
        for start in range(0, len(wanted), MOST):
            chunk = wanted[start : start + MOST]
            found |= zip(chunk, self.log.records([ids.short(id) for id in chunk]), strict=True)
        return found

    def save(self, batch: EventBatch) -> None:
        kept, runs, events = list(batch.changed.values()), list(batch.changed_attempts.values()), batch.events
        drop = set[UUID]()
        if self.queue.audit == "failures":
            drop = {job.id for job in kept if job.state in FINISHED and job.state != State.FAILED and job.follow_up is None}
            drop -= {job.id for job in kept if job.batch is not None}
            kept = [job for job in kept if job.id not in drop]
            runs = [run for run in runs if run.job_id not in drop]
            events = [event for event in events if event.job_id not in drop]
        self._write_rows(kept, runs)
        if batch.followed:
            last = next(reversed(batch.followed.values()))
            self._due += follow_ups.write(list(batch.followed), last.at_ms)
        self._ended |= batch.batches
        if batch.awaited:
            self._due += follow_ups.behind(batch.awaited, self.queue.name)
        if batch.reopened:
            period_keys.reopen(batch.reopened)
        if (batch.keys_wait or batch.reopened) and (over := batch.ends_of_keys(drop)):
            period_keys.ended(*over)
        if put_off := {run.job_id for run in runs if run.outcome in PUT_OFF}:
            drop_put_off(list(put_off))
        Event.objects.bulk_create(events, batch_size=CHUNK, ignore_conflicts=True)
        if batch.answered:
            Event.objects.filter(pk__in=batch.answered).delete()
        if batch.aside:
            set_aside.write(batch.aside, self.queue.name, self.partition)
        if drop:
            gone = list(drop)
            for start in range(0, len(gone), CHUNK):
                chunk = gone[start : start + CHUNK]
                Attempt.objects.filter(job_id__in=chunk).delete()
                Event.objects.filter(job_id__in=chunk).delete()
                Job.objects.filter(pk__in=chunk).delete()

    def _write_rows(self, jobs: list[JobRow], runs: list[RunRow]) -> None:
        backend = database.connection()
        writer: Any = bulk_values
        if backend.vendor in ARRAYS:
            writer = bulk_arrays
            known = [job for job in jobs if job.known]
            jobs = [job for job in jobs if not job.known]
            for start in range(0, len(known), CHUNK):
                bulk_arrays.update(Job, JOB_FIELDS, known[start : start + CHUNK], "id", backend)
        for start in range(0, len(jobs), CHUNK):
            writer.upsert(Job, JOB_COLUMNS, jobs[start : start + CHUNK], ("id",), JOB_FIELDS, backend)
        for start in range(0, len(runs), CHUNK):
            writer.upsert(Attempt, ATTEMPT_COLUMNS, runs[start : start + CHUNK], ("job_id", "fence"), ATTEMPT_FIELDS, backend)

    # --- events that were set aside ---

    def retry(self, keys: Sequence[int]) -> tuple[int, int]:
        """Folds again the items that were set aside under these keys of `SetAside`, oldest first. A person asks for it: the database or
        the release may have changed. Returns the number of items that are in their rows now, and the number that were refused again.

        Raises:
            StoreUnavailable, StoreError, DatabaseError, InterfaceError: the items that were folded before stay folded.
        """
        model = SetAside.objects.filter(queue=self.queue.name, partition=self.partition)
        groups: dict[tuple[tuple[int, int], UUID | None], list[int]] = {}
        for pk, stream_id, job in model.filter(pk__in=keys).order_by("item").values_list("pk", "stream_id", "job_id"):
            groups.setdefault((position(stream_id), job), []).append(pk)
        done = refused = 0
        for _, group in sorted(groups.items(), key=lambda one: one[0][0]):
            mine = model.filter(pk__in=group)
            why: dict[str, str] = {}
            try:
                taken = self._retry_entry(mine)
            except Exception as error:
                code = about_data(error)
                if not code:
                    raise
                taken, why = False, {"code": code, "text": clean(str(error), 2000)}
            if not taken:
                mine.update(tries=F("tries") + 1, **why)
            done, refused = (done + len(group), refused) if taken else (done, refused + len(group))
        return done, refused

    def _retry_entry(self, kept: QuerySet[SetAside]) -> bool:
        """Folds items of one entry, and deletes them here. Returns False if they still cannot be folded, or are not complete. A row
        that has folded later events keeps its fields: only the missing runs and events are added.
        """
        with locked_checkpoint(self.queue.name, self.partition):
            found = list(kept.order_by("item"))
            if not found:
                return True  # another process has folded them meanwhile
            first, items = found[0], tuple(item_of(one.kind, bytes(one.raw), one.item) for one in found)
            entry = Entry(first.stream_id, clock.to_ms(first.at), first.actor, first.why, items)
            batch = self.load([entry])
            runs = Attempt.objects.filter(job_id__in=list(batch.jobs)).values_list(*ATTEMPT_COLUMNS)  # also those that are over
            batch.attempts = {(run.job_id, run.fence): run for run in starmap(RunRow, runs)}
            ahead = {id for id, job in batch.jobs.items() if position(job.last_event) >= position(entry.id)}
            for id in ahead:
                batch.jobs[id].last_event = ""  # otherwise the entry would be taken for one that is already folded
            batch.fold(entry)
            if batch.aside or any(map(set_aside.is_cut, found)):
                return False
            fences = {item.fields[3] for item in entry.items if item.kind in OF_RUNS}
            batch.changed = {id: job for id, job in batch.changed.items() if id not in ahead}
            runs_of = batch.changed_attempts.items()
            batch.changed_attempts = {key: run for key, run in runs_of if key[0] not in ahead or key[1] in fences}
            self.save(batch)
            kept.delete()
        return True


def drop_put_off(jobs: Sequence[UUID]) -> None:
    """Keeps the last ten runs in a row of each of these jobs that were put off. Such runs have the same number, because they do not
    count as attempts. Otherwise a task that polls every few seconds would leave thousands of rows a day.
    """
    for start in range(0, len(jobs), CHUNK):
        found = Attempt.objects.filter(job_id__in=jobs[start : start + CHUNK], outcome__in=PUT_OFF)
        seen, gone = Counter[tuple[UUID, int]](), []
        for id, job, number in found.order_by("-id").values_list("id", "job_id", "number"):
            seen[job, number] += 1
            if seen[job, number] > PUT_OFF_KEPT:
                gone.append(id)
        for first in range(0, len(gone), CHUNK):
            Attempt.objects.filter(pk__in=gone[first : first + CHUNK]).delete()
