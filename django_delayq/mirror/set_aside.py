"""What the mirror could not take in, as rows: written with the checkpoint that passes it, and tried again when people say so."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from django.db import connections
from django.db.models import F, QuerySet

from django_delayq import clock, ids
from django_delayq.logger import Logger
from django_delayq.mirror import rows
from django_delayq.mirror.checkpoint import turn
from django_delayq.mirror.database_errors import about_data
from django_delayq.mirror.event_items import OF_RUNS, item_job
from django_delayq.mirror.fold import Refused
from django_delayq.models import SetAside
from django_delayq.store.events import Entry, item, position

if TYPE_CHECKING:
    from django_delayq.mirror.mirror_loop import MirrorLoop

logger = Logger("django_delayq.mirror")

CHUNK: Final = 100  # rows per statement
WIDEST: Final = (
    4  # bytes of a statement for a byte of the stream, at most: what is not ASCII is escaped, and then quoted
)
SPARE: Final = 65_536  # bytes of a statement beside the value


def write(refused: Sequence[Refused], queue: str, partition: int, using: str) -> None:
    """Keeps these items. Within the caller's transaction; those that are kept already stay as they are."""
    if not refused:
        return
    most = _packet(using)
    found = [_row(one, queue, partition, most) for one in refused]
    model = SetAside.objects.using(using)
    for start in range(0, len(found), 1 if most else CHUNK):
        model.bulk_create(found[start : start + (1 if most else CHUNK)], ignore_conflicts=True)
    for one in found:
        logger.error(
            "an event of job %s on %s is set aside (entry %s, item %d, %s): `delayq set-aside` shows it and tries it again",
            ids.short(one.job_id) if one.job_id else "?", queue, one.stream_id, one.item, one.code,
        )  # fmt: skip


def larger_than_packets(entry: Entry, using: str) -> str:
    """A code, where this may be more than the server takes in one statement, and so the reason why it ends the connection; else ""."""
    most = _packet(using)
    return "max_allowed_packet" if most and WIDEST * sum(len(item.raw) for item in entry.items) + SPARE > most else ""


def retry(mirror: MirrorLoop, keys: Sequence[int]) -> tuple[int, int]:
    """Tries to take in what this mirror's queue has set aside under these keys, oldest first. Returns how many are in their rows now,
    and how many were refused again.

    Raises:
        StoreUnavailable, StoreError, DatabaseError, InterfaceError: what has been taken in so far is.
    """
    model = SetAside.objects.using(mirror.using).filter(queue=mirror.queue.name, partition=mirror.partition)
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
    """Folds items of one entry, and deletes them here. False where they still are none of ours, or not whole. A row that has gone on
    since keeps what it says: only the runs and events that were missing are added.
    """
    with turn(mirror.queue.name, mirror.partition, mirror.using):
        found = list(kept.order_by("item"))
        if not found:
            return True  # somebody else has taken them in meanwhile
        entry = _together(found)
        batch = mirror.load([entry])
        batch.attempts = {(run.job_id, run.fence): run for run in mirror.runs(list(batch.jobs))}
        ahead = {id for id, job in batch.jobs.items() if position(job.last_event) >= position(entry.id)}
        for id in ahead:
            batch.jobs[id].last_event = ""  # else it would be taken for what has been folded
        batch.fold(entry)
        if batch.aside or any(map(is_cut, found)):
            return False
        fences = {item.fields[3] for item in entry.items if item.kind in OF_RUNS}
        batch.changed = {id: job for id, job in batch.changed.items() if id not in ahead}
        batch.changed_attempts = {
            key: run for key, run in batch.changed_attempts.items() if key[0] not in ahead or key[1] in fences
        }
        mirror.save(batch)
        kept.delete()
    return True


def _together(kept: Sequence[SetAside]) -> Entry:
    """Items of one entry, as they stood in the stream."""
    first = kept[0]
    items = tuple(item(one.kind, bytes(one.raw), one.item) for one in kept)
    return Entry(first.stream_id, clock.to_ms(first.at), first.actor, first.why, items)


def is_cut(kept: SetAside) -> bool:
    """Whether the database could not take all of it, so that it cannot be taken in any more."""
    return len(kept.raw) < kept.length


def _row(refused: Refused, queue: str, partition: int, most: int) -> SetAside:
    entry, item = refused.entry, refused.item
    raw = item.raw[: (most - SPARE) // WIDEST] if most else item.raw
    return SetAside(
        queue=queue, partition=partition, stream_id=entry.id, item=item.number, kind=rows.clean(item.kind, 40), job_id=item_job(item),
        at=clock.from_ms(entry.at_ms), actor=rows.clean(entry.by, 200), why=rows.clean(entry.why), raw=raw, length=len(item.raw),
        code=refused.code, text=rows.clean(refused.text, 2000), noticed_at=clock.now(),
    )  # fmt: skip


def _packet(using: str) -> int:
    """The bytes that MySQL and MariaDB take in one statement; 0 for databases that have no such bound."""
    connection: Any = connections[using]
    if connection.vendor != "mysql":
        return 0
    with connection.cursor() as cursor:
        cursor.execute("SELECT @@max_allowed_packet")
        return int(cursor.fetchone()[0])
