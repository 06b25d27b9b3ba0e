"""Reads the turns of fair words from the events of a queue, and which of the claimed jobs had waited for theirs."""

from __future__ import annotations

from collections.abc import Sequence

from django_delayq.store.scripts.events import Entry, Item
from tests.laws.dump import BANDS, Dump, record_of
from tests.laws.history import Turn

MOST_TURNS = 500  # the latest ones that are judged together
# The place of the date in the fields of each event after which a job waits.
DATES = {"scheduled": 1, "requeued": 1, "restored": 1, "rescheduled": 1, "retried": 4, "snoozed": 4, "crashed": 4}
Word = tuple[str, str]  # band and word


class TurnReader:
    """Begins with the jobs that wait, and reads all events since. A claim of a job that was not seen to wait is left out."""

    def __init__(self) -> None:
        self.turns: list[Turn] = []
        self._waits: dict[str, tuple[int, int]] = {}  # since which event, and until when
        self._lasts: dict[Word, tuple[int, int]] = {}  # the last turn of each word: which event, and when
        self._events = self._at_ms = 0

    def begin(self, dump: Dump) -> None:
        """Forgets all events so far."""
        self.turns, self._lasts = [], {}
        self._waits = {id: (self._events, int(dump.due(id) or 0)) for band in (*BANDS, "blocked") for id in dump.band(band)}

    def read(self, entries: Sequence[Entry], before: Dump, after: Dump) -> None:
        """Notes the turns in these events, which happened between two dumps."""
        for entry in entries:
            if entry.at_ms < self._at_ms:  # the clock was set back: a turn can lie ahead of it
                self._lasts.clear()
            self._at_ms = entry.at_ms
            lost = {item.fields[0] for item in entry.items if item.kind == "crashed"}
            for item in entry.items:
                self._events += 1
                self._read(item, after if item.fields and item.fields[0] in after.names else before, after, lost)
        del self.turns[:-MOST_TURNS]

    def _read(self, item: Item, dump: Dump, after: Dump, lost: set[str]) -> None:
        id = item.fields[0] if item.fields else ""
        word, waited = _word(dump, id), self._waits.pop(id, None)
        if item.kind == "claimed":
            if word and waited and id not in lost:  # a job whose worker was lost has had its turn
                since, date = waited
                at, when = self._lasts.get(word, (0, 0))
                self.turns.append(Turn(id, word[1], word[0], since < at and date <= when))
                self._lasts[word] = self._events, self._at_ms
            return
        if waited and (word or id not in dump.jobs.keys() | after.jobs.keys()):  # it can have been the next of its word, or of any
            self._lasts = {one: last for one, last in self._lasts.items() if word and one != word}
        if item.kind in DATES and len(item.fields) > DATES[item.kind]:
            self._waits[id] = self._events, int(item.fields[DATES[item.kind]])


def _word(dump: Dump, id: str) -> Word | None:
    """The fair word of a job that nothing else holds back."""
    shared = dump.shared(id)
    if shared is None or not shared.fair or shared.text or shared.rate or id not in dump.jobs:
        return None
    return record_of(dump.jobs[id]).band, shared.fair
