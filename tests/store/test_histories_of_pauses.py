"""Histories that a seed makes of jobs of few names whose words are paused and resumed: what must hold holds after each step."""

from __future__ import annotations

from random import Random

import pytest

from django_delayq.store.scripts.limits import LimitChange, LimitStore, WordPause
from tests.store.board import Board, job_id
from tests.store.test_histories_of_names import NAMES, History
from tests.store.test_names import put

TASKS = ("shop.close", "shop.open")
WORDS = [f"task:{task}" for task in TASKS] + [f"name:{name}" for name in NAMES]


class PausedHistory(History):
    """A history of names in which words are paused. `until`: the end of each pause in force, 0 for no end."""

    def __init__(self, board: Board, seed: int) -> None:
        super().__init__(board, seed)
        self.until: dict[str, int] = {}
        self.words: dict[int, list[str]] = {}
        self.chance = Random(seed)

    def schedule(self) -> None:
        self.number += 1
        name, task = self.chance.choice([*NAMES, "", ""]), self.chance.choice(TASKS)
        self.name_of[self.number] = name
        self.words[self.number] = [f"task:{task}", *([f"name:{name}"] if name else [])]
        due = self.now + self.chance.choice([-50, 0, 30])
        fields = {"band": self.chance.choice(["high", "normal", "low"]), "task": task, "now": self.now}
        if name:
            put(self.board, self.number, due, name, NAMES[name], **fields)
        else:
            self.board.put(self.number, due, **fields)

    def claim(self) -> None:
        before = dict(self.held)
        super().claim()
        paused = {word for word, until in self.until.items() if until == 0 or until > self.now}
        for number in self.held.keys() - before.keys():
            assert not paused.intersection(self.words[number]), f"{number} was claimed while {paused} were paused"

    def pause(self) -> None:
        word, until = self.chance.choice(WORDS), self.chance.choice([0, 0, self.now + 40])
        LimitStore(self.board.store).limit([LimitChange("pause", word, until)], now_ms=self.now)
        self.until[word] = until

    def resume(self) -> None:
        word = self.chance.choice([*self.until, WORDS[0]])
        LimitStore(self.board.store).limit([LimitChange("resume", word, self.chance.choice([0, 0, 15]))], now_ms=self.now)
        self.until.pop(word, None)

    def step(self) -> None:
        self.chance.choice([super().step, super().step, super().step, self.pause, self.resume])()

    def check(self) -> None:
        super().check()
        found, pauses = self.board.dump(), LimitStore(self.board.store).paused()
        opens = {line.decode() for line in self.board.link.execute("ZRANGE", self.board.keys["opens"], 0, -1)}
        held = {number for number, due in found.get("blocked", {}).items() if due < -1_000_000_000}
        for line, number in found.get("waiters", []):
            assert (line[0] == "\1") == (number in held)
            if number in held:
                assert line[1:] in self.words[number]
                assert line[1:] in pauses
                assert line in opens or pauses[line[1:]] == WordPause(0, False)

    def drain(self) -> None:
        for word in WORDS:
            LimitStore(self.board.store).limit([LimitChange("resume", word)], now_ms=self.now)
        self.until = {}
        super().drain()


@pytest.mark.parametrize("seed", range(25))
def test_no_paused_job_is_claimed_and_all_jobs_end_after_the_last_pause(board, seed):
    history = PausedHistory(board, seed)
    for _ in range(120):
        history.step()
        history.check()
    history.drain()
    assert not {"holders", "waiters", "blocked"} & board.dump().keys()


@pytest.mark.parametrize("seed", range(10))
def test_held_jobs_that_are_cancelled_in_the_middle_leave_nothing_behind(board, seed):
    history = PausedHistory(board, seed)
    for _ in range(60):
        history.step()
    for number in history.chance.sample(range(1, history.number + 1), history.number // 2):
        board.store.cancel(job_id(number), now_ms=history.now)
        history.check()
    history.drain()
    assert not {"holders", "waiters", "blocked"} & board.dump().keys()
