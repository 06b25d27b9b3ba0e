"""Questions that may hang: how many are asked, and who gets the answer."""

from __future__ import annotations

import threading

from django_delayq.worker import hanging_calls
from django_delayq.worker.hanging_calls import MOST_HANGING, answers
from tests.worker.conftest import eventually

LONG = 20.0


def nothing() -> None:
    """Runs after a call."""


def test_who_asks_while_others_do_gets_their_answer_however_many_there_are() -> None:
    may_end = threading.Event()
    times: list[int] = []

    def question() -> int:
        times.append(1)
        may_end.wait(LONG)
        return 42

    first, *others = (hanging_calls._call(question, LONG, nothing) for _ in range(8 * MOST_HANGING))
    assert first is not None
    assert all(other is first for other in others)
    may_end.set()
    assert first.done.wait(LONG)
    assert (first.answer, len(times)) == (42, 1)
    assert answers(LONG, question, behind=nothing) == [42]
    assert len(times) == 2, "what has come back is asked anew"


def test_a_question_that_hangs_is_asked_a_few_times_more_and_one_that_does_not_beside_it() -> None:
    may_end = threading.Event()
    times: list[int] = []

    def hangs() -> None:
        times.append(1)
        may_end.wait(LONG)

    for _ in range(MOST_HANGING + 2):
        assert answers(0.05, hangs, lambda: 1, behind=nothing)[0] is None
    assert len(times) <= MOST_HANGING
    assert answers(LONG, lambda: 1, behind=nothing) == [1]
    asked = len(times)
    may_end.set()
    assert eventually(lambda: answers(LONG, hangs, behind=nothing) and len(times) > asked), "it is asked when it hangs no more"


def test_what_raises_is_none_and_the_next_one_asks_again() -> None:
    times: list[int] = []

    def wrong() -> int:
        times.append(1)
        raise LookupError("no shop")

    assert answers(LONG, wrong, behind=nothing) == answers(LONG, wrong, behind=nothing) == [None]
    assert len(times) == 2
