"""The subcommand that erases jobs, such as all jobs about one person. The audit event has their number, but no data.

1. It cancels the unfinished jobs, and asks the running ones to stop.
2. It waits until they have ended, and until the mirror has recorded all their events. A later event would create a row again.
3. It deletes the failed records in Redis, and then the rows. If it is interrupted, it can be run again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, TextIO
from uuid import UUID

from django.apps import apps

from django_delayq import clock, ids
from django_delayq.console.verbs import VERBS, NamedJob, apply
from django_delayq.exceptions import DelayqError
from django_delayq.management.change_commands import actor, confirm, print_result
from django_delayq.management.job_filters import targets
from django_delayq.mirror.checkpoint import checkpoint_of, locked_checkpoint
from django_delayq.mirror.prune import delete_jobs
from django_delayq.models import Job, PeriodKey, SetAside
from django_delayq.producer import put
from django_delayq.producer.outbox import batches, rows
from django_delayq.producer.stores import stores
from django_delayq.states import FINISHED, UNFINISHED, State
from django_delayq.store.scripts import site
from django_delayq.store.scripts.decode import position
from django_delayq.store.scripts.events import EventLog
from django_delayq.store.scripts.queue import MOST, QueueStore

ERASED: Final = "erased"  # the kind of the audit event
LOOK: Final = 0.25  # seconds


def erase(out: TextIO, options: dict[str, Any]) -> int:
    """Permanently delete jobs, such as all jobs about one person.

    Unfinished jobs are cancelled first. The exit code is 1 if some jobs could not be erased yet. The JSON document has `erased` and
    `left`, or `would_erase`.
    """
    jobs = [job.id for job in targets(options, states=FINISHED | UNFINISHED)]
    if options["dry_run"]:
        return print_result(out, options, {"would_erase": len(jobs)}, f"Jobs that would be erased: {len(jobs)}.")
    if jobs and not options["yes"]:
        confirm(f"This permanently deletes jobs with their arguments, results and history: {len(jobs)}. Continue? [y/N] ")
    unfinished = [NamedJob(row.pk, row.queue) for row in _rows(jobs) if row.state in UNFINISHED]
    for _, answer in apply(VERBS["cancel"].each, unfinished, actor=actor(), reason=options["reason"]):
        if isinstance(answer, DelayqError):
            raise answer
    deadline = clock.monotonic() + options["wait"]
    while any(row.state in UNFINISHED for row in _rows([job.id for job in unfinished])) and clock.monotonic() < deadline:
        clock.sleep(LOOK)
    parts: dict[tuple[str, int], list[UUID]] = {}
    for row in _rows(jobs):
        parts.setdefault((row.queue, ids.partition(row.pk)), []).append(row.pk)
    erased = 0
    for (queue, partition), some in parts.items():
        store = stores.queue(queue, partition)
        if _are_recorded(store, deadline):
            erased += sum(_erase(store, batch, actor(), options["reason"]) for batch in put.batches(some, MOST))
    left = len(jobs) - erased
    text = f"Erased jobs: {erased}."
    if left:
        text += f" Not erased: {left}. They have not ended, or no worker has recorded their end. Run the command again."
    print_result(out, options, {"erased": erased, "left": left}, text)
    return 1 if left else 0


def _rows(jobs: Sequence[UUID]) -> Iterator[Job]:
    for batch in put.batches(jobs, MOST):
        yield from Job.objects.filter(pk__in=batch).only("pk", "queue", "state")


def _are_recorded(store: QueueStore, deadline: float) -> bool:
    """Waits until the mirror has recorded all events of the partition up to now. Returns False after the deadline."""
    last = position(EventLog(store.link, store.keys).last_id())
    while position(checkpoint_of(store.queue, store.partition).last_event) < last:
        if clock.monotonic() >= deadline:
            return False
        clock.sleep(LOOK)
    return True


def _erase(store: QueueStore, jobs: Iterable[UUID], by: str, reason: str) -> int:
    """Erases those of these jobs that have ended. Returns their number."""
    ended = Job.objects.filter(pk__in=list(jobs), state__in=[state.value for state in FINISHED]).order_by()
    states = dict(ended.values_list("pk", "state"))
    if failed := [job for job, state in states.items() if state == State.FAILED]:
        site.admit(store.link, store.keys)
        store.tidy(failed=failed)
    with locked_checkpoint(store.queue, store.partition):
        gone = list(ended.filter(pk__in=states).select_for_update().values_list("pk", flat=True))
        batches.forget(gone)
        delete_jobs(gone)
        SetAside.objects.filter(job_id__in=gone).delete()
        PeriodKey.objects.filter(job__in=gone, period_ms=None).delete()  # those of once_for still prevent a second charge
        if apps.is_installed("django_delayq.contrib.gateway"):
            apps.get_model("delayq_gateway", "KeptAnswer").objects.filter(job__in=gone).delete()
        if gone:
            rows.note(None, store.queue, ERASED, by, reason, {"jobs": len(gone)})
    return len(gone)
