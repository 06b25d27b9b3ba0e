"""Restore: if Redis has lost its contents or was rolled back to older data, unfinished jobs are restored from their rows."""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final
from uuid import UUID

from django_delayq import clock, ids
from django_delayq.conf import QueueConfig
from django_delayq.exceptions import PayloadError
from django_delayq.failpoints import failpoint
from django_delayq.logger import Logger
from django_delayq.mirror import reconcile_rows
from django_delayq.mirror.checkpoint import (
    check_site,
    checkpoint_of,
    locked_checkpoint,
    needs_restore,
    note_address,
    note_refused,
    note_server,
)
from django_delayq.mirror.mirror_loop import MirrorLoop
from django_delayq.mirror.reconcile_rows import RECENT_MS, PendingChange, RestoreProgress, changes_unknown_to, pending_changes
from django_delayq.models import Checkpoint, Event, Job, database
from django_delayq.producer.outbox import pauses, rows
from django_delayq.producer.outbox.jobs import end_committed
from django_delayq.producer.outbox.rows import UnfinishedRow
from django_delayq.signing import Signer
from django_delayq.states import EventKind, State
from django_delayq.store.connection.places import Places
from django_delayq.store.scripts import decode
from django_delayq.store.scripts.decode import position
from django_delayq.store.scripts.events import FIRST, EventLog
from django_delayq.store.scripts.limits import RESTORE
from django_delayq.store.scripts.queue import MOST, QueueStore
from django_delayq.store.scripts.recovery import ADOPT, FOUND, REST, SWEEP, Confirmed, Epoch, EpochStore, RestoreItem, fresh_generation
from django_delayq.store.scripts.site import SiteRefused

logger = Logger("django_delayq.restore")

IDLE: Final = 0.25  # seconds between looks at the epoch
LOOK: Final = 5.0  # seconds between looks at the checkpoint while the server stays the same
WHOLE: Final = 60.0  # seconds between looks at all changes of an hour
WAIT: Final = 0.05
BUSY_MS: Final = 5000  # a restore that has reported no progress for so long is considered dead
SLICE: Final = 1.0  # seconds of work per pass; to restore jobs is more urgent than to fold their events
ACTOR: Final = RESTORE


class _Moved(Exception):
    """The queue has another epoch than when the rows were read, or another restore is at work. The next look decides what to do."""


