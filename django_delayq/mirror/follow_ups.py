"""`@task(on_failure=other)`: a job that fails for good schedules a job of the other task. It does so by a row in the same transaction
that writes the failure; the relay publishes it. The id is derived from the failed job's id and the event's id, so folding an end
again adds no second row. The row has the propagated context of the failed job. The process of the mirror has no tenant or language of
its own, and a carrier that raises without one would stop the mirror.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final
from uuid import UUID

from django_delayq import ids
from django_delayq.exceptions import DelayqError
from django_delayq.logger import Logger
from django_delayq.models import Job, database
from django_delayq.producer import carriers, outbox
from django_delayq.producer.options import Options
from django_delayq.producer.schedule import plan
from django_delayq.producer.task import Task, registry
from django_delayq.states import MESSAGE
from django_delayq.store.scripts.events import Entry

logger = Logger("django_delayq.mirror")

CHUNK: Final = 500  # failures at once: SQLite takes 999 variables in its older builds


def put(failed: Sequence[tuple[UUID, Entry]]) -> None:
    """Inserts rows for these failures whose tasks have a follower. Runs in the transaction that writes the failures. `failed`: pairs
    of a job and the entry by which it failed for good.
    """
    if not registry.followed:
        return
    for start in range(0, len(failed), CHUNK):
        _put(failed[start : start + CHUNK])


def _put(failed: Sequence[tuple[UUID, Entry]]) -> None:
    rows = list(Job.objects.filter(pk__in={id for id, _ in failed}).only("task", "options", "kwargs"))
    for row in rows:
        if row.task != MESSAGE and registry.find(row.task) is None:
            said = "job %s has failed, and its task %s is not known in this process. If it has an on_failure, that is not scheduled"
            logger.warning(said, row.short_id, row.task)
    followers = {
        row.pk: (follower, carriers.propagated_context((row.options or {}).get("meta")))
        for row in rows
        if (task := registry.find(row.task)) is not None and (follower := task.follower(row.kwargs or {})) is not None
    }
    wanted: dict[UUID, tuple[Task[..., Any], UUID, dict[str, Any]]] = {}
    for id, entry in failed:
        if id in followers:
            follower, carried = followers[id]
            wanted[ids.derived(f"{id} {entry.id}", entry.at_ms)] = follower, id, carried
    there = set(Job.objects.filter(pk__in=list(wanted)).values_list("pk", flat=True)) if wanted else set()
    for id, (follower, job, carried) in wanted.items():
        if id in there:
            continue
        try:
            planned = plan(follower, Options(durability="outbox"), (str(job),), {}, database.alias(), id, carried)
        except DelayqError as error:  # for example, its queue is gone; the failure must be written anyway
            logger.error("job %s has failed, and %s cannot be scheduled for it: %s", job, follower.name, error)
            continue
        outbox.jobs.insert([planned])
