"""Of idle workers one sleeps for the next date, one a little longer in its stead, and the others for the safety poll."""

from __future__ import annotations

from typing import Any

import pytest

from django_delayq import ids
from tests.store.board import NOW, job_id

FIELDS = ("timer", "timer_until", "backup", "backup_until", "armed")


def noted(board) -> tuple[Any, ...]:
    """Who sleeps and until when, in ms from NOW."""
    found = board.link.execute("HMGET", board.keys["meta"], *FIELDS)
    return tuple(value and (value.decode() if value.startswith(b"w") else int(value) - NOW) for value in found)


def add(board, number: int, due: int) -> None:
    """A job of which nobody has heard."""
    board.put(number, NOW + due)
    board.link.execute("DEL", board.keys["wake"])


def asks(board, worker: str, at: int, **options: Any) -> float:
    return board.claim(f"{worker}at{at}", worker, now=NOW + at, **options).wait_ms


def test_who_asks_again_keeps_its_place(board):
    add(board, 1, 300)
    assert (asks(board, "w1", 0), noted(board)) == (300, ("w1", 800, None, None, 300))
    assert (asks(board, "w2", 0), noted(board)) == (325, ("w1", 800, "w2", 825, 300))
    everybody = noted(board)
    assert (asks(board, "w3", 0), noted(board)) == (1000, everybody)
    assert (asks(board, "w2", 10), noted(board)) == (315, everybody)
    assert (asks(board, "w1", 100), noted(board)) == (200, everybody)


def test_who_does_not_come_back_for_half_a_second_counts_as_gone(board):
    assert (asks(board, "w1", 0), asks(board, "w2", 0)) == (1000, 1000)
    assert noted(board) == ("w1", 1500, "w2", 1500, 1000)
    asks(board, "w3", 1499)
    assert noted(board) == ("w1", 1500, "w2", 1500, 1000)
    asks(board, "w3", 1500)
    assert noted(board) == ("w3", 3000, "w2", 1500, 2500)
    asks(board, "w4", 1500)
    assert noted(board) == ("w3", 3000, "w4", 3000, 2500)
    asks(board, "w4", 3000)
    assert noted(board) == ("w4", 4500, None, None, 4000)


@pytest.mark.parametrize(("until", "stays"), [(2000, True), (2001, False)])
def test_a_backup_further_ahead_than_anybody_sleeps_is_none(board, until, stays):
    """The clock was put back."""
    asks(board, "w1", 0)
    board.link.execute("HSET", board.keys["meta"], "backup", "w9", "backup_until", NOW + until)
    asks(board, "w2", 0)
    assert noted(board)[2] == ("w9" if stays else "w2")


@pytest.mark.parametrize(("due", "owner"), [(999, "w2"), (1000, "w1")])
def test_who_knows_of_an_earlier_date_than_the_owner_sleeps_for_takes_its_place(board, due, owner):
    asks(board, "w1", 0)
    board.link.execute("ZADD", board.keys["normal"], NOW + due, ids.short(job_id(1)))
    asks(board, "w2", 0)
    assert noted(board)[0] == owner


@pytest.mark.parametrize(("due", "tokens"), [(0, 1), (999, 1), (1000, 0), (None, 0)])
def test_who_is_full_calls_another_if_there_is_more_before_the_owner_wakes(board, due, tokens):
    asks(board, "w1", 0)
    add(board, 1, 0)
    if due is not None:
        board.link.execute("ZADD", board.keys["low"], NOW + due, ids.short(job_id(2)))
    assert asks(board, "w2", 0, want=1) == 0
    assert board.tokens() == tokens
    assert noted(board)[0] == "w1"


def test_who_is_full_where_nobody_sleeps_calls_another(board):
    add(board, 1, 0)
    assert asks(board, "w1", 0, want=1) == 0
    assert board.tokens() == 1
    assert noted(board) == (None,) * 5


def test_an_owner_that_is_full_sleeps_no_more(board):
    asks(board, "w1", 0)
    add(board, 1, 0)
    asks(board, "w1", 0, want=1)
    assert noted(board) == (None,) * 5


@pytest.mark.parametrize(("left", "armed"), [(False, 1000), (True, 0)])
def test_a_date_for_which_a_token_was_pushed_is_armed_until_its_job_is_taken(board, left, armed):
    asks(board, "w1", 0)
    for number in range(1, 3 if left else 2):
        add(board, number, 0)
    assert noted(board)[4] == 0
    asks(board, "w2", 0, want=1)
    assert noted(board)[4] == armed


def test_what_somebody_else_has_put_in_the_place_of_tokens_gives_way(board):
    asks(board, "w1", 0)
    board.link.execute("SET", board.keys["wake"], "none of ours")
    board.put(1, NOW + 300)
    assert board.tokens() == 1


def test_every_lane_has_dates(board):
    for number, (lane, due) in enumerate((("low", 700), ("normal", 500), ("high", 300)), 1):
        board.put(number, NOW + due, lane=lane)
        assert asks(board, "w1", number) == due - number
