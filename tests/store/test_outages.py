"""Random histories of a Redis that comes and goes: what those who live hold is theirs, and what a lost host held is taken over."""

from __future__ import annotations

from random import Random

import pytest

from tests.store.board import LEASE, NOW, Board, numbers

LIVING, LOST = 1, 2
THERE = (500, 1000, 2500, 4000, 8000, 20_000, 40_000)  # ms for which Redis is there; workers come each second, back within three
AWAY = (16_000, 20_000, 29_000, 31_000, 60_000, 90_000, 200_000)  # longer than half a lease


class Times:
    """Two movers, a worker that runs a job and extends its lease as soon as it is back, and one that was lost with its host."""

    def __init__(self, board: Board, seed: int) -> None:
        self.board, self.random = board, Random(seed)
        self.now, self.heard = NOW, NOW
        self.claims = 0
        self.there = 0  # ms for which Redis has been there
        self.taken: dict[int, int] = {}  # job -> when it was taken over, by those ms
        for number in (LIVING, LOST):
            board.put(number)
            board.claim(f"n{number}", f"w{number}", want=1)

    def claim(self, away: int) -> None:
        self.claims += 1
        for number in numbers(self.board.claim(f"m{self.claims}", f"mover{self.claims % 2}", now=self.now, away=away)):
            self.taken.setdefault(number, self.there)

    def come(self, length: int) -> None:
        """Redis is available; the first caller may not know of an outage, because its call waited in a buffer of the server."""
        end, extends = self.now + length, self.now + 3000
        knows = self.random.random() < 0.6
        away = self.now - self.heard
        while self.now <= end:
            self.claim(away if knows else 0)
            self.claim(away)
            if self.now >= extends and LIVING not in self.taken:
                assert self.board.extend(LIVING, now=self.now) == "ok"
                extends = self.now + LEASE // 3
            knows, away = True, 0
            self.now += 999
            self.there += 999
        self.heard = self.now

    def go(self) -> None:
        self.now += self.random.choice(AWAY)
        if self.random.random() < 0.4:
            self.board.link.execute("HSET", self.board.keys["meta"], "run", "of-another-server")


@pytest.mark.parametrize("seed", range(12))
def test_outages_one_after_the_other_take_no_lease_from_the_living(board, seed):
    """While Redis is available for three of every nine seconds: too short to extend a lease."""
    times, short = Times(board, seed), 0
    for _ in range(14):
        length = times.random.choice(THERE if short < 3 else THERE[3:])
        short = short + 1 if length < 3500 else 0
        times.come(length)
        times.go()
    assert list(times.taken) == [LOST]
    assert times.taken[LOST] <= 4 * LEASE


def test_a_line_that_is_cut_again_and_again_ends_nothing(board):
    times = Times(board, 1)
    for _ in range(20):
        times.come(500)
        times.go()
    assert LOST in times.taken
