"""A loop that carries out committed changes if the process of their transaction has not done so; see `producer.changes`."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final
from uuid import UUID

from django.db.models import Count, OuterRef, Subquery, Value
from django.db.models.functions import Coalesce, NullIf

from django_delayq import clock, conf
from django_delayq.exceptions import StoreUnavailable
from django_delayq.logger import Logger
from django_delayq.models import CommitRequest, Job, database
from django_delayq.models.database import ExistsQuery
from django_delayq.producer import changes
from django_delayq.producer.outbox import requests
from django_delayq.store.connection.error_replies import StoreError
from django_delayq.store.scripts.site import REPEAT

logger = Logger("django_delayq.relay")

YOUNG: Final = 3.0  # seconds for which a request is left to the process that committed it
IDLE: Final = 2.0  # seconds between looks
MOST: Final = 200


class CommitRequestLoop:
    """Carries out changes, oldest first, that the process of their transaction has not carried out: it crashed between commit and
    hook, or Redis was unavailable. Any number of loops may run at once, because a repeated change has no further effect.
    """

    def __init__(self, *, young: float = YOUNG) -> None:
        self._young = timedelta(seconds=young)
        self._reported = float("-inf")
        self._any = ExistsQuery(CommitRequest.objects.all())

    def poll(self) -> float:
        """One batch of each queue that the settings list. Returns seconds to sleep.

        Raises:
            StoreUnavailable, StoreError, DatabaseError: what could be carried out is; call again later.
        """
        if not self._any.found():
            return IDLE
        now = database.now()
        waiting = _homed().exclude(at__gt=now - self._young, at__lte=now)
        away: StoreUnavailable | StoreError | None = None
        held: set[tuple[UUID | None, str, str]] = set()
        for queue in (None, *conf.get().queues):
            for request in requests.read(waiting.filter(home=queue), MOST):
                about = request.job, request.queue, request.key
                try:
                    if about not in held:
                        changes.carry_out(request, late=True)
                except (StoreUnavailable, StoreError) as error:
                    away = error
                    held.add(about)  # later changes of the same job wait, in their order
        self._report(unlisted())
        if away is not None:
            raise away
        return IDLE

    def _report(self, queues: dict[str, int]) -> None:
        if queues and clock.monotonic() - self._reported > REPEAT:
            self._reported = clock.monotonic()
            logger.error(
                "committed changes (%d) wait for a process with these queues in its settings: %s",
                sum(queues.values()),
                ", ".join(sorted(queues)),
            )


def unlisted() -> dict[str, int]:
    """The number of requests for each queue that the settings do not list."""
    found = _homed().exclude(home=None).exclude(home__in=list(conf.get().queues))
    return dict(found.order_by("home").values_list("home").annotate(Count("pk")))


def _homed() -> Any:
    """The requests with their queues as `home`. It is None for a job whose queue is neither in the request nor in a row."""
    row = Job.objects.filter(pk=OuterRef("job_id")).values("queue")[:1]
    return CommitRequest.objects.annotate(home=Coalesce(NullIf("queue", Value("")), Subquery(row)))
