"""A witness beside a campaign: looks at the queues many times a second, and holds what it sees against the laws.

The judge of a campaign reads what processes recorded; the witness sees what went on inside Redis: a state that must not be, a
change without an event, an end that a stale run was allowed to tell.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from django_delayq.exceptions import StoreUnavailable
from django_delayq.job_meta import Quota
from django_delayq.store.connection.link import Link
from django_delayq.store.keys import Keys
from django_delayq.store.scripts.events import FIRST, Entry, _entry
from tests.campaign.turns import TurnReader
from tests.laws.dump import Dump, read_with
from tests.laws.history import WITNESS, History, Look, RatedClaim, Sees
from tests.laws.judge import judge
from tests.laws.story import Story

PAUSE = 0.05  # seconds between looks; the mirror lets an entry stand for a quarter of a second at least, mostly
MOST_CLAIMS = 500  # the latest ones with a rate that are judged together
ENOUGH = 20  # findings; more say nothing new


class Witness:
    """The witness of one queue. `forgetting`: tidy may remove ended jobs."""

    def __init__(self, link: Link, keys: Keys, *, max_crashes: int, forgetting: bool = True) -> None:
        self._forgetting = forgetting
        self._link = link
        self._keys = keys
        self._max_crashes = max_crashes
        self._story = Story()
        self._last: Dump | None = None
        self._noted: set[str] = set()  # whose cancel was asked for when Redis did not have them
        self._seen, self._count = FIRST, 0
        self._claims: list[RatedClaim] = []
        self._turns = TurnReader()
        self.wrong: list[str] = []
        self.looks = self.gaps = 0

    def look(self) -> None:
        """One look. What it sees for the first time is in `wrong` afterwards.

        Raises:
            StoreUnavailable: Redis is away; the next look goes on.
        """
        stream = self._keys["events"]
        dump, (found, facts) = read_with(self._link, self._keys, ("XRANGE", stream, f"({self._seen}", "+"), ("XINFO", "STREAM", stream))
        entries = [_entry(id, pairs) for id, pairs in found]
        self.looks += 1
        jobs = dump.jobs.keys() | (self._last.jobs.keys() if self._last else set())
        asked = {item.fields[0] for entry in entries for item in entry.items if item.kind == "cancel_requested"}
        self._noted |= (asked | dump.cancels.keys()) - jobs
        sees = WITNESS
        if not self._without_gap(entries, facts):
            self.gaps += 1
            self._story.forget()
            self._claims.clear()
            sees = Sees.QUEUES
        elif self._last is None and self._forgetting:
            sees &= ~Sees.CHANGES
        pages = self._story.read(entries) if Sees.STORY in sees else ()
        look = Look(before=self._last, after=dump, entries=entries, pages=pages, forgetting=self._forgetting, noted=self._noted)
        self._note_claims(entries, dump)
        if Sees.STORY in sees and self._last is not None:
            self._turns.read(entries, self._last, dump)
        else:
            self._turns.begin(dump)
        history = History(sees=sees, looks=[look], max_crashes=self._max_crashes, claims=self._claims, turns=self._turns.turns)
        wrong = [str(breach) for breach in judge(history)]
        self._last = dump
        self._seen = entries[-1].id if entries else self._seen
        self.wrong += wrong[: ENOUGH - len(self.wrong)]

    def _note_claims(self, entries: Sequence[Entry], dump: Dump) -> None:
        for entry in entries:
            for id in [item.fields[0] for item in entry.items if item.kind == "claimed"]:
                shared = dump.shared(id) or (self._last.shared(id) if self._last else None)
                if shared is not None and shared.rate is not None:
                    rate = shared.rate.text
                    paces = {one.limits.get(rate) for one in (dump, self._last) if one} - {None}
                    pace = Quota(*map(int, next(iter(paces)).split(":"))) if len(paces) == 1 else shared.rate.pace
                    self._claims.append(RatedClaim(id, rate, pace, entry.at_ms))
        del self._claims[:-MOST_CLAIMS]

    def _without_gap(self, entries: Sequence[Entry], facts: object) -> bool:
        """Whether no entry was trimmed before it was seen: Redis counts all that were ever added."""
        if not isinstance(facts, list):
            return not entries  # there is no stream yet
        added = int(dict(zip(facts[::2], facts[1::2], strict=True)).get(b"entries-added", -1))
        whole = added == self._count + len(entries)
        self._count = added
        return whole


def watch(witnesses: Sequence[Witness], over: Callable[[], bool]) -> threading.Thread:
    """Runs them in a thread until the campaign is over."""

    def work() -> None:
        pause = threading.Event()
        while not over():
            for witness in witnesses:
                try:
                    witness.look()
                except StoreUnavailable:
                    continue
            pause.wait(PAUSE)

    thread = threading.Thread(target=work, name="witness", daemon=True)
    thread.start()
    return thread
