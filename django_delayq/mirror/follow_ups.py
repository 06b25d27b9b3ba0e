"""`@task(on_failure=other)`: a job that fails for good schedules one of the other task, by a row in the very transaction that writes
the failure down; the relay publishes it. Its id is made of the failed job's and of the event's, so one end has one such row, however
often it is folded.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from django_delayq import ids
from django_delayq.exceptions import DelayqError
from django_delayq.logger import Logger
from django_delayq.models import Job
from django_delayq.producer import database
from django_delayq.producer.options import Options
from django_delayq.producer.plan import plan
from django_delayq.producer.task import Task, registry
from django_delayq.store.events import Entry

logger = Logger("django_delayq.mirror")


def put(failed: Sequence[tuple[UUID, Entry]], using: str) -> None:
    """Rows for these failures, as far as their tasks ask for that. In the transaction that has written them down. `failed`: a job, and
    the entry by which it has failed for good.
    """
    if not registry.followed or not failed:
        return
    rows = Job.objects.using(using).filter(pk__in={id for id, _ in failed}).values_list("pk", "task")
    followers = {id: task.on_failure for id, name in rows if (task := registry.find(name)) is not None}
    wanted: dict[UUID, tuple[Task[..., Any], UUID]] = {}
    for id, entry in failed:
        if (follower := followers.get(id)) is not None:
            wanted[ids.derived(f"{id} {entry.id}", entry.at_ms)] = follower, id
    there = set(Job.objects.using(using).filter(pk__in=list(wanted)).values_list("pk", flat=True)) if wanted else set()
    for id, (follower, job) in wanted.items():
        if id in there:
            continue
        try:
            planned = plan(follower, Options(durability="outbox"), (str(job),), {}, using, id)
        except DelayqError as error:  # a queue that is gone, say; the failure itself must be written down all the same
            logger.error("job %s has failed, and %s cannot be scheduled for it: %s", job, follower.name, error)
            continue
        database.need().add([planned], using)
