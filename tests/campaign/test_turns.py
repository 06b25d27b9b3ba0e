"""The turns of fair words are read from events."""

from __future__ import annotations

import pytest

from django_delayq.store.scripts.events import Entry, Item
from tests.campaign.turns import TurnReader
from tests.laws.dump import Dump
from tests.store.board import record

DATE = 5


def dump() -> Dump:
    """Jobs a1, a2, b1 and b2 of the words a and b, and one without."""
    ids = ("a1", "a2", "b1", "b2")
    jobs = {id: record(number).encode() for number, id in enumerate((*ids, "plain"))}
    return Dump(jobs=jobs, names={id: f"0:0:{DATE}:\3{id[0]}" for id in ids}, normal=dict.fromkeys(jobs, DATE))


def entry(at_ms: int, *items: tuple[str, ...]) -> Entry:
    return Entry(f"{at_ms}-0", at_ms, "", "", tuple(Item(kind, tuple(fields), b"") for kind, *fields in items))


def claim(*those: str) -> list[tuple[str, ...]]:
    return [("claimed", id, "1", "0", "n1") for id in those]


def read(*entries: Entry) -> list[tuple[str, bool]]:
    reader = TurnReader()
    reader.begin(dump())
    reader.read(entries, dump(), dump())
    return [(turn.job, turn.waited) for turn in reader.turns]


def test_a_job_has_waited_if_it_was_due_at_the_last_turn_of_its_word():
    assert read(entry(9, *claim("a1", "b1", "plain", "a2"))) == [("a1", False), ("b1", False), ("a2", True)]
    assert read(entry(4, *claim("a1")), entry(9, *claim("a2"))) == [("a1", False), ("a2", False)]  # due at 5
    assert read(entry(9, *claim("a1"), ("scheduled", "a2", "5"), *claim("a2"))) == [("a1", False), ("a2", False)]


@pytest.mark.parametrize("kind", ["cancelled", "rescheduled"])
@pytest.mark.parametrize(("changed", "waited"), [("b1", True), ("a1", False), ("unknown", False)])
def test_a_change_of_the_next_job_can_cost_the_turn_of_its_word(kind, changed, waited):
    first = entry(9, ("scheduled", changed, "5"), *claim("a1"), ("scheduled", changed, "5"), (kind, changed, "5"))
    assert dict(read(first, entry(9, *claim("a2"))))["a2"] == waited


def test_the_claim_of_a_lost_job_is_no_turn():
    assert read(entry(9, *claim("a1")), entry(99, ("crashed", "a1", "1", "1", "n1", "99"), *claim("a1"))) == [("a1", False)]


def test_a_job_that_was_not_seen_to_wait_is_left_out():
    assert read(entry(9, *claim("a1")), entry(10, *claim("a1"))) == [("a1", False)]


def test_a_clock_that_is_set_back_ends_what_is_known():
    assert read(entry(9, *claim("a1")), entry(8, *claim("a2"))) == [("a1", False), ("a2", False)]
