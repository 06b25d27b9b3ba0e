"""Counts of how late the last runs of jobs started and how long they took: written by settle, read as one string."""

from __future__ import annotations

from collections import Counter

import pytest

from django_delayq import ids
from django_delayq.spread import SLOT_MS, SLOTS, bucket, decode
from django_delayq.store.scripts.queue import Outcome
from tests.store.board import NOW, job_id


def counted(board, now: int = NOW) -> tuple[dict[int, int], dict[int, int]]:
    found = decode(board.link.execute("GET", board.keys["spread"]) or b"", now)
    return tuple({b: n for b, n in enumerate(counts) if n} for counts in (found.late, found.ran))


def ack(board, number: int, late_ms: int, ran_ms: int, *, now: int = NOW, fence: str = "n1") -> str:
    item = Outcome(id=ids.short(job_id(number)), attempt=1, fence=fence, kind="ack", late_ms=late_ms, ran_ms=ran_ms)
    return board.store.settle([item], worker="w1", max_crashes=3, now_ms=now)[0]


@pytest.mark.parametrize("ms", [0, 1, 2, 3, 4, 1000, 1023, 1024, 8_388_607, 8_388_608, 10**10])
def test_both_measures_of_a_run_are_counted_in_their_buckets(board, ms):
    board.put(1)
    board.claim()
    ack(board, 1, ms, 250)
    board.put(2)
    board.claim("n2")
    ack(board, 2, 5, ms, fence="n2")
    assert counted(board) == tuple(dict(Counter(map(bucket, those))) for those in ((ms, 5), (250, ms)))


def test_a_run_is_counted_once_however_often_it_is_settled(board):
    board.put(1)
    board.claim()
    assert [ack(board, 1, 3, 250), ack(board, 1, 3, 250)] == ["done", "already"]
    assert counted(board) == ({2: 1}, {8: 1})


def test_a_run_that_nobody_timed_is_not_counted(board):
    board.put(1)
    board.claim()
    board.settle(1, "ack")
    assert counted(board) == ({}, {})


def test_a_slot_that_comes_round_again_begins_at_zero(board):
    round_ms = SLOTS * SLOT_MS
    for number, now in enumerate((NOW, NOW + SLOT_MS, NOW + round_ms), 1):
        board.put(number, due=now, now=now)
        board.claim(f"n{number}", now=now)
        ack(board, number, 0, 4, now=now, fence=f"n{number}")
    assert counted(board, NOW + round_ms) == ({0: 1}, {3: 1})  # the middle one is older than an hour
    assert counted(board, NOW + SLOT_MS + 3_600_000) == ({0: 1}, {3: 1})
    assert board.link.execute("STRLEN", board.keys["spread"]) <= SLOTS * 66 * 4


def test_nothing_is_left_of_what_a_slot_held(board):
    board.link.execute("SET", board.keys["spread"], b"\xff" * SLOTS * 66 * 4)
    board.put(1)
    board.claim()
    ack(board, 1, 0, 4)
    assert counted(board) == ({0: 1}, {3: 1})


def test_what_is_no_string_gives_way(board):
    board.link.execute("RPUSH", board.keys["spread"], "none of ours")
    for number in (1, 2):
        board.put(number)
        board.claim(f"n{number}")
        assert ack(board, number, 0, 4, fence=f"n{number}") == "done"
    assert counted(board) == ({0: 1}, {3: 1})


def test_what_ended_is_counted_by_the_minute_and_once(board):
    for number, outcome in enumerate(("ack", "ack", "fail", "retry", "snooze"), 1):
        board.put(number)
        board.claim(f"n{number}")
        board.settle(number, outcome, fence=f"n{number}", delay=10**9)
        board.settle(number, outcome, fence=f"n{number}", delay=10**9)
    found = decode(board.link.execute("GET", board.keys["spread"]), NOW + 60_000)
    assert found.succeeded == (*(0,) * 58, 2, 0)
    assert found.failed == (*(0,) * 58, 1, 0)
    assert found.retried == (*(0,) * 58, 1, 0)


def test_ends_of_one_call_are_counted_by_their_kinds(board):
    kinds = ("ack", "ack", "fail", "retry", "retry", "retry")
    for number in range(len(kinds)):
        board.put(number)
    board.claim()
    items = [Outcome(ids.short(job_id(number)), 1, "n1", kind, 10**9, ran_ms=4) for number, kind in enumerate(kinds)]
    assert set(board.store.settle(items, worker="w1", max_crashes=3, now_ms=NOW)) == {"done"}
    found = decode(board.link.execute("GET", board.keys["spread"]), NOW)
    assert (found.succeeded[-1], found.failed[-1], found.retried[-1]) == (2, 1, 3)
    assert counted(board) == ({0: 3}, {3: 3}), "a retried run is not the last of its job"


def test_what_is_not_counted_writes_nothing(board):
    board.put(1)
    board.claim()
    board.link.execute("DEL", board.keys["spread"])
    board.settle(1, "snooze", delay=10**9)
    assert board.link.execute("EXISTS", board.keys["spread"]) == 0


def test_poison_found_by_a_claim_is_counted_as_failed(board):
    board.put(1)
    board.claim(max_crashes=0)
    later = board.pass_lease()
    assert board.claim("n2", "w2", now=later, max_crashes=0).jobs == []
    assert sum(decode(board.link.execute("GET", board.keys["spread"]), later).failed) == 1
