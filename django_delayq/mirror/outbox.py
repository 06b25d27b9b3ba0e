"""The outbox: the producer's protocol (`django_delayq.outbox`) over the job table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from django.db import transaction
from django.db.models import F, Q

from django_delayq import clock, ids
from django_delayq.exceptions import PayloadError
from django_delayq.failpoints import failpoint
from django_delayq.mirror import inserts, rows
from django_delayq.models import CANCELLED_HERE, Event, Job
from django_delayq.outbox import OutboxItem, OutboxRow
from django_delayq.states import UNFINISHED, EventKind, State

EDITED: Final = (
    "edited"  # an event that no script writes: the arguments were changed, and its detail says what they were
)


class _TakenBack(Exception):
    """Ends a transaction in which nothing is to change."""


class DatabaseOutbox:
    """Rows in the caller's transaction."""

    def add(self, items: Sequence[OutboxItem], using: str) -> None:
        """Inserts rows. They count as unpublished until the mirror sees Redis' event."""
        connection = transaction.get_connection(using)
        if connection.vendor in inserts.VENDORS:
            inserts.insert(items, connection)
            return
        Job.objects.using(using).bulk_create(
            rows.new_row(
                item.record,
                item.queue,
                clock.from_ms(item.run_at_ms),
                priority=item.priority,
                on_conflict=item.on_conflict,
            )
            for item in items
        )

    def find_unpublished(self, queue: str, key: str, using: str) -> UUID | None:
        """The scheduled row of that key which Redis has not confirmed. Keys are compared here: some databases ignore case."""
        found = Job.objects.using(using).filter(
            queue=queue, key=key, state=State.SCHEDULED.value, published__isnull=True
        )
        return next((id for id, own in found.order_by("id").values_list("id", "key")[:20] if own == key), None)

    def find_latest(self, queue: str, key: str, using: str) -> UUID | None:
        """The latest row of that key, but for those that were merged into another job: any number may have come while it waited."""
        merged = Q(state=State.CANCELLED.value, error__startswith=rows.MERGED)
        found = Job.objects.using(using).filter(~merged, queue=queue, key=key)
        return next((id for id, own in found.order_by("-id").values_list("id", "key")[:20] if own == key), None)

    def unpublished(self, queue: str, after: UUID | None, limit: int, using: str) -> list[UUID]:
        """Scheduled rows of a queue that Redis has not confirmed, behind the id `after`, by id."""
        found = Job.objects.using(using).filter(queue=queue, state=State.SCHEDULED.value, published__isnull=True)
        if after is not None:
            found = found.filter(pk__gt=after)
        return list(found.order_by("id").values_list("id", flat=True)[:limit])

    def row(self, job: UUID, using: str) -> OutboxRow | None:
        """The row of a job; None if there is none, or only a stub."""
        found = Job.objects.using(using).filter(pk=job).first()
        if found is None:
            return None
        try:
            record = rows.record_of(found)
        except PayloadError:
            return None
        return OutboxRow(
            record=record,
            queue=found.queue,
            state=State(found.state),
            run_at_ms=clock.to_ms(found.run_at),
            published=found.published is not None,
            seen=found.last_event,
        )

    def note_cancel(self, job: UUID, seen: str, using: str) -> bool:
        """Notes in the row that a cancel was answered with done, if the row has folded nothing since `seen`: else it may speak of a
        requeue behind it.
        """
        mine = Job.objects.using(using).filter(pk=job, last_event=seen, settled="", durable=True, state__in=UNFINISHED)
        failpoint("outbox.note")
        noted = mine.update(state=State.CANCELLED.value, finished_at=clock.now(), settled=CANCELLED_HERE)
        failpoint("outbox.noted")
        return bool(noted)

    def forget_cancel(self, job: UUID, using: str) -> None:
        """The job is about to be requeued: what was noted of its cancel must not end it once more."""
        failpoint("outbox.forget")
        Job.objects.using(using).filter(pk=job, settled=CANCELLED_HERE).update(settled="")
        failpoint("outbox.forgotten")

    def cancel_unpublished(self, job: UUID, actor: str, reason: str, using: str) -> bool:
        """Ends a row that Redis does not have. The caller has made sure that a publication under way is recognised as late."""
        now = clock.now()
        with transaction.atomic(using=using):
            changed = self._unpublished(job, using).update(
                state=State.CANCELLED.value, finished_at=now, error=rows.clean(reason), published=now
            )
            if changed:
                self._note(job, EventKind.CANCELLED, actor, reason, now, using)
            failpoint("outbox.withdraw")
        failpoint("outbox.withdrawn")
        return bool(changed)

    def move_unpublished(self, job: UUID, run_at_ms: int, actor: str, reason: str, using: str) -> bool:
        """Changes the date of a row that Redis does not have."""
        now = clock.now()
        with transaction.atomic(using=using):
            changed = self._unpublished(job, using).update(run_at=clock.from_ms(run_at_ms))
            if changed:
                self._note(job, EventKind.RESCHEDULED, actor, reason, now, using)
            failpoint("outbox.move")
        failpoint("outbox.moved")
        return bool(changed)

    def edit(
        self,
        job: UUID,
        args: list[Any],
        kwargs: dict[str, Any],
        act: Callable[[], bool],
        actor: str,
        reason: str,
        using: str,
    ) -> bool:
        """Other arguments for a row that has failed or was cancelled, if `act`, called while the row is locked, answers True. What they
        were is kept in an event.
        """
        mine = Job.objects.using(using).filter(pk=job, state__in=(State.FAILED.value, State.CANCELLED.value))
        try:
            with transaction.atomic(using=using):
                if not mine.update(last_event=F("last_event")):  # takes the lock on all databases
                    return False
                row = mine.get()
                before = {"args": row.args, "kwargs": row.kwargs}
                row.args, row.kwargs = args, kwargs
                row.settled = "" if row.settled == CANCELLED_HERE else row.settled
                row.save(using=using, update_fields=["args", "kwargs", "settled"])
                if not act():
                    raise _TakenBack
                self._note(job, EDITED, actor, reason, clock.now(), using, before)
                failpoint("outbox.edit")
        except _TakenBack:
            return False
        failpoint("outbox.edited")
        return True

    def _unpublished(self, job: UUID, using: str):  # type: ignore[no-untyped-def]  # the queryset's type has no public name
        return Job.objects.using(using).filter(pk=job, state=State.SCHEDULED.value, published__isnull=True)

    def _note(
        self, job: UUID, kind: str, actor: str, reason: str, now: datetime, using: str, detail: Any = None
    ) -> None:
        queue = Job.objects.using(using).values_list("queue", flat=True).get(pk=job)
        Event.objects.using(using).create(
            job_id=job, queue=queue, at=now, kind=str(kind), actor=rows.clean(actor, 200), reason=rows.clean(reason),
            stream_id=f"row:{ids.new().hex}", detail=detail,
        )  # fmt: skip
