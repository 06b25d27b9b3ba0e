"""Writes the events that the mirror could not fold as rows, together with the checkpoint that passes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from django_delayq import clock
from django_delayq.logger import Logger
from django_delayq.mirror.fold import RefusedItem, item_job
from django_delayq.models import SetAside, database
from django_delayq.producer.outbox import rows
from django_delayq.store.scripts.events import Entry

logger = Logger("django_delayq.mirror")

CHUNK: Final = 100  # rows per statement
WIDEST: Final = 4  # bytes of a statement for one byte of the stream, at most: non-ASCII bytes are escaped, and then quoted
SPARE: Final = 65_536  # bytes of a statement besides the value


def write(refused: Sequence[RefusedItem], queue: str, partition: int) -> None:
    """Keeps these items within the caller's transaction. Items that already have a row stay as they are."""
    most = _packet()
    found = [_row(one, queue, partition, most) for one in refused]
    model = SetAside.objects
    for start in range(0, len(found), 1 if most else CHUNK):
        model.bulk_create(found[start : start + (1 if most else CHUNK)], ignore_conflicts=True)
    for one in found:
        logger.error(
            "an event of job %s on %s is set aside (entry %s, item %d, %s): to see and retry it, run `delayq set-aside`",
            one.job_id or "?",
            queue,
            one.stream_id,
            one.item,
            one.code,
        )


def larger_than_packets(entry: Entry) -> str:
    """Returns a code if the entry may be larger than the server takes in one statement, which would explain why it ends the
    connection; else "".
    """
    most = _packet()
    return "max_allowed_packet" if most and WIDEST * sum(len(item.raw) for item in entry.items) + SPARE > most else ""


def is_cut(kept: SetAside) -> bool:
    """Whether the database could not store the whole item. Such an item can no longer be folded."""
    return len(kept.raw) < kept.length


def _row(refused: RefusedItem, queue: str, partition: int, most: int) -> SetAside:
    entry, item = refused.entry, refused.item
    raw = item.raw[: (most - SPARE) // WIDEST] if most else item.raw
    return SetAside(
        queue=queue,
        partition=partition,
        stream_id=entry.id,
        item=item.number,
        kind=rows.clean(item.kind, 40),
        job_id=item_job(item),
        at=clock.from_ms(entry.at_ms),
        actor=rows.clean(entry.by, 200),
        why=rows.clean(entry.why),
        raw=raw,
        length=len(item.raw),
        code=refused.code,
        text=rows.clean(refused.text, 2000),
        noticed_at=database.ago(),
    )


def _packet() -> int:
    """The number of bytes that MySQL and MariaDB take in one statement; 0 for databases without such a limit."""
    connection: Any = database.connection()
    if connection.vendor != "mysql":
        return 0
    with connection.cursor() as cursor:
        cursor.execute("SELECT @@max_allowed_packet")
        return int(cursor.fetchone()[0])
