"""What a row is told of a cancel, so that it holds when Redis forgets it."""

from __future__ import annotations

from typing import Final
from uuid import UUID

from django.db import transaction

from django_delayq import conf, outbox
from django_delayq.outbox import OutboxRow
from django_delayq.states import FINISHED, Change
from django_delayq.stores import stores

NOTES: Final = 3  # the mirror may fold another event of the job in the meantime, but not often


def note_cancel(id: UUID, row: OutboxRow, using: str, ground: str, actor: str, reason: str) -> Change:
    """So that a cancel which Redis forgets, by a failover say, is not undone by restore. Behind the caller's transaction: a lock on
    the row for all of its time would make the mirror wait.

    Restore looks for such notes before it lets anybody claim on another ground. One that came too late for that look is seen here:
    the ground is not the one on which the job was cancelled, and it is cancelled once more. Answers what became of it.
    """

    if not row.record.durable:
        return Change.DONE  # what Redis forgets of those, nobody knows

    def note() -> Change:
        change, stood = Change.UNKNOWN, ground
        for _ in range(NOTES):
            _write_cancel(id, row, using)
            with stores.guarded():
                change, _, stood = stores.queue(row.queue).cancel_one(
                    id, actor=actor, reason=reason, tombstone=True, unless=stood
                )
            if change is not Change.DONE:
                break
        return Change.DONE if change is Change.UNKNOWN else change

    if transaction.get_connection(using).in_atomic_block:
        transaction.on_commit(note, using=using, robust=True)
        return Change.DONE
    return note()


def _write_cancel(id: UUID, row: OutboxRow, using: str) -> None:
    seen = row.seen
    for _ in range(NOTES):
        if outbox.need().note_cancel(id, seen, using):
            return
        now = outbox.need().row(id, using)
        if now is None or now.state in FINISHED:
            return  # the mirror was first
        with stores.guarded():
            view = stores.inspector().job(row.queue, id)
        if view is None or view.state != "finished":
            return  # requeued since, or forgotten
        seen = now.seen


def forget_cancel(id: UUID) -> None:
    """The job is about to be requeued: what was noted of its cancel must not end it once more."""
    using = conf.get().database
    transaction.on_commit(lambda: outbox.need().forget_cancel(id, using), using=using, robust=True)