class RestoreLoop:
    """1. Looks at the epoch. Redis holds everything that the database has seen in it if two conditions hold: the generation is the
       one restored last, and the stream has or had the event that was folded last. Then the loop confirms the epoch. Before that it
       sends again the changes of people that another server answered and this one may not have.
    2. Otherwise the data of Redis is not trusted. The queue gets a new generation, and its durable jobs are removed: rows decide.
    3. This loop itself folds the events that Redis still holds. Rows take in the changes that were answered and whose events are
       lost.
    4. Workers adopt the jobs that they run. Jobs that are running according to their rows return with a lease that must end first.
       Due jobs follow, oldest first.
    5. Claims continue, and all other jobs return, oldest first.
    6. The generation is noted as restored, and the epoch is confirmed. A lease later, the rows of lost jobs of redis durability
       become unresolved, see `reconcile_rows`. Until then the checkpoint notes that they are still to be found.

    The loop may stop at any point. Another one then continues and leaves jobs alone that are already in Redis. Unpublished rows
    belong to the relay.

    Args:
        auto: False: only reports what has happened, and pauses the queue; `manage.py delayq restore` does the rest.
    """

    def __init__(
        self, places: Places, queue: QueueConfig, *, prefix: str, partition: int = 0, auto: bool = True, signer: Signer | None = None
    ) -> None:
        self.queue = queue
        self.auto = auto
        self.store = QueueStore(places, prefix=prefix, queue=queue.name, partition=partition, signer=signer)
        self.partition = partition
        self.log = EventLog(self.store.link, self.store.keys)
        self.epoch = EpochStore(self.store)
        self.first_commands = self.epoch.asks  # the service may send them with those of other loops
        self.mirror = MirrorLoop(places, queue, prefix=prefix, partition=partition, signer=signer)
        self.progress = RestoreProgress()
        self._who = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(3)}"
        self._well: tuple[str, str, str] | None = None
        self._look_at = 0.0
        self._resumes = False
        self._work: Iterator[float] | None = None
        self._lost: Iterator[float] | None = None
        self._suspects: dict[tuple[UUID, str], bool] = {}  # pending at the last look, and whether they were sent again
        self._mark = (0, 0)  # the last event of that look
        self._whole_at = 0.0  # when all changes of the hour are read again
        self._seen = 0  # the last Event row at the last look

    def poll(self, replies: Sequence[Any] = ()) -> float:
        """One look, or one slice of work. Returns seconds to sleep: 0 when there is more to do. `replies`: to `first_commands`, if
        known.

        Raises:
            StoreUnavailable, DatabaseError: nothing is lost; call again later.
        """
        if self._work is None:
            if self._stands(replies):
                return self._idle()
            try:
                epoch, checkpoint = self.look()
            except SiteRefused as error:
                note_refused(error)
                raise
            if needs_restore(epoch, checkpoint) or (epoch.generation and epoch.confirmed != epoch.server):
                # Another server has taken over, perhaps with older data. A mirror may be about to commit what it read from the server
                # before.
                with locked_checkpoint(self.queue.name, self.partition):
                    epoch, checkpoint = self.look()
            if not needs_restore(epoch, checkpoint):
                self._confirm(epoch, checkpoint)
                return self._idle()
            self._lost = None
            pauses.again(self.store)
            if not self.auto and self._pause(epoch):
                return 1.0
            if self._others_are_at_it(epoch):
                return IDLE
            self._work = self._restore(epoch, checkpoint)
        until = clock.monotonic() + SLICE
        work, self._work = self._work, None  # an error ends it; the next look starts again
        try:
            for pause in work:
                if pause or clock.monotonic() >= until:
                    self._work = work
                    return pause
        except _Moved:
            return IDLE
        return 0.0

    def drain(self) -> Iterator[RestoreProgress]:
        """Does all the work. Yields the progress after each step.

        Raises:
            StoreUnavailable, DatabaseError: nothing is lost; call again later.
        """
        while True:
            pause = self.poll()
            yield self.progress
            if self._work is None and not needs_restore(*self.look()):
                return
            clock.sleep(pause)

    def look(self) -> tuple[Epoch, Checkpoint]:
        """The epoch of Redis, and the checkpoint. If the database has no checkpoint, a new one that is not saved.

        Raises:
            SiteRefused: Redis may belong to another site.
        """
        checkpoint = self._checkpoint()
        epoch = self.epoch.look(checkpoint.last_event)
        check_site(self.store, epoch, checkpoint, self._checkpoint)
        return epoch, checkpoint

    def _checkpoint(self) -> Checkpoint:
        return checkpoint_of(self.queue.name, self.partition)

    def unfinished(self) -> Any:
        """The rows of jobs that Redis must have."""
        return reconcile_rows.unfinished_rows(self.queue.name, self.partition)

    def items(self, batch: Iterable[UnfinishedRow]) -> list[RestoreItem]:
        """Unfinished rows in the form that restore.lua takes, without those that cannot be jobs."""
        items, batch = [], list(batch)
        firsts = reconcile_rows.first_dates([row.id for row in batch if "at_most" in (row.options or {})])
        for row in batch:
            try:
                item = self.epoch.row(
                    rows.record_of(row),
                    runs=row.state == State.RUNNING,
                    attempts=row.attempts,
                    crashes=row.crashes,
                    due_ms=clock.to_ms(row.run_at),
                    asks=row.asked or 0,
                    cancel=row.cancel_requested,
                    lease_ms=self.queue.lease_ms,
                    first_ms=firsts.get(row.id, ""),
                )
                items.append(item)
            except PayloadError as error:
                logger.error("job %s of %s cannot be restored: %s", row.id, self.queue.name, error)
        return items

    # --- all is there ---

    def _idle(self) -> float:
        """Continues the work that nothing else waits for: it marks the rows of jobs that Redis has lost for good. Any restore loop
        may do it.
        """
        if self._lost is None:
            return IDLE
        pause = next(self._lost, None)
        if pause is None:
            self._lost = None
        return IDLE if pause is None else pause

    def _stands(self, replies: Sequence[Any]) -> bool:
        """Whether Redis is still in the epoch that was last confirmed. This asks the database only from time to time."""
        if clock.monotonic() >= self._look_at:
            return False
        epoch = self.epoch.read(replies) if replies else self.epoch.look(FIRST)
        return not epoch.rolled and (epoch.generation, epoch.server, epoch.confirmed) == self._well

    def _confirm(self, epoch: Epoch, checkpoint: Checkpoint) -> None:
        self._well, self._look_at = (epoch.generation, epoch.server, epoch.server), clock.monotonic() + LOOK
        if self._lost is None and epoch.generation and checkpoint.way_back:
            self._lost = reconcile_rows.mark_lost(self.log, self.queue, self.partition, checkpoint.way_back)
        if not epoch.generation or epoch.confirmed == epoch.server:
            if epoch.generation and not checkpoint.address:  # the process that confirmed the epoch stopped before this
                note_address(self.store)
            self._remind(checkpoint)
            return
        note_server(self.queue.name, self.partition, epoch.server)
        pauses.again(self.store)
        if epoch.confirmed is not None:
            self._send_again(changes_unknown_to(self.log, self.queue.name, self.partition, checkpoint.last_event))
        self._tell(epoch, mirrored=checkpoint.last_event)

    def _tell(self, epoch: Epoch, **said: Any) -> Confirmed:
        failpoint("restore.confirm")
        answer = self.epoch.confirm(epoch.generation, server=epoch.server, actor=ACTOR, **said)
        failpoint("restore.confirmed")
        if answer == "ok" and not said.get("phase"):
            note_address(self.store)
        return answer

    def _remind(self, checkpoint: Checkpoint) -> None:
        """Sends changes again that another server answered, such as an old primary that was still running. These were pending at the
        last look and are still pending, although all events of this server up to that look are folded. Once a minute all changes of
        the last hour are read; in between only newer ones, and those that were pending. A transaction may commit a change after the
        look although it wrote it before.
        """
        if clock.monotonic() >= self._whole_at:
            self._whole_at = clock.monotonic() + WHOLE
            latest = Event.objects.order_by("-pk").values_list("pk", flat=True).first() or 0
            changes = pending_changes(self.queue.name, self.partition, checkpoint.last_event)
            self._seen = latest
        else:
            jobs = {job for job, _ in self._suspects}
            changes = pending_changes(self.queue.name, self.partition, checkpoint.last_event, after=self._seen, jobs=jobs)
        found = {(change.job, change.stream_id): change for change in changes}
        if self._suspects and position(checkpoint.last_event) >= self._mark:
            lost = [key for key, sent in self._suspects.items() if not sent and key in found]
            self._send_again([found[key] for key in lost])
            self._suspects |= dict.fromkeys(lost, True)
        elif self._suspects:
            return  # the mirror is behind
        self._suspects = {key: self._suspects.get(key, False) for key in found}
        if found:
            self._mark = position(self.log.last_id())

    def _send_again(self, changes: Sequence[PendingChange]) -> None:
        reason = "the server was replaced later"
        for change in changes:
            failpoint("restore.cancel")
            if change.kind is EventKind.CANCELLED:
                by, why = change.actor or ACTOR, change.reason or reason
                self.store.cancel(change.job, actor=by, reason=why, lacking="scheduled")
            elif change.run_at is not None:
                by, why, due_ms = change.actor, change.reason, clock.to_ms(change.run_at)
                self.store.reschedule(change.job, due_ms=due_ms, actor=by, reason=why, lacking="waited")
            failpoint("restore.cancelled")

    # --- the way back ---

    def _pause(self, epoch: Epoch) -> bool:
        if not self.unfinished().exists():
            return False
        if not epoch.rolled:
            # The generation changes at once. A late publication then names the generation before, and its row is read again.
            self._tell(epoch, phase=FOUND, renew=fresh_generation())
        # The command may have restored all jobs since the look. Nothing would lift a pause that comes after its end.
        if self.store.pause(actor=ACTOR, reason="run manage.py delayq restore", on_way_back=True):
            logger.error(
                "queue %s: Redis lost its data or was rolled back. The queue is paused. To continue, run manage.py delayq restore "
                "--queue %s",
                self.queue.name,
                self.queue.name,
            )
        return True

    def _others_are_at_it(self, epoch: Epoch) -> bool:
        at_ms, who, *_ = [*epoch.restoring.split(" "), "", ""]
        return bool(who) and who not in (self._who, ACTOR) and abs(epoch.now_ms - decode.moment_ms(at_ms)) < BUSY_MS

    def _restore(self, epoch: Epoch, checkpoint: Checkpoint) -> Iterator[float]:
        total = self.unfinished().count()
        self.progress = RestoreProgress(total=total, began=clock.monotonic())
        if total or epoch.rolled or checkpoint.restored:
            logger.warning(
                "queue %s: Redis %s. Unfinished jobs in the database: %d",
                self.queue.name,
                "lost its data" if epoch.confirmed is None else "was rolled back to older data",
                total,
            )
        now_ms = epoch.now_ms or decode.time_ms(self.store.link.execute("TIME"))
        zero_ms = now_ms - clock.monotonic() * 1000  # the time of Redis' clock at monotonic 0
        older = epoch.older and epoch.generation in (checkpoint.restored, checkpoint.generation)
        begun = checkpoint.way_back == epoch.generation
        self._resumes = begun and not older and epoch.rolled in (ADOPT, REST)
        if self._resumes or (not older and epoch.confirmed is None):
            # Another restore stopped on the way, and its work is kept. Or Redis was wiped, and its data is new: no mirror has ever
            # confirmed this store, as one had confirmed any old copy.
            given = "" if epoch.generation else self.store.new_generation
            target, phase = epoch._replace(generation=epoch.generation or given), ADOPT
            self._note(epoch, target.generation)
            # It may still be a copy of a server that was not confirmed yet, and be older than the changes that were answered there.
            self._send_again(changes_unknown_to(self.log, self.queue.name, self.partition, checkpoint.last_event))
            self._go_on(epoch, ADOPT, renew=given)
        else:
            behind = position(self.log.last_id()) < position(checkpoint.last_event)
            target, phase = epoch._replace(generation=fresh_generation()), SWEEP
            self._note(epoch, target.generation)
            self._go_on(epoch, SWEEP, renew=target.generation, behind=checkpoint.last_event if behind else "")
            yield from self._sweep(target)
        yield from self._fold(target, phase)
        end_committed(Job.objects.filter(queue=self.queue.name, partition=self.partition))
        if phase == SWEEP:
            for _ in reconcile_rows.drop_ended(self.log, self.epoch):
                self._go_on(target, phase)
                yield 0.0
        reconcile_rows.apply_pending_changes(self.queue.name, self.partition, checkpoint.last_event)
        self._go_on(target, ADOPT)
        stands = self.store.epoch()
        for batch in reconcile_rows.pages(self.unfinished().filter(state=State.RUNNING)):
            self._send(batch, stands)
            yield 0.0
        waits = True
        for batch in reconcile_rows.pages(self.unfinished().filter(state=State.SCHEDULED)):
            if waits and batch and clock.to_ms(batch[0].run_at) > zero_ms + clock.monotonic() * 1000:
                self._go_on(target, REST)
                waits = False
            self._send(batch, stands)
            yield 0.0
        for batch in self._moved():
            self._send(batch, stands)
            yield 0.0
        self._finish(target)

    def _note(self, epoch: Epoch, generation: str) -> None:
        note_server(self.queue.name, self.partition, epoch.server, generation)

    def _go_on(self, target: Epoch, phase: str, *, renew: str = "", behind: str = "", mirrored: str = "") -> None:
        """Notes the phase of the restore in Redis, and that this process works on it."""
        answer = self._tell(target, phase=phase, renew=renew, behind=behind, mirrored=mirrored, progress=self._progress)
        if answer != "ok":
            raise _Moved

    @property
    def _progress(self) -> str:
        return f"{self._who} {self.progress.done} {self.progress.total}"

    def _sweep(self, target: Epoch) -> Iterator[float]:
        """Removes all durable jobs. Rows are read only after the events of jobs that ended meanwhile have been folded."""
        cursor = ""
        while cursor != "0":
            failpoint("restore.sweep")
            cursor, _ = self.epoch.sweep(target.generation, cursor or "0", progress=self._progress, actor=ACTOR)
            failpoint("restore.swept")
            if not cursor:
                raise _Moved
            yield 0.0

    def _fold(self, target: Epoch, phase: str) -> Iterator[float]:
        """Folds all events that Redis has until now. A row must not be taken for unfinished merely because the mirror is behind."""
        mark = position(self.log.last_id())
        while (first := self.log.read(FIRST, 1)) and position(first[0].id) <= mark:
            self.mirror.poll()
            self._go_on(target, phase)
            still = self.log.read(FIRST, 1)
            yield WAIT if still and still[0].id == first[0].id else 0.0

    def _moved(self) -> Iterator[list[UnfinishedRow]]:
        """Jobs that were rescheduled lately. Their new date may have been one that this restore had already passed before Redis had
        them again.
        """
        since = database.ago(RECENT_MS / 1000)
        events = Event.objects.filter(queue=self.queue.name, kind=EventKind.RESCHEDULED, at__gte=since)
        # This query does not join the rows: without fresh statistics that takes long.
        jobs = dict.fromkeys(events.filter(job__isnull=False).values_list("job_id", flat=True))
        found = ids.by_partition(jobs).get(self.partition, [])
        for start in range(0, len(found), MOST):
            yield reconcile_rows.read_rows(found[start : start + MOST])

    def _send(self, batch: Sequence[UnfinishedRow], stands: str) -> None:
        if self._resumes:  # an earlier restore that stopped on the way must not stop at the same place again
            there = self.log.records([ids.short(row.id) for row in batch])
            batch = [row for row, record in zip(batch, there, strict=True) if not record]
            if not batch:
                return
        items = self.items(batch)
        failpoint("restore.send")
        answers = self.epoch.restore(items, epoch=stands, progress=self._progress, actor=ACTOR)
        failpoint("restore.sent")
        if "epoch" in answers:
            raise _Moved  # the rows may be older than what has happened since
        self.progress.done = min(self.progress.done + len(batch), self.progress.total)  # an overdue job may come twice
        self.progress.back += answers.count("restored")

    def _finish(self, target: Epoch) -> None:
        # Both or neither: a process that finds the generation restored does not correct rows.
        with locked_checkpoint(self.queue.name, self.partition) as (mine, checkpoint):
            mine.update(restored=target.generation)
            reconcile_rows.settle_rows(self.queue.name, self.partition)
            failpoint("restore.note")
        failpoint("restore.noted")
        self._go_on(target, "", mirrored=checkpoint.last_event)
        done = self.progress
        if done.total:
            seconds, there = clock.monotonic() - done.began, max(0, done.done - done.back)
            said = "queue %s: restored in %.1f s: jobs returned to Redis: %d, rows already there: %d of %d"
            logger.warning(said, self.queue.name, seconds, done.back, there, done.done)
