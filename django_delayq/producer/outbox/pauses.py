"""Pauses in the database: a queue that a person has paused stays paused when Redis loses its contents. The pause of a word (a task or
a concurrency name, see words.lua) is committed here first, and then sent to all partitions. So is a rate that a person sets.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from django.db import DatabaseError, InterfaceError
from django.db.models import F

from django_delayq import clock, ids
from django_delayq.logger import Logger
from django_delayq.models import Event, Job, Pause, database
from django_delayq.producer.outbox import rows
from django_delayq.states import EventKind
from django_delayq.store.scripts.limits import LimitChange, LimitStore
from django_delayq.store.scripts.queue import MOST, QueueStore

if TYPE_CHECKING:
    from django_delayq.store.scripts.events import Entry

RATE: Final = "rate:"  # before the name of a rate
RATE_SET: Final = "rate_set"  # the kind of its event; its rate is "" if it was reset
RESTORE: Final = "restore"  # the actor of a pause that waits for a manual restore: it is not a pause of its own
logger = Logger("django_delayq.restore")


def note(queue: str, partition: int, actor: str, reason: str, *, first: bool) -> None:
    """Records that a partition of a queue was paused. `first`: this call paused it. If not, an existing record is not changed. If the
    database is away, only Redis knows of the pause.
    """
    said = {"paused_at": database.ago(), "paused_by": rows.clean(actor, 200), "paused_why": rows.clean(reason)}
    try:
        with database.atomic():
            row, _ = Pause.objects.select_for_update().get_or_create(queue=queue, partition=partition)
            if first or row.paused_at is None:
                Pause.objects.filter(pk=row.pk).update(**said)
    except (DatabaseError, InterfaceError) as error:
        logger.warning("queue %s is paused only in Redis. If Redis loses its data, the queue resumes: %s", queue, error)


def forget(queue: str) -> None:
    """Records that a queue is resumed."""
    try:
        with database.atomic():
            Pause.objects.filter(queue=queue).update(paused_at=None, paused_by="", paused_why="")
    except (DatabaseError, InterfaceError) as error:
        logger.warning("queue %s was resumed, but if Redis loses its data, the queue is paused again: %s", queue, error)


def fold(queue: str, partition: int, entry: Entry) -> None:
    """Stores a pause, or its end, from an event. The process that paused the queue may have died before it stored the pause, or may
    be of a release that does not store it.
    """
    kinds = [item.kind for item in entry.items if item.kind in (EventKind.PAUSED, EventKind.RESUMED)]
    if not kinds:
        return
    mine = Pause.objects.filter(queue=queue, partition=partition)
    if EventKind.RESUMED in kinds:
        mine.update(paused_at=None, paused_by="", paused_why="")
    elif entry.by != RESTORE:
        Pause.objects.get_or_create(queue=queue, partition=partition)
        at, by, why = clock.from_ms(entry.at_ms), rows.clean(entry.by, 200), rows.clean(entry.why)
        mine.filter(paused_at__isnull=True).update(paused_at=at, paused_by=by, paused_why=why)


def again(store: QueueStore) -> None:
    """Pauses a queue and words in Redis that are paused by their rows. This happens before any claim from data of Redis that may have
    lost the pauses.

    Raises:
        StoreUnavailable, DatabaseError: call again.
    """
    mine = Pause.objects.filter(queue=store.queue, partition=store.partition) | Pause.objects.exclude(word="")
    if not mine.filter(paused_at__isnull=False).exists():
        return
    with database.atomic():
        paused = [row for row in _locked(mine) if row.paused_at]  # a process that resumes one of them waits
        words = [change_of(row) for row in paused if row.word]
        for row in paused:
            if not row.word and store.pause(actor=row.paused_by, reason=row.paused_why):
                logger.warning("queue %s is paused again, as it was before Redis lost its data", store.queue)
        for start in range(0, len(words), MOST):
            LimitStore(store).limit(words[start : start + MOST])


# Pauses of words. A caller writes the row and commits it. A process that sends a row to Redis holds its lock, so an earlier state never
# follows a later one.


def write(
    word: str,
    *,
    paused: bool,
    parts: Iterable[str],
    until: datetime | None = None,
    pace_ms: int = 0,
    rate: str = "",
    actor: str = "",
    reason: str = "",
) -> bool:
    """Pauses a word, or ends its pause, in the database; or sets a rate, or ends that. `parts`: the labels of all partitions, which
    must confirm it. Returns whether this changes something.
    """
    with _row(word) as row:
        before = row.paused_at is not None, row.until, row.rate
        changed = before != (paused, until, rate) if paused else row.paused_at is not None
        if changed:
            row.paused_at, row.until = (database.now(), until) if paused else (None, None)
            row.paused_by, row.paused_why = rows.clean(actor, 200), rows.clean(reason)
            row.rate = rate
            if word.startswith(RATE):
                _note(word, RATE_SET, actor, reason, rate=rate)
            else:
                _note(word, EventKind.PAUSED if paused else EventKind.RESUMED, actor, reason, until=until)
        row.pace_ms, row.missing = pace_ms, "\n".join(parts)
        row.save()
    return changed


def confirm(word: str, call: Callable[[Collection[str], LimitChange], Collection[str]]) -> list[str]:
    """Sends the state of a word to the partitions that lack it. `call`: sends a change to partitions, and returns those that have
    confirmed it. Returns the others. A word that is no longer paused has no row once all have confirmed it.
    """
    with _row(word) as row:
        lacking = row.missing.split("\n") if row.missing else []
        there = call(lacking, change_of(row)) if lacking else ()
        left = [label for label in lacking if label not in there]
        row.missing = "\n".join(left)
        if left or row.paused_at:
            row.save()
        else:
            row.delete()
    return left


def lacks(word: str, parts: Collection[str], *, holds: Callable[[Pause], bool]) -> None:
    """Notes that Redis has another state of a word in these partitions, unless its row says now that `holds` is wrong."""
    with _row(word) as row:
        if holds(row):
            row.missing = "\n".join(dict.fromkeys([*row.missing.split("\n"), *parts])).strip("\n")
        if row.paused_at or row.missing:
            row.save()
        else:
            row.delete()


def end(word: str, until: datetime) -> None:
    """Deletes the row of a pause that has ended at its date, unless it was changed since."""
    with _row(word) as row:
        if row.until == until or not row.paused_at:
            if row.paused_at:
                _note(word, EventKind.RESUMED, "until", "")
            row.delete()
        else:
            row.save()


def has_passed(moment: datetime) -> bool:
    """Whether that time has passed by the clock of the database."""
    return moment <= database.now()


def has_jobs(task: str) -> bool:
    """Whether a job of this task has a row."""
    return Job.objects.filter(task=task).exists()


def change_of(row: Pause) -> LimitChange:
    """The state of a word as Redis gets it."""
    if row.word.startswith(RATE):
        return LimitChange("rate", row.word.removeprefix(RATE), row.rate)
    if row.paused_at is None:
        return LimitChange("resume", row.word, row.pace_ms)
    return LimitChange("pause", row.word, clock.to_ms(row.until) if row.until else 0)


def of_word(word: str) -> Pause | None:
    """The row of a word that is paused."""
    return next((row for row in Pause.objects.filter(word=word, paused_at__isnull=False) if row.word == word), None)


def of_words() -> list[Pause]:
    """The words that are paused, and the rates that are set, in order; also those whose end is not confirmed yet."""
    return list(Pause.objects.exclude(word="").order_by("word"))


def of_rates() -> list[Pause]:
    """The rates that a person has set, in the order of their names."""
    return [row for row in of_words() if row.word.startswith(RATE)]


@contextmanager
def _row(word: str) -> Iterator[Pause]:
    """The row of a word, locked. It is made if there is none."""
    digest = hashlib.sha256(word.encode()).hexdigest()
    with database.atomic():
        while True:
            Pause.objects.get_or_create(digest=digest, queue="", partition=0, defaults={"word": word})
            found = _locked(Pause.objects.filter(digest=digest))
            if found:  # otherwise another process has just deleted it
                yield found[0]
                return


def _locked(found: Any) -> list[Pause]:
    """These rows in the order of their keys, so that no two processes wait for each other. The update locks on all databases."""
    for pk in sorted(found.values_list("pk", flat=True)):
        found.filter(pk=pk).update(partition=F("partition"))
    return list(found.order_by("pk"))


def _note(word: str, kind: str, actor: str, reason: str, until: datetime | None = None, rate: str | None = None) -> None:
    detail: Any = {"word": word, **({"until": until.isoformat()} if until else {}), **({} if rate is None else {"rate": rate})}
    Event.objects.create(
        queue="",
        at=database.ago(),
        kind=str(kind),
        actor=rows.clean(actor, 200),
        reason=rows.clean(reason),
        detail=detail,
        stream_id=f"row:{ids.new().hex}",
    )
