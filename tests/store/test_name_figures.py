"""Names that jobs share, as people are shown them."""

from __future__ import annotations

import pytest

from django_delayq.store.reads import queue_depth
from django_delayq.store.scripts.limits import LimitChange, LimitStore
from tests.store.board import NOW, Board, job_id
from tests.store.test_names import put


def look(board: Board) -> tuple[list[tuple[str, list[int], int]], bool]:
    seen = queue_depth.concurrency_names(board.link, [board.keys])
    known = {job_id(number): number for number in range(40)}
    return [(one.name, [known[id] for id in one.holders], one.waiting) for one in seen.figures], seen.cut


def test_nobody_has_a_name(board: Board) -> None:
    board.put(1)
    board.claim()
    assert look(board) == ([], False)


def test_those_come_first_for_which_most_wait(board: Board) -> None:
    for number, name in enumerate(("b", "a", "a", "a", "c", "c"), 1):
        put(board, number, NOW - 20 + number, name=name)
    put(board, 7, name="d")
    put(board, 8, NOW + 60_000, name="a")
    board.claim()
    assert look(board) == ([("a", [2], 2), ("c", [5], 1), ("b", [1], 0), ("d", [7], 0)], False)
    board.settle(2, "ack")
    assert look(board)[0] == [("c", [5], 1), ("a", [], 1), ("b", [1], 0), ("d", [7], 0)], "its next is in its band"


def test_several_may_hold_one(board: Board) -> None:
    for number in (1, 2, 3, 4):
        put(board, number, NOW - 20 + number, name="tenant:9", most=2)
    board.claim()
    assert look(board) == ([("tenant:9", [1, 2], 2)], False)


def test_of_many_some_are_looked_at_which_is_said(board: Board, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_depth, "LOOKED", 2)
    for number, name in enumerate("abcb", 1):
        put(board, number, NOW - 20 + number, name=name)
    board.claim()
    assert look(board) == ([("b", [2], 1), ("a", [1], 0)], True)


def test_jobs_that_a_pause_holds_are_not_among_them(board: Board) -> None:
    put(board, 1, name="a")
    put(board, 2, name="a", task="shop.open")
    LimitStore(board.store).limit([LimitChange("pause", "task:shop.close")], now_ms=NOW)
    board.claim()
    assert look(board)[0] == [("a", [2], 0)]


def test_what_somebody_else_wrote_there_is_passed_over(board: Board) -> None:
    put(board, 1)
    board.claim()
    board.link.execute("ZADD", board.keys["holders"], 0, "no-id\0x", 0, "nothing", 0, "\xff\0" + "z" * 22)
    assert look(board)[0] == [("order:1", [1], 0)]
