"""The laws of rates and fair words find every kind of wrong in made-up histories, and nothing in a good one."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from django_delayq.job_meta import Quota
from tests.laws import of_limits
from tests.laws.history import Filling, History, RatedClaim, Sees, Turn
from tests.laws.judge import judge
from tests.laws.law import LAWS

PACE = Quota(10, 1000, 2)  # a token each 100 ms
EXCEEDED = "no rate is exceeded"
TURNS = "between two turns of a word no other has two"
IDLE = "no thread idles beside due jobs of fair words"


def broken(times: Sequence[int], *, rate: str = "a", pace: Quota = PACE, more: Sequence[RatedClaim] = ()) -> set[str]:
    claims = [RatedClaim(f"job{number}", rate, pace, at) for number, at in enumerate(times)]
    return {breach.law for breach in judge(History(sees=Sees.CLAIMS, claims=[*claims, *more]))}


@pytest.mark.parametrize("times", [[], [0, 0], [0, 0, 100, 200], [0, 99, 199, 299], [1000, 0, 0], [0, 0, 5000, 5000, 5100]])
def test_a_burst_and_a_token_per_time_are_allowed(times):
    assert broken(times) == set()


@pytest.mark.parametrize("times", [[0, 0, 0], [0, 0, 98], [0, 100, 150, 200, 201], [0, 0, 5000, 5000, 5000]])
def test_more_claims_in_a_window_are_found(times):
    assert broken(times) == {EXCEEDED}


def test_other_rates_and_other_epochs_count_by_themselves():
    others = [RatedClaim("b", "b", PACE, 0), RatedClaim("lost", "a", PACE, 0, "after a wipe")]
    assert broken([0, 0], more=others) == set()


def test_a_rate_that_was_changed_may_have_been_the_faster_one():
    assert broken([0, 0], more=[RatedClaim("c", "a", Quota(1, 1000, 3), 0)]) == set()


@pytest.mark.parametrize(
    ("words", "broke"),
    [("abab", False), ("aabab", False), ("abaab", True), ("abcacb", True), ("abcabc", False), ("aaaab", False), ("abBBb", False)],
)
def test_turns_of_words_alternate(words, broke):
    turns = [Turn(f"job{n}", word.lower(), "high" if word.isupper() else "low", word in words[:n]) for n, word in enumerate(words)]
    found = {breach.law for breach in judge(History(sees=Sees.CLAIMS, turns=turns))}
    assert found == ({TURNS} if broke else set())


@pytest.mark.parametrize(
    ("due", "got", "again", "broke"), [(9, 4, False, False), (3, 3, False, False), (3, 2, False, True), (9, 2, True, False)]
)
def test_free_room_beside_due_jobs_is_found(due, got, again, broke):
    found = {breach.law for breach in judge(History(sees=Sees.CLAIMS, fillings=[Filling("n1", 4, due, got, again)]))}
    assert found == ({IDLE} if broke else set())


def test_every_law_of_limits_is_seen_broken_here():
    assert {law.name for law in LAWS if law.find.__module__ == of_limits.__name__} == {EXCEEDED, TURNS, IDLE}
