"""Batches: their rows, and the rows of their members. No member locks the row of its batch, and nothing counts along: the rows of the
members show whether the batch has ended. So this holds however a member ends.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import nullcontext
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Any, Final, NamedTuple
from uuid import UUID

from django.db.models import Count, Exists, Max, OuterRef, Q, QuerySet, Subquery

from django_delayq import clock
from django_delayq.exceptions import KeyTaken
from django_delayq.failpoints import failpoint
from django_delayq.models import UNRESOLVED, Batch, Job, SetAside, database
from django_delayq.producer.outbox import rows
from django_delayq.producer.outbox.far_rows import in_time
from django_delayq.producer.outbox.follow_ups import DueRow
from django_delayq.producer.outbox.shapes import packed, unpacked
from django_delayq.states import UNFINISHED, EndingKind, State
from django_delayq.store.scripts.record import ScheduleItem

SUCCEEDED, ENDED = "succeeded", "ended"  # what a batch can wait for
AT_ONCE: Final = 200
ENDS: Final = (State.SUCCEEDED, State.FAILED, State.CANCELLED)  # in the order of `Counts`


class Counts(NamedTuple):
    """The members of a batch by state. `left`: they have not ended."""

    succeeded: int = 0
    failed: int = 0
    cancelled: int = 0
    left: int = 0

    @property
    def total(self) -> int:
        """The number of all members."""
        return sum(self)


def create(id: UUID, key: str, waits_for: str, then: ScheduleItem | None) -> None:
    """Writes the row of a batch, in the transaction of its members.

    Raises:
        KeyTaken: another batch has the key, and is not over.
        StoreUnavailable: another transaction that creates a batch with this key is open for more than two seconds.
    """
    open_key = sha256(key.encode()).hexdigest() if key else None
    row = Batch(id=id, key=key, open_key=open_key, waits_for=waits_for, created_at=database.ago())
    row.follow_up = None if then is None else packed(then)
    with in_time(key, "period_key_locked") if key else nullcontext():
        failpoint("batches.create")
        Batch.objects.bulk_create([row], ignore_conflicts=True)
        if key and not Batch.objects.filter(pk=id).exists():
            holder = Batch.objects.filter(open_key=open_key).values_list("pk", flat=True).first()
            raise KeyTaken(f"The key {key!r} is held by a batch that is not over.", holder=holder or id, code="batch_held")


def find(id: UUID | None = None, key: str = "") -> Batch | None:
    """The batch with this id, or the latest one with this key."""
    found = Batch.objects.filter(pk=id) if id else Batch.objects.filter(key=key).order_by("-created_at")
    return next((batch for batch in found[:AT_ONCE] if id or batch.key == key), None)


def of_job(job: UUID) -> UUID | None:
    """The batch of a job."""
    return Job.objects.filter(pk=job).values_list("batch", flat=True).first()


def members(batch: Any, *states: State) -> QuerySet[Job]:
    """The rows of its members in these states. A job that was merged into another one is no member. It is cancelled, so the index alone
    finds unfinished members.
    """
    found = Job.objects.filter(batch=batch, state__in=[state.value for state in states]).order_by()
    return found.exclude(ending=EndingKind.MERGED.value) if State.CANCELLED in states else found


def counts(of: Sequence[Batch]) -> list[Counts]:
    """The counts of the members of these batches; of those that are over, at their end. Two queries count them by an index alone."""
    rows = Job.objects.filter(batch__in=[batch.pk for batch in of if batch.over_at is None]).order_by()
    found = Counter({(batch, state): count for batch, state, count in rows.values_list("batch", "state").annotate(Count("pk"))})
    merged = rows.filter(state=State.CANCELLED.value, ending=EndingKind.MERGED.value)
    found -= Counter({(batch, State.CANCELLED.value): count for batch, count in merged.values_list("batch").annotate(Count("pk"))})
    return [
        Counts(batch.succeeded, batch.failed, batch.cancelled)
        if batch.over_at is not None
        else Counts(*(found[batch.pk, state.value] for state in ENDS), sum(found[batch.pk, state.value] for state in UNFINISHED))
        for batch in of
    ]


def _open() -> QuerySet[Batch]:
    return Batch.objects.filter(over_at=None)


def _without(*states: State) -> Exists:
    return ~Exists(members(OuterRef("pk"), *states))


def _ready() -> QuerySet[Batch]:
    """The batches that have ended and are not over."""
    decided = Q(waits_for=ENDED) | Q(cancelled_at__isnull=False) | Q(_without(State.FAILED, State.CANCELLED))
    return _open().filter(_without(*UNFINISHED), decided)


def end(among: Collection[UUID] | None = None) -> list[DueRow]:
    """Ends the batches that have ended, and writes their follow-ups. `among`: only these; None: any. Any number of processes may do
    this at once: the row of the batch shows which was first. Returns the new rows.
    """
    found: list[DueRow] = []
    for id in _ready().order_by("pk").values_list("pk", flat=True)[:AT_ONCE] if among is None else among:
        if among is not None and not _ready().filter(pk=id).exists():  # one by one, so that the database uses the index
            continue
        with database.atomic():
            mine = _ready().filter(pk=id)
            if database.connection().features.has_select_for_update_skip_locked:
                mine = mine.select_for_update(skip_locked=True)
            if (batch := mine.first()) is not None:
                found += _end(batch, fires=batch.cancelled_at is None)
            failpoint("batches.end")
        failpoint("batches.ended")
    return found


def _end(batch: Batch, *, fires: bool) -> list[DueRow]:
    then, now, [ended] = batch.follow_up, database.now(), counts([batch])
    item = unpacked(then, f"{batch.pk} then", clock.to_ms(now)) if fires and then else None
    told = {"succeeded": ended.succeeded, "failed": ended.failed, "cancelled": ended.cancelled, "open_key": None, "over_at": now}
    if not _open().filter(pk=batch.pk).update(**told, follow_up=item and str(item.id)):
        return []
    if item is None:
        return []
    rows.insert([item])
    return [DueRow(item.queue, item.id)]


def cancel(id: UUID, actor: str, reason: str, *, aborts: bool) -> bool:
    """Notes the request. Returns False if the batch is over."""
    told = {"cancelled_by": rows.clean(actor, 200), "cancelled_why": rows.clean(reason), "aborts": aborts}
    return bool(_open().filter(pk=id).update(cancelled_at=database.ago(), **told))


def cancelled() -> list[Batch]:
    """The batches that are cancelled and not over."""
    return list(_open().filter(cancelled_at__isnull=False).order_by("pk")[:AT_ONCE])


def to_cancel(batch: UUID) -> list[tuple[UUID, str]]:
    """Members that must still be cancelled, with their queues."""
    left = members(batch, *UNFINISHED).exclude(UNRESOLVED).filter(cancel_requested=False)
    return list(left.order_by("state", "run_at").values_list("pk", "queue")[:AT_ONCE])


def stuck() -> dict[UUID, int]:
    """The open batches with members whose ends are not known, and their number: an event was set aside, or they are unresolved."""
    rejected = Job.objects.filter(pk__in=SetAside.objects.values("job_id"), state__in=[state.value for state in UNFINISHED])
    found = Counter[UUID]()
    for those in (rejected, Job.objects.filter(UNRESOLVED)):
        found.update(those.filter(batch__isnull=False).values_list("batch", flat=True))
    return dict(found)


def waiting(since: datetime) -> list[Batch]:
    """Open batches without unfinished members that are older. They wait for members that did not succeed."""
    return list(_open().filter(_without(*UNFINISHED), created_at__lt=since).order_by("pk")[:AT_ONCE])


def forget(jobs: Collection[UUID]) -> None:
    """These rows are about to be deleted. A batch that waits for all its members cannot succeed without one that did not."""
    lost = Job.objects.filter(pk__in=jobs, batch__isnull=False).exclude(state=State.SUCCEEDED.value)
    _open().filter(pk__in=list(lost.values_list("batch", flat=True)), waits_for=SUCCEEDED).update(cancelled_at=database.ago())


def prune(now: datetime, kept: Mapping[str, float | None]) -> None:
    """Ends batches without their follow-ups whose members did not all succeed, and that nobody has put back for as long as failed jobs
    are kept. The rows of their members may then be deleted. Deletes old batches without members. `kept`: see RETENTION.
    """
    if (failed := kept["failed"]) is not None:
        last = members(OuterRef("pk"), *ENDS).values("batch").annotate(last=Max("finished_at")).values("last")
        ended = _open().filter(_without(*UNFINISHED)).annotate(last=Subquery(last))
        for batch in ended.filter(last__lt=now - timedelta(seconds=failed))[:AT_ONCE]:
            _end(batch, fires=False)
    if (succeeded := kept["succeeded"]) is not None:
        old = Batch.objects.filter(~Exists(Job.objects.filter(batch=OuterRef("pk"))), over_at__lt=now - timedelta(seconds=succeeded))
        Batch.objects.filter(pk__in=list(old.order_by("pk").values_list("pk", flat=True)[:AT_ONCE])).delete()
