"""Histories that a seed makes of what happens to jobs of few names: what must hold holds after each step, and all jobs end."""

from __future__ import annotations

from random import Random

import pytest

from django_delayq import ids
from django_delayq.store.scripts.queue import Outcome
from django_delayq.store.scripts.recovery import EpochStore
from tests.store.board import NOW, Board, job_id
from tests.store.test_names import put

NAMES = {"a": 1, "b": 1, "c": 3}
ENDS = ("ack", "ack", "retry", "snooze", "fail", "crash", "evict", "park", "ask", "cancel")


class History:
    """Jobs of three names, and one without, and what happens to them by that seed."""

    def __init__(self, board: Board, seed: int) -> None:
        self.board, self.chance, self.now, self.number = board, Random(seed), NOW, 0
        self.held: dict[int, tuple[str, int]] = {}  # number -> fence and attempt
        self.turns: dict[str, int] = {}
        self.name_of: dict[int, str] = {}

    def schedule(self) -> None:
        self.number += 1
        name = self.chance.choice([*NAMES, ""])
        self.name_of[self.number] = name
        due = self.now + self.chance.choice([-50, 0, 30])
        band = self.chance.choice(["high", "normal", "low"])
        durable = self.chance.random() < 0.5
        key = self.chance.choice(["", "", "k"])
        policy = self.chance.choice(["replace", "latest", "keep"]) if key else "keep"
        fields = {"band": band, "key": key, "durable": durable, "on_conflict": policy, "now": self.now}
        if self.chance.random() < 0.1:
            fields["expires_ms"] = self.now + 40
        if name:
            put(self.board, self.number, due, name, NAMES[name], **fields)
        else:
            self.board.put(self.number, due, **fields)

    def claim(self) -> None:
        nonce = f"n{self.now}x{self.chance.randrange(10**9)}"
        want = self.chance.choice([1, 2, 10])
        for job in self.board.claim(nonce, want=want, now=self.now).jobs:
            number = ids.full(job.id).int & 0xFFFF
            self.held[number] = nonce, job.attempt
            if name := self.name_of[number]:
                assert job.turn > self.turns.get(name, 0)
                self.turns[name] = job.turn
            else:
                assert job.turn == 0

    def settle(self, kind: str = "") -> None:
        some = self.chance.sample(sorted(self.held), min(len(self.held), self.chance.choice([1, 1, 3])))
        items = []
        for number in some:
            fence, attempt = self.held.pop(number)
            items.append(
                Outcome(ids.short(job_id(number)), attempt, fence, kind or self.chance.choice(ENDS), self.chance.choice([0, 20]))
            )
        self.board.store.settle(items, worker="w1", max_crashes=3, now_ms=self.now)

    def change(self) -> None:
        found = self.board.dump()
        waiting = sorted(number for band in ("high", "normal", "low") for number in found.get(band, {}))
        job = job_id(self.chance.choice([*waiting, self.chance.randint(1, self.number + 1)]))
        match self.chance.choice(["cancel", "move", "now", "requeue"]):
            case "cancel":
                self.board.store.cancel(job, now_ms=self.now)
            case "requeue":
                self.board.store.requeue(job, now_ms=self.now)
            case what:
                self.board.store.reschedule(job, delay_ms=0 if what == "now" else 25, now_ms=self.now)

    def pass_time(self) -> None:
        self.now += self.chance.choice([1, 20, 60])

    def step(self) -> None:
        self.chance.choice(
            [self.schedule, self.schedule, self.claim, self.claim, self.settle, self.settle, self.change, self.pass_time]
        )()

    def check(self) -> None:
        """The invariants of names, after any sequence of calls."""
        found = self.board.dump()
        holders: dict[str, set[int]] = {}
        for name, number in found.get("holders", []):
            holders.setdefault(name, set()).add(number)
        with_lease = {number for number in found.get("leases", {}) if self.name_of[number]}
        assert set().union(*holders.values()) == with_lease
        assert all(len(those) <= NAMES[name] for name, those in holders.items())
        waiting = dict.fromkeys(found.get("blocked", {}))
        assert sorted(number for _, number in found.get("waiters", [])) == sorted(waiting)
        bands = {number for band in ("high", "normal", "low") for number, due in found.get(band, {}).items() if NOW + due <= self.now}
        for name, number in found.get("waiters", []):
            if name not in NAMES:  # the line of a paused word
                continue
            called = {one for one in bands if self.name_of[one] == name}
            assert called or len(holders.get(name, ())) >= NAMES[name], f"nobody will ever call {number} of {name}"
        assert set(found.get("names", {})) <= set(found.get("jobs", []))

    def drain(self) -> None:
        """All that is left ends."""
        for _ in range(40 * self.number):
            self.claim()
            if self.held:
                self.settle("ack")
            self.now += 10
            if not {"high", "normal", "low", "blocked", "leases"} & self.board.dump().keys():
                return
        raise AssertionError(f"jobs are left: {self.board.dump()}")


@pytest.mark.parametrize("seed", range(25))
def test_a_name_with_room_has_a_job_in_a_band_if_any_waits_and_all_jobs_end(board, seed):
    history = History(board, seed)
    for _ in range(120):
        history.step()
        history.check()
    history.drain()
    assert not {"holders", "waiters", "blocked"} & board.dump().keys()
    assert set(board.dump().get("names", {})) <= set(board.dump().get("failed", {}))


@pytest.mark.parametrize("seed", range(10))
def test_what_is_purged_or_swept_in_the_middle_leaves_nothing_behind(board, seed):
    history = History(board, seed)
    for _ in range(60):
        history.step()
    if seed % 2:
        while board.store.purge(limit=3, now_ms=history.now)[1]:
            history.check()
    else:
        board.link.execute("HSET", board.keys["meta"], "rolled", "sweep")
        generation = board.link.execute("HGET", board.keys["meta"], "generation").decode()
        cursor = "0"
        while (cursor := EpochStore(board.store).sweep(generation, cursor, now_ms=history.now)[0]) != "0":
            pass
        board.link.execute("HDEL", board.keys["meta"], "rolled")
        history.held = {number: run for number, run in history.held.items() if number in board.dump().get("leases", {})}
    history.check()
    history.drain()
