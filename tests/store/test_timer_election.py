"""One idle worker sleeps until the next date, a second one a little longer as its substitute, and the others sleep long, because they
are called.
"""

from __future__ import annotations

from typing import Any

import pytest

from django_delayq import ids
from tests.store.board import NOW, job_id

FIELDS = ("timer", "timer_until", "backup", "backup_until", "armed")


def noted(board) -> tuple[Any, ...]:
    """The sleeping workers and the end of their sleep, in ms from NOW."""
    found = board.link.execute("HMGET", board.keys["meta"], *FIELDS)
    return tuple(value if value is None else int(value) - NOW if value.isdigit() else value.decode() for value in found)


def add(board, number: int, due: int) -> None:
    """A job that no worker knows of."""
    board.put(number, NOW + due)
    board.link.execute("DEL", board.keys["wake"])


def asks(board, worker: str, at: int, **options: Any) -> float:
    return board.claim(f"{worker}at{at}", worker, now=NOW + at, **options).wait_ms


def test_who_asks_again_keeps_its_place(board):
    add(board, 1, 300)
    assert (asks(board, "w1", 0), noted(board)) == (300, ("w1", 800, None, None, 300))
    assert (asks(board, "w2", 0), noted(board)) == (325, ("w1", 800, "w2", 825, 300))
    everybody = noted(board)
    assert (asks(board, "w3", 0), noted(board)) == (16_000, everybody)
    assert (asks(board, "w2", 10), noted(board)) == (315, everybody)
    assert (asks(board, "w1", 100), noted(board)) == (200, everybody)


def test_who_does_not_come_back_for_half_a_second_counts_as_gone(board):
    assert (asks(board, "w1", 0), asks(board, "w2", 0)) == (1000, 1000)
    assert noted(board) == ("w1", 1500, "w2", 1500, 1000)
    asks(board, "w3", 1499)
    assert noted(board) == ("w1", 1500, "w2", 1500, 1000)
    asks(board, "w3", 1500)
    assert noted(board) == ("w3", 3000, "", 2500, 2500), "a backup has been called"
    asks(board, "w4", 1500)
    assert noted(board) == ("w3", 3000, "w4", 3000, 2500)
    asks(board, "w4", 3000)
    assert noted(board) == ("w4", 4500, "", 4000, 4000)


def test_an_owner_without_backup_calls_one_of_the_others_once_a_second(board):
    for worker in ("w1", "w2", "w3"):
        asks(board, worker, 0)
    asks(board, "w1", 1000)
    assert (board.tokens(), noted(board)[2]) == (0, "w2")
    asks(board, "w1", 1500)
    assert (board.tokens(), noted(board)[2:4]) == (1, ("", 2500))
    asks(board, "w1", 1600)
    assert board.tokens() == 1, "it was the one who heard that call"
    asks(board, "w1", 2500)
    assert board.tokens() == 2
    assert (asks(board, "w3", 2600), noted(board)[2]) == (1000, "w3")
    asks(board, "w1", 3400)
    assert board.tokens() == 2


def test_a_worker_that_is_alone_calls_nobody(board):
    for at in range(0, 5000, 1000):
        asks(board, "w1", at)
    assert board.tokens() == 0


@pytest.mark.parametrize(("until", "tokens"), [(32_000, 1), (32_001, 0), (0, 0), (1, 1)])
def test_who_sleeps_longer_than_anybody_could_is_not_called(board, until, tokens):
    """The clock was put back."""
    board.link.execute("HSET", board.keys["meta"], "others_until", NOW + until)
    asks(board, "w1", 0)
    assert board.tokens() == tokens


def test_a_busy_owner_has_its_backup_for_its_heir(board):
    for worker in ("w1", "w2", "w3"):
        asks(board, worker, 0)
    add(board, 1, 0)
    asks(board, "w1", 100, want=1)
    assert (board.tokens(), noted(board)) == (1, ("w2", 1500, None, None, 1000))
    board.put(2, NOW + 900)
    assert board.tokens() == 2, "the heir sleeps beyond that"
    assert (asks(board, "w3", 200), noted(board)[0]) == (700, "w3")


def test_a_backup_that_is_busy_is_none(board):
    for worker in ("w1", "w2"):
        asks(board, worker, 0)
    add(board, 1, 0)
    asks(board, "w2", 100, want=1)
    assert noted(board) == ("w1", 1500, None, None, 1000)
    asks(board, "w1", 200, want=0)
    assert noted(board) == (None,) * 5, "nobody sleeps"


def test_the_backup_is_on_another_host_than_the_owner_if_there_is_one(board):
    for worker, sleeps in (("a:1:x", 1000), ("a:2:x", 1000), ("a:3:x", 16_000), ("b:1:x", 1000), ("c:1:x", 16_000)):
        assert board.claim(worker.replace(":", ""), worker).wait_ms == sleeps
    owner, backup = board.link.execute("HMGET", board.keys["meta"], "timer", "backup")
    assert (owner, backup) == (b"a:1:x", b"b:1:x")
    assert board.claim("again", "a:2:x").wait_ms == 16_000


@pytest.mark.parametrize(("at", "tokens"), [(1500, 0), (1501, 1)])
@pytest.mark.parametrize("key", ["", "k"])
def test_who_schedules_for_later_calls_somebody_if_the_owner_has_not_come(board, at, tokens, key):
    """Owner and backup were lost at once; all others sleep long. A key takes the long way through the script."""
    asks(board, "w1", 0)
    board.put(1, NOW + 60_000, now=NOW + at, key=key)
    assert board.tokens() == tokens
    assert noted(board)[4] == 1000, "the next one calls, too: that token may be lost"


def test_while_nothing_may_be_claimed_nobody_is_called(board):
    asks(board, "w1", 0)
    board.store.pause(now_ms=NOW)
    board.link.execute("DEL", board.keys["wake"])
    assert (asks(board, "w1", 100), noted(board)[4]) == (1000, None)
    board.put(1, NOW + 200)
    assert board.tokens() == 0
    board.store.resume(now_ms=NOW + 300)
    assert board.tokens() == 1


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


def test_every_band_has_dates(board):
    for number, (band, due) in enumerate((("low", 700), ("normal", 500), ("high", 300)), 1):
        board.put(number, NOW + due, band=band)
        assert asks(board, "w1", number) == due - number
