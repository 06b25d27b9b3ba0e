"""The sequence of a queue's events, job by job: each event with the state of its job before it. The laws judge it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Final

from django_delayq.states import TRANSITIONS, State
from django_delayq.store.scripts.events import Entry, Item
from django_delayq.store.scripts.recovery import ADOPTION_MS

Place = State | str | None

# The verbs of TRANSITIONS that each event stands for, and the state of the job after it.
TELLS: Final[dict[str, tuple[State, tuple[str, ...]]]] = {
    "scheduled": (State.SCHEDULED, ("schedule",)),
    "rescheduled": (State.SCHEDULED, ("reschedule",)),
    "claimed": (State.RUNNING, ("claim",)),
    "crashed": (State.SCHEDULED, ("crash",)),
    "succeeded": (State.SUCCEEDED, ("ack",)),
    "retried": (State.SCHEDULED, ("retry",)),
    "snoozed": (State.SCHEDULED, ("snooze", "ask", "evict", "park")),
    "failed": (State.FAILED, ("fail", "crash", "expire")),
    "cancelled": (State.CANCELLED, ("cancel", "purge", "replace")),
    "requeued": (State.SCHEDULED, ("requeue",)),
    "expired": (State.CANCELLED, ("expire",)),
}
STARTS: Final[dict[str, set[Place]]] = {
    kind: {move.before for move in TRANSITIONS if move.verb in verbs and move.after is after} for kind, (after, verbs) in TELLS.items()
}
STARTS["requeued"] |= {None, "ended"}  # a caller vouches, from the database, for what Redis has forgotten
STARTS["cancelled"] |= {State.CANCELLED}  # told once more to a row that has not heard of it
QUEUE_KINDS: Final = frozenset({"paused", "resumed", "purged"})
ENDS: Final = ("succeeded", "retried", "snoozed", "crashed", "failed", "cancelled")  # these name the run that they end
UNFINISHED: Final = (State.SCHEDULED, State.RUNNING)
NOBODY: Final = "-"  # the fence of a job that is cancelled before it runs


@dataclass(frozen=True, slots=True)
class Chapter:
    """The state of a job. `attempt`: that of the run, or the last one that counted; `asks`: the poll count, None if unknown."""

    place: Place = None
    attempt: int = 0
    crashes: int = 0
    fence: str = ""
    due: int = 0
    asked: bool = False
    aborted: bool = False
    asks: int | None = 0


@dataclass(frozen=True, slots=True)
class Page:
    """An event of a job, and the state of the job before it. `known`: None if the job was restored and not seen before. `brought_back`:
    until this date, restored jobs that are overdue wait, because a worker may hold them.
    """

    entry: Entry
    item: Item
    known: Chapter | None
    brought_back: int = 0

    @property
    def id(self) -> str:
        return self.item.fields[0]

    @property
    def run(self) -> tuple[int, int, str]:
        """Attempt, crashes and fence of an event that names a run."""
        return int(self.item.fields[1]), int(self.item.fields[2]), self.item.fields[3]

    @property
    def asks(self) -> int | None:
        """The job's poll count, if the event contains it."""
        return int(self.item.fields[5]) if self.item.kind == "snoozed" and len(self.item.fields) > 5 else None

    def __str__(self) -> str:
        return f"{self.item.kind} at {self.entry.at_ms} by {self.entry.by}"


@dataclass
class Story:
    """Reads entries in order and tracks the state of each job. A job that was not seen from its start yields no page until its next
    start.
    """

    jobs: dict[str, Chapter] = field(default_factory=dict)
    brought_back: int = 0

    def read(self, entries: Iterable[Entry]) -> list[Page]:
        """The next entries of the stream, as pages."""
        pages = []
        for entry in entries:
            for item in entry.items:
                if item.kind in QUEUE_KINDS:
                    continue
                page = Page(entry, item, self.jobs.get(item.fields[0]), self.brought_back)
                if item.kind == "restored" and waits(item) and int(item.fields[1]) <= entry.at_ms + ADOPTION_MS:
                    self.brought_back = int(item.fields[1])
                if item.kind in ("merged", "aside", "dropped"):
                    self.jobs.pop(page.id, None)
                elif page.known is not None or item.kind in ("scheduled", "restored"):
                    pages.append(page)
                    self.jobs[page.id] = after(page)
        return pages

    def forget(self, *, ended: bool = False) -> None:
        """Forgets all states after a gap; `ended`: only those of ended jobs."""
        self.jobs = {id: chapter for id, chapter in self.jobs.items() if ended and chapter.place in UNFINISHED}


def is_abort(item: Item) -> bool:
    """Whether a cancel request is one to abort."""
    return "abort" in item.fields[1:]


def waits(item: Item) -> bool:
    """Whether a restored job came from its row, and waits."""
    return item.fields[4] == NOBODY and len(item.fields) == 5


def after(page: Page) -> Chapter:
    """The job's state after that event, if the event is valid."""
    kind, fields, known = page.item.kind, page.item.fields, page.known or Chapter()
    if kind == "cancel_requested":
        return replace(known, asked=True, aborted=known.aborted or is_abort(page.item))
    if kind == "restored":
        due, attempt, crashes = map(int, fields[1:4])
        place, asked = (State.SCHEDULED, False) if waits(page.item) else (State.RUNNING, known.asked)
        return Chapter(place, attempt, crashes, "" if fields[4] == NOBODY else fields[4], due, asked, asks=None)
    place = TELLS[kind][0]
    if kind == "claimed":
        attempt, crashes, fence = page.run
        return Chapter(place, attempt, crashes, fence, asks=known.asks)
    if kind in ENDS:
        attempt, crashes, _ = page.run
        due = int(fields[4]) if len(fields) > 4 else 0
        ended: Place = "ended" if place is State.SUCCEEDED else place
        asks = known.asks if page.asks is None else page.asks
        return Chapter(ended, attempt - (kind in ("snoozed", "crashed")), crashes, due=due, asks=asks)
    due = int(fields[1]) if kind != "expired" else 0
    return Chapter(place, due=due) if kind in ("scheduled", "requeued") else replace(known, place=place, due=due)
