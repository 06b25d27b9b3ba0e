"""The story that a queue's events tell, job by job: what follows on what, who may end a run, and how attempts and crashes are counted.

Nothing here knows the model. Whoever reads the stream without a gap can hold it against these rules.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Final

from django_delayq.states import State
from django_delayq.store.events import Entry, Item
from tests.model.invariants import QUEUE_KINDS, STARTS, TELLS, Place

ENDS: Final = ("succeeded", "retried", "snoozed", "crashed", "failed", "cancelled")  # these name the run that they end
NOBODY: Final = "-"  # the fence of a job that is cancelled before it runs


@dataclass(frozen=True, slots=True)
class Chapter:
    """Where a job stands. `attempt`: of the run, or of the last one that counted."""

    place: Place = None
    attempt: int = 0
    crashes: int = 0
    fence: str = ""
    due: int = 0
    asked: bool = False


@dataclass
class Story:
    """Reads entries in order; `read` returns sentences about what is wrong. Jobs that it has not seen from their beginning are not
    judged until their next beginning.
    """

    max_crashes: int
    jobs: dict[str, Chapter] = field(default_factory=dict)

    def read(self, entries: Iterable[Entry]) -> list[str]:
        """The next entries of the stream."""
        wrong: list[str] = []
        for entry in entries:
            for item in entry.items:
                if item.kind not in QUEUE_KINDS:
                    wrong += self._item(entry, item)
        return wrong

    def forget(self, *, ended: bool = False) -> None:
        """There was a gap, and nothing is known any more; `ended`: only of those that had come to their end."""
        running = (State.SCHEDULED, State.RUNNING)
        self.jobs = {id: chapter for id, chapter in self.jobs.items() if ended and chapter.place in running}

    def _item(self, entry: Entry, item: Item) -> Iterable[str]:
        id = item.fields[0]
        if item.kind in ("merged", "aside", "dropped"):
            self.jobs.pop(id, None)
            return
        known = self.jobs.get(id)
        if item.kind == "restored":
            yield from self._restored(entry, item, known)
            return
        if known is None and item.kind != "scheduled":
            return
        known = known or Chapter()
        said = f"{id}, {item.kind} at {entry.at_ms} by {entry.by}"
        if item.kind == "cancel_requested":
            if known.place is not State.RUNNING or known.asked:  # of one that Redis does not have the story is not known
                yield f"{said}: it is {known.place}, asked before: {known.asked}"
            self.jobs[id] = replace(known, asked=True)
            return
        if known.place not in STARTS[item.kind]:
            yield f"{said}: it is {known.place}"
        if item.kind == "claimed":
            yield from self._claimed(entry, item, known, said)
        elif item.kind in ENDS:
            yield from self._ended(item, known, said)
        else:
            due = int(item.fields[1]) if item.kind != "expired" else 0
            fresh = item.kind in ("scheduled", "requeued")
            self._now(id, item, Chapter(due=due) if fresh else replace(known, due=due))

    def _restored(self, entry: Entry, item: Item, known: Chapter | None) -> Iterable[str]:
        """It stands where its row or its worker says; never behind where it stood."""
        id, due, attempt, crashes = item.fields[0], *map(int, item.fields[1:4])
        if known and known.place in (State.SCHEDULED, State.RUNNING) and (attempt < known.attempt or crashes < known.crashes):
            yield f"{id}, restored at {entry.at_ms} by {entry.by}: attempt {attempt}, crashes {crashes}, after {known}"
        fence = item.fields[4]
        waits = fence == NOBODY and len(item.fields) == 5
        place, asked = (State.SCHEDULED, False) if waits else (State.RUNNING, bool(known and known.asked))
        self.jobs[id] = Chapter(place, attempt, crashes, "" if fence == NOBODY else fence, due, asked)

    def _claimed(self, entry: Entry, item: Item, known: Chapter, said: str) -> Iterable[str]:
        id, attempt, crashes, fence = item.fields[0], int(item.fields[1]), int(item.fields[2]), item.fields[3]
        if attempt != known.attempt + 1 or crashes != known.crashes:
            yield f"{said}: attempt {attempt}, crashes {crashes}, after {known}"
        if entry.at_ms < known.due:
            yield f"{said}: {known.due - entry.at_ms} ms before its date"
        self._now(id, item, Chapter(attempt=attempt, crashes=crashes, fence=fence))

    def _ended(self, item: Item, known: Chapter, said: str) -> Iterable[str]:
        id, attempt, crashes, fence = item.fields[0], int(item.fields[1]), int(item.fields[2]), item.fields[3]
        poison = item.kind == "failed" and b'"poison-crashes"' in item.body
        vanished = item.kind == "crashed" or poison or b"its worker vanished" in item.body
        if fence == NOBODY:
            if known.place is State.RUNNING and known.fence:
                yield f"{said}: it runs, and was ended as if it did not"
        elif fence != known.fence or attempt != known.attempt:
            yield f"{said}: ended by attempt {attempt} of {fence}, which is not {known}"
        elif crashes != known.crashes + vanished:
            yield f"{said}: {crashes} crashes after {known}"
        if poison != (crashes > self.max_crashes) and vanished and item.kind != "cancelled":
            yield f"{said}: {crashes} crashes of at most {self.max_crashes}"
        if known.asked and item.kind in ("retried", "snoozed", "crashed"):
            yield f"{said}: its cancel was requested"
        back = item.kind in ("snoozed", "crashed")
        due = int(item.fields[4]) if len(item.fields) > 4 else 0
        self._now(id, item, Chapter(attempt=attempt - back, crashes=crashes, due=due))

    def _now(self, id: str, item: Item, chapter: Chapter) -> None:
        place = TELLS[item.kind][0]
        self.jobs[id] = replace(chapter, place="ended" if place is State.SUCCEEDED else place)
