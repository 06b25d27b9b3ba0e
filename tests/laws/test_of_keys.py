"""The laws of keys find every kind of wrong in made-up histories, and nothing in a good one."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.laws import of_keys
from tests.laws.history import ROLLING, FaultSeen, History, Row
from tests.laws.law import LAWS
from tests.laws.made_up import add, at, broken, good, op, run, wall

RUNS, MADE = "one job of a key runs at a time", "a key has one unfinished job"
ONCE = "a key schedules one job per period"
DEBOUNCE = "a debounce ends"


def job_of_key(history: History, job: str, made: float, *runs: tuple[float, float], outcome: str = "succeeded") -> None:
    """A job of the key "order:1" that somebody was told he has made, with its runs."""
    given = {"delay": 0.0, "queue": "orders", "key": "order:1", "policy": "keep"}
    add(history, op(f"op-{job}", given=given, ids=[job], jobs=[(job, True, None)], start=made, end=made + 0.01))
    history.final.rows[job] = Row(id=job, op=f"op-{job}", task="keyed", queue="orders", key="order:1", attempts=len(runs))
    history.ledger.append(("end", job, "f", ""))
    for start, end in runs:
        one = run(job, start=start, end=end)
        history.runs.append(one)
        history.final.attempts.append((job, 1, one.fence, outcome))


def in_turn() -> History:
    """One after the other."""
    history = good()
    job_of_key(history, "first", 1.0, (1.5, 2.0))
    job_of_key(history, "second", 2.1, (2.5, 3.0))
    return history


def laws_broken(history: History) -> set[str]:
    return broken(history) & {RUNS, MADE}


def test_one_behind_the_other_breaks_nothing() -> None:
    assert broken(in_turn()) == set()


def runs_beside_it(history: History) -> None:
    history.runs[-2].until = at(2.6)


def is_made_while_another_waits(history: History) -> None:
    history.ops["op-second"].at, history.ops["op-second"].until = at(1.1), at(1.2)


BREACHES: dict[Callable[[History], None], str] = {runs_beside_it: RUNS, is_made_while_another_waits: MADE}


@pytest.mark.parametrize(("breach", "name"), BREACHES.items(), ids=lambda it: getattr(it, "__name__", ""))
def test_each_breach_is_found_by_its_law(breach: Callable[[History], None], name: str) -> None:
    history = in_turn()
    breach(history)
    assert laws_broken(history) == {name}


def test_there_is_a_breach_of_every_law() -> None:
    assert {one.name for one in LAWS if one.find.__module__ == of_keys.__name__} == {*BREACHES.values(), ONCE, DEBOUNCE}


@pytest.mark.parametrize("breach", BREACHES, ids=lambda it: it.__name__)
def test_what_redis_forgot_excuses_it(breach: Callable[[History], None]) -> None:
    history = in_turn()
    breach(history)
    history.faults = [FaultSeen(kind="wipe redis", at=at(1.0), since=at(1.0), until=at(2.2))]
    assert laws_broken(history) == set()
    history.faults[0].at, history.faults[0].until = at(20.0), at(21.0)
    assert laws_broken(history) != set()


def test_calls_at_once_in_a_roll_may_both_make_a_job() -> None:
    history = in_turn()
    runs_beside_it(history)
    history.ops["op-second"].at, history.ops["op-first"].until = at(1.005), at(1.02)
    history.faults = [FaultSeen(kind=ROLLING, at=at(0.5), since=at(0.5), until=at(2.2))]
    assert laws_broken(history) == set()
    history.ops["op-second"].at = at(1.03)
    assert laws_broken(history) == {RUNS}
    history.ops["op-second"].at, history.faults = at(1.005), []
    assert laws_broken(history) == {RUNS}


@pytest.mark.parametrize("outcome", ["running", "crashed"])
def test_a_run_that_has_lost_its_lease_may_go_on_beside_the_next(outcome: str) -> None:
    history = good()
    job_of_key(history, "first", 1.0, (1.5, 2.6), outcome=outcome)
    job_of_key(history, "second", 2.1, (2.5, 3.0))
    assert laws_broken(history) == set()


def test_who_was_cancelled_or_requeued_meanwhile_has_left_the_key_to_others() -> None:
    history = in_turn()
    is_made_while_another_waits(history)
    add(history, op("again", "requeue", reply="done", given={"job": "first", "queue": "orders"}, start=1.3, end=1.4))
    assert laws_broken(history) == set()


def test_who_comes_behind_a_job_that_is_held_already_leaves_it_its_key() -> None:
    history = in_turn()
    is_made_while_another_waits(history)
    history.ops["op-second"].given["policy"] = "after"
    assert laws_broken(history) == set()


def test_a_cancel_by_key_in_a_roll_means_what_its_process_knows_of() -> None:
    history = in_turn()
    add(history, op("c9", "cancel_key", reply="done", given={"key": "order:1", "queue": "orders"}, start=1.1, end=1.2))
    assert broken(history) == {"a cancel by key means all of the key"}
    history.faults = [FaultSeen(kind=ROLLING, at=at(0.5), since=at(0.5), until=at(1.15))]
    assert broken(history) == set()


def once(*, failed: bool = False) -> History:
    """Two calls with `once_for`, the second one after the period."""
    history = good()
    job_of_key(history, "first", 1.0, (1.5, 2.0), outcome="failed" if failed else "succeeded")
    job_of_key(history, "second", 5.1, (5.5, 6.0))
    for name in ("first", "second"):
        history.ops[f"op-{name}"].given["once_for"] = 3.0
    return history


def test_a_job_after_the_period_breaks_nothing() -> None:
    assert broken(once()) == set()


def is_made_within_the_period(history: History) -> None:
    history.ops["op-second"].at, history.ops["op-second"].until = at(4.8), at(4.9)


def is_made_before_the_first_has_run(history: History) -> None:
    history.runs = [run for run in history.runs if run.job != "first"]


@pytest.mark.parametrize("failed", [False, True])
@pytest.mark.parametrize("breach", [is_made_within_the_period, is_made_before_the_first_has_run])
def test_a_second_job_within_the_period_is_found(breach: Callable[[History], None], failed: bool) -> None:
    history = once(failed=failed)
    breach(history)
    assert ONCE in broken(history)


def is_cancelled(history: History) -> None:
    history.final.rows["first"].state = "cancelled"


def is_freed(history: History) -> None:
    given = {"queue": "orders", "key": "order:1"}
    add(history, op("op-forget", "forget", given=given, reply="done", start=3.0, end=3.1))


@pytest.mark.parametrize("frees", [is_cancelled, is_freed])
def test_a_key_that_was_freed_schedules_again(frees: Callable[[History], None]) -> None:
    history = once()
    is_made_within_the_period(history)
    frees(history)
    assert ONCE not in broken(history)


def debounced(due: float = 4.0) -> History:
    """Two calls with `at_most`, which moved one job, then its run with that date."""
    history = good()
    job_of_key(history, "first", 1.0, (4.5, 5.0))
    history.ops["op-first"].given |= {"policy": "latest", "at_most": 3.0}
    add(history, op("op-again", given={**history.ops["op-first"].given}, jobs=[("first", False, None)], start=3.0, end=3.1))
    history.runs[-1].due = wall(due)
    return history


def test_a_debounce_that_ends_breaks_nothing() -> None:
    assert DEBOUNCE not in broken(debounced())


def test_a_call_that_moves_a_job_beyond_its_longest_time_is_found() -> None:
    assert DEBOUNCE in broken(debounced(4.5))


def test_a_job_that_a_worker_has_put_back_has_another_date() -> None:
    history = debounced(9.0)
    history.final.attempts.insert(0, ("first", 1, "f0", "snoozed"))
    assert DEBOUNCE not in broken(history)


def is_moved_by_a_person(history: History) -> None:
    add(history, op("op-move", "reschedule", given={"job": "first", "queue": "orders"}, reply="done", start=2.0, end=2.1))


def is_moved_by_a_call_without_it(history: History) -> None:
    add(history, op("op-free", given={"queue": "orders", "key": "order:1", "policy": "latest"}, start=2.0, end=2.1))


def is_lost(history: History) -> None:
    history.faults = [FaultSeen(kind="wipe redis", at=at(2.0), since=at(2.0), until=at(2.1))]


@pytest.mark.parametrize("moves", [is_moved_by_a_person, is_moved_by_a_call_without_it, is_lost])
def test_a_debounce_may_be_moved_by_others(moves: Callable[[History], None]) -> None:
    history = debounced(4.5)
    moves(history)
    assert DEBOUNCE not in broken(history)
