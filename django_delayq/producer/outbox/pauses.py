"""Pauses in the database: what a person has paused stays paused when Redis loses its contents. A word is `queue:`, `task:`, `scope:` or
`name:` and the name of a queue, a task, a scope or a concurrency name (see words.lua). A caller writes the row and commits it. Then it
is sent to the partitions. A process that sends a row holds its lock, so an earlier state never follows a later one. A rate that a
person sets is such a row, too: its word is `rate:` and the name. So is the rate in the newest code of a task: `declared:` and the task.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any, Final

from django.db.models import F

from django_delayq import clock
from django_delayq.failpoints import failpoint
from django_delayq.logger import Logger
from django_delayq.models import Job, Pause, database
from django_delayq.producer.outbox import rows
from django_delayq.states import MESSAGE, EventKind
from django_delayq.store.scripts.limits import LimitChange, LimitStore, WordPause
from django_delayq.store.scripts.queue import MOST, QueueStore
from django_delayq.store.scripts.replicas import Replicas

RATE: Final = "rate:"  # before the name of a rate
DECLARED: Final = "declared:"  # before a task: the rate in its newest code, or NONE; before @queue: that of its messages
NONE: Final = "none"
RATE_SET: Final = "rate_set"  # the kind of its event; its rate is "" if it was reset
logger = Logger("django_delayq.restore")


def again(store: QueueStore) -> None:
    """Pauses the queue and the words in Redis that are paused by their rows. This happens before any claim from data of Redis that may
    have lost the pauses.

    Raises:
        StoreUnavailable, DatabaseError: call again.
    """
    found = Pause.objects.filter(paused_at__isnull=False)
    mine = [row.pk for row in found if is_of(row.word, store.queue)]
    if not mine:
        return
    with database.atomic():
        paused = [row for row in _locked(Pause.objects.filter(pk__in=mine)) if row.paused_at]  # a process that resumes one waits
        words = [change_of(row) for row in paused if kind_of(row.word) != "queue"]
        for row in paused:
            if kind_of(row.word) == "queue" and send(store, row):
                logger.warning("queue %s is paused again, as it was before Redis lost its data", store.queue)
        for start in range(0, len(words), MOST):
            LimitStore(store).limit(words[start : start + MOST])


def send(store: QueueStore, row: Pause, replicas: Replicas | None = None) -> bool:
    """Brings a partition into the state of a row. Returns whether this changes something."""
    failpoint("pauses.send")
    if kind_of(row.word) != "queue":
        [changed] = LimitStore(store).limit([change_of(row)], replicas=replicas)
    elif row.paused_at is None:
        changed = store.resume(actor=row.paused_by, reason=row.paused_why, replicas=replicas)
    else:
        changed = store.pause(actor=row.paused_by, reason=row.paused_why, until_ms=until_ms(row), replicas=replicas)
    failpoint("pauses.sent")
    return changed


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
    """Pauses a word, or ends its pause, in the database; or sets a rate, or ends that. `parts`: the labels of its partitions, which
    must confirm it. Returns whether this changes something.
    """
    with _row(word) as row:
        return _write(row, paused=paused, parts=parts, until=until, pace_ms=pace_ms, rate=rate, actor=actor, reason=reason)


def confirm(word: str, call: Callable[[Collection[str], Pause], Collection[str]]) -> list[str]:
    """Sends the state of a word to the partitions that lack it. `call`: sends a row to partitions, and returns those that have
    confirmed it. Returns the others.
    """
    with _row(word) as row:
        lacking = row.missing.split("\n") if row.missing else []
        there = call(lacking, row) if lacking else ()
        left = [label for label in lacking if label not in there]
        row.missing = "\n".join(left)
    return left


def lacks(word: str, parts: Collection[str], *, holds: Callable[[Pause], bool]) -> None:
    """Notes that Redis has another state of a word in these partitions, unless its row says now that `holds` is wrong."""
    with _row(word) as row:
        if holds(row):
            row.missing = "\n".join(dict.fromkeys([*row.missing.split("\n"), *parts])).strip("\n")


def end(word: str, until: datetime, parts: Iterable[str]) -> None:
    """Ends a pause whose date has passed, unless it was changed since."""
    with _row(word) as row:
        if row.paused_at and row.until == until:
            _write(row, paused=False, parts=parts, actor="until")


def adopt(word: str, label: str, read: Callable[[], WordPause | None], parts: Iterable[str]) -> None:
    """Takes over a pause of a queue, or its end, that was made in Redis while the database was away. `read`: the state of the partition
    with that label, which no other process changes meanwhile. A later change that was not sent to it yet counts.
    """
    with _row(word) as row:
        if label not in row.missing.split("\n") and (found := read()) is not None and found.alone:
            until = clock.from_ms(found.until_ms) if found.until_ms else None
            _write(row, paused=not found.resumed, parts=parts, until=until, actor=found.by, reason=found.why)


def has_passed(moment: datetime) -> bool:
    """Whether that time has passed by the clock of the database."""
    return moment <= database.now()


def has_jobs(task: str) -> bool:
    """Whether a job of this task has a row."""
    return Job.objects.filter(task=task).exists()


def change_of(row: Pause) -> LimitChange:
    """The state of a task, a scope, a name or a rate as Redis gets it."""
    if is_rate(row.word):
        return LimitChange("rate", limit_of(row.word), row.rate)
    if row.paused_at is None:
        return LimitChange("resume", row.word, row.pace_ms)
    return LimitChange("pause", row.word, until_ms(row))


def until_ms(row: Pause) -> int:
    """When a pause ends, as Redis gets it."""
    return clock.to_ms(row.until) if row.until else 0


def of_word(word: str) -> Pause | None:
    """The row of a word that is paused."""
    return next((row for row in Pause.objects.filter(word=word, paused_at__isnull=False) if row.word == word), None)


def of_words() -> list[Pause]:
    """The words that are paused, and the rates that are set, in order; also those whose end is not confirmed yet."""
    return list(Pause.objects.order_by("word"))


def of_pauses(words: Iterable[Pause] | None = None) -> list[Pause]:
    """The words that are paused, or whose resume is not confirmed yet, in order. `words`: those of `of_words`, if they were read."""
    return [row for row in (of_words() if words is None else words) if not is_rate(row.word)]


def of_rates(words: Iterable[Pause] | None = None) -> list[Pause]:
    """The rates that a person has set, or whose reset is not confirmed yet, in the order of their names. `words`: see `of_pauses`."""
    return [row for row in (of_words() if words is None else words) if row.word.startswith(RATE)]


def kind_of(word: str) -> str:
    """queue, task, scope, name, rate or declared."""
    return word.partition(":")[0]


def is_rate(word: str) -> bool:
    """Whether the row is a rate, and no pause."""
    return word.startswith((RATE, DECLARED))


def limit_of(word: str) -> str:
    """The field of a rate in Redis, see limits.lua."""
    if word.startswith(DECLARED):
        declared = word.removeprefix(DECLARED)
        return f"\1{MESSAGE if declared.startswith('@') else declared}"
    return word.removeprefix(RATE)


def word_of(limit: str, queue: str) -> str:
    """The word of such a field in a partition of this queue."""
    if limit == f"\1{MESSAGE}":
        return f"{DECLARED}@{queue}"
    return f"{DECLARED}{limit[1:]}" if limit.startswith("\1") else f"{RATE}{limit}"


def is_of(word: str, queue: str) -> bool:
    """Whether a word concerns a queue: all do but those of other queues."""
    kind, _, name = word.partition(":")
    return name == queue if kind == "queue" else name == f"@{queue}" if kind == "declared" and name.startswith("@") else True


def _write(
    row: Pause,
    *,
    paused: bool,
    parts: Iterable[str],
    until: datetime | None = None,
    pace_ms: int = 0,
    rate: str = "",
    actor: str = "",
    reason: str = "",
) -> bool:
    before = row.paused_at is not None, row.until, row.rate
    changed = before != (paused, until, rate) if paused else row.paused_at is not None
    if changed:
        row.paused_at, row.until = (database.now(), until) if paused else (None, None)
        row.paused_by, row.paused_why, row.rate = rows.clean(actor, 200), rows.clean(reason), rate
        detail = {"word": row.word, **({"until": until.isoformat()} if until else {})}
        if kind_of(row.word) == "rate":
            rows.note(None, "", RATE_SET, actor, reason, {**detail, "rate": rate})
        elif kind_of(row.word) in ("task", "name"):  # the mirror writes the events of queues
            rows.note(None, "", EventKind.PAUSED if paused else EventKind.RESUMED, actor, reason, detail)
    row.pace_ms, row.missing = pace_ms, "\n".join(parts)
    return changed


@contextmanager
def _row(word: str) -> Iterator[Pause]:
    """The row of a word, locked. It is made if there is none, and saved afterwards. A word that is not paused has no row once all
    partitions have confirmed it.
    """
    digest = hashlib.sha256(word.encode()).hexdigest()
    with database.atomic():
        while True:
            Pause.objects.get_or_create(digest=digest, defaults={"word": word})
            found = _locked(Pause.objects.filter(digest=digest))
            if found:  # otherwise another process has just deleted it
                yield found[0]
                break
        if found[0].paused_at or found[0].missing:
            found[0].save()
        else:
            found[0].delete()
        failpoint("pauses.commit")
    failpoint("pauses.committed")


def _locked(found: Any) -> list[Pause]:
    """These rows in the order of their keys, so that no two processes wait for each other. The update locks on all databases."""
    for pk in sorted(found.values_list("pk", flat=True)):
        found.filter(pk=pk).update(pace_ms=F("pace_ms"))
    return list(found.order_by("pk"))
