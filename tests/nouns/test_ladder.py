"""Ladders: the four ways to make one, the length of each step, and a text form that carries all of it."""

from __future__ import annotations

import copy
import math
import pickle
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_delayq import durations
from django_delayq.ladder import MAX_STEPS, Ladder

DEFAULT = "15s 3m 10m 30m 30m 1h 2h 6h 15h"

STEPS = st.lists(st.integers(min_value=0, max_value=int(durations.MAX_SECONDS) * 1_000), min_size=1, max_size=20)
JITTERS = st.integers(min_value=0, max_value=10_000).map(lambda share: share / 10_000)
LADDERS = st.builds(lambda steps, jitter: Ladder(" ".join(durations.text(ms / 1_000) for ms in steps), jitter=jitter), STEPS, JITTERS)


def test_a_text_gives_its_steps() -> None:
    ladder = Ladder(DEFAULT)
    assert ladder.steps() == [15, 180, 600, 1_800, 1_800, 3_600, 7_200, 21_600, 54_000]
    assert len(ladder) == 9
    assert str(ladder) == DEFAULT
    assert repr(ladder) == f"Ladder('{DEFAULT}')"


def test_step_n_follows_attempt_n_and_the_last_repeats() -> None:
    ladder = Ladder("15s 3m 10m")
    assert [ladder.delay(attempt) for attempt in (1, 2, 3, 4, 1_000)] == [15, 180, 600, 600, 600]
    assert ladder.steps(5) == [15, 180, 600, 600, 600]
    assert ladder.steps(2) == [15, 180]
    assert ladder.steps(0) == ladder.steps(-3) == []


@pytest.mark.parametrize("attempt", [0, -1])
def test_attempts_are_counted_from_one(attempt: int) -> None:
    with pytest.raises(ValueError, match="counted from 1"):
        Ladder("1s").delay(attempt)


def test_every_repeats_one_delay() -> None:
    ladder = Ladder.every("1m", times=10)
    assert ladder.steps() == [60.0] * 10
    assert ladder == Ladder("1m " * 10)
    assert Ladder.every(timedelta(seconds=2), times=2) == Ladder.every(2, times=2) == Ladder("2s 2s")


def test_a_formula_gives_each_step_from_its_number() -> None:
    ladder = Ladder.formula(lambda n: (2 * n + 1) * 60, times=10)
    assert str(ladder) == "3m 5m 7m 9m 11m 13m 15m 17m 19m 21m"
    assert ladder == Ladder(str(ladder))
    assert Ladder.formula(lambda n: f"{n}m", times=2) == Ladder("1m 2m")


def test_a_formula_is_not_called_before_a_step_is_needed_and_then_once_for_each() -> None:
    called: list[int] = []

    def fn(n: int) -> int:
        called.append(n)
        return n

    ladder = Ladder.formula(fn, times=3)
    assert len(ladder) == 3
    assert repr(ladder) == "<Ladder of a formula, 3 steps>"
    assert called == []
    assert [ladder.delay(2), ladder.delay(9)] == [2, 3]
    assert str(ladder) == "1s 2s 3s"
    assert called == [1, 2, 3]
    assert repr(ladder) == "Ladder('1s 2s 3s')"


@pytest.mark.parametrize("result", [-1, None, math.nan, "soon", True])
def test_a_formula_with_a_bad_step_names_it(result: object) -> None:
    ladder = Ladder.formula(lambda n: 1 if n < 3 else result, times=5)
    with pytest.raises(ValueError, match="step 3 of the ladder: "):
        ladder.delay(1)


def test_a_formula_that_raises_names_its_step() -> None:
    ladder = Ladder.formula(lambda n: 1 / (n - 2), times=5)
    with pytest.raises(ValueError, match=r"step 1 of the ladder: -1\.0 is negative"):
        str(ladder)
    ladder = Ladder.formula(lambda n: 1 / (2 - n), times=5)
    with pytest.raises(ValueError, match="step 2 of the ladder: the function raised ZeroDivisionError"):
        str(ladder)


def test_exponential_multiplies_up_to_its_cap() -> None:
    assert str(Ladder.exponential(base="1s", factor=2, cap="10s", times=6)) == "1s 2s 4s 8s 10s 10s"
    assert str(Ladder.exponential(base="10s", factor=1.5, cap="1m", times=4)) == "10s 15s 22.5s 33.75s"
    assert Ladder.exponential(base="1h", cap="1m", times=2).steps() == [60, 60]
    assert Ladder.exponential(base=1, factor=1e308, cap="1w", times=1_000).delay(1_000) == 604_800
    assert Ladder.exponential(base=1, factor=10**400, cap="1w", times=2).delay(2) == 604_800
    assert Ladder.exponential(base=0, times=2).steps() == [0, 0]


@pytest.mark.parametrize("factor", [0.5, 0, -1, math.nan, math.inf, True, "2", None])
def test_exponential_refuses_a_factor_that_does_not_grow(factor: object) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        Ladder.exponential(base="1s", factor=factor, cap="1h", times=3)


@pytest.mark.parametrize("times", [0, -1, MAX_STEPS + 1, True, 2.0, "3", None])
def test_a_number_of_steps_that_is_none_is_refused(times: object) -> None:
    for make in (
        lambda: Ladder.every("1m", times=times),
        lambda: Ladder.formula(lambda n: n, times=times),
        lambda: Ladder.exponential(times=times),
    ):
        with pytest.raises(ValueError, match="whole number from 1 to 1000"):
            make()


@pytest.mark.parametrize("text", ["", "  ", "~10%", "15", "15s,3m", "15s 3x", "15s -3m", "~10% 15s", "15s ~", "15s ~1000%", "15s ~10"])
def test_a_text_that_is_no_ladder_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"ladder|no steps"):
        Ladder(text)


