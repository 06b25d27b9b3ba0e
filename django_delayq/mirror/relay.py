"""Publishes committed rows that Redis does not have, and carries out committed changes. Redis was unavailable at their commit, or the
web process crashed then; or the rows wait for a running job of their key.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final
from uuid import UUID

from django.db.models import Count, OuterRef, QuerySet, Subquery, Value
from django.db.models.functions import Coalesce, NullIf

from django_delayq import clock, conf
from django_delayq.conf import QueueConfig
from django_delayq.exceptions import PayloadError, StoreUnavailable
from django_delayq.failpoints import failpoint
from django_delayq.job_meta import in_payload
from django_delayq.logger import Logger
from django_delayq.mirror.checkpoint import checkpoint_of, known_of, locked_checkpoint
from django_delayq.mirror.reconcile_rows import leave_to_a_person, unknown_end
from django_delayq.models import UNPUBLISHED, CommitRequest, Job, database
from django_delayq.models.database import ExistsQuery
from django_delayq.producer import commit_requests, homes, outbox
from django_delayq.producer.outbox import requests, rows
from django_delayq.producer.outbox.jobs import end_committed
from django_delayq.producer.outbox.shapes import StoredJob
from django_delayq.producer.publish import Publisher, late
from django_delayq.signing import Signer
from django_delayq.states import State
from django_delayq.store.connection.error_replies import StoreError
from django_delayq.store.connection.places import Places
from django_delayq.store.scripts import site
from django_delayq.store.scripts.decode import position
from django_delayq.store.scripts.events import FIRST, EventLog
from django_delayq.store.scripts.queue import MOST, QueueStore
from django_delayq.store.scripts.record import ScheduleReply
from django_delayq.store.scripts.site import REPEAT

logger = Logger("django_delayq.relay")

YOUNG: Final = 5.0  # seconds for which a row is left to the process that committed it
IDLE: Final = 1.0  # seconds between looks when everything is published
PAUSE: Final = 0.5
BEHIND: Final = 2.0  # seconds between rounds when all remaining rows wait for running holders
REQUEST_YOUNG: Final = 3.0  # seconds for which a request is left to the process that committed it
REQUEST_IDLE: Final = 2.0  # seconds between looks


def unpublished(queue: str) -> QuerySet[Job]:
    """The rows of a queue that Redis has not confirmed."""
    return Job.objects.filter(UNPUBLISHED, queue=queue, durable=True, settled="")


class SharedLook:
    """Whether a queue has any unpublished rows. One query serves the relays of all its partitions, because they look at about the
    same time.
    """

    def __init__(self, queue: str) -> None:
        self._any = ExistsQuery(unpublished(queue))
        self._at = -IDLE
        self._found = False

    def found(self) -> bool:
        """The result of a query that is younger than half a pause between looks.

        Raises:
            DatabaseError: as any query.
        """
        now = clock.monotonic()
        if now >= self._at + IDLE / 2:
            self._found = self._any.found()
            self._at = now
        return self._found


class RelayLoop:
    """1. If there is an unpublished row, notes the last event of the queue and the time (the mark).
    2. Waits until the mirror has folded everything up to the mark.
    3. Publishes the rows older than the mark that are still unpublished, by primary key. With each row that has a key it publishes
       the others of that key, oldest first.

    A row is published once the mirror has folded the event from Redis for it. Redis may forget a job that it has only answered; then
    only the row knows it. The relay marks a row as published only if Redis had it one pass ago and its event has not arrived. If the
    job had ended by then, no event says how. Its row becomes unresolved, and a person decides.

    Without the mark a row could be unpublished merely because the mirror is behind. Sending a row again is harmless; two relays may
    do the same work.
    """

    def __init__(
        self,
        places: Places,
        queue: QueueConfig,
        *,
        prefix: str,
        partition: int = 0,
        young: float = YOUNG,
        signer: Signer | None = None,
        look: SharedLook | None = None,
    ) -> None:
        self.queue = queue
        self._look = look
        self._young = young
        self.store = QueueStore(places, prefix=prefix, queue=queue.name, partition=partition, signer=signer)
        self.partition = partition
        self.log = EventLog(self.store.link, self.store.keys)
        self.publisher = Publisher(self.store, conf.get().most_events_in(queue.name), actor="relay")
        self._any = ExistsQuery(self._rows())
        self._mark: tuple[tuple[int, int], datetime] | None = None
        self._after: UUID | None = None  # the last row of this round
        self._statuses: set[str] = set()  # the statuses that Redis has answered in this round
        self._handed: list[UUID] = []  # rows to publish at once
        self._there: set[UUID] = set()  # jobs that Redis has or had, by its answers in this round,
        self._there_before: set[UUID] = set()  # and in the round before

    def hand_over(self, jobs: Collection[UUID]) -> None:
        """The next pass publishes these rows, whatever their age: they were written here, or the job for which they wait has ended."""
        self._handed += jobs

    def poll(self) -> float:
        """One batch of at most 200 rows. Returns seconds to sleep: 0 when more may be there.

        Raises:
            StoreUnavailable, DatabaseError: nothing is lost; call again later.
        """
        if self._handed:
            handed, self._handed = self._handed[:MOST], self._handed[MOST:]
            self._push(self._rows().filter(pk__in=handed))
            return 0.0
        if self._mark is None:
            # Usually there is no such row, and Redis need not be asked.
            if (self._look is not None and not self._look.found()) or not self._any.found():
                return IDLE
            now = database.now()
            if not self._unpublished(now, now).exists():
                return IDLE
            self._mark = position(self.log.last_id()), now
        mark, at = self._mark
        if mark > self._folded() and self._waits(mark):
            return PAUSE
        unpublished = self._unpublished(at, database.now())
        if self._after is not None:
            unpublished = unpublished.filter(pk__gt=self._after)
        page = self._push(unpublished)
        self._after = page[-1] if page else None
        if len(page) < MOST:
            self._mark = self._after = None
            self._there_before, self._there = self._there, set()
            statuses, self._statuses = self._statuses, set()
            return BEHIND if statuses == {"behind"} else PAUSE
        return 0.0

    def _folded(self) -> tuple[int, int]:
        checkpoint = checkpoint_of(self.queue.name, self.partition)
        if checkpoint.generation not in ("", self.log.generation()):
            return 0, 0
        return position(checkpoint.last_event)

    def _waits(self, mark: tuple[int, int]) -> bool:
        """Whether an entry up to the mark is still in the stream. Entries are removed only after they are folded. Without this look,
        a checkpoint that was lost or restored from a backup would stop the relay until the next event of the queue.
        """
        first = self.log.read(FIRST, 1)
        return bool(first) and position(first[0].id) <= mark

    def _unpublished(self, mark: datetime, now: datetime) -> QuerySet[Job]:
        return self._rows().exclude(database.written(mark - timedelta(seconds=self._young), now))

    def _rows(self) -> QuerySet[Job]:
        return unpublished(self.queue.name).filter(partition=self.partition)

    def _push(self, unpublished: QuerySet[Job]) -> list[UUID]:
        """Publishes the first 200 of these rows. Returns them; nothing if Redis has another epoch."""
        epoch, trimmed = self.store.stand()  # the rows that are read next belong to this epoch
        known = partial(known_of, self.queue.name, self.partition)
        site.check_mirror(self.store.keys, self.store.link.home, trimmed, known(), known)
        page = list(unpublished.order_by("id").values_list("id", "key")[:MOST])
        if not page:
            return []
        commit_requests.catch_up(self.queue.name, {id for id, _ in page}, {key for _, key in page if key})
        self.publisher.meet(key for _, key in page)
        found = outbox.jobs.read(self._with_siblings(page))
        self._give_up({id for id, _ in page} - found.keys())
        sent = [row for row in found.values() if row.unpublished]
        if self.queue.former_partitions:
            sent = self._free_to_go(sent)
        held = self.publisher.held([late(row) for row in sent])
        self._statuses |= {reply.status for reply in held.values()}
        sent = [row for row in sent if row.record.id not in held]
        for start in range(0, len(sent), MOST):
            batch = sent[start : start + MOST]
            failpoint("relay.publish")
            stood, replies = self.publisher.publish([late(row) for row in batch], epoch)
            failpoint("relay.published")
            self._statuses |= {reply.status for reply in replies} if stood == epoch else {"epoch"}
            if stood != epoch:
                return []  # the rows are read again in the next round
            self._answered(batch, replies, stood)
        return [id for id, _ in page]

    def _free_to_go(self, found: list[StoredJob]) -> list[StoredJob]:
        """The jobs whose concurrency name has no unfinished job in another home. The process that wrote the other jobs could not look
        that up, because Redis was unavailable while the number of partitions changed.
        """
        names = {row.record.id: name.home for row in found if (name := in_payload(row.record.payload))}
        borne = {name for name in set(names.values()) if homes.bears_elsewhere(self.queue, name, self.partition)}
        return [row for row in found if names.get(row.record.id) not in borne]

    def _with_siblings(self, page: list[tuple[UUID, str]]) -> list[UUID]:
        """Adds the other rows of the same keys. The older ones must go first, and ids do not show which are older."""
        keys = {key for _, key in page if key}
        ids = {id for id, _ in page}
        if not keys:
            return [*ids]
        # PostgreSQL does not see in a long list that no key is "", see `outbox.jobs.waiting`.
        return [*ids, *self._rows().filter(key__in=keys).exclude(key="").exclude(pk__in=ids).values_list("id", flat=True)]

    def _answered(self, batch: list[StoredJob], replies: list[ScheduleReply], epoch: str) -> None:
        answered = [(row.record.id, reply) for row, reply in zip(batch, replies, strict=True) if reply.id == row.record.id]
        ended = {id: reply.status for id, reply in answered if reply.ended and id in self._there_before}
        known = [id for id, reply in answered if reply.status == "again" and id in self._there_before]
        self._there.update(id for id, reply in answered if reply.created or reply.ended)
        if known or ended:
            with locked_checkpoint(self.queue.name, self.partition):
                if self.store.epoch() == epoch:  # otherwise Redis may have lost them again
                    self._note(known, ended)
                failpoint("relay.save")
        failpoint("relay.saved")
        created = sum(reply.status in ("created", "replaced") for reply in replies)
        if created:
            logger.info("queue %s: published jobs that were missing in Redis (%d)", self.queue.name, created)

    def _note(self, known: list[UUID], ended: Mapping[UUID, str]) -> None:
        """Marks as published the jobs that Redis had before and that have no event. A job that ended there may have run for another
        site, or not at all. Only a committed atomic run in this database proves an end.
        """
        self._free(known).update(published=database.ago())
        end_committed(self._free(list(ended)))
        unresolved = 0
        for status in set(ended.values()):
            those = self._free([id for id, end in ended.items() if end == status])
            unresolved += leave_to_a_person(those, unknown_end(status))
        if unresolved:
            logger.error(
                "queue %s: the outcome of some jobs (%d) is unknown, because the events of their ends are lost. To list them, "
                "run manage.py delayq list --state unresolved",
                self.queue.name,
                unresolved,
            )

    def _free(self, jobs: list[UUID]) -> Any:
        found = Job.objects.filter(UNPUBLISHED, pk__in=jobs)
        if database.connection().features.has_select_for_update_skip_locked:
            # Otherwise a request that works on such a row would keep all mirrors of the queue waiting.
            free = found.select_for_update(skip_locked=True).values_list("pk", flat=True)
            found = Job.objects.filter(pk__in=list(free))
        return found

    def _give_up(self, unread: set[UUID]) -> None:
        """Marks rows that cannot be jobs as failed."""
        for row in self._rows().filter(pk__in=unread):
            try:
                rows.record_of(row)
            except PayloadError as error:
                logger.error("job %s of %s cannot be published and fails: %s", row.id, self.queue.name, error)
                failpoint("relay.give_up")
                Job.objects.filter(pk=row.pk, published__isnull=True).update(
                    state=State.FAILED.value, finished_at=database.ago(), error=rows.clean(f"cannot be published: {error}")
                )
                failpoint("relay.gave_up")


class CommitRequestLoop:
    """Carries out changes, oldest first, that the process of their transaction has not carried out: it crashed between commit and
    hook, or Redis was unavailable. Any number of loops may run at once, because a repeated change has no further effect.
    """

    def __init__(self, *, young: float = REQUEST_YOUNG) -> None:
        self._young = timedelta(seconds=young)
        self._reported = float("-inf")
        self._any = ExistsQuery(CommitRequest.objects.all())

    def poll(self) -> float:
        """One batch of each queue that the settings list. Returns seconds to sleep.

        Raises:
            StoreUnavailable, StoreError, DatabaseError: what could be carried out is; call again later.
        """
        if not self._any.found():
            return REQUEST_IDLE
        now = database.now()
        waiting = _with_homes().exclude(at__gt=now - self._young, at__lte=now)
        away: StoreUnavailable | StoreError | None = None
        held: set[tuple[UUID | None, str, str]] = set()
        for queue in (None, *conf.get().queues):
            for request in requests.read(waiting.filter(home=queue), MOST):
                about = request.job, request.queue, request.key
                try:
                    if about not in held:
                        commit_requests.carry_out(request, late=True)
                except (StoreUnavailable, StoreError) as error:
                    away = error
                    held.add(about)  # later changes of the same job wait, in their order
        self._report(unlisted_requests())
        if away is not None:
            raise away
        return REQUEST_IDLE

    def _report(self, queues: dict[str, int]) -> None:
        if queues and clock.monotonic() - self._reported > REPEAT:
            self._reported = clock.monotonic()
            logger.error(
                "committed changes (%d) are waiting for a process that has these queues in its settings: %s",
                sum(queues.values()),
                ", ".join(sorted(queues)),
            )


def unlisted_requests() -> dict[str, int]:
    """The number of requests for each queue that the settings do not list."""
    found = _with_homes().exclude(home=None).exclude(home__in=list(conf.get().queues))
    return dict(found.order_by("home").values_list("home").annotate(Count("pk")))


def _with_homes() -> Any:
    """The requests with their queues as `home`. It is None for a job whose queue is neither in the request nor in a row."""
    row = Job.objects.filter(pk=OuterRef("job_id")).values("queue")[:1]
    return CommitRequest.objects.annotate(home=Coalesce(NullIf("queue", Value("")), Subquery(row)))
