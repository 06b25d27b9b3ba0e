"""Prune deletes rows whose retention has passed: jobs, operations, and the ticks of schedules. Tidy drops expired data from Redis."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

from django.db.models import Exists, OuterRef

from django_delayq import clock
from django_delayq.conf import Config, QueueConfig
from django_delayq.failpoints import failpoint
from django_delayq.ids import by_partition
from django_delayq.mirror.checkpoint import checkpoint_of, locked_checkpoint
from django_delayq.models import Attempt, Batch, Event, Job, Operation, SetAside, Step, Tick, database
from django_delayq.producer.outbox import agreed_clock, batches, period_keys
from django_delayq.producer.outbox.agreed_clock import ClocksDiffer
from django_delayq.producer.stores import stores
from django_delayq.states import FINISHED, EndingKind, State
from django_delayq.store.connection.places import Places
from django_delayq.store.scripts.events import EventLog
from django_delayq.store.scripts.queue import MOST, QueueStore

BATCH: Final = 500
PAUSE: Final = 60.0
MERGED_KEPT: Final = timedelta(hours=1)
MERGED_SEEN: Final = timedelta(days=2)  # how far back the first look goes
LOST_PAUSE: Final = 3_600.0
TIDY: Final = 20.0
STEPS_KEPT: Final = 30 * 24 * 3_600.0  # longer than any retry ladder, so that the job cannot be delivered again
FAILED_IN_REDIS_MS: Final = 7 * 24 * 3_600_000  # a failed record is kept in Redis that long; its row decides the rest
TICKS_PAUSE: Final = 600.0  # seconds between two rounds of ticks
TICKS_LONG_PAUSE: Final = 3_600.0  # the pause after a round that removed nothing
TICKS_PACE: Final = 1.0  # seconds between two looks of a round that delete nothing
TICKS_LEAST: Final = 24 * 3_600.0  # seconds for which a tick is kept: if a clock is put back, the tick shows that it has had its job


def old_jobs(queue: QueueConfig, now: datetime, *, merged_since: datetime | None = None) -> Iterator[tuple[str, Any]]:
    """Yields, for each finished state with a retention, its name and the queryset of rows past it. Then yields "merged": proposals
    that were merged into another job longer than an hour ago, which add nothing to the row of that job. `merged_since`: only the
    merged rows that ended at that time or later. Members of open batches are kept.
    """
    open_batch = Batch.objects.filter(pk=OuterRef("batch"), over_at=None)
    rows = Job.objects.filter(~Exists(open_batch), queue=queue.name)
    for state in FINISHED:
        seconds = queue.retention[state.value]
        if seconds is not None:
            yield state.value, rows.filter(state=state.value, finished_at__lt=now - timedelta(seconds=seconds))
    merged = rows.filter(state=State.CANCELLED, finished_at__lt=now - MERGED_KEPT, ending=EndingKind.MERGED)
    yield "merged", merged if merged_since is None else merged.filter(finished_at__gte=merged_since)


def old_set_aside(queue: QueueConfig, now: datetime) -> Any:
    """Events that were set aside and whose retention has passed."""
    kept = queue.retention["set_aside"]
    found = SetAside.objects.filter(queue=queue.name)
    return found.none() if kept is None else found.filter(noticed_at__lt=now - timedelta(seconds=kept))


def old_operations(config: Config, now: datetime) -> Any:
    """Operations that are over and older than the retention of cancelled jobs: both record what people did."""
    kept = config.retention["cancelled"]
    over = Operation.objects.filter(stage__in=(Operation.Stage.FINISHED, Operation.Stage.CANCELLED))
    return over.none() if kept is None else over.filter(finished_at__lt=now - timedelta(seconds=kept))


class PruneLoop:
    """Deletes at most 500 jobs a pass, with their attempts and events, by primary key, so that no lock is held for long."""

    def __init__(self, places: Places, queue: QueueConfig) -> None:
        self.queue = queue
        self._places = places
        # There is no index for merged rows. So after the first look, only newer rows are read. Merged rows that a mirror writes late
        # stay as long as other cancelled jobs.
        self._merged_since: datetime | None = None
        self._lost_at = 0.0  # when (monotonic) to look for lost jobs again

    def poll(self) -> float:
        """One batch. Returns seconds to sleep: 0 when more may be there.

        Raises:
            StoreUnavailable, DatabaseError, ClocksDiffer: call again later.
        """
        began = self.now()
        if self.prune(merged_since=self._merged_since or began - MERGED_SEEN) >= BATCH:
            return 0.0
        self._merged_since = began - 2 * MERGED_KEPT
        if clock.monotonic() >= self._lost_at:
            period_keys.end_lost(self.queue.name, began, self._unknown, MOST)
            self._lost_at = clock.monotonic() + LOST_PAUSE
        return PAUSE

    def _unknown(self, jobs: list[UUID]) -> list[UUID]:
        found: list[UUID] = []
        for partition, some in by_partition(jobs).items():
            store = stores.queue(self.queue.name, partition)
            found += EventLog(store.link, store.keys).unknown(some)
        return found

    def now(self) -> datetime:
        """The time that decides which rows are old. Raises: see `poll`."""
        return agreed_clock.of_queue(self._places, self.queue.name, self.queue.served)

    def prune(self, *, merged_since: datetime | None = None) -> int:
        """Deletes one batch, filled from one state after the other. Returns the number of deleted rows, without the steps and
        attempts of the jobs.
        """
        now, total = self.now(), 0
        for _, found in old_jobs(self.queue, now, merged_since=merged_since):
            gone = list(found.order_by().values_list("pk", flat=True)[: BATCH - total])
            for partition, some in by_partition(gone).items():
                # The lock keeps the mirror from working on these rows. Rows that have been requeued since stay.
                with locked_checkpoint(self.queue.name, partition):
                    some = list(found.order_by().filter(pk__in=some).select_for_update().values_list("pk", flat=True))
                    delete_jobs(some)
                    failpoint("prune.delete")
                failpoint("prune.deleted")
                total += len(some)
        steps = self._prune_steps(now) + self._prune_set_aside(now)
        return total + steps + period_keys.prune(now, BATCH)

    def _prune_set_aside(self, now: datetime) -> int:
        gone = list(old_set_aside(self.queue, now).order_by("pk").values_list("pk", flat=True)[:BATCH])
        if gone:
            failpoint("prune.drop_set_aside")
            SetAside.objects.filter(pk__in=gone).delete()
            failpoint("prune.dropped_set_aside")
        return len(gone)

    def _prune_steps(self, now: datetime) -> int:
        """Deletes steps of jobs that have no row, because of redis durability or AUDIT."""
        before = now - timedelta(seconds=STEPS_KEPT)
        rows = Job.objects.filter(pk=OuterRef("job_id"))
        orphans = Step.objects.filter(at__lt=before).exclude(Exists(rows))
        gone = list(orphans.order_by("at").values_list("pk", flat=True)[:BATCH])
        if gone:
            failpoint("prune.drop_steps")
            Step.objects.filter(pk__in=gone).delete()
            failpoint("prune.dropped_steps")
        return len(gone)


def delete_jobs(jobs: Sequence[UUID]) -> None:
    """Deletes the rows of these jobs. The caller holds the lock of their checkpoint."""
    period_keys.keep_ends(jobs)
    Attempt.objects.filter(job_id__in=jobs).delete()
    Event.objects.filter(job_id__in=jobs).delete()
    Step.objects.filter(job_id__in=jobs).delete()
    Job.objects.filter(pk__in=jobs)._raw_delete(database.alias())


class OldOperationsLoop:
    """Deletes at most 500 operations a pass, and old batches. The events of the jobs and the log of the admin keep a record of what the
    operations did.
    """

    def __init__(self, places: Places, config: Config) -> None:
        self.config = config
        self._places = places

    def poll(self) -> float:
        """One batch. Returns seconds to sleep: 0 when more may be there.

        Raises:
            StoreUnavailable, DatabaseError, ClocksDiffer: call again later.
        """
        return 0.0 if self.prune() >= BATCH else PAUSE

    def now(self) -> datetime:
        """The time that decides which operations are old. Raises: see `poll`."""
        return agreed_clock.now([self._places.shared])

    def prune(self) -> int:
        """Deletes one batch. Returns the number of deleted rows."""
        now = self.now()
        batches.prune(now, self.config.retention)
        gone = list(old_operations(self.config, now).order_by("id").values_list("pk", flat=True)[:BATCH])
        if gone:
            failpoint("prune.drop_operations")
            Operation.objects.filter(pk__in=gone).delete()
            failpoint("prune.dropped_operations")
        return len(gone)


class TidyLoop:
    """Drops expired data from Redis: tombstones, counters, claims, and failed records that the mirror has written to rows."""

    def __init__(self, places: Places, queue: QueueConfig, *, prefix: str, partition: int = 0) -> None:
        self.queue = queue
        self.store = QueueStore(places, prefix=prefix, queue=queue.name, partition=partition)
        self._cursor = "0"

    def poll(self) -> float:
        """One call of tidy. Returns seconds to sleep: 0 when more may be there.

        Raises:
            StoreUnavailable, DatabaseError: call again later.
        """
        try:
            before = self._failed_before(agreed_clock.now([self.store.link]))
        except ClocksDiffer:  # prune logs it; tidy compares the rest with Redis' own clock, which also dated it
            before = None
        failpoint("mirror.tidy")
        done = self.store.tidy(failed_before_ms=before, cursor=self._cursor)
        failpoint("mirror.tidied")
        self._cursor = done.cursor
        return 0.0 if done.cursor != "0" or done.tombstones >= 200 or done.failed >= 200 else TIDY

    def _failed_before(self, now: datetime) -> int | None:
        checkpoint = checkpoint_of(self.queue.name, self.store.partition)
        if checkpoint.pk is None:
            return None
        folded_ms = int(checkpoint.last_event.partition("-")[0])
        return min(folded_ms, clock.to_ms(now) - FAILED_IN_REDIS_MS)


def old_ticks(config: Config, now: datetime) -> Any:
    """Ticks older than the retention of succeeded jobs, without a job or with a job that has no row. Jobs that a queue keeps
    longer, and failed jobs, keep their tick.
    """
    edge, ticks = _edge(config, now), Tick.objects
    if edge is None:
        return ticks.none()
    jobs = Job.objects.filter(pk=OuterRef("job_id"))
    return ticks.filter(written_at__lt=edge).exclude(Exists(jobs))


class OldTicksLoop:
    """Looks at 500 ticks a pass, by primary key, from where the pass before ended. If all were too young, or the last row is reached,
    it starts again from the oldest row. So even millions of rows that stay cost at most one look a second. After each round it pauses
    for minutes.
    """

    def __init__(self, places: Places, config: Config) -> None:
        self.config = config
        self._places = places
        self._seen = 0  # all rows up to this one were checked in this round
        self._gone = 0  # the number of rows that this round has deleted

    def poll(self) -> float:
        """One batch. Returns seconds to sleep: 0 when there may be more to delete.

        Raises:
            StoreUnavailable, DatabaseError, ClocksDiffer: call again later.
        """
        gone = self._step()
        self._gone += gone
        if self._seen:
            return 0.0 if gone else TICKS_PACE
        rest = TICKS_PAUSE if self._gone else TICKS_LONG_PAUSE
        self._gone = 0
        return rest

    def prune(self) -> int:
        """Runs batches until one deletes rows. Returns their number; 0: no rows are left to delete."""
        while not (gone := self._step()):
            if not self._seen:
                return 0
        return gone

    def now(self) -> datetime:
        """By which ticks are old. Raises: see `poll`."""
        return agreed_clock.now([self._places.shared])

    def _step(self) -> int:
        now = self.now()
        edge, ticks = _edge(self.config, now), Tick.objects
        looked = list(ticks.filter(pk__gt=self._seen).order_by("pk").values_list("pk", "written_at")[:BATCH])
        # Not the last one says that the rest is young: a tick that got another job keeps its place.
        over = edge is None or len(looked) < BATCH or all(written_at >= edge for _, written_at in looked)
        self._seen = 0 if over else looked[-1][0]
        gone = list(old_ticks(self.config, now).filter(pk__in=[pk for pk, _ in looked]).values_list("pk", flat=True)) if looked else []
        if gone:
            ticks.filter(pk__in=gone).delete()
        return len(gone)


def _edge(config: Config, now: datetime) -> datetime | None:
    """Ticks that were written before this may go; None: none may."""
    kept = config.retention["succeeded"]
    return None if kept is None else now - timedelta(seconds=max(kept, TICKS_LEAST))
