"""The laws of rates find every kind of wrong in made-up histories, and nothing in a good one."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from django_delayq.job_meta import Quota
from tests.laws import of_limits
from tests.laws.history import History, RatedClaim, Sees
from tests.laws.judge import judge
from tests.laws.law import LAWS

PACE = Quota(10, 1000, 2)  # a token each 100 ms
EXCEEDED = "no rate is exceeded"


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


def test_every_law_of_rates_is_seen_broken_here():
    assert {law.name for law in LAWS if law.find.__module__ == of_limits.__name__} == {EXCEEDED}
