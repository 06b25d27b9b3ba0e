"""Histories that a seed makes of jobs with fair words. After each step, each job is in one place and each word has at most one job in
each band. What a claim returns is compared with a reference: bands, turns, dates, and no free room beside due jobs.
"""

from __future__ import annotations

from collections import defaultdict
from random import Random

import pytest

from django_delayq import ids
from django_delayq.job_meta import Rate
from django_delayq.store.scripts import loader
from tests.laws.history import Filling, History, Sees, Turn
from tests.laws.judge import judge
from tests.store.board import NOW, Board, job_id
from tests.store.test_fair import payload, put
from tests.store.test_histories_of_names import NAMES
from tests.store.test_histories_of_rates import RATES, RatedHistory, breaches

WORDS = ("a", "a", "a", "b", "b", "c", "")
RANK = {"high": 1, "normal": 2, "low": 3}


class FairHistory:
    """`waits`: band, word and own date of each waiting job. `since`: when it got that date. `taken`: what was claimed, in order."""

    def __init__(self, board: Board, seed: int) -> None:
        self.board, self.chance, self.now, self.number = board, Random(seed), NOW, 0
        self.waits: dict[int, tuple[str, str, int]] = {}
        self.since: dict[int, int] = {}
        self.held: dict[int, tuple[str, int, int]] = {}
        self.kinds: dict[int, tuple[str, str]] = {}
        self.taken: list[tuple[str, str, int]] = []
        self.turns: list[Turn] = []
        self.fillings: list[Filling] = []
        self.disturbed: dict[tuple[str, str], int] = {}  # claims before a cancel or a move

    def schedule(self) -> None:
        for _ in range(self.chance.choice([1, 1, 1, 6])):
            self.number += 1
            word, band = self.chance.choice(WORDS), self.chance.choice(["high", "normal", "normal", "low"])
            due = self.now + self.chance.choice([-50, 0, 0, 30, 500])
            more = {"payload": payload(word)} if word else {}
            self.board.put(self.number, due, band=band, now=self.now, **more)
            self.kinds[self.number] = band, word
            self._waits(self.number, due)

    def _waits(self, number: int, due: int) -> None:
        band, word = self.kinds[number]
        self.waits[number] = band, word, due
        self.since[number] = len(self.taken)

    def claim(self) -> None:
        nonce, want = f"n{self.now}", self.chance.choice([1, 1, 2, 3, 10, 40])
        due = {number for number, (_, _, date) in self.waits.items() if date <= self.now}
        answer = self.board.claim(nonce, want=want, now=self.now)
        got = [ids.full(job.id).int & 0xFFFF for job in answer.jobs]
        assert len(set(got)) == len(got)
        assert due.issuperset(got)
        self.fillings.append(Filling(nonce, want, len(due), len(got), answer.more))
        assert [job.due_ms for job in answer.jobs] == [self.waits[number][2] for number in got]
        left = due.difference(got)
        if left and got and len(got) == want:
            assert max(RANK[self.kinds[number][0]] for number in got) <= min(RANK[self.kinds[number][0]] for number in left)
        for job, number in zip(answer.jobs, got, strict=True):
            band, word, date = self.waits.pop(number)
            if word:
                self.turns.append(Turn(str(number), word, band, self._had_turn_before(number, band, word, date)))
            self.taken.append((band, word, self.now))
            self.held[number] = nonce, job.attempt, date
        assert not self.breaches()

    def _had_turn_before(self, number: int, band: str, word: str, date: int) -> bool:
        """Whether this job waited and was due when its word had its last turn, and nothing has disturbed the word since."""
        before = [(at, when) for at, (its, same, when) in enumerate(self.taken) if (its, same) == (band, word)]
        if not before:
            return False
        at, when = before[-1]
        return self.since[number] <= at and date <= when and self.disturbed.get((band, word), -1) <= at

    def breaches(self) -> list[str]:
        return [str(breach) for breach in judge(History(sees=Sees.CLAIMS, turns=self.turns, fillings=self.fillings))]

    def settle(self) -> None:
        for number in self.chance.sample(sorted(self.held), min(len(self.held), self.chance.choice([1, 3]))):
            fence, attempt, own = self.held.pop(number)
            kind = self.chance.choice(["ack", "ack", "ack", "retry", "crash"])
            delay = self.chance.choice([0, 20])
            assert self.board.settle(number, kind, attempt=attempt, fence=fence, delay=delay, now=self.now) == "done"
            if kind != "ack" and number not in self.board.dump().get("failed", {}):
                crashed = own if self.kinds[number][1] else self.now
                self._waits(number, crashed if kind == "crash" else self.now + delay)
                self.disturbed[self.kinds[number]] = len(self.taken)

    def change(self) -> None:
        if not self.waits:
            return
        number = self.chance.choice(sorted(self.waits))
        self.disturbed[self.kinds[number]] = len(self.taken)
        if self.chance.random() < 0.5:
            self.board.store.cancel(job_id(number), now_ms=self.now)
            del self.waits[number]
        else:
            delay = self.chance.choice([0, 25, 400])
            self.board.store.reschedule(job_id(number), delay_ms=delay, now_ms=self.now)
            self._waits(number, self.now + delay)

    def pass_time(self) -> None:
        self.now += self.chance.choice([1, 20, 60])

    def step(self) -> None:
        self.now += 1  # jobs that wait by the same ms come in no order
        self.chance.choice([self.schedule, self.schedule, self.claim, self.claim, self.settle, self.change, self.pass_time])()

    def check(self) -> None:
        found = self.board.dump()
        bands = {band: set(found.get(band, {})) for band in RANK}
        blocked, waiters = found.get("blocked", {}), found.get("waiters", [])
        assert sorted(number for _, number in waiters) == sorted(blocked)
        places = [*blocked, *found.get("leases", {}), *(number for those in bands.values() for number in those)]
        assert sorted(places) == sorted([*self.waits, *self.held])
        lines: dict[str, list[int]] = defaultdict(list)
        for line, number in found.get("holders", []):
            lines[line].append(number)
        for band, those in bands.items():
            words = [self.kinds[number][1] for number in those if self.kinds[number][1]]
            assert len(set(words)) == len(words), f"a word has several jobs in {band}: {words}"
            assert {f"\3{RANK[band]}{word}" for word in words} == {line for line in lines if line[1] == str(RANK[band])}
        assert all(len(those) == 1 for those in lines.values())
        for line, number in waiters:
            assert line in lines, f"nobody will ever call {number} of {line!r}"
            (first,) = lines[line]
            own = self.waits[first][2]
            assert own <= self.now or own <= self.waits[number][2]

    def drain(self) -> None:
        for _ in range(40 * self.number):
            self.now += 10
            self.claim()
            for number, (fence, attempt, _) in self.held.items():
                self.board.settle(number, "ack", attempt=attempt, fence=fence, now=self.now)
            self.held = {}
            if not self.waits:
                return
        raise AssertionError(f"jobs are left: {self.board.dump()}")


