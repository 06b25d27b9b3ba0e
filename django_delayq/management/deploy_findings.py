"""Waiting jobs that this code does not understand, for `doctor --deploy`: run it with the new code, before you deploy it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from django_delayq import codec, conf, ids
from django_delayq.console import keyset
from django_delayq.exceptions import DelayqError, PayloadError
from django_delayq.findings import Finding
from django_delayq.job_meta import version_in
from django_delayq.models import Job
from django_delayq.producer.stores import stores
from django_delayq.producer.task import registry
from django_delayq.states import MESSAGE, UNFINISHED
from django_delayq.store.scripts.events import EventLog
from django_delayq.text import visible

Waiting = tuple[str, Sequence[Any], Mapping[str, Any], Mapping[str, Any] | None]  # task, args, kwargs and meta
STEP: Final = 1_000  # rows
WHY: Final = {
    "task_unknown": "no task has this name",
    "task_version": "the task has another version, and no upgrade from this one",
    "task_upgrade": "the upgrade raises an exception",
}


def deploy_findings() -> Iterator[Finding]:
    """One finding for each task and version.

    Raises:
        StoreUnavailable, StoreError: Redis cannot be read.
    """
    found = Counter[tuple[str, int, str]]()
    for jobs in (_rows(), _rowless()):
        for task, args, kwargs, meta in jobs:
            try:
                if task != MESSAGE:
                    registry.get(task).understood(args, kwargs, meta)
            except DelayqError as error:
                found[task, version_in(meta), WHY.get(error.code, "the function takes other arguments")] += 1
    for (task, version, why), count in sorted(found.items()):
        text = f"Waiting jobs of {visible(task)!r}, version {version}, that this code does not understand: {count}, because {why}."
        yield Finding("D040", text)


def _rows() -> Iterator[Waiting]:
    rows = Job.objects.filter(state__in=UNFINISHED).order_by("id").only("id", "task", "args", "kwargs", "options")
    for job in keyset.through(rows, ("id",), STEP):
        yield job.task, job.args, job.kwargs, (job.options or {}).get("meta")


def _rowless() -> Iterator[Waiting]:
    """Redis-only jobs of queues without a row for each job."""
    for queue in conf.get().queues.values():
        for store in stores.parts(queue.name) if queue.audit == "failures" else ():
            seen = set[str]()
            for page in EventLog(store.link, store.keys).jobs():
                wanted = [id for id, durable in page if not durable and id not in seen]
                seen.update(wanted)
                for view in stores.inspector().jobs(queue.name, list(map(ids.full, wanted))):
                    if view is not None and view.record is not None and view.state in UNFINISHED:
                        try:
                            args, kwargs, options = codec.decode_payload(view.record.payload)
                        except PayloadError:
                            continue  # a worker reports it
                        yield view.record.task, args, kwargs, options.get("meta")
