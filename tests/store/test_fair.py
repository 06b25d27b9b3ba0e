"""Fair words: their jobs are taken in turns, and each has its place."""

from __future__ import annotations

import json

import pytest

from django_delayq import ids
from django_delayq.job_meta import NAMED, Quota, Rate, SharedName
from tests.store.board import NOW, Board, job_id, numbers


def payload(fair: str, name: str = "", most: int = 1, rate: Rate | None = None) -> bytes:
    shared = SharedName(name, most if name else 0, rate, fair)
    return json.dumps([[], {}, {"meta": {NAMED: shared.packed()}}], separators=(",", ":")).encode()


def put(board: Board, number: int, due: int = NOW, *, fair: str = "a", name: str = "", rate: Rate | None = None, **more) -> str:
    return board.put(number, due, payload=payload(fair, name, 1, rate), **more)


def in_bands(board: Board) -> set[int]:
    return {number for band in ("high", "normal", "low") for number in board.dump().get(band, {})}


def turns(board: Board, *, want: int = 1, until: int = NOW + 1000) -> list[int]:
    found = []
    for now in range(NOW + 1, until):
        jobs = numbers(board.claim(f"c{now}", want=want, now=now))
        if not jobs:
            break
        found += jobs
    return found


def test_only_one_job_of_a_word_is_in_a_band_from_the_first_on(board):
    for number in (1, 2, 3):
        assert put(board, number) == "created"
    put(board, 4, fair="b")
    assert in_bands(board) == {1, 4}
    assert sorted(board.dump()["blocked"]) == [2, 3]


def test_words_are_taken_in_turns_however_many_jobs_one_has(board):
    for number in range(1, 8):
        put(board, number)
    put(board, 8, fair="b")
    put(board, 9, fair="b")
    assert turns(board) == [1, 8, 2, 9, 3, 4, 5, 6, 7]
    assert not {"blocked", "waiters", "holders"} & board.dump().keys()


def test_free_room_is_filled_from_the_words_that_wait_in_the_same_call(board):
    for number in range(1, 30):
        put(board, number)
    for number in (30, 31):
        put(board, number, fair="b")
    assert numbers(board.claim(want=10)) == [1, 30, 2, 31, 3, 4, 5, 6, 7, 8]


def test_a_job_keeps_its_own_date(board):
    put(board, 1, NOW - 70)
    put(board, 2, NOW - 50)
    board.claim("n1", want=1)
    (job,) = board.claim("n2", want=1, now=NOW + 5).jobs
    assert job.due_ms == NOW - 50


def test_a_job_that_is_due_earlier_takes_the_place_of_one_that_is_not_due(board):
    put(board, 1, NOW + 100)
    put(board, 2, NOW + 50)
    put(board, 3, NOW + 70)
    assert in_bands(board) == {2}
    assert board.claim("n1", now=NOW + 10).jobs == []
    assert numbers(board.claim("n2", now=NOW + 60)) == [2]
    assert in_bands(board) == {3}
    assert numbers(board.claim("n3", now=NOW + 99)) == [3]
    assert numbers(board.claim("n4", now=NOW + 100)) == [1]


def test_a_cancelled_or_postponed_job_gives_its_turn_to_the_next(board):
    for number in (1, 2, 3):
        put(board, number)
    board.store.cancel(job_id(1), now_ms=NOW)
    assert in_bands(board) == {2}
    board.store.reschedule(job_id(2), delay_ms=1000, now_ms=NOW)
    assert in_bands(board) == {3}
    assert numbers(board.claim()) == [3]
    assert board.dump()["normal"] == {2: 1000}


@pytest.mark.parametrize("band", ["high", "low"])
def test_each_band_has_its_own_turn(board, band):
    put(board, 1, band=band)
    put(board, 2)
    assert in_bands(board) == {1, 2}


def test_jobs_that_wait_for_a_token_keep_the_turn_and_the_next_word_is_not_held_up(board):
    rate = Rate("r", Quota(1, 1000, 1))
    for number in range(1, 6):
        put(board, number, rate=rate)
    put(board, 8, fair="a")
    assert numbers(board.claim("n0", now=NOW + 1)) == [1, 8]
    put(board, 7, NOW + 2, fair="b", rate=rate)  # only one job of a waits for a token before it
    got = []
    for step in range(1, 6):
        got += numbers(board.claim(f"n{step}", now=NOW + 1 + step * 1000))
    assert got == [2, 7, 3, 4, 5]


def test_a_crashed_job_is_the_next_of_its_word(board):
    for number in (1, 2, 3):
        put(board, number)
    board.claim("n1", want=1)
    board.settle(1, "crash")
    assert turns(board)[:2] == [2, 1]


def test_jobs_of_a_word_have_also_a_name(board):
    for number in (1, 2, 3):
        put(board, number, name="x")
    put(board, 4, fair="b", name="x")
    got = []
    for step in range(4):
        (job,) = board.claim(f"n{step}", want=1, now=NOW + step).jobs
        got.append(ids.full(job.id).int & 0xFFFF)
        board.settle(got[-1], "ack", fence=f"n{step}", now=NOW + step)
    assert sorted(got) == [1, 2, 3, 4]
    assert not {"blocked", "waiters", "holders"} & board.dump().keys()


def test_purged_jobs_leave_no_turn(board):
    for number in (1, 2, 3):
        put(board, number)
    board.store.purge(limit=10, now_ms=NOW)
    assert not {"blocked", "waiters", "holders", "names"} & board.dump().keys()
    put(board, 4)
    assert in_bands(board) == {4}


def test_a_consumer_of_older_messages_gets_all_of_a_word_that_have_been_due_for_so_long(board):
    for number in range(1, 6):
        put(board, number, NOW + number * 100)
    usual = {"lease_ms": 9000, "max_crashes": 3, "pulled_ms": 9000, "older_ms": 1000}
    claims = [board.store.claim("c", f"n{step}", want=1, now_ms=NOW + 1350, **usual) for step in range(4)]
    assert [numbers(claim) for claim in claims] == [[1], [2], [3], []]


def test_a_due_job_that_replaces_a_waiting_one_takes_the_place_of_one_that_is_not_due(board):
    put(board, 1, NOW + 100)
    put(board, 2, NOW + 200, key="k")
    assert put(board, 3, NOW, key="k", on_conflict="replace") == "replaced"
    assert numbers(board.claim()) == [3]


def test_tidy_gives_the_turn_to_the_next_where_its_holder_is_gone(board):
    for number in (1, 2, 3):
        put(board, number)
    board.link.execute("ZREM", board.keys["normal"], ids.short(job_id(1)))
    tidy(board)
    assert in_bands(board) == {2}


def test_tidy_brings_a_turn_back_that_lies_ahead_of_a_clock_that_was_set_back(board):
    for number in (1, 2):
        put(board, number, NOW - 5000)
    board.claim("n1", want=1)
    assert board.claim("n2", now=NOW - 3000).jobs == []
    tidy(board, NOW - 3000)
    assert numbers(board.claim("n3", now=NOW - 3000)) == [2]


def tidy(board: Board, now: int = NOW) -> None:
    cursor = "0"
    for _ in range(9):
        cursor = board.store.tidy(cursor=cursor, now_ms=now).cursor
        if cursor == "0":
            return
