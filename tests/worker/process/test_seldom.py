"""The polling interval of an idle mover: that of its claim, if it can be called and holds no job of that queue."""

from __future__ import annotations

import select
import socket
from collections import Counter
from typing import Any

import pytest

from django_delayq import clock
from django_delayq.exceptions import StoreUnavailable
from django_delayq.store.scripts.queue import ScheduleItem
from django_delayq.worker.process import node_threads
from django_delayq.worker.process.mover import WeightedRoundRobin
from tests.store.board import NOW, record
from tests.worker.bench import Bench


class Clocked:
    """A mover beside an owner and a backup that never fail to come, all by one clock that the test moves."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.seconds = 0.0
        self.claims: list[float] = []
        self.store = bench.stores[0]
        self.claim = self.store.claim
        bench.mover._monotonic = lambda: self.seconds
        bench.mover._rand = lambda: 0.5
        self.store.claim = self._claim  # type: ignore[method-assign]

    @property
    def now(self) -> int:
        return NOW + int(self.seconds * 1000)

    def _claim(self, worker: str, nonce: str, **options: Any) -> Any:
        self.claims.append(self.seconds)
        self.told = options
        return self.claim(worker, nonce, **options, now_ms=self.now)

    def poll(self, seconds: float) -> list[float]:
        """Passes once a second for so long. Returns the seconds at which it has claimed."""
        self.claims.clear()
        end = self.seconds + seconds
        while self.seconds < end:
            for other in ("a", "b"):
                self.claim(f"{other}:1:x", f"{other}{self.now}", want=1, lease_ms=30_000, max_crashes=3, now_ms=self.now)
            assert self.bench.mover.poll() <= 1.0, "it looks once a second whether it can still be called"
            self.seconds += 1
        return [*self.claims]


@pytest.fixture
def clocked(redis_server) -> Clocked:
    return Clocked(Bench(redis_server.link))


def test_who_can_be_called_asks_seldom(clocked):
    assert clocked.poll(40) == [0, 1, 17, 33], "before the first claim it could not be called"


@pytest.mark.parametrize(("rand", "second"), [(0.0, 14), (0.999, 18)])
def test_not_all_ask_at_once(clocked, rand, second):
    clocked.bench.mover._rand = lambda: rand
    clocked.poll(2)
    assert clocked.poll(30)[0] == 1 + second


def test_a_wait_counts_from_when_redis_said_it(clocked, monkeypatch):
    """Not from when the answer has come, nor from when what was claimed is written down: each job would be late by that."""
    clocked.store.schedule([ScheduleItem.of(record(1), delay_ms=0), ScheduleItem.of(record(2), delay_ms=700)], now_ms=clocked.now)
    real = clocked.claim

    def slow(*arguments: Any, **options: Any) -> Any:
        clocked.seconds += 0.1
        reply = real(*arguments, **{**options, "now_ms": clocked.now})
        clocked.seconds += 0.1
        return reply

    keep = clocked.bench.mover._keep

    def keeps(*arguments: Any) -> None:
        keep(*arguments)
        clocked.seconds += 0.2

    clocked.claim = slow
    monkeypatch.setattr(clocked.bench.mover, "_keep", keeps)
    date = clocked.seconds + 0.7
    left = clocked.bench.mover.poll()
    assert clocked.bench.take()
    assert clocked.seconds + left == pytest.approx(date, abs=0.002)


def test_of_a_sleep_that_took_longer_only_what_is_left_is_slept(monkeypatch):
    seconds = [100.0]
    slept: list[float] = []

    class Late:
        """Like poll() of the system, with a simulated clock: it returns 0.4 ms late."""

        def register(self, descriptor: int, events: int) -> None: ...

        def poll(self, whole: float) -> list[tuple[int, int]]:
            assert whole == 20
            seconds[0] += 0.0204
            return []

    monkeypatch.setattr(select, "poll", Late)
    monkeypatch.setattr(clock, "monotonic", lambda: seconds[0])
    monkeypatch.setattr(clock, "sleep", slept.append)
    assert node_threads.ready([0], 0.0209) == []
    assert slept == [pytest.approx(0.0005)]


def test_who_cannot_be_called_asks_every_second(clocked):
    clocked.poll(5)

    def away() -> None:
        raise StoreUnavailable("away")

    mover = clocked.bench.mover
    mover.trouble._rand = lambda: 0.0
    arm, mover.wake.arm = mover.wake.arm, away
    assert clocked.poll(5) == [6, 7, 8, 9], "the first of these passes finds out"
    mover.wake.arm = arm
    assert clocked.poll(30)[:3] == [10, 11, 27]


def test_a_call_that_may_have_been_lost_with_its_line_is_no_reason_to_sleep_on(clocked):
    clocked.poll(5)
    connection: Any = clocked.bench.mover.wake.connection
    connection._sock.shutdown(socket.SHUT_RDWR)
    clocked.bench.mover.token()
    assert clocked.poll(5)[0] <= 6


def test_what_is_held_of_a_line_is_asked_about_every_second(clocked):
    """Redis may have lost it: it must be adopted soon."""
    bench = clocked.bench
    clocked.poll(2)
    item = ScheduleItem.of(record(1), delay_ms=0)
    clocked.store.schedule([item], now_ms=clocked.now)
    bench.move()
    run = bench.take()
    assert clocked.poll(5) == [3, 4, 5, 6]
    bench.settler.add(run, run.outcome("ack", b"{}"))
    bench.settler.poll()
    assert clocked.poll(20) == [7, 23]


def test_who_has_been_silent_has_no_proof_that_redis_was_away(clocked):
    clocked.poll(17)
    claim, tries = clocked.claim, iter([True])

    def once(worker: str, *arguments: Any, **options: Any) -> Any:
        if worker == "w/1" and next(tries, False):
            raise StoreUnavailable("away")
        return claim(worker, *arguments, **options)

    clocked.claim = once
    clocked.bench.mover.trouble._rand = lambda: 0.0
    clocked.poll(2)
    assert clocked.told["away_ms"] == 2000, "a second of it, since it was asked, and one before that"


def given(turns: WeightedRoundRobin, many: int, *, more: bool = True) -> list[int]:
    """The lines that are polled if each pass has room for one."""
    asked = []
    for _ in range(many):
        line = next(iter(turns.order()))
        turns.polled(line, more=more)
        asked.append(line)
    return asked


def test_each_line_has_its_turn():
    assert given(WeightedRoundRobin(["a", "b", "c"], [1, 1, 1]), 7) == [0, 1, 2, 0, 1, 2, 0]


def test_a_queue_has_as_many_turns_as_its_weight_however_many_partitions_it_has():
    turns = WeightedRoundRobin(["a"] * 4 + ["b"], [2] * 4 + [1])
    asked = given(turns, 60)
    assert Counter(line == 4 for line in asked) == {False: 40, True: 20}
    assert Counter(asked) == {0: 10, 1: 10, 2: 10, 3: 10, 4: 20}


def test_a_queue_without_more_gives_up_its_turns():
    assert given(WeightedRoundRobin(["a", "b"], [5, 1]), 4, more=False) == [0, 1, 0, 1]


def test_all_lines_are_asked_in_a_pass_that_has_room_for_them():
    turns = WeightedRoundRobin(["a", "a", "a", "b"], [1] * 4)
    assert list(turns.order()) == [0, 3, 1, 2]
    turns.polled(0, more=True)
    assert list(turns.order()) == [3, 1, 2, 0]
    turns.polled(3, more=True)
    assert list(turns.order()) == [1, 3, 2, 0]
