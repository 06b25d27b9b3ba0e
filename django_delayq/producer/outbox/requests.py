"""Changes that transactions carry out when they commit, stored as rows of those transactions."""

from __future__ import annotations

from collections.abc import Collection
from datetime import timedelta
from typing import Any, Final
from uuid import UUID

from django.db.models import Q

from django_delayq import clock, ids
from django_delayq.job_meta import bare, scope_of, scoped
from django_delayq.models import CommitRequest, Event, Job, database
from django_delayq.producer.outbox.rows import REQUEUE_ASKED, clean, in_scopes
from django_delayq.producer.outbox.shapes import ChangeRequest
from django_delayq.states import UNFINISHED, EventKind

DOUBT: Final = timedelta(seconds=1)  # two dates of different clocks that are closer than this have no known order


def keep(request: ChangeRequest) -> int:
    """Writes a request in the caller's transaction. The database's clock dates it, as it dates rows of jobs. Returns its id."""
    given = {name: value for name, value in request._asdict().items() if name not in ("id", "job", "at", "left_ms")}
    given |= {"key": bare(request.key), "scope": scope_of(request.key)}
    given |= {"actor": clean(request.actor, 200), "reason": clean(request.reason), "job_id": request.job}
    now = database.now()
    return int(CommitRequest.objects.create(**given, at=now).pk)


def find(**which: Any) -> list[ChangeRequest]:
    """The stored requests, in the order in which they were made. `which`: conditions on the columns."""
    return read(CommitRequest.objects.filter(**which))


def about(queue: str, jobs: Collection[UUID], keys: Collection[str]) -> list[ChangeRequest]:
    """The requests about one of these jobs, about one of these keys of the queue, or about a job that has one of these keys."""
    mine = in_scopes(keys)
    named = Q(job_id__in=jobs) | Q(mine, queue=queue, job_id=None)
    if keys:
        keyed = Job.objects.filter(mine, queue=queue, state__in=UNFINISHED).exclude(key="")
        named |= Q(job_id__in=keyed.values("pk"))
    return [request for request in read(CommitRequest.objects.filter(named)) if request.job is not None or request.key in keys]


def end(requests: Collection[int]) -> None:
    """Deletes requests that have been carried out, or that a later call replaces."""
    CommitRequest.objects.filter(pk__in=requests).delete()


def spared(request: ChangeRequest, jobs: Collection[UUID], *, late: bool) -> set[UUID]:
    """Those of these jobs that the request does not change. A request by key does not change jobs that were scheduled after it. A
    request that is carried out `late` does not change jobs that were requeued since, nor does a new date those with a newer one.

    The database's clock dates requests and durable rows. Redis dates the rows of other jobs and most events, and the host of the
    producer dates the id of a job without a row. These clocks may differ, so such a date counts only if it is later than the request
    by more than `DOUBT` and has passed.
    """
    now, at = database.now(), request.at or clock.from_ms(0)
    found: set[UUID] = set()
    if request.job is None:
        rows = Job.objects.filter(pk__in=jobs).values_list("pk", "durable", "created_at")
        dated = {job: (durable, created) for job, durable, created in rows}
        for job in jobs:
            durable, created = dated.get(job, (False, clock.from_ms(ids.created_ms(job))))
            if created > at if durable else at + DOUBT < created <= now:
                found.add(job)
    if late:
        kinds = (
            (EventKind.REQUEUED, REQUEUE_ASKED)
            if request.verb == "cancel"
            else (EventKind.RESCHEDULED, EventKind.REQUEUED, REQUEUE_ASKED)
        )
        changed = Event.objects.filter(job_id__in=jobs, kind__in=kinds, at__gt=at + DOUBT, at__lte=now)
        found |= {job for job in changed.values_list("job_id", flat=True) if job is not None}
    return found


def read(found: Any, most: int | None = None) -> list[ChangeRequest]:
    read = list(found.order_by("pk")[:most])
    if not read:
        return []
    now = None
    if any(row.delay_ms is not None for row in read):
        now = clock.to_ms(database.now())
    return [_request(row, now) for row in read]


def _request(row: CommitRequest, now_ms: int | None) -> ChangeRequest:
    left = None
    if row.delay_ms is not None and now_ms is not None:
        left = max(0, min(row.delay_ms, clock.to_ms(row.at) + row.delay_ms - now_ms))
    verb: Any = row.verb
    return ChangeRequest(
        id=row.pk,
        job=row.job_id,
        queue=row.queue,
        key=scoped(row.scope, row.key),
        verb=verb,
        abort=row.abort,
        delay_ms=row.delay_ms,
        due_ms=row.due_ms,
        actor=row.actor,
        reason=row.reason,
        at=row.at,
        left_ms=left,
    )
