"""Whose turn it is to write what Redis has told: mirrors, relays and restores of a queue take turns by its checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from django.db import transaction
from django.db.models import F, QuerySet

from django_delayq.models import Checkpoint

FROZEN: Final = 30  # seconds without a statement after which the database ends a turn: its process is frozen, or its host is lost


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
