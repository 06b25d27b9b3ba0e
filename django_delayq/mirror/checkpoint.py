"""The checkpoint of a queue: how far the mirror has come, and on which ground. By it one sees that Redis has lost its contents, or was
rolled back; and mirrors, relays and restores of a queue take turns by it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from django.db import transaction
from django.db.models import F, QuerySet

from django_delayq.failpoints import failpoint
from django_delayq.models import Checkpoint
from django_delayq.store.recovery import Ground

SERVERS: Final = 10  # runs of servers that are remembered
FROZEN: Final = 30  # seconds without a statement after which the database ends a turn: its process is frozen, or its host is lost


def checkpoint_of(queue: str, partition: int, using: str) -> Checkpoint:
    """What the database knows; one that was never saved where there is none."""
    found = Checkpoint.objects.using(using).filter(queue=queue, partition=partition).first()
    return found or Checkpoint(queue=queue, partition=partition)


def needs_restore(ground: Ground, checkpoint: Checkpoint) -> bool:
    """Whether Redis lacks what the database has seen in it: it was wiped, or rolled back to older data."""
    if not checkpoint.restored and not checkpoint.generation:
        return False  # the database has seen nothing yet; the mirror notes the generation that it meets first
    return bool(ground.rolled) or ground.generation != checkpoint.restored or ground.older


def note_server(queue: str, partition: int, server: str, using: str, way_back: str | None = None) -> None:
    """Before what is pending is read: a change that is told later than this, by another server, is not answered with done.
    `way_back`: the generation that is being brought back from here on, "" for none; None leaves what is noted.
    """
    checkpoint = checkpoint_of(queue, partition, using)
    known = (checkpoint.servers or "").split()
    noted = {"servers": " ".join([server, *(one for one in known if one != server)][:SERVERS]) if server else checkpoint.servers}
    if way_back is not None:
        noted["way_back"] = way_back
    if any(getattr(checkpoint, name) != value for name, value in noted.items()):
        failpoint("restore.note_server")
        Checkpoint.objects.using(using).filter(queue=queue, partition=partition).update(**noted)
        failpoint("restore.noted_server")


def note_restored(queue: str, partition: int, generation: str, using: str) -> None:
    """It is brought back, and what is lost for good says so."""
    failpoint("restore.forget_way")
    Checkpoint.objects.using(using).filter(queue=queue, partition=partition, way_back=generation).update(way_back="")
    failpoint("restore.forgot_way")


@contextmanager
def locked_checkpoint(queue: str, partition: int, using: str) -> Iterator[tuple[QuerySet[Checkpoint], Checkpoint]]:
    """A transaction that holds the checkpoint of a queue. What is read from Redis within it, and written, is no older than what the
    turn before has written.
    """
    mine = Checkpoint.objects.using(using).filter(queue=queue, partition=partition)
    if not mine.exists():
        new = Checkpoint(queue=queue, partition=partition)
        Checkpoint.objects.using(using).bulk_create([new], ignore_conflicts=True)
    with transaction.atomic(using=using):
        _do_not_keep(transaction.get_connection(using))
        mine.update(turns=F("turns") + 1)  # takes the lock on all databases
        yield mine, mine.get()


def _do_not_keep(connection: Any) -> None:
    """Others need the checkpoint; where a database can say so, a turn that has fallen asleep loses it."""
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute(f"SET LOCAL idle_in_transaction_session_timeout = '{FROZEN}s'")
        elif connection.vendor == "mysql" and connection.mysql_is_mariadb:
            own = "@@idle_transaction_timeout"
            cursor.execute(f"SET SESSION idle_transaction_timeout = IF({own} BETWEEN 1 AND {FROZEN}, {own}, {FROZEN})")
