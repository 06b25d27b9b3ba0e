"""The laws of names find every kind of wrong in made-up histories, and nothing in a good one."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.laws import of_names
from tests.laws.history import FaultSeen, History, Row, Run
from tests.laws.law import LAWS
from tests.laws.made_up import add, at, broken, good, run, scheduled

MANY = "a name has no more leases than allowed"
RISING = "numbers of a name increase"
TOLD = "each run gets its name and a unique number"


def named(history: History, job: str, start: float, end: float, *, turn: int, most: int = 1, outcome: str = "succeeded") -> Run:
    """A run of a job of the name "order:1", whose end counts unless its attempt `crashed`."""
    if f"op-{job}" not in history.ops:
        add(history, scheduled(job, name="order:1", most=most))
        history.final.rows[job] = Row(id=job, op=f"op-{job}", task="quick")
    made = run(job, start=start, end=end)
    made.name, made.turn = "order:1", turn
    history.runs.append(made)
    history.final.attempts.append((job, 1, made.fence, outcome))
    return made


def in_turn() -> History:
    """Three of one name, one after the other."""
    history = good()
    for number, job in enumerate(("first", "second", "third")):
        named(history, job, 1.0 + number, 1.9 + number, turn=10 + number)
    history.ledger += [("end", job, "f", "") for job in ("first", "second", "third")]
    return history


def laws_broken(history: History) -> set[str]:
    return broken(history) & {MANY, RISING, TOLD}


def of_job(history: History, job: str) -> Run:
    (found,) = (one for one in history.runs if one.job == job)
    return found


def test_one_after_the_other_breaks_nothing() -> None:
    assert laws_broken(in_turn()) == set()


def begins_before_the_end_of_the_former(history: History) -> None:
    of_job(history, "second").at = at(1.5)


def holds_beside_three_of_three(history: History) -> None:
    for number in range(4):
        named(history, f"beside-{number}", 5.0 + number / 10, 6.0, turn=20 + number, most=3)


def lasts_over_two_others(history: History) -> None:
    of_job(history, "first").until = at(3.5)


def has_no_number(history: History) -> None:
    of_job(history, "second").turn = 0


def is_told_another_name(history: History) -> None:
    of_job(history, "second").name = "order:2"


def is_told_a_name_without_having_one(history: History) -> None:
    of_job(history, "plain").name, of_job(history, "plain").turn = "order:1", 30


def has_the_number_of_another(history: History) -> None:
    of_job(history, "second").turn = 10


def has_a_number_below_one_that_ended_before_it_was_there(history: History) -> None:
    history.ops["op-third"].at = at(2.95)
    of_job(history, "third").turn = 5
    history.final.attempts = [one if one[0] != "third" else (*one[:3], "crashed") for one in history.final.attempts]


@pytest.mark.parametrize(
    ("spoil", "law"),
    [
        (begins_before_the_end_of_the_former, MANY),
        (holds_beside_three_of_three, MANY),
        (lasts_over_two_others, MANY),
        (has_no_number, TOLD),
        (is_told_another_name, TOLD),
        (is_told_a_name_without_having_one, TOLD),
        (has_the_number_of_another, TOLD),
        (has_a_number_below_one_that_ended_before_it_was_there, RISING),
    ],
)
def test_every_kind_of_wrong_is_found(spoil: Callable[[History], None], law: str) -> None:
    history = in_turn()
    spoil(history)
    assert laws_broken(history) == {law}


def three_of_three_at_once(history: History) -> None:
    for number in range(3):
        named(history, f"beside-{number}", 5.0 + number / 10, 6.0, turn=20 + number, most=3)


def one_that_had_lost_its_lease_lasts_on(history: History) -> None:
    frozen = of_job(history, "first")
    frozen.until = at(9)
    history.final.attempts = [one if one[0] != "first" else (*one[:3], "crashed") for one in history.final.attempts]


def one_that_was_killed_never_ended(history: History) -> None:
    killed = named(history, "killed", 0.5, 0.6, turn=9)
    killed.until, killed.how = 1 << 62, ""


def a_server_forgot_who_holds_it(history: History) -> None:
    of_job(history, "first").until = at(2.5)
    history.faults = [FaultSeen(kind="wipe redis", at=at(1.5), since=at(1.6), until=at(1.6))]


@pytest.mark.parametrize(
    "change",
    [
        three_of_three_at_once,
        one_that_had_lost_its_lease_lasts_on,
        one_that_was_killed_never_ended,
        a_server_forgot_who_holds_it,
    ],
)
def test_what_is_allowed_is_not_reported(change: Callable[[History], None]) -> None:
    history = in_turn()
    change(history)
    assert laws_broken(history) == set()


def test_every_law_of_names_is_seen_broken_here() -> None:
    assert {law.name for law in LAWS if law.find.__module__ == of_names.__name__} == {MANY, RISING, TOLD}
