"""Restore: when Redis has lost its contents, or has older data than it had, what is unfinished comes back from the rows."""

from __future__ import annotations

import logging
import os
import secrets
import socket
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final
from uuid import UUID

from django.db.models.functions import Coalesce

from django_delayq import clock, ids
from django_delayq.conf import QueueConfig
from django_delayq.exceptions import PayloadError
from django_delayq.failpoints import failpoint
from django_delayq.mirror import rows
from django_delayq.mirror.turns import turn
from django_delayq.models import CANCELLED_HERE, Attempt, Checkpoint, Event, Job
from django_delayq.signing import Signer
from django_delayq.states import FINISHED, UNFINISHED, AttemptOutcome, EventKind, State
from django_delayq.store import read
from django_delayq.store.connection import Link
from django_delayq.store.events import FIRST, EventLog, position
from django_delayq.store.ground import Ground, GroundStore, RestoreItem
from django_delayq.store.queue import MOST, QueueStore

logger = logging.getLogger("django_delayq.restore")

IDLE: Final = 0.25  # seconds between looks at the ground
LOOK: Final = 5.0  # seconds between looks at the checkpoint while the server stays the same
WAIT: Final = 0.05
MIRROR_WAIT: Final = 30.0  # seconds without anything folded; without a mirror at work, rows are as true as they will be
LISTED: Final = 100_000  # ids per query
ADOPTION_MS: Final = 3000  # what is due waits that long, so that a worker that runs it already can adopt it
BUSY_MS: Final = 5000  # a restore that has not shown itself for so long has died
RECENT_MS: Final = 3_600_000  # how much older than what was folded last a cancel may be of which there is no event yet
SLICE: Final = 1.0  # seconds of work per pass; what comes back is more urgent than what the mirror says of it
ACTOR: Final = "restore"

FIELDS: Final = (
    "id", "task", "args", "kwargs", "options", "key", "state", "priority", "run_at", "expires_at", "attempts",
    "max_attempts", "crashes", "durable", "published", "settled",
)  # fmt: skip


@dataclass(slots=True)
class Progress:
    """How far a restore is: rows looked at, of how many about; `back`: jobs that Redis did not have; `dropped`: jobs that it
    should not have had.
    """

    done: int = 0
    total: int = 0
    back: int = 0
    dropped: int = 0
    began: float = 0.0


