"""Retries events that were set aside when a person asks for it. By then the database or the release may have changed."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from django.db.models import F, QuerySet

from django_delayq import clock
from django_delayq.mirror.checkpoint import locked_checkpoint
from django_delayq.mirror.database_errors import about_data
from django_delayq.mirror.event_items import OF_RUNS
from django_delayq.mirror.mirror_loop import MirrorLoop
from django_delayq.mirror.set_aside import is_cut
from django_delayq.models import SetAside
from django_delayq.producer.outbox import rows
from django_delayq.store.scripts.decode import position
from django_delayq.store.scripts.events import Entry, item


def retry(mirror: MirrorLoop, keys: Sequence[int]) -> tuple[int, int]:
    """Tries to fold the items that this mirror's queue has set aside under these keys, oldest first. Returns the number of items that
    are in their rows now, and the number that were refused again.

    Raises:
        StoreUnavailable, StoreError, DatabaseError, InterfaceError: the items that were folded before stay folded.
    """
    model = SetAside.objects.filter(queue=mirror.queue.name, partition=mirror.partition)
    groups: dict[tuple[tuple[int, int], UUID | None], list[int]] = {}
    for pk, stream_id, job in model.filter(pk__in=keys).order_by("item").values_list("pk", "stream_id", "job_id"):
        groups.setdefault((position(stream_id), job), []).append(pk)
    done = refused = 0
    for (_, _), group in sorted(groups.items(), key=lambda one: one[0][0]):
        mine = model.filter(pk__in=group)
        why: dict[str, str] = {}
        try:
            taken = _take_in(mirror, mine)
        except Exception as error:
            code = about_data(error)
            if not code:
                raise
            taken, why = False, {"code": code, "text": rows.clean(str(error), 2000)}
        if not taken:
            mine.update(tries=F("tries") + 1, **why)
        done, refused = (done + len(group), refused) if taken else (done, refused + len(group))
    return done, refused


def _take_in(mirror: MirrorLoop, kept: QuerySet[SetAside]) -> bool:
    """Folds items of one entry, and deletes them here. Returns False if they still cannot be folded, or are not complete. A row that
    has folded later events keeps its fields: only the missing runs and events are added.
    """
    with locked_checkpoint(mirror.queue.name, mirror.partition):
        found = list(kept.order_by("item"))
        if not found:
            return True  # another process has folded them meanwhile
        entry = _together(found)
        batch = mirror.load([entry])
        batch.attempts = {(run.job_id, run.fence): run for run in mirror.runs(list(batch.jobs))}
        ahead = {id for id, job in batch.jobs.items() if position(job.last_event) >= position(entry.id)}
        for id in ahead:
            batch.jobs[id].last_event = ""  # otherwise the entry would be taken for one that is already folded
        batch.fold(entry)
        if batch.aside or any(map(is_cut, found)):
            return False
        fences = {item.fields[3] for item in entry.items if item.kind in OF_RUNS}
        batch.changed = {id: job for id, job in batch.changed.items() if id not in ahead}
        batch.changed_attempts = {key: run for key, run in batch.changed_attempts.items() if key[0] not in ahead or key[1] in fences}
        mirror.save(batch)
        kept.delete()
    return True


def _together(kept: Sequence[SetAside]) -> Entry:
    """The items as one entry, as they were in the stream."""
    first = kept[0]
    items = tuple(item(one.kind, bytes(one.raw), one.item) for one in kept)
    return Entry(first.stream_id, clock.to_ms(first.at), first.actor, first.why, items)
