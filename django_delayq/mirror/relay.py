"""The relay pushes committed rows that Redis does not have: it was away at their commit, or the web process died just then."""

from __future__ import annotations

import logging
from typing import Final
from uuid import UUID

from django.db import connections
from django.db.models import QuerySet

from django_delayq import clock
from django_delayq.conf import QueueConfig
from django_delayq.exceptions import PayloadError
from django_delayq.failpoints import failpoint
from django_delayq.mirror import rows
from django_delayq.mirror.glance import Glance
from django_delayq.mirror.turns import turn
from django_delayq.models import Checkpoint, Job
from django_delayq.signing import Signer
from django_delayq.states import State
from django_delayq.store.connection import Link
from django_delayq.store.events import FIRST, EventLog, position
from django_delayq.store.ground import GroundStore
from django_delayq.store.queue import MOST, QueueStore, ScheduleItem

logger = logging.getLogger("django_delayq.relay")

YOUNG: Final = 5.0  # seconds for which a row is left to the process that committed it
IDLE: Final = 1.0  # seconds between looks when nothing is unpublished
PAUSE: Final = 0.5


class RelayLoop:
    """1. If there is an unpublished row, notes the last event of the queue and the time (the mark). 2. Waits until the mirror has
    folded everything up to the mark. 3. Pushes the rows older than the mark that are still unpublished, by primary key. Those whose
    cancel Redis remembers end as cancelled.

    Published a row is when the mirror has folded Redis' event of it: what Redis has answered it may forget before that, and then
    nothing but the row would know. Only a row that Redis had already a round ago, and of which the mirror has no event, is noted
    here.

    Without the mark a row could be unpublished merely because the mirror is behind, and its tombstone gone: pushing it would run
    it twice. Sending a row again is harmless; two relays may do the same work.
    """

    def __init__(
        self,
        link: Link,
        queue: QueueConfig,
        *,
        prefix: str,
        using: str,
        partition: int = 0,
        young: float = YOUNG,
        signer: Signer | None = None,
    ) -> None:
        self.queue = queue
        self.using = using
        self.partition = partition
        self._young = young
        self.store = QueueStore(link, prefix=prefix, queue=queue.name, partition=partition, signer=signer)
        self.log = EventLog(link, self.store.keys)
        self.ground = GroundStore(self.store)
        self._any = Glance(self._rows())
        self._mark: tuple[tuple[int, int], int] | None = None
        self._after: UUID | None = None  # up to where this round has come
        self._there: set[UUID] = set()  # what Redis has, as it said in this round,
        self._there_before: set[UUID] = set()  # and in the one before

    def poll(self) -> float:
        """One batch of at most 200 rows. Returns seconds to sleep: 0 when more may be there.

        Raises:
            StoreUnavailable, DatabaseError: nothing is lost; call again later.
        """
        if self._mark is None:
            # Mostly there is none at all; then Redis need not be asked.
            if not self._any.found() or not self._unpublished(clock.wall_ms()).exists():
                return IDLE
            self._mark = position(self.log.last_id()), clock.wall_ms()
        mark, at_ms = self._mark
        if mark > self._folded() and self._waits(mark):
            return PAUSE
        if self._push(at_ms) < MOST:
            self._mark = self._after = None
            self._there_before, self._there = self._there, set()
            return PAUSE
        return 0.0

    def _folded(self) -> tuple[int, int]:
        checkpoint = (
            Checkpoint.objects.using(self.using).filter(queue=self.queue.name, partition=self.partition).first()
        )
        if checkpoint is None or checkpoint.generation not in ("", self.log.generation()):
            return 0, 0
        return position(checkpoint.last_event)

    def _waits(self, mark: tuple[int, int]) -> bool:
        """Whether an entry up to the mark is still there. Entries go only when they are folded: without this look, a checkpoint
        that was lost or restored from a backup would stop the relay until something else happens in the queue.
        """
        first = self.log.read(FIRST, 1)
        return bool(first) and position(first[0].id) <= mark

    def _unpublished(self, mark_ms: int) -> QuerySet[Job]:
        return self._rows().filter(created_at__lt=clock.from_ms(mark_ms - int(self._young * 1000)))

    def _rows(self) -> QuerySet[Job]:
        return Job.objects.using(self.using).filter(
            queue=self.queue.name, state=State.SCHEDULED.value, published__isnull=True, durable=True, settled=""
        )

    def _push(self, mark_ms: int) -> int:
        unpublished = self._unpublished(mark_ms)
        if self._after is not None:
            unpublished = unpublished.filter(pk__gt=self._after)
        found = list(unpublished.order_by("id")[:MOST])
        items = []
        for row in found:
            try:
                record = rows.record_of(row)
            except PayloadError as error:
                self._give_up(row, error)
                continue
            items.append(ScheduleItem(record=record, due_ms=clock.to_ms(row.run_at), on_conflict=row.on_conflict))  # type: ignore[arg-type]  # checked when it was scheduled
        if not items:
            self._after = found[-1].pk if found else None
            return len(found)
        stood = self.ground.stand()
        failpoint("relay.publish")
        replies = self.store.schedule(items, actor="relay")
        failpoint("relay.published")
        now = clock.now()
        answered = list(zip((item.record.id for item in items), replies, strict=True))
        taken = [id for id, reply in answered if reply.created and reply.status != "cancelled"]
        rows_here = Job.objects.using(self.using).filter(published__isnull=True, state=State.SCHEDULED.value)
        self._follow(found, taken)
        known = [id for id, reply in answered if reply.status in ("again", "finished") and id in self._there_before]
        # Cancelled in Redis, and no event of it: a cancel whose row was not saved.
        ended = [id for id, reply in answered if reply.status == "cancelled"]
        if known or ended:
            with turn(self.queue.name, self.partition, self.using):
                if self.ground.stand() != stood:
                    return 0  # Redis may have lost them again: they stay unpublished, and restore leaves those to the relay
                rows_here.filter(pk__in=known).update(published=now)
                free = rows_here.filter(pk__in=ended)
                if connections[self.using].features.has_select_for_update_skip_locked:
                    # A request that works on such a row would else keep all mirrors of the queue waiting.
                    found_free = free.select_for_update(skip_locked=True).values_list("pk", flat=True)
                    free = rows_here.filter(pk__in=list(found_free))
                free.update(
                    published=now,
                    state=State.CANCELLED.value,
                    finished_at=now,
                    error="cancelled before it was published",
                )
                failpoint("relay.save")
        failpoint("relay.saved")
        self._there.update(taken)
        self._after = found[-1].pk
        created = sum(reply.status == "created" for _, reply in answered)
        if created:
            logger.info("published %d jobs of %s that Redis did not have", created, self.queue.name)
        return len(found)

    def _follow(self, found: list[Job], taken: list[UUID]) -> None:
        """Gives its new date to a job whose row was moved after it was read and before it was in Redis."""
        dates = dict(Job.objects.using(self.using).filter(pk__in=taken, last_event="").values_list("id", "run_at"))
        for row in found:
            date = dates.get(row.id, row.run_at)
            if date != row.run_at:
                failpoint("relay.move")
                self.store.reschedule(row.id, due_ms=clock.to_ms(date), actor="relay")
                failpoint("relay.moved")

    def _give_up(self, row: Job, error: PayloadError) -> None:
        logger.error("job %s of %s cannot be published, and fails: %s", row.id, self.queue.name, error)
        failpoint("relay.give_up")
        Job.objects.using(self.using).filter(pk=row.pk, published__isnull=True).update(
            state=State.FAILED.value, finished_at=clock.now(), error=rows.clean(f"cannot be published: {error}")
        )
        failpoint("relay.gave_up")
