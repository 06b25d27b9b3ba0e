"""Histories that a seed makes of jobs with names and rates, pauses, and changes of rates: what must hold holds after each step."""

from __future__ import annotations

from random import Random

import pytest

from django_delayq import ids
from django_delayq.job_meta import Pace
from django_delayq.store.scripts.limits import LimitStore
from tests.store.board import LEASE, Board, job_id
from tests.store.test_histories_of_names import NAMES
from tests.store.test_histories_of_pauses import PausedHistory
from tests.store.test_rates import payload

RATES = {"fast": Pace(100, 1000, 4), "slow": Pace(30, 1000, 1), "odd": Pace(7, 100, 2)}


def excess(claims: list[int], pace: Pace) -> list[tuple[int, int]]:
    """The windows, from one claim to another, with more claims than the burst and the rate allow. Redis counts whole ms."""
    found = []
    for first, start in enumerate(claims):
        for last in range(first, len(claims)):
            if last - first + 1 > pace.burst + (claims[last] - start + 1) / pace.each_ms:
                found.append((start, claims[last]))
    return found


class RatedHistory(PausedHistory):
    """A history of names and pauses in which most jobs have a rate. `claims`: when a token of each rate was taken."""

    def __init__(self, board: Board, seed: int) -> None:
        super().__init__(board, seed)
        self.rate_of: dict[int, str] = {}
        self.claims: dict[str, list[int]] = {name: [] for name in RATES}

    def schedule(self) -> None:
        self.number += 1
        name, rate = self.chance.choice([*NAMES, "", ""]), self.chance.choice([*RATES, *RATES, ""])
        task = self.chance.choice(("shop.close", "shop.open"))
        self.name_of[self.number], self.rate_of[self.number] = name, rate
        self.words[self.number] = [f"task:{task}", *([f"name:{name}"] if name else [])]
        due = self.now + self.chance.choice([-50, 0, 30])
        fields = {"band": self.chance.choice(["high", "normal", "low"]), "task": task, "now": self.now}
        if rate:
            fields["payload"] = payload(rate, RATES[rate], name, NAMES.get(name, 1))
            self.board.put(self.number, due, **fields)
        else:
            self.number -= 1
            super().schedule()
            self.rate_of[self.number] = ""

    def claim(self) -> None:
        nonce = f"n{self.now}x{self.chance.randrange(10**9)}"
        want = self.chance.choice([1, 2, 10])
        free = self.chance.choice([0, 1, want, want])
        paused = {word for word, until in self.until.items() if until == 0 or until > self.now}
        answer = self.board.store.claim("w1", nonce, want=want, free=free, lease_ms=LEASE, max_crashes=3, now_ms=self.now)
        rated = 0
        for job in answer.jobs:
            number = ids.full(job.id).int & 0xFFFF
            self.held[number] = nonce, job.attempt
            assert not paused.intersection(self.words[number])
            if rate := self.rate_of[number]:
                self.claims[rate].append(self.now)
                rated += 1
        assert rated <= free

    def check(self) -> None:
        found, limits = self.board.dump(), LimitStore(self.board.store)
        holders: dict[str, set[int]] = {}
        for name, number in found.get("holders", []):
            holders.setdefault(name, set()).add(number)
        with_lease = {number for number in found.get("leases", {}) if self.name_of[number]}
        assert set().union(*holders.values()) == with_lease
        assert all(len(those) <= NAMES[name] for name, those in holders.items())
        opens = {line.decode() for line in self.board.link.execute("ZRANGE", self.board.keys["opens"], 0, -1)}
        waiters, pauses = found.get("waiters", []), limits.paused()
        assert sorted(number for _, number in waiters) == sorted(found.get("blocked", {}))
        bands = {number for band in ("high", "normal", "low") for number in found.get(band, {})}
        assert not bands & {number for _, number in waiters}
        in_rates = {number for line, number in waiters if line[0] == "\2"}
        for line, number in waiters:
            if line[0] == "\1":
                assert line in opens or pauses[line[1:]] == (0, False)
            elif line[0] == "\2":
                assert line == f"\2{self.rate_of[number]}"
                assert line in opens
            else:
                called = {one for one in bands | in_rates if self.name_of[one] == line}
                assert called or len(holders.get(line, ())) >= NAMES[line], f"no call would ever wake {number} of {line}"
        for rate, claims in self.claims.items():
            assert not excess(claims, RATES[rate])
        assert set(found.get("names", {})) <= set(found.get("jobs", []))


@pytest.mark.parametrize("seed", range(25))
def test_no_rate_is_exceeded_and_all_jobs_end(board, seed):
    history = RatedHistory(board, seed)
    for _ in range(120):
        history.step()
        history.check()
    history.drain()
    history.check()
    assert not {"holders", "waiters", "blocked"} & board.dump().keys()


@pytest.mark.parametrize("seed", range(10))
def test_waiting_jobs_that_are_cancelled_in_the_middle_leave_nothing_behind(board, seed):
    history = RatedHistory(board, seed)
    for _ in range(60):
        history.step()
    for number in history.chance.sample(range(1, history.number + 1), history.number // 2):
        board.store.cancel(job_id(number), now_ms=history.now)
        history.check()
    history.drain()
    assert not {"holders", "waiters", "blocked"} & board.dump().keys()


@pytest.mark.parametrize("seed", range(5))
def test_what_tidy_finds_without_an_opening_returns_to_its_band(board, seed):
    history = RatedHistory(board, seed)
    for _ in range(60):
        history.step()
    board.link.execute("DEL", *(board.keys[key] for key in ("rates", "pauses", "opens")))
    history.until = {}
    cursor = "0"
    for _ in range(20):
        cursor = board.store.tidy(cursor=cursor, now_ms=history.now).cursor
    history.claims = {name: [] for name in RATES}
    history.drain()


@pytest.mark.slow
def test_the_bound_holds_for_random_times_rates_and_claims(board):
    chance = Random()
    for _ in range(200):
        board.link.execute("FLUSHDB")
        pace = Pace(chance.randint(1, 300), chance.choice([100, 1000, 60_000]), chance.randint(1, 20))
        now, claims = chance.randint(1, 2**41), []
        for number in range(1, 120):
            board.put(number, now, now=now, payload=payload("r", pace))
        for step in range(300):
            now += int(chance.expovariate(1 / max(1.0, pace.each_ms * chance.choice([0.1, 1, 5]))))
            free = chance.choice([None, 0, 1, 3])
            want, nonce = chance.randint(1, 30), f"n{step}"
            answer = board.store.claim("w", nonce, want=want, free=free, lease_ms=2**42, max_crashes=3, now_ms=now)
            claims += [now] * len(answer.jobs)
        assert not excess(claims, pace), (pace, claims)
