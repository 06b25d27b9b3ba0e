"""The cost of many idle movers for a server, and how soon they notice a dead process: with scripts alone, in simulated time."""

from __future__ import annotations

import heapq
import re
from collections.abc import Callable

import pytest

from django_delayq import ids
from tests.store.board import NOW, Board, job_id

SECONDS = 64
SELDOM = 16_000


class Crowd:
    """Workers that sleep for as long as their claim returns, long sleeps with up to an eighth more or less. Tokens wake the one that
    has slept longest. `times`: the time of each claim.
    """

    def __init__(self, board: Board, many: int, hosts: int = 1) -> None:
        self.board = board
        self.now = NOW
        self.names = [f"h{number % hosts}:{number}:x" for number in range(many)]
        self.at = [(NOW + number, name) for number, name in enumerate(self.names)]
        self.slept = dict.fromkeys(self.names, NOW)
        self.deaf: set[str] = set()  # they hear no tokens; or do, and are lost with them
        self.claims = 0

    def ask(self, name: str) -> list[str]:
        self.claims += 1
        claim = self.board.claim(f"n{self.claims}", name, want=50, now=self.now)
        wait = claim.wait_ms if claim.wait_ms < SELDOM else SELDOM * (0.875 + self.claims * 0.37 % 1 / 4)
        self.at = [(at, other) for at, other in self.at if other != name]
        self.at.append((self.now + int(wait), name))
        heapq.heapify(self.at)
        self.slept[name] = self.now
        return [job.id for job in claim.jobs]

    def lose(self, *names: str) -> None:
        """They ask no more; what they hear is lost."""
        self.at = [(at, name) for at, name in self.at if name not in names]
        heapq.heapify(self.at)
        self.deaf |= set(names)

    def role(self, role: str) -> str:
        found = self.board.link.execute("HGET", self.board.keys["meta"], role)
        return "" if found is None else found.decode()

    def pass_time(self, seconds: float, until: Callable[[list[str]], bool] = lambda jobs: False) -> int:
        """Returns after how many ms somebody got what is waited for, or the time was over."""
        start, end = self.now, self.now + int(seconds * 1000)
        while True:
            while self.board.link.execute("RPOP", self.board.keys["wake"]):
                name = min(self.slept, key=lambda name: self.slept[name])
                self.slept[name] = self.now  # a lost one is served first, and once
                if name not in self.deaf and until(self.ask(name)):
                    return self.now - start
            if not self.at or self.at[0][0] > end:
                self.now = end
                return end - start
            self.now, name = max(self.now, self.at[0][0]), self.at[0][1]
            if until(self.ask(name)):
                return self.now - start


def calls(board: Board) -> int:
    """How many scripts the server has run."""
    told = board.link.execute("INFO", "commandstats")
    return sum(int(found) for found in re.findall(rb"cmdstat_evalsha:calls=(\d+)", told))


@pytest.mark.parametrize("many", [1, 2, 10, 100])
def test_idle_movers_ask_twice_a_second_and_each_in_sixteen(board, many):
    crowd = Crowd(board, many)
    crowd.pass_time(20)  # all have come, and have found their places
    before = calls(board)
    crowd.pass_time(SECONDS)
    assert calls(board) - before <= SECONDS * (2 + many / 16)


def some_job(jobs: list[str]) -> bool:
    return bool(jobs)


@pytest.mark.parametrize("roles", [("timer",), ("backup",), ("timer", "backup")])
@pytest.mark.parametrize("hosts", [1, 2])
def test_who_is_lost_is_noticed(board, roles, hosts):
    """The job was known before. One that is lost alone makes nothing late; both at once do, until one of the others looks."""
    crowd = Crowd(board, 6, hosts)
    crowd.pass_time(30)
    board.put(1, crowd.now + 2700, now=crowd.now)
    crowd.pass_time(2.1)
    crowd.lose(*[crowd.role(role) for role in roles])
    late = crowd.pass_time(60, some_job) - 600
    assert 0 <= late <= (25 if len(roles) == 1 else 18_000)


def test_a_host_that_is_lost_takes_only_one_of_both(board):
    crowd = Crowd(board, 8, hosts=2)
    crowd.pass_time(40)
    board.put(1, crowd.now + 2700, now=crowd.now)
    crowd.pass_time(2.1)
    owner = crowd.role("timer")
    crowd.lose(*[name for name in crowd.names if name[:2] == owner[:2]])
    assert 600 <= crowd.pass_time(60, some_job) <= 625


def test_after_both_are_lost_a_new_job_calls_somebody_at_once(board):
    crowd = Crowd(board, 4)
    crowd.pass_time(30)
    crowd.lose(crowd.role("timer"), crowd.role("backup"))
    crowd.pass_time(2)
    for number in range(1, 4):  # as many as may be told to those who are lost, and one more
        board.put(number, crowd.now, now=crowd.now)
        crowd.pass_time(0.001)
    assert crowd.role("timer") not in crowd.deaf


def test_a_token_that_is_lost_costs_what_the_owner_sleeps(board):
    crowd = Crowd(board, 5)
    crowd.pass_time(30)
    for number in range(1, 6):
        board.put(number, crowd.now + 5, now=crowd.now)
        board.link.execute("DEL", board.keys["wake"])
        assert crowd.pass_time(10, lambda jobs, number=number: ids.short(job_id(number)) in jobs) <= 1025