class RestoreLoop:
    """1. Looks at the ground: a generation that is not the one restored last means that Redis was wiped; an event that the database
    has and Redis has not, that it was rolled back. 2. Waits until the mirror has folded what is there, and another restore has died.
    3. If rolled back: drops the jobs whose rows are finished. 4. Brings back rows that are unfinished and published, the running ones
    at the end of a lease, so that the workers which run them can adopt them; last those whose requeue Redis has forgotten. 5. Notes
    the generation as restored, and confirms the ground, on which workers then claim.

    It may die at any point, and begins anew then: what is there already is left alone. Unpublished rows are the relay's.

    Args:
        auto: False: only says what has happened, and pauses the queue; `manage.py delayq restore` does the rest.
    """

    def __init__(
        self, link: Link, queue: QueueConfig, *, prefix: str, using: str, partition: int = 0, auto: bool = True,
        signer: Signer | None = None,
    ) -> None:  # fmt: skip
        self.queue = queue
        self.using = using
        self.partition = partition
        self.auto = auto
        self.store = QueueStore(link, prefix=prefix, queue=queue.name, partition=partition, signer=signer)
        self.log = EventLog(link, self.store.keys)
        self.ground = GroundStore(self.store)
        self.progress = Progress()
        self._who = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(3)}"
        self._well: tuple[str, str, str] | None = None
        self._look_at = 0.0
        self._work: Iterator[float] | None = None
        self._ended: list[UUID] = []

    def poll(self) -> float:
        """One look, or one slice of work. Returns seconds to sleep: 0 when more is to do.

        Raises:
            StoreUnavailable, DatabaseError: nothing is lost; call again later.
        """
        if self._work is None:
            if self._stands():
                return IDLE
            ground, checkpoint = self.look()
            if needed(ground, checkpoint) or (ground.generation and ground.confirmed != ground.server):
                # Another server, perhaps with older data. What was read from the one before may be about to be committed.
                with turn(self.queue.name, self.partition, self.using):
                    ground, checkpoint = self.look()
            if not needed(ground, checkpoint):
                self._confirm(ground, checkpoint)
                return IDLE
            if not self.auto and self._pause():
                return 1.0
            if self._others_are_at_it(ground):
                return IDLE
            self._work = self._restore(ground, checkpoint)
        until = clock.monotonic() + SLICE
        work, self._work = self._work, None  # an error ends it; the next look begins anew
        for pause in work:
            if pause or clock.monotonic() >= until:
                self._work = work
                return pause
        return 0.0

    def drain(self) -> Iterator[Progress]:
        """All that is to do, with its progress after each step. The mirror must be running, here or elsewhere.

        Raises:
            StoreUnavailable, DatabaseError: nothing is lost; call again later.
        """
        while True:
            pause = self.poll()
            yield self.progress
            if self._work is None and not needed(*self.look()):
                return
            clock.sleep(pause)

    def look(self) -> tuple[Ground, Checkpoint]:
        """What Redis stands on, and what the database knows; a checkpoint that was never saved where there is none."""
        mine = Checkpoint.objects.using(self.using).filter(queue=self.queue.name, partition=self.partition)
        checkpoint = mine.first() or Checkpoint(queue=self.queue.name, partition=self.partition)
        return self.ground.look(checkpoint.last_event), checkpoint

    def unfinished(self) -> Any:
        """The rows that Redis must have: unfinished, durable, published, and not ended by an atomic run."""
        return Job.objects.using(self.using).filter(
            queue=self.queue.name, state__in=(State.RUNNING, State.SCHEDULED), durable=True, published__isnull=False,
            settled="",
        )  # fmt: skip

    def _stands(self) -> bool:
        """Whether Redis stands on the ground that was last found well; this asks the database now and then only."""
        if clock.monotonic() >= self._look_at:
            return False
        ground = self.ground.look(FIRST)
        return not ground.rolled and (ground.generation, ground.server, ground.confirmed) == self._well

    def _confirm(self, ground: Ground, checkpoint: Checkpoint) -> None:
        self._well, self._look_at = (ground.generation, ground.server, ground.server), clock.monotonic() + LOOK
        if ground.generation and ground.server and ground.confirmed != ground.server:
            if ground.confirmed:
                self._cancel_again(checkpoint)
            self.ground.confirm(ground.generation, server=ground.server, mirrored=checkpoint.last_event, actor=ACTOR)

    def _cancel_again(self, checkpoint: Checkpoint) -> None:
        """What was cancelled, and the mirror has no event of: another server may have forgotten it. None is claimed before this."""
        last = clock.wall_ms() if checkpoint.updated_at is None else clock.to_ms(checkpoint.updated_at)
        recent = clock.from_ms(min(last, clock.wall_ms()) - RECENT_MS)
        noted = Job.objects.using(self.using).filter(
            state=State.CANCELLED, finished_at__gte=recent, queue=self.queue.name, settled=CANCELLED_HERE
        )
        found = list(noted.values_list("id", flat=True))
        for start in range(0, len(found), MOST):
            failpoint("restore.cancel")
            self.store.cancel(found[start : start + MOST], actor=ACTOR, reason="the server was replaced after it")
            failpoint("restore.cancelled")

    def _pause(self) -> bool:
        if not self.unfinished().exists():
            return False
        if self.store.pause(actor=ACTOR, reason="run manage.py delayq restore"):
            logger.error(
                "queue %s: Redis has lost its contents or was rolled back; the queue is paused until somebody runs: "
                "manage.py delayq restore --queue %s", self.queue.name, self.queue.name,
            )  # fmt: skip
        return True

    def _others_are_at_it(self, ground: Ground) -> bool:
        at_ms, who, *_ = [*ground.restoring.split(" "), "", ""]
        return bool(who) and who not in (self._who, ACTOR) and abs(ground.now_ms - read.moment_ms(at_ms)) < BUSY_MS

    def _restore(self, ground: Ground, checkpoint: Checkpoint) -> Iterator[float]:
        rolled = ground.rolled or (ground.older and ground.generation in (checkpoint.restored, checkpoint.generation))
        total = self.unfinished().count()
        self.progress = Progress(total=total, began=clock.monotonic())
        if total or rolled or checkpoint.restored:
            logger.warning(
                "queue %s: Redis %s; %d unfinished jobs are looked up in the database", self.queue.name,
                "was rolled back to older data" if rolled else "has lost its contents", total,
            )  # fmt: skip
        generation = self._stand(ground, checkpoint, rolled)
        if not generation:
            return
        yield from self._wait_for_mirror()
        self._ended = []
        if rolled:
            yield from self._sweep()
        for state in (State.RUNNING, State.SCHEDULED):
            yield from self._bring_back(state, rolled)
        if self._ended:
            yield from self._bring_back_requeued()
        self._finish(generation, ground.server)

    def _stand(self, ground: Ground, checkpoint: Checkpoint, rolled: bool) -> str:
        """The generation to restore; a new one if the data was rolled back. "" if it has changed just now, or if
        another restore is at work.
        """
        behind = position(self.log.last_id()) < position(checkpoint.last_event)
        generation = ground.generation
        if rolled and not ground.rolled:
            renewed = "r" + secrets.token_hex(8)
            done = self.ground.confirm(
                generation,
                server=ground.server,
                renew=renewed,
                behind=checkpoint.last_event if behind else "",
                actor=ACTOR,
            )
            return renewed if done else ""
        return self._send([], rolled)[0].rpartition(":")[0]

    def _wait_for_mirror(self) -> Generator[float, None, bool]:
        """Rows must not be taken for unfinished merely because the mirror is behind. False if it still is."""
        mark, until, before = position(self.log.last_id()), clock.monotonic() + MIRROR_WAIT, ""
        while (first := self.log.read(FIRST, 1)) and position(first[0].id) <= mark:
            if first[0].id != before:  # it is at work
                before, until = first[0].id, max(until, clock.monotonic() + MIRROR_WAIT)
            if clock.monotonic() > until:
                logger.warning("queue %s: restore does not wait any longer for the mirror", self.queue.name)
                return False
            self._send([], False)
            yield WAIT
        return True

    def _sweep(self) -> Iterator[float]:
        """Jobs that Redis has, and whose rows are finished."""
        for found in self.log.jobs():
            for start in range(0, len(found), MOST):
                self._drop({ids.full(id): durable for id, durable in found[start : start + MOST]})
                yield 0.0

    def _drop(self, known: dict[UUID, bool]) -> None:
        items = self.ended(list(known))
        if self.queue.audit == "failures":  # whose rows are deleted when they end
            rows = set(Job.objects.using(self.using).filter(pk__in=known).values_list("id", flat=True))
            gone = [id for id, durable in known.items() if durable and id not in rows]
            items += [RestoreItem(id=ids.short(id), record=State.SUCCEEDED.encode()) for id in gone]
        if items:
            _, answers = self._send(items, True)
            self.progress.dropped += answers.count("dropped")

    def ended(self, known: list[UUID]) -> list[RestoreItem]:
        """Those of these jobs whose rows are finished, as Redis is to be told of them; 200 at most."""
        rows = Job.objects.using(self.using).filter(pk__in=known).values_list("id", "state", "settled")
        found = ((id, end_of(state, settled)) for id, state, settled in rows)
        return [RestoreItem(id=ids.short(id), record=end.encode()) for id, end in found if end]

    def _bring_back(self, state: State, rolled: bool) -> Iterator[float]:
        for batch in self._pages(state):
            self.progress.done += len(batch)
            items = self.items(batch)
            _, answers = self._send(items, rolled)
            self.progress.back += answers.count("restored")
            if rolled:
                told = zip(items, answers, strict=True)
                self._ended += [ids.full(item.id) for item, answer in told if answer == "finished"]
            yield 0.0

    def _pages(self, state: State) -> Iterator[list[Job]]:
        """By id, since dates change meanwhile: restore itself puts back what is overdue. A database without fresh statistics sorts all
        rows to find the next ids, so it is asked for many of these; and it is quick to find rows only if nothing but ids is asked for.
        """
        after = UUID(int=0)
        while True:
            found = self.unfinished().filter(state=state, pk__gt=after)
            listed = list(found.order_by("id").values_list("id", flat=True)[:LISTED])
            for start in range(0, len(listed), MOST):
                rows = Job.objects.using(self.using).filter(pk__in=listed[start : start + MOST])
                yield [row for row in rows.only(*FIELDS) if _unfinished(row)]
            if len(listed) < LISTED:
                return
            after = listed[-1]

    def _bring_back_requeued(self) -> Iterator[float]:
        """Of the jobs that have ended by what Redis says, and not by their rows. Most have ended just now, and their rows follow. What
        was requeued, and is still unfinished when the mirror has heard all, was requeued in the part that Redis has forgotten; none is
        requeued meanwhile. Dates decide nothing here: a clock may have gone back between the two.
        """
        if not (yield from self._wait_for_mirror()):
            logger.error(
                "queue %s: the mirror is behind, so %d jobs that have ended in Redis, and not in the database, are left as they "
                "are; a requeue of theirs may be lost: look at them in the admin, and requeue them there", self.queue.name,
                len(self._ended),
            )  # fmt: skip
            return
        for start in range(0, len(self._ended), MOST):
            some = self._ended[start : start + MOST]
            requeued = Event.objects.using(self.using).filter(job_id__in=some, kind=EventKind.REQUEUED)
            found = self.unfinished().filter(pk__in=set(requeued.values_list("job_id", flat=True)))
            items = [replace(item, requeued=True) for item in self.items(found.only(*FIELDS))]
            _, answers = self._send(items, True)
            self.progress.back += answers.count("restored")
            yield 0.0

    def items(self, batch: Iterable[Job]) -> list[RestoreItem]:
        """Unfinished rows as restore.lua wants them; without those that cannot be jobs."""
        items = []
        for row in batch:
            try:
                items.append(self._item(row))
            except PayloadError as error:
                logger.error("job %s of %s cannot be restored: %s", row.id, self.queue.name, error)
        return items

    def _item(self, row: Job) -> RestoreItem:
        record = self.store.written(rows.record_of(row))
        if row.state == State.RUNNING:
            return RestoreItem(
                id=ids.short(row.id), record=record, attempt=max(0, row.attempts - 1), crashes=row.crashes,
                delay_ms=self.queue.lease_ms,
            )  # fmt: skip
        return RestoreItem(
            id=ids.short(row.id), record=record, attempt=row.attempts, crashes=row.crashes,
            due_ms=clock.to_ms(row.run_at), delay_ms=ADOPTION_MS,
        )  # fmt: skip

    def _send(self, items: list[RestoreItem], rolled: bool) -> tuple[str, list[str]]:
        failpoint("restore.send")
        at = f"{self._who} {self.progress.done} {self.progress.total}"
        ground, answers = self.ground.restore(items, rolled="noted" if rolled else False, progress=at, actor=ACTOR)
        failpoint("restore.sent")
        return ground, list(answers)

    def _finish(self, generation: str, server: str) -> None:
        _, checkpoint = self.look()
        if not self.ground.confirm(generation, server=server, mirrored=checkpoint.last_event, actor=ACTOR):
            return
        # Both or neither: whoever finds the generation restored mends no rows.
        with turn(self.queue.name, self.partition, self.using) as (mine, _):
            mine.update(restored=generation)
            self._mend_rows()
            failpoint("restore.note")
        failpoint("restore.noted")
        done = self.progress
        if done.total or done.dropped:
            seconds = clock.monotonic() - done.began
            logger.warning(
                "queue %s: restored in %.1f s: %d jobs are back, %d that had ended were dropped, %d of %d rows were there",
                self.queue.name, seconds, done.back, done.dropped, done.done - done.back, done.done,
            )  # fmt: skip

    def _mend_rows(self) -> None:
        """What the database knew before Redis did, and whose events Redis has lost: cancels, and atomic runs that committed."""
        now = clock.now()
        known = Job.objects.using(self.using).filter(queue=self.queue.name, state__in=UNFINISHED).exclude(settled="")
        known.filter(settled=CANCELLED_HERE).update(state=State.CANCELLED.value, finished_at=now)
        known.exclude(settled=CANCELLED_HERE).update(
            state=State.SUCCEEDED.value, finished_at=Coalesce("finished_at", now), error="", fingerprint=""
        )
        runs = Attempt.objects.using(self.using).filter(finished_at__isnull=True, job__queue=self.queue.name)
        over = list(runs.filter(job__state__in=FINISHED).values_list("id", "fence", "job__settled"))
        for start in range(0, len(over), MOST):
            some = over[start : start + MOST]
            for done in (True, False):
                outcome = AttemptOutcome.SUCCEEDED if done else AttemptOutcome.CRASHED
                those = [id for id, fence, settled in some if (fence == settled) is done]
                runs.filter(pk__in=those).update(
                    finished_at=now,
                    outcome=outcome.value,
                    message="" if done else "Redis lost its contents while it ran",
                )


def _unfinished(row: Job) -> bool:
    """As `RestoreLoop.unfinished`, of a row that is here."""
    return row.state in UNFINISHED and row.durable and row.published is not None and not row.settled


def end_of(state: str, settled: str) -> str:
    """How a job has ended by its row; "" for one that has not."""
    if not settled:
        return state if state in FINISHED else ""
    return State.CANCELLED.value if settled == CANCELLED_HERE else State.SUCCEEDED.value


def needed(ground: Ground, checkpoint: Checkpoint) -> bool:
    """Whether Redis lacks what the database has seen in it."""
    if not checkpoint.restored and not checkpoint.generation:
        return False  # the database has seen nothing yet; the mirror notes the generation that it meets first
    return ground.rolled or ground.generation != checkpoint.restored or ground.older
