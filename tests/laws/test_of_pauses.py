"""The laws of pauses find every kind of wrong in made-up histories, and nothing in a good one."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.laws import of_pauses
from tests.laws.history import FaultSeen, History, Row
from tests.laws.law import LAWS
from tests.laws.made_up import add, at, broken, good, op, run, scheduled, wall

SOON, LOSS, HELD = (
    "nothing paused begins two seconds after the answer",
    "a pause outlives a loss of data",
    "what a pause held runs after it",
)
WORDS = [("queue", "money"), ("task", "pay"), ("scope", "a"), ("name", "bank:7")]


def paused(kind: str = "task", word: str = "pay") -> History:
    """A pause from 1 s to 9 s. One job began before it took effect, and one after its end."""
    history = good()
    add(history, op("p", "pause", start=1.0, end=1.1, reply="done", given={kind: word}))
    add(history, op("r", "resume", start=9.0, end=9.1, reply="done", given={kind: word}))
    for job, start in (("before", 3.0), ("held", 9.05)):
        add(history, scheduled(job, name="bank:7"))
        history.final.rows[job] = Row(id=job, op=f"op-{job}", task="pay", queue="money", scope="a")
        history.runs.append(run(job, start=start, end=start + 0.01))
        history.ledger.append(("end", job, "f", ""))
    return history


def laws_broken(history: History) -> set[str]:
    return broken(history) & {SOON, LOSS, HELD}


@pytest.mark.parametrize(("kind", "word"), WORDS)
def test_runs_before_and_after_a_pause_break_nothing(kind: str, word: str) -> None:
    assert laws_broken(paused(kind, word)) == set()


def begins_during_the_pause(history: History) -> None:
    history.runs[-1].at = at(5.0)


def begins_during_the_pause_after_a_wipe(history: History) -> None:
    begins_during_the_pause(history)
    history.faults = [FaultSeen(kind="wipe redis", at=at(4.0), since=at(4.0), until=at(4.1))]


def never_runs(history: History) -> None:
    del history.runs[-1]


def never_runs_after_a_pause_with_an_end(history: History) -> None:
    never_runs(history)
    del history.ops["r"]
    history.ops["p"].given["until"] = wall(9.0)


BREACHES: dict[Callable[[History], None], str] = {
    begins_during_the_pause: SOON,
    begins_during_the_pause_after_a_wipe: LOSS,
    never_runs: HELD,
    never_runs_after_a_pause_with_an_end: HELD,
}


@pytest.mark.parametrize(("kind", "word"), WORDS)
@pytest.mark.parametrize("breach", BREACHES, ids=lambda it: it.__name__)
def test_each_breach_is_found_by_its_law(breach: Callable[[History], None], kind: str, word: str) -> None:
    history = paused(kind, word)
    breach(history)
    assert laws_broken(history) == {BREACHES[breach]}


def ends_at_its_date(history: History) -> None:
    history.ops["p"].given["until"] = history.runs[-1].wall = wall(5.0)


def has_no_answer(history: History) -> None:
    history.ops["p"].answer = "unknown"


def is_not_confirmed(history: History) -> None:
    history.ops["p"].reply = "money/3"


def is_of_something_else(history: History) -> None:
    history.ops["p"].given = {"task": "quick-2"}


def may_have_been_resumed(history: History) -> None:
    add(history, op("r2", "resume", start=4.0, end=4.1, answer="unknown", given=history.ops["p"].given))


def is_made_shorter(history: History) -> None:
    given = {**history.ops["p"].given, "until": wall(4.0)}
    add(history, op("p2", "pause", start=3.9, end=4.0, reply="done", given=given))


@pytest.mark.parametrize(
    "excuse", [ends_at_its_date, has_no_answer, is_not_confirmed, is_of_something_else, may_have_been_resumed, is_made_shorter]
)
def test_what_such_a_pause_does_not_promise_breaks_nothing(excuse: Callable[[History], None]) -> None:
    history = paused()
    begins_during_the_pause(history)
    history.runs[-1].wall = wall(5.0)
    excuse(history)
    assert laws_broken(history) == set()


def test_a_repeated_pause_is_no_end_of_the_first() -> None:
    history = paused()
    add(history, op("p2", "pause", start=4.9, end=5.0, reply="done", given={"task": "pay"}))
    begins_during_the_pause(history)
    assert laws_broken(history) == {SOON}


def test_a_cancelled_job_need_not_run() -> None:
    history = paused()
    never_runs(history)
    history.final.rows["held"].state = "cancelled"
    assert laws_broken(history) == set()


def test_there_is_a_breach_of_every_law() -> None:
    assert {one.name for one in LAWS if one.find.__module__ == of_pauses.__name__} == set(BREACHES.values())
