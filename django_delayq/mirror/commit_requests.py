"""Changes that transactions carry out when they commit: the producer's protocol (`producer.database.Requests`) over their table, and a
loop that carries out what the process of the transaction has not.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import timedelta
from typing import Any, Final
from uuid import UUID

from django.db import transaction
from django.db.models import Count, OuterRef, Q, Subquery, Value
from django.db.models.functions import Coalesce, NullIf

from django_delayq import clock, conf, ids
from django_delayq.exceptions import StoreUnavailable
from django_delayq.logger import Logger
from django_delayq.mirror import database_clock, rows
from django_delayq.mirror.event_items import ASKED
from django_delayq.mirror.exists import ExistsQuery
from django_delayq.models import CommitRequest, Event, Job
from django_delayq.producer import at_commit
from django_delayq.producer.database import ChangeRequest
from django_delayq.states import EventKind
from django_delayq.store.connection.error_replies import StoreError
from django_delayq.store.scripts.site import REPEAT

logger = Logger("django_delayq.relay")

YOUNG: Final = 3.0  # seconds for which a request is left to the process that committed it
IDLE: Final = 2.0  # seconds between looks
MOST: Final = 200
DOUBT: Final = timedelta(seconds=1)  # two dates of different clocks that are closer than this have no known order


class DatabaseRequests:
    """See the protocol."""

    def keep_request(self, request: ChangeRequest, using: str) -> int:
        """Dated by the database's clock, as rows of jobs are."""
        given = {name: value for name, value in request._asdict().items() if name not in ("id", "job", "at", "left_ms")}
        given |= {"actor": rows.clean(request.actor, 200), "reason": rows.clean(request.reason), "job_id": request.job}
        now = database_clock.now(transaction.get_connection(using))
        return int(CommitRequest.objects.using(using).create(**given, at=now).pk)

    def requests(self, using: str, **which: Any) -> list[ChangeRequest]:
        """In the order in which they were asked for."""
        return _read(CommitRequest.objects.using(using).filter(**which), using)

    def requests_of(self, queue: str, jobs: Collection[UUID], keys: Collection[str], using: str) -> list[ChangeRequest]:
        """Likewise."""
        about = Q(job_id__in=jobs) | Q(queue=queue, key__in=keys, job_id=None)
        return _read(CommitRequest.objects.using(using).filter(about), using)

    def end_requests(self, requests: Collection[int], using: str) -> None:
        """Deletes them."""
        CommitRequest.objects.using(using).filter(pk__in=requests).delete()

    def spared(self, request: ChangeRequest, jobs: Collection[UUID], using: str, *, late: bool) -> set[UUID]:
        """By the database's clock, which dates requests and durable rows. Redis dates the rows of other jobs and most events, and the
        host of the producer dates the id of a job without a row. These clocks may differ, so such a date counts only if it is later
        than the request by more than `DOUBT` and has passed.
        """
        now, at = database_clock.now(transaction.get_connection(using)), request.at or clock.from_ms(0)
        found: set[UUID] = set()
        if request.job is None:
            rows = Job.objects.using(using).filter(pk__in=jobs).values_list("pk", "durable", "created_at")
            dated = {job: (durable, created) for job, durable, created in rows}
            for job in jobs:
                durable, created = dated.get(job, (False, clock.from_ms(ids.created_ms(job))))
                if created > at if durable else at + DOUBT < created <= now:
                    found.add(job)
        if late:
            kinds = (EventKind.REQUEUED, ASKED) if request.verb == "cancel" else (EventKind.RESCHEDULED, EventKind.REQUEUED, ASKED)
            changed = Event.objects.using(using).filter(job_id__in=jobs, kind__in=kinds, at__gt=at + DOUBT, at__lte=now)
            found |= {job for job in changed.values_list("job_id", flat=True) if job is not None}
        return found


class CommitRequestLoop:
    """Carries out the changes that the process of their transaction has not: it died between commit and hook, or Redis was away. The
    oldest first. Any number of loops may do so at once: to carry out a change twice changes nothing more.
    """

    def __init__(self, *, using: str, young: float = YOUNG) -> None:
        self._using = using
        self._young = timedelta(seconds=young)
        self._reported = float("-inf")
        self._any = ExistsQuery(CommitRequest.objects.using(using))

    def poll(self) -> float:
        """One batch of each queue that the settings list. Returns seconds to sleep.

        Raises:
            StoreUnavailable, StoreError, DatabaseError: what could be carried out is; call again later.
        """
        if not self._any.found():
            return IDLE
        now = database_clock.now(transaction.get_connection(self._using))
        waiting = _homed(self._using).exclude(at__gt=now - self._young, at__lte=now)
        away: StoreUnavailable | StoreError | None = None
        held: set[tuple[UUID | None, str, str]] = set()
        for queue in (None, *conf.get().queues):
            for request in _read(waiting.filter(home=queue), self._using, MOST):
                about = request.job, request.queue, request.key
                try:
                    if about not in held:
                        at_commit.carry_out(request, self._using, late=True)
                except (StoreUnavailable, StoreError) as error:
                    away = error
                    held.add(about)  # later changes of the same job wait, in their order
        self._report(unlisted(self._using))
        if away is not None:
            raise away
        return IDLE

    def _report(self, queues: dict[str, int]) -> None:
        if queues and clock.monotonic() - self._reported > REPEAT:
            self._reported = clock.monotonic()
            logger.error(
                "%d committed changes wait for a process with these queues in its settings: %s",
                sum(queues.values()),
                ", ".join(sorted(queues)),
            )


def unlisted(using: str) -> dict[str, int]:
    """How many requests are about each queue that the settings do not list."""
    found = _homed(using).exclude(home=None).exclude(home__in=list(conf.get().queues))
    return dict(found.order_by("home").values_list("home").annotate(Count("pk")))


def _homed(using: str) -> Any:
    """The requests with their queues as `home`: None for a job whose queue neither the request nor a row names."""
    row = Job.objects.using(using).filter(pk=OuterRef("job_id")).values("queue")[:1]
    return CommitRequest.objects.using(using).annotate(home=Coalesce(NullIf("queue", Value("")), Subquery(row)))


def _read(found: Any, using: str, most: int | None = None) -> list[ChangeRequest]:
    read = list(found.order_by("pk")[:most])
    now = None
    if any(row.delay_ms is not None for row in read):
        now = clock.to_ms(database_clock.now(transaction.get_connection(using)))
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
        key=row.key,
        verb=verb,
        abort=row.abort,
        delay_ms=row.delay_ms,
        due_ms=row.due_ms,
        actor=row.actor,
        reason=row.reason,
        at=row.at,
        left_ms=left,
    )
