"""Pauses in the database: a queue that a person has paused stays paused when Redis loses its contents."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from django.db import DatabaseError, InterfaceError

from django_delayq import clock
from django_delayq.logger import Logger
from django_delayq.models import QueueState, database
from django_delayq.producer.outbox import rows
from django_delayq.states import EventKind
from django_delayq.store.scripts.queue import QueueStore

if TYPE_CHECKING:
    from django_delayq.store.scripts.events import Entry

RESTORE: Final = "restore"  # the actor of a pause that waits for a manual restore: it is not a pause of its own
logger = Logger("django_delayq.restore")


def note(queue: str, partition: int, actor: str, reason: str, *, first: bool) -> None:
    """Records that a partition of a queue was paused. `first`: this call paused it. If not, an existing record is not changed. If the
    database is away, only Redis knows of the pause.
    """
    said = {"paused_at": database.ago(), "paused_by": rows.clean(actor, 200), "paused_why": rows.clean(reason)}
    try:
        with database.atomic():
            row, _ = QueueState.objects.select_for_update().get_or_create(queue=queue, partition=partition)
            if first or row.paused_at is None:
                QueueState.objects.filter(pk=row.pk).update(**said)
    except (DatabaseError, InterfaceError) as error:
        logger.warning("queue %s is paused only in Redis. If Redis loses its data, the queue resumes: %s", queue, error)


def forget(queue: str) -> None:
    """Records that a queue is resumed."""
    try:
        with database.atomic():
            QueueState.objects.filter(queue=queue).update(paused_at=None, paused_by="", paused_why="")
    except (DatabaseError, InterfaceError) as error:
        logger.warning("queue %s was resumed, but if Redis loses its data, the queue is paused again: %s", queue, error)


def fold(queue: str, partition: int, entry: Entry) -> None:
    """Stores a pause, or its end, from an event. The process that paused the queue may have died before it stored the pause, or may
    be of a release that does not store it.
    """
    kinds = [item.kind for item in entry.items if item.kind in (EventKind.PAUSED, EventKind.RESUMED)]
    if not kinds:
        return
    mine = QueueState.objects.filter(queue=queue, partition=partition)
    if EventKind.RESUMED in kinds:
        mine.update(paused_at=None, paused_by="", paused_why="")
    elif entry.by != RESTORE:
        QueueState.objects.get_or_create(queue=queue, partition=partition)
        at, by, why = clock.from_ms(entry.at_ms), rows.clean(entry.by, 200), rows.clean(entry.why)
        mine.filter(paused_at__isnull=True).update(paused_at=at, paused_by=by, paused_why=why)


def again(store: QueueStore) -> None:
    """Pauses a queue in Redis that is paused by its row. This happens before any claim from Redis data that may have lost the pause.

    Raises:
        StoreUnavailable, DatabaseError: call again.
    """
    mine = QueueState.objects.filter(queue=store.queue, partition=store.partition, paused_at__isnull=False)
    if not mine.exists():
        return
    with database.atomic():
        mine.update(partition=store.partition)  # takes the lock on all databases: a process that resumes the queue waits
        for row in mine:
            if store.pause(actor=row.paused_by, reason=row.paused_why):
                logger.warning("queue %s is paused again, as it was before Redis lost its data", store.queue)
