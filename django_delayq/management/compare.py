"""Compares the unfinished rows with Redis, job by job, for `delayq doctor --deep`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import UUID

from django_delayq import clock, ids
from django_delayq.conf import QueueConfig
from django_delayq.exceptions import PayloadError
from django_delayq.mirror import restore_rows
from django_delayq.mirror.checkpoint import locked_checkpoint, needs_restore
from django_delayq.mirror.restore import RestoreLoop
from django_delayq.mirror.restore_rows import end_of, leave_to_a_person, unknown_end
from django_delayq.models import UNPUBLISHED, Job, database
from django_delayq.producer.outbox import rows
from django_delayq.signing import Signer
from django_delayq.states import UNFINISHED, State
from django_delayq.store.connection.places import Places
from django_delayq.store.reads.inspector import Inspector, JobView
from django_delayq.store.scripts.decode import position
from django_delayq.store.scripts.events import FIRST
from django_delayq.store.scripts.queue import MOST

PATIENCE: Final = 30.0  # seconds for the mirror to catch up
NO_END: Final = "why it failed did not reach the database"


@dataclass(slots=True)
class Orphans:
    """Jobs that only one side has. `missing`: unfinished rows that are not in Redis; `risen`: unfinished jobs in Redis with a finished
    row; `rowless`: jobs in Redis without a row (unfinished ones if `AUDIT` keeps a row for each, and failed ones within their
    retention); `lost`: unfinished rows of redis durability that are not in Redis; `ended`: unfinished rows whose job ended in Redis,
    without an event that shows how; `nowhere`: jobs with a record in Redis and no date, which no claim finds, without those that the
    relay schedules.
    """

    missing: list[UUID] = field(default_factory=list)
    risen: list[UUID] = field(default_factory=list)
    rowless: list[UUID] = field(default_factory=list)
    lost: list[UUID] = field(default_factory=list)
    ended: list[UUID] = field(default_factory=list)
    nowhere: list[UUID] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.missing) + len(self.risen) + len(self.rowless) + len(self.lost) + len(self.ended) + len(self.nowhere)


class Comparison:
    """1. Reads both sides in batches, and notes the differences. 2. Waits until the mirror has written the events of that time. For a
    job of redis durability that ran, it also waits for a lease, because its worker may still adopt it. 3. Checks the differences
    again, and drops those that were in progress. `fix` restores or removes jobs, writes rows, or marks lost jobs as unresolved.
    `left`: what `fix` cannot repair, because no worker could run the job, Redis was wiped in the meantime, or the record is
    unreadable or not signed.

    Raises (all methods):
        StoreUnavailable, DatabaseError: call again later.
    """

    def __init__(self, places: Places, queue: QueueConfig, *, prefix: str, partition: int = 0, signer: Signer | None = None) -> None:
        self.queue = queue
        self.loop = RestoreLoop(places, queue, prefix=prefix, partition=partition, signer=signer)
        self._signer = signer
        self.left = Orphans()
        self._inspector = Inspector(places, prefix=prefix)

    def find(self, wait: Iterator[None]) -> Orphans:
        """All differences. `wait`: each step lets some time pass and the mirror work."""
        suspects = Orphans()
        for batch in self._unfinished(self.loop.unfinished()):
            suspects.missing += self.loop.log.unknown(batch)
            suspects.ended += self.loop.log.ended(batch)
        for batch in self._unfinished(self._of_redis()):
            suspects.lost += self.loop.log.unknown(batch)
        for batch in self._in_redis():
            self._judge(batch, suspects)
            suspects.nowhere += self._inspector.nowhere(self.queue.name, batch)
        told = not suspects or self._wait_for_mirror(wait)
        found = Orphans()
        if told and suspects.lost and not needs_restore(*self.loop.look()):
            found.lost = self._lost(suspects.lost, wait)
        for batch in _batches(suspects.missing):
            found.missing += self.loop.log.unknown(self._still(batch))
        for batch in _batches(suspects.ended) if told else ():
            found.ended += self.loop.log.ended(self._still(batch))
        for batch in _batches(suspects.nowhere):
            unpublished = set(Job.objects.filter(UNPUBLISHED, pk__in=batch).values_list("id", flat=True))
            found.nowhere += [id for id in self._inspector.nowhere(self.queue.name, batch) if id not in unpublished]
        others = [*suspects.risen, *suspects.rowless]
        for start in range(0, len(others), MOST):
            self._judge(others[start : start + MOST], found)
        return found

    def fix(self, orphans: Orphans) -> Iterator[int]:
        """Restores missing jobs, removes risen jobs and writes missing rows. Yields the number of checked jobs after every step of at
        most 200.
        """
        for batch in _batches(orphans.missing):
            epoch = self.loop.store.epoch()
            found = restore_rows.fields_of(self.loop.unfinished().filter(pk__in=batch))
            self.loop.epoch.restore(self.loop.items(found), epoch=epoch, actor="doctor")
            self.left.missing += self.loop.log.unknown([row.id for row in found])
            yield len(batch)
        for batch in _batches(orphans.risen):
            known = Job.objects.filter(pk__in=batch).values_list("id", "state", "settled")
            self.loop.epoch.drop([ids.short(id) for id, *row in known if end_of(*row)], actor="doctor")
            yield len(batch)
        for batch in _batches(orphans.rowless):
            self._write_rows(batch)
            yield len(batch)
        for batch in _batches(orphans.lost):
            restore_rows.give_up(self.queue.name, self.loop.partition, self.loop.log.unknown(batch))
            yield len(batch)
        for batch in _batches(orphans.ended):
            with locked_checkpoint(self.queue.name, self.loop.partition):  # a mirror can be writing the rows
                leave_to_a_person(self.loop.unfinished().filter(pk__in=batch), unknown_end("finished"))
            yield len(batch)

        for batch in _batches(orphans.nowhere):
            self._place(batch)
            yield len(batch)

    def _place(self, batch: list[UUID]) -> None:
        """Schedules the jobs that have no date, by their rows. A job without a row is `left`."""
        epoch, rows = self.loop.store.epoch(), Job.objects.filter(pk__in=batch)
        ended = [ids.short(id) for id, *row in rows.values_list("id", "state", "settled") if end_of(*row)]
        self.loop.epoch.drop(ended, actor="doctor")
        waiting = restore_rows.fields_of(rows.filter(state__in=UNFINISHED, settled=""))
        self.loop.epoch.restore(self.loop.items(waiting), epoch=epoch, actor="doctor")
        self.left.nowhere += self._inspector.nowhere(self.queue.name, batch)

    def _still(self, batch: list[UUID]) -> list[UUID]:
        still = set(self.loop.unfinished().filter(pk__in=batch).values_list("id", flat=True))
        return [id for id in batch if id in still]

    def _of_redis(self) -> Any:
        return restore_rows.unfinished_redis_only(self.queue.name, self.loop.partition)

    def _lost(self, suspects: list[UUID], wait: Iterator[None]) -> list[UUID]:
        if self._of_redis().filter(pk__in=suspects, state=State.RUNNING).exists():
            until = clock.monotonic() + self.queue.lease
            while clock.monotonic() < until:
                next(wait)
        found = []
        for batch in _batches(suspects):
            still = set(self._of_redis().filter(pk__in=batch).values_list("id", flat=True))
            found += self.loop.log.unknown([id for id in batch if id in still])
        return found

    def _unfinished(self, rows: Any) -> Iterator[list[UUID]]:
        after: UUID | None = None
        while True:
            found = rows if after is None else rows.filter(pk__gt=after)
            batch = list(found.order_by("id").values_list("id", flat=True)[:MOST])
            if batch:
                yield batch
            if len(batch) < MOST:
                return
            after = batch[-1]

    def _in_redis(self) -> Iterator[list[UUID]]:
        for found in self.loop.log.jobs():
            for start in range(0, len(found), MOST):
                yield [ids.full(id) for id, _ in found[start : start + MOST]]

    def _judge(self, batch: list[UUID], found: Orphans) -> None:
        views = self._inspector.jobs(self.queue.name, batch)
        there = [view for view in views if view is not None and view.state != "finished"]
        known = Job.objects.filter(pk__in=[view.id for view in there])
        ends = {id: end_of(state, settled) for id, state, settled in known.values_list("id", "state", "settled")}
        for view in there:
            if view.id not in ends:
                if self._needs_row(view):
                    found.rowless.append(view.id)
            elif ends[view.id] and view.state != "failed":
                found.risen.append(view.id)

    def _needs_row(self, view: JobView) -> bool:
        if view.state != "failed":
            return self.queue.audit == "full"
        kept = self.queue.retention["failed"]
        return kept is None or view.now_ms - view.date_ms < kept * 1000

    def _wait_for_mirror(self, wait: Iterator[None]) -> bool:
        mark, until = position(self.loop.log.last_id()), clock.monotonic() + PATIENCE
        while (first := self.loop.log.read(FIRST, 1)) and position(first[0].id) <= mark:
            if clock.monotonic() > until:
                return False
            next(wait)
        return True

    def _trusted(self, view: JobView) -> bool:
        return self._signer is None or self._signer.verifies(view.raw, queue=self.queue.name, id=ids.short(view.id))

    def _write_rows(self, batch: list[UUID]) -> None:
        made, now = [], database.now()
        for view in self._inspector.jobs(self.queue.name, batch):
            if view is None:
                continue  # it has ended in the meantime
            if view.record is None or not self._trusted(view):
                self.left.rowless.append(view.id)
                continue
            date = clock.from_ms(view.date_ms)
            try:
                row = rows.new_row(
                    view.record,
                    self.queue.name,
                    date,
                    state=view.state,
                    created_at=now,
                    published=now,
                    attempts=view.attempt,
                    crashes=view.crashes,
                )
            except PayloadError:
                self.left.rowless.append(view.id)
                continue
            if view.state == "failed":
                row.finished_at, row.error = date, row.error or NO_END
                row.fingerprint = rows.fingerprint(row.error)
            made.append(rows.model_of(row))
        Job.objects.bulk_create(made, ignore_conflicts=True)


def _batches(found: list[UUID]) -> Iterator[list[UUID]]:
    for start in range(0, len(found), MOST):
        yield found[start : start + MOST]
