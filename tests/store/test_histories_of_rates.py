"""Histories that a seed makes of jobs with names and rates, pauses, and changes of rates: what must hold holds after each step."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest

from django_delayq import ids
from django_delayq.job_meta import Quota
from django_delayq.store.scripts import loader
from django_delayq.store.scripts.limits import LimitStore
from tests.laws.history import History, RatedClaim, Sees
from tests.laws.judge import judge
from tests.store.board import LEASE, NOW, Board, job_id
from tests.store.test_histories_of_names import NAMES
from tests.store.test_histories_of_pauses import PausedHistory
from tests.store.test_rates import payload

RATES = {"fast": Quota(100, 1000, 4), "slow": Quota(30, 1000, 1), "odd": Quota(7, 100, 2)}


def breaches(claims: Sequence[RatedClaim]) -> list[str]:
    return [str(breach) for breach in judge(History(sees=Sees.CLAIMS, claims=claims))]


class RatedHistory(PausedHistory):
    """A history of names and pauses in which most jobs have a rate. `claims`: those of jobs with a rate."""

    def __init__(self, board: Board, seed: int) -> None:
        super().__init__(board, seed)
        self.rate_of: dict[int, str] = {}
        self.claims: list[RatedClaim] = []

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
                self.claims.append(RatedClaim(job.id, rate, RATES[rate], self.now))
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
                assert line in opens or pauses[line[1:]][:2] == (0, False)
            elif line[0] == "\2":
                assert line == f"\2{self.rate_of[number]}"
                assert line in opens
            else:
                called = {one for one in bands | in_rates if self.name_of[one] == line}
                assert called or len(holders.get(line, ())) >= NAMES[line], f"no call would ever wake {number} of {line}"
        assert not breaches(self.claims)
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
    history.claims = []  # the tokens are lost, so one burst more is possible
    history.drain()


@pytest.mark.slow
def test_the_bound_holds_for_random_times_rates_and_claims(board):
    chance = Random()
    for _ in range(200):
        board.link.execute("FLUSHDB")
        pace = Quota(chance.randint(1, 300), chance.choice([100, 1000, 60_000]), chance.randint(1, 20))
        now, claims = chance.randint(1, 2**41), []
        for number in range(1, 120):
            board.put(number, now, now=now, payload=payload("r", pace))
        for step in range(300):
            now += int(chance.expovariate(1 / max(1.0, pace.each_ms * chance.choice([0.1, 1, 5]))))
            free = chance.choice([None, 0, 1, 3])
            want, nonce = chance.randint(1, 30), f"n{step}"
            answer = board.store.claim("w", nonce, want=want, free=free, lease_ms=2**42, max_crashes=3, now_ms=now)
            claims += [RatedClaim(job.id, "r", pace, now) for job in answer.jobs]
        assert not breaches(claims), pace


@pytest.mark.parametrize(
    ("piece", "old", "new"),
    [
        ("limits", "rate.at = rate.at + rate.each", "rate.at = rate.at"),
        ("limits", "full - (burst - 1) * each", "full - burst * each"),
        ("limits", "ZADD', k_rates, as_text", "ZREM', k_rates, as_text"),
        ("claim", "or limits.rate_of(id)) and (lines.first_due", ") and (lines.first_due"),
    ],
    ids=["no token is taken", "one more than the burst", "the next claim does not know", "a takeover takes none"],
)
def test_a_script_that_takes_too_few_tokens_is_found_out(board, monkeypatch, piece, old, new):
    real = loader._read

    def read(path: str) -> str:
        text = real(path)
        return text.replace(old, new) if path.endswith(f"{piece}.lua") and old in text else text

    monkeypatch.setattr(loader, "_read", read)
    loader.built.cache_clear()
    try:
        pace = Quota(1, 1_000_000, 1)
        for number in range(1, 4):
            board.put(number, payload=payload("r", pace))
        claims = []
        for step, now in enumerate(
            (0, 10, 10_000, 20_000, 29_000, 31_000)
        ):  # at last, leases have run out, and no outage protects them
            now += NOW
            answer = board.store.claim("w1", f"m{step}", want=10, lease_ms=LEASE, max_crashes=9, now_ms=now)
            claims += [RatedClaim(job.id, "r", pace, now) for job in answer.jobs]
    finally:
        monkeypatch.undo()
        loader.built.cache_clear()
    assert breaches(claims)