def test_the_refusal_of_a_text_names_the_step() -> None:
    with pytest.raises(ValueError, match="step 2 of the ladder: '3x' is not a duration"):
        Ladder("15s 3x 10m")


@pytest.mark.parametrize("value", [None, 15, ["15s"], b"15s", timedelta(1)])
def test_what_is_no_text_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match="is not a ladder"):
        Ladder.of(value)


def test_a_ladder_too_long_is_refused() -> None:
    with pytest.raises(ValueError, match="too long"):
        Ladder("1s " * (MAX_STEPS + 1))


def test_something_that_is_no_function_is_no_formula() -> None:
    with pytest.raises(ValueError, match="pass a function"):
        Ladder.formula(5, times=2)


def test_of_takes_a_ladder_as_it_is_and_reads_a_text() -> None:
    ladder = Ladder("1s")
    assert Ladder.of(ladder) is ladder
    assert Ladder.of("1s") == ladder


def test_jitter_spreads_around_the_step() -> None:
    ladder = Ladder("100s", jitter=0.1)
    assert ladder.delay(1, rand=lambda: 0.0) == pytest.approx(90)
    assert ladder.delay(1, rand=lambda: 0.5) == pytest.approx(100)
    assert ladder.delay(1, rand=lambda: 1.0) == pytest.approx(110)
    assert ladder.steps() == [100]
    assert ladder.jitter == 0.1


@given(LADDERS, st.integers(min_value=1, max_value=50), st.floats(min_value=0, max_value=1))
def test_a_delay_stays_within_its_jitter_and_is_never_negative(ladder: Ladder, attempt: int, chance: float) -> None:
    step = ladder.steps(attempt)[-1]
    delay = ladder.delay(attempt, rand=lambda: chance)
    assert delay >= 0
    assert step * (1 - ladder.jitter) - 1e-6 <= delay <= step * (1 + ladder.jitter) + 1e-6


def test_without_jitter_no_chance_is_taken() -> None:
    def never() -> float:
        raise AssertionError

    assert Ladder("5s").delay(1, rand=never) == 5


@pytest.mark.parametrize("jitter", [-0.1, 1.1, math.nan, math.inf, True, "0.1"])
def test_a_jitter_that_is_no_share_is_refused(jitter: object) -> None:
    with pytest.raises(ValueError, match="is not a valid fraction"):
        Ladder("1s", jitter=jitter)


def test_jitter_is_part_of_the_text() -> None:
    assert str(Ladder("15s 3m", jitter=0.1)) == "15s 3m ~10%"
    assert str(Ladder("15s", jitter=0.125)) == "15s ~12.5%"
    assert Ladder("15s 3m ~10%") == Ladder("15s 3m", jitter=0.1)
    assert Ladder("15s ~0%") == Ladder("15s")
    with pytest.raises(ValueError, match="contains a jitter"):
        Ladder("15s ~10%", jitter=0.2)


@given(LADDERS)
def test_the_text_of_a_ladder_reads_back(ladder: Ladder) -> None:
    again = Ladder(str(ladder))
    assert again == ladder
    assert hash(again) == hash(ladder)
    assert str(again) == str(ladder)
    assert again.jitter == ladder.jitter


@given(st.text(alphabet="0123456789wdhms~%. ", max_size=20))
def test_any_text_is_a_ladder_or_a_value_error(text: str) -> None:
    try:
        ladder = Ladder(text)
    except ValueError:
        return
    assert Ladder(str(ladder)) == ladder


def test_ladders_are_equal_by_steps_and_jitter() -> None:
    assert Ladder("60s") == Ladder("1m") == Ladder.every(60, times=1)
    assert Ladder("1m") != Ladder("1m 1m")
    assert Ladder("1m") != Ladder("1m", jitter=0.1)
    assert Ladder("1m") != "1m"
    assert len({Ladder("60s"), Ladder("1m"), Ladder("2m")}) == 2


def test_a_ladder_does_not_change() -> None:
    ladder = Ladder("1s")
    with pytest.raises(AttributeError, match="is immutable"):
        ladder.jitter = 0.5
    with pytest.raises(AttributeError, match="is immutable"):
        ladder._steps = (1.0,)
    with pytest.raises(AttributeError, match="is immutable"):
        del ladder._steps
    ladder.steps().append(9)
    assert ladder.steps() == [1]


def test_a_ladder_pickles_and_copies_also_a_formula() -> None:
    for ladder in (Ladder("1s 2s", jitter=0.5), Ladder.formula(lambda n: n, times=2)):
        assert pickle.loads(pickle.dumps(ladder)) == copy.deepcopy(ladder) == ladder


@pytest.mark.parametrize(("start", "minutes"), [(0, [1, 3, 5, 7]), (1, [3, 5, 7, 9])])
def test_the_numbers_of_a_formula_begin_where_it_says(start: int, minutes: list[int]) -> None:
    ladder = Ladder.formula(lambda n: (2 * n + 1) * 60, times=4, start=start)
    assert len(ladder) == 4
    assert ladder.steps() == [60.0 * one for one in minutes]


def test_the_numbers_of_a_formula_begin_at_one_unless_it_says_otherwise() -> None:
    assert Ladder.formula(lambda n: n, times=3) == Ladder.formula(lambda n: n, times=3, start=1) == Ladder("1s 2s 3s")


@pytest.mark.parametrize("start", [2, -1, "0", 0.5, True, None])
def test_any_other_beginning_is_refused(start: object) -> None:
    with pytest.raises(ValueError, match="pass 0 or 1"):
        Ladder.formula(lambda n: n, times=3, start=start)  # type: ignore[arg-type]  # what a type checker refuses