@pytest.mark.parametrize("seed", range(12))
def test_each_word_has_one_job_in_a_band_and_words_take_turns(board, seed):
    history = FairHistory(board, seed)
    for _ in range(80):
        history.step()
        history.check()
    history.drain()
    assert not {"holders", "waiters", "blocked", "names"} & board.dump().keys()


class MixedHistory(RatedHistory):
    """A history of names, rates and pauses in which most jobs have a fair word, too."""

    def __init__(self, board: Board, seed: int) -> None:
        super().__init__(board, seed)
        self.fair_of: dict[int, str] = {}

    def schedule(self) -> None:
        self.number += 1
        name, rate = self.chance.choice([*NAMES, "", ""]), self.chance.choice([*RATES, "", ""])
        fair, task = self.chance.choice(WORDS), self.chance.choice(("shop.close", "shop.open"))
        self.name_of[self.number], self.rate_of[self.number], self.fair_of[self.number] = name, rate, fair
        self.words[self.number] = [f"task:{task}", *([f"name:{name}"] if name else [])]
        due = self.now + self.chance.choice([-50, 0, 30])
        more = {"band": self.chance.choice(["high", "normal", "low"]), "task": task, "now": self.now}
        if name or rate or fair:
            more["payload"] = payload(fair, name, NAMES.get(name, 1), Rate(rate, RATES[rate]) if rate else None)
        self.board.put(self.number, due, **more)

    def check(self) -> None:
        found = self.board.dump()
        lines: dict[str, int] = {}
        names: dict[str, set[int]] = defaultdict(set)
        for line, number in found.get("holders", []):
            if line[0] == "\3":
                assert line not in lines
                lines[line] = number
            else:
                names[line].add(number)
        assert set().union(*names.values()) == {number for number in found.get("leases", {}) if self.name_of[number]}
        assert all(len(those) <= NAMES[name] for name, those in names.items())
        waiters, blocked = found.get("waiters", []), found.get("blocked", {})
        assert sorted(number for _, number in waiters) == sorted(blocked)
        bands = {number for band in RANK for number in found.get(band, {})}
        in_rates = {number for line, number in waiters if line[0] == "\2"}
        assert not bands & blocked.keys()
        assert set(lines.values()) <= bands | in_rates
        opens = {line.decode() for line in self.board.link.execute("ZRANGE", self.board.keys["opens"], 0, -1)}
        for line, number in waiters:
            if line[0] == "\3":
                assert line in lines, f"nobody will ever call {number} of {line!r}"
            elif line[0] == "\2":
                assert line in opens
            elif line[0] != "\1":
                called = {one for one in bands | in_rates if self.name_of[one] == line}
                assert called or len(names[line]) >= NAMES[line], f"nobody will ever call {number} of {line}"
        assert not breaches(self.claims)
        assert set(found.get("names", {})) <= set(found.get("jobs", []))


