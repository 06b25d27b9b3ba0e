"""The laws of batches find every kind of wrong in made-up histories, and nothing in a good one."""

from __future__ import annotations

from typing import Any

import pytest

from tests.laws import of_batches
from tests.laws.history import NEXT, BatchLeft, Final, History, Op, Row, Sees
from tests.laws.judge import judge
from tests.laws.law import LAWS

ONCE, SUCCESS = "a batch schedules its next job once", "a success schedules its next job once"
COUNTS, END = "a batch counts its members", "every batch comes to its end"
BOOK = {ONCE, SUCCESS, COUNTS, END}


def row(id: str, **fields: Any) -> Row:
    return Row(**{"id": id, "op": "w:1", "task": "quick", "batch": "b", **fields})


def next_job(id: str = "next") -> Row:
    return row(id, op=f"w:1{NEXT}", batch="")


def batch(**fields: Any) -> BatchLeft:
    return BatchLeft(
        **{"id": "b", "key": "w:1", "waits_for": "succeeded", "over": True, "next_job": "next", "counts": (2, 0, 0), **fields}
    )


def broken(left: BatchLeft | None, *rows: Row, ops: tuple[Op, ...] = ()) -> set[str]:
    sees = Sees.ROWS | Sees.BATCHES | Sees.CALLS
    final = Final(rows={row.id: row for row in rows}, batches=[left] if left else [])
    history = History(sees=sees, final=final, ops={op.id: op for op in ops})
    return {breach.law for breach in judge(history)} & BOOK


WELL = (row("1"), row("2"))
BADLY = (row("1"), row("2", state="failed"))


@pytest.mark.parametrize(
    ("left", "rows"),
    [
        (batch(), (*WELL, next_job())),
        (batch(waits_for="ended", counts=(1, 1, 0)), (*BADLY, next_job())),
        (batch(over=False, next_job="", counts=(0, 0, 0)), BADLY),
        (batch(over=False, next_job="", counts=(0, 0, 0)), (row("1"), row("2", state="running"))),
        (batch(cancelled=True, next_job="", counts=(1, 0, 1)), (row("1"), row("2", state="cancelled"))),
        (batch(), (*WELL, row("3", state="cancelled", error="key held by x"), next_job())),
        (batch(counts=(0, 0, 0)), (next_job(),)),
        (None, (row("1", follow_up="next", batch=""), next_job())),
        (None, (row("1", follow_up="{", batch="", state="failed"),)),
    ],
)
def test_good_histories_break_nothing(left, rows):
    assert broken(left, *rows) == set()


def test_a_member_that_was_put_back_has_changed_its_state_since():
    again = Op(id="w:9", what="requeue", at=5, wall=5, until=6, answer="ok", reply="done", given={"job": "2"})
    assert broken(batch(waits_for="ended", counts=(1, 1, 0)), *WELL, next_job(), ops=(again,)) == set()


@pytest.mark.parametrize(
    ("left", "rows", "law"),
    [
        (batch(), WELL, ONCE),
        (batch(), (*WELL, next_job(), next_job("twin")), ONCE),
        (batch(next_job="lost"), (*WELL, next_job()), ONCE),
        (batch(next_job="1"), (*WELL, next_job()), ONCE),
        (batch(over=False, next_job="", counts=(0, 0, 0)), (*BADLY, next_job()), ONCE),
        (batch(cancelled=True, counts=(1, 0, 1)), (row("1"), row("2", state="cancelled"), next_job()), ONCE),
        (None, (row("1", follow_up="{", batch=""),), SUCCESS),
        (None, (row("1", follow_up="{", batch="", state="failed"), next_job()), SUCCESS),
        (None, (row("1", follow_up="next", batch=""), next_job(), next_job("twin")), SUCCESS),
        (batch(counts=(1, 0, 0)), (*WELL, next_job()), COUNTS),
        (batch(counts=(1, 1, 0)), (*WELL, next_job()), COUNTS),
        (batch(over=False, next_job="", counts=(0, 0, 0)), WELL, END),
        (batch(over=False, waits_for="ended", next_job="", counts=(0, 0, 0)), BADLY, END),
        (batch(over=False, cancelled=True, next_job="", counts=(0, 0, 0)), BADLY, END),
        (batch(over=False, cancelled=True, next_job="", counts=(0, 0, 0)), (row("1"), row("2", state="scheduled")), END),
    ],
)
def test_each_wrong_is_found(left, rows, law):
    assert broken(left, *rows) == {law}


def test_every_law_of_batches_is_seen_broken_here():
    assert {law.name for law in LAWS if law.find.__module__ == of_batches.__name__} == BOOK
