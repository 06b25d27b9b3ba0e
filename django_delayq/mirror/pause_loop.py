"""The loop that keeps the pauses in Redis, and the rates that people have set, equal to their rows."""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Final

from django_delayq import clock
from django_delayq.exceptions import StoreUnavailable
from django_delayq.models import Pause, database
from django_delayq.producer import queues
from django_delayq.producer.outbox import pauses
from django_delayq.producer.stores import stores
from django_delayq.store.connection.link import FanOut
from django_delayq.store.scripts.limits import LimitStore, WordPause
from django_delayq.store.scripts.queue import QueueStore

IDLE: Final = 1.0
COMPARE: Final = 60.0  # seconds between comparisons of all partitions with the rows
OVER: Final = timedelta(minutes=1)  # the clocks of Redis and the database may differ


class PauseLoop:
    """1. Every second, it sends the changes that partitions have not confirmed. The process that made a change may have died, or could
    not reach a partition. 2. Every minute, it compares the pauses and rates of all partitions with the rows. A late command of a frozen
    process may have undone a change, and a queue may have been paused or resumed while the database was away. A deploy may have given
    a paused task an alias. It also ends the pauses whose dates have passed.
    """

    def __init__(self) -> None:
        self._compare_at = 0.0

    def poll(self) -> float:
        """One pass. Returns seconds to sleep.

        Raises:
            DatabaseError: call again later.
        """
        if clock.monotonic() >= self._compare_at:
            self._compare()
            self._compare_at = clock.monotonic() + COMPARE
        for row in pauses.of_words():
            if row.missing:
                queues.send_word(row.word)
        return IDLE

    def _compare(self) -> None:
        queues.pause_aliases()
        parts, found, rates = queues.partitions(), dict[str, dict[str, WordPause]](), dict[str, dict[str, str]]()
        for label, answer in FanOut[str]().each(parts, lambda label: parts[label].link, lambda label: _read(parts[label])):
            if isinstance(answer, tuple):
                found[label], rates[label] = answer
        for label, words in found.items():
            for word in [word for word, state in words.items() if state.alone]:
                pauses.adopt(word, label, partial(_read_word, parts[label], word), queues.partitions(word))
                del words[word]
        rows = {row.word: row for row in pauses.of_words()}
        self._compare_rates({word: row.rate for word, row in rows.items() if pauses.is_rate(word)}, parts, rates)
        there = {word: row for word, row in rows.items() if not pauses.is_rate(word)}
        over = database.now() - OVER
        for word in {*there, *(word for words in found.values() for word in words)}:
            mine = queues.partitions(word)
            held = {label: found[label] for label in mine if label in found}
            paused = {label: words[word].until_ms for label, words in held.items() if word in words and not words[word].resumed}
            row = there.get(word)
            if row is None or row.paused_at is None:
                if paused:
                    pauses.lacks(word, paused, holds=lambda row: row.paused_at is None)
            elif row.until is not None and row.until < over:
                if not paused and len(held) == len(mine):
                    pauses.end(word, row.until, mine)
            elif lacking := {label for label in held if paused.get(label) != pauses.until_ms(row)}:
                pauses.lacks(word, lacking, holds=lambda row: row.paused_at is not None)

    def _compare_rates(self, there: dict[str, str], parts: dict[str, QueueStore], found: dict[str, dict[str, str]]) -> None:
        lacking: dict[str, list[str]] = {}
        for label, rates in found.items():
            queue = parts[label].queue
            held = {pauses.word_of(limit, queue): rate for limit, rate in rates.items()}
            for word in {*held, *(word for word in there if pauses.is_of(word, queue))}:
                if held.get(word, "") != there.get(word, ""):
                    lacking.setdefault(word, []).append(label)
        for word, labels in lacking.items():
            pauses.lacks(word, labels, holds=partial(_has_rate, there.get(word, "")))


def _has_rate(rate: str, row: Pause) -> bool:
    return row.rate == rate


def _read(store: QueueStore) -> tuple[dict[str, WordPause], dict[str, str]]:
    with stores.guarded(store.queue, store.partition):
        limits = LimitStore(store)
        return limits.paused(), limits.rates()


def _read_word(store: QueueStore, word: str) -> WordPause | None:
    with suppress(StoreUnavailable):
        return _read(store)[0].get(word)
    return None
