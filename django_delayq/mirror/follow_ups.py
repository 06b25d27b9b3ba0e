"""`@task(on_failure=other)`: a job that fails for good schedules one of the other task, by a row in the very transaction that writes
the failure down; the relay publishes it. Its id is made of the failed job's and of the event's, so one end has one such row, however
often it is folded.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django_delayq import ids
from django_delayq.exceptions import DelayqError
from django_delayq.logger import Logger
from django_delayq.mirror.event_items import ENDED_BADLY, item_job
from django_delayq.mirror.fold import Batch
from django_delayq.models import Job
from django_delayq.producer import database
from django_delayq.producer.options import Options
from django_delayq.producer.plan import plan
from django_delayq.producer.task import Task, registry
from django_delayq.states import State
from django_delayq.store.events import Entry

logger = Logger("django_delayq.mirror")


def put(entries: list[Entry], batch: Batch, using: str) -> None:
    """Rows for the failures that these entries tell of, as far as their tasks ask for that. In the caller's transaction."""
    if not registry.followed:
        return
    wanted: dict[UUID, tuple[Task[Any, Any], UUID]] = {}
    for entry in entries:
        for item in entry.items:
            failed = item_job(item) if item.kind in ENDED_BADLY else None
            row = batch.jobs.get(failed) if failed is not None else None
            task = registry.find(row.task) if row is not None and row.state == State.FAILED else None
            if failed is not None and task is not None and task.on_failure is not None:
                wanted[ids.derived(f"{failed} {entry.id}", entry.at_ms)] = task.on_failure, failed
    there = set(Job.objects.using(using).filter(pk__in=list(wanted)).values_list("pk", flat=True)) if wanted else set()
    for id, (follower, failed) in wanted.items():
        if id in there:
            continue
        try:
            planned = plan(follower, Options(durability="outbox"), (str(failed),), {}, using, id)
        except DelayqError as error:  # a queue that is gone, say; the failure itself must be written down all the same
            logger.error("job %s has failed, and %s cannot be scheduled for it: %s", failed, follower.name, error)
            continue
        database.need().add([planned], using)
