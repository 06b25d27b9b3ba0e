"""Jobs of redis durability after a restore. Jobs that Redis has lost cannot be restored, and may have run or not. So their rows
become unresolved, and a person decides. Jobs that an old copy of Redis still has, although their rows have ended, are removed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final
from uuid import UUID

from django_delayq import clock, ids
from django_delayq.conf import QueueConfig
from django_delayq.failpoints import failpoint
from django_delayq.logger import Logger
from django_delayq.mirror.unresolved import leave_to_a_person
from django_delayq.models import UNRESOLVED, Attempt, Job, database
from django_delayq.states import FINISHED, UNFINISHED, AttemptOutcome, State
from django_delayq.store.scripts.events import EventLog
from django_delayq.store.scripts.queue import MOST
from django_delayq.store.scripts.recovery import EpochStore

logger = Logger("django_delayq.restore")

LOST: Final = "Redis lost this job, which was of redis durability; whether it has run is not known"
WAIT: Final = 0.25  # seconds between steps of the wait for workers that may adopt a job


def unfinished(queue: str, partition: int) -> Any:
    """The rows of such jobs of a partition that are unfinished. The caller must know whether Redis has them, and whether the mirror
    has folded all events.
    """
    found = Job.objects.filter(queue=queue, partition=partition, state__in=UNFINISHED, durable=False, settled="")
    return found.exclude(UNRESOLVED)


def mark(log: EventLog, queue: QueueConfig, partition: int) -> Iterator[float]:
    """Makes the rows of jobs that Redis has lost unresolved, after everything else is restored and confirmed. A worker that runs such
    a job has the time of one lease to adopt it. Yields seconds to wait; one step per page.
    """
    found: list[UUID] = []
    after = UUID(int=0)
    while page := list(unfinished(queue.name, partition).filter(pk__gt=after).order_by("pk").values_list("pk", flat=True)[:MOST]):
        found += log.unknown(page)
        after = page[-1]
        yield 0.0
    until = clock.monotonic() + queue.lease
    while found and clock.monotonic() < until:
        yield WAIT
    for start in range(0, len(found), MOST):
        give_up(queue.name, partition, log.unknown(found[start : start + MOST]))
        yield 0.0
    if found:
        logger.error(
            "queue %s: Redis has lost jobs of redis durability (%d). Decide about each: manage.py delayq list --state unresolved",
            queue.name,
            len(found),
        )


def give_up(queue: str, partition: int, jobs: Sequence[UUID]) -> int:
    """Makes these rows unresolved, except those that have ended. Returns the number of rows."""
    now = database.ago()
    with database.atomic():
        found = list(unfinished(queue, partition).filter(pk__in=jobs).select_for_update().values_list("id", flat=True))
        leave_to_a_person(Job.objects.filter(pk__in=found), LOST)
        Attempt.objects.filter(job_id__in=found, finished_at__isnull=True).update(
            finished_at=now, outcome=AttemptOutcome.CRASHED.value, message=LOST
        )
    return len(found)


def leave(log: EventLog, epoch: EpochStore) -> Iterator[None]:
    """Removes jobs from Redis that an old copy has, but whose rows have ended: they have run. One step per page."""
    for held in log.jobs():
        known = Job.objects.filter(pk__in=[ids.full(id) for id, _ in held])
        over = [ids.short(id) for id, *row in known.values_list("id", "state", "settled") if end_of(*row)]
        failpoint("restore.drop")
        for start in range(0, len(over), MOST):
            epoch.drop(over[start : start + MOST], actor="restore")
        failpoint("restore.dropped")
        yield


def end_of(state: str, settled: str) -> str:
    """The final state of a job by its row; "" if it has not ended."""
    if settled:
        return State.SUCCEEDED.value
    return state if state in FINISHED else ""