@pytest.mark.parametrize("seed", range(15))
def test_fair_words_with_names_rates_and_pauses_lose_no_job(board, seed):
    history = MixedHistory(board, seed)
    for _ in range(100):
        history.step()
        history.check()
    history.drain()
    history.check()
    assert not {"holders", "waiters", "blocked"} & board.dump().keys()


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("lost", [("holders",), ("rates", "pauses", "opens", "waiters", "holders")])
def test_tidy_mends_what_another_program_has_removed(board, seed, lost):
    history = MixedHistory(board, seed)
    for _ in range(60):
        history.step()
    board.link.execute("DEL", *(board.keys[key] for key in lost))
    history.until, history.claims = {}, []
    cursor = "0"
    for _ in range(30):
        cursor = board.store.tidy(cursor=cursor, now_ms=history.now).cursor
    history.claims = []
    history.drain()


@pytest.mark.parametrize(
    ("piece", "old", "new"),
    [
        ("lines", "    if word then\n", "    if false then\n"),
        ("lines", "date > now and int(date) or fair.score(", "int(date) or fair.score("),
        ("lines", "for place, line in ipairs(ended) do", "for place, line in ipairs({}) do"),
    ],
    ids=["all jobs of a word are in their band", "the next one comes with its date", "nobody calls the next one"],
)
def test_a_script_that_is_not_fair_is_found_out(board, monkeypatch, piece, old, new):
    real = loader._read

    def read(path: str) -> str:
        text = real(path)
        return text.replace(old, new) if path.endswith(f"{piece}.lua") and old in text else text

    monkeypatch.setattr(loader, "_read", read)
    loader.built.cache_clear()
    turns, fillings = [], []
    try:
        for number in range(1, 7):
            put(board, number, NOW - 100 + number * 2, fair="a")
            put(board, number + 10, NOW - 99 + number * 6, fair="b")
        for step in range(12):
            want = 1 + step % 3
            answer = board.claim(f"m{step}", want=want, now=NOW + step)
            got = [ids.full(job.id).int & 0xFFFF for job in answer.jobs]
            fillings.append(Filling(f"m{step}", want, 12 - len(turns), len(got), answer.more))
            turns += [Turn(str(number), "ab"[number > 10], "normal", True) for number in got]
    finally:
        monkeypatch.undo()
        loader.built.cache_clear()
    assert judge(History(sees=Sees.CLAIMS, turns=turns, fillings=fillings))
