"""Compares both sides, job by job: what the rows say is unfinished, and what Redis has. `delayq doctor --deep` asks for it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from django_delayq import clock, ids
from django_delayq.conf import QueueConfig
from django_delayq.exceptions import PayloadError
from django_delayq.mirror import rows
from django_delayq.mirror.restore import RestoreLoop, end_of
from django_delayq.models import Job
from django_delayq.signing import Signer
from django_delayq.store.connection import Link
from django_delayq.store.events import FIRST, position
from django_delayq.store.inspector import Inspector, JobView
from django_delayq.store.queue import MOST

PATIENCE: Final = 30.0  # seconds for the mirror to come up to date


@dataclass(slots=True)
class Orphans:
    """Jobs that one side has and the other has not. `missing`: unfinished rows that Redis does not have; `risen`: jobs in Redis whose
    rows are finished; `rowless`: jobs in Redis without a row, where `AUDIT` keeps one for each.
    """

    missing: list[UUID] = field(default_factory=list)
    risen: list[UUID] = field(default_factory=list)
    rowless: list[UUID] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.missing or self.risen or self.rowless)


class Comparison:
    """1. Walks both sides in batches, and notes what one has and the other has not. 2. Waits until the mirror has folded what it had
    not then. 3. Looks again at what was noted: what has cleared up was on its way. `fix` brings back, drops, or writes the row.

    Raises (all methods):
        StoreUnavailable, DatabaseError: call again later.
    """

    def __init__(
        self, link: Link, queue: QueueConfig, *, prefix: str, using: str, signer: Signer | None = None
    ) -> None:
        self.queue = queue
        self.using = using
        self.loop = RestoreLoop(link, queue, prefix=prefix, using=using, signer=signer)
        self._signer = signer
        self._inspector = Inspector(link, prefix=prefix)

    def find(self, wait: Iterator[None]) -> Orphans:
        """All orphans. `wait`: each step lets some time pass, and the mirror work."""
        suspects = Orphans()
        for batch in self._unfinished():
            suspects.missing += self._missing(batch)
        for batch in self._in_redis():
            self._judge(batch, suspects)
        if suspects:
            self._wait_for_mirror(wait)
        found = Orphans()
        for start in range(0, len(suspects.missing), MOST):
            batch = suspects.missing[start : start + MOST]
            still = set(self.loop.unfinished().filter(pk__in=batch).values_list("id", flat=True))
            found.missing += self._missing([id for id in batch if id in still])
        others = [*suspects.risen, *suspects.rowless]
        for start in range(0, len(others), MOST):
            self._judge(others[start : start + MOST], found)
        return found

    def fix(self, orphans: Orphans) -> int:
        """Brings back what is missing, drops what has risen, writes the rows that are not there. Returns how many are right now."""
        done = 0
        for start in range(0, len(orphans.missing), MOST):
            items = self.loop.items(self.loop.unfinished().filter(pk__in=orphans.missing[start : start + MOST]))
            done += self.loop.ground.restore(items, actor="doctor")[1].count("restored")
        for start in range(0, len(orphans.risen), MOST):
            items = self.loop.ended(orphans.risen[start : start + MOST])
            done += self.loop.ground.restore(items, rolled=True, actor="doctor")[1].count("dropped")
        for start in range(0, len(orphans.rowless), MOST):
            done += self._write_rows(orphans.rowless[start : start + MOST])
        return done

    def _unfinished(self) -> Iterator[list[UUID]]:
        after: UUID | None = None
        while True:
            found = self.loop.unfinished() if after is None else self.loop.unfinished().filter(pk__gt=after)
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

    def _missing(self, batch: list[UUID]) -> list[UUID]:
        views = self._inspector.jobs(self.queue.name, batch) if batch else []
        return [id for id, view in zip(batch, views, strict=True) if view is None]

    def _judge(self, batch: list[UUID], found: Orphans) -> None:
        views = self._inspector.jobs(self.queue.name, batch)
        alive = {view.id for view in views if view is not None and view.state in ("scheduled", "running")}
        known = Job.objects.using(self.using).filter(pk__in=alive).values_list("id", "state", "settled")
        ends = {id: end_of(state, settled) for id, state, settled in known}
        for id in batch:
            if id not in alive:
                continue
            if id not in ends:
                if self.queue.audit == "full":
                    found.rowless.append(id)
            elif ends[id]:
                found.risen.append(id)

    def _wait_for_mirror(self, wait: Iterator[None]) -> None:
        mark, until = position(self.loop.log.last_id()), clock.monotonic() + PATIENCE
        while (first := self.loop.log.read(FIRST, 1)) and position(first[0].id) <= mark:
            if clock.monotonic() > until:
                return
            next(wait)

    def _trusted(self, view: JobView) -> bool:
        return self._signer is None or self._signer.verifies(view.raw, queue=self.queue.name, id=ids.short(view.id))

    def _write_rows(self, batch: list[UUID]) -> int:
        made = []
        for view in self._inspector.jobs(self.queue.name, batch):
            if view is None or view.record is None or not self._trusted(view):
                continue
            try:
                made.append(
                    rows.new_row(
                        view.record, self.queue.name, clock.from_ms(view.date_ms), state=view.state, published=clock.now(),
                        attempts=view.attempt, crashes=view.crashes,
                    )
                )  # fmt: skip
            except PayloadError:
                continue
        Job.objects.using(self.using).bulk_create(made, ignore_conflicts=True)
        return len(made)
