"""The laws of the surroundings find every breach in made-up histories, and nothing in a good one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.laws import of_surroundings
from tests.laws.history import History, Rivalry, Step
from tests.laws.law import LAWS
from tests.laws.made_up import at, broken, good, wall

ANSWERS = "every answer belongs to its query"
DATES = "no row is dated by a wrong clock"
REFUSED = "another site is refused"
CROSSES = "no job crosses to another site"
STAYS = "a queue stays with its site"
HOUR = 3600


def surrounded() -> History:
    """A good history with what these laws look at."""
    history = good()
    history.answers = [("plain", "17", "17"), ("atomic", "18", "18")]
    history.final.dates = {"job.finished_at": (wall(0.1), wall(5.0)), "event.at": (wall(0.0), wall(5.0))}
    history.final.site = "a1"
    history.final.sites = {"default": "a1", "orders": "a1"}
    history.rivalry = Rivalry(
        attempts=[("cancel", "refused"), ("requeue", "unknown"), ("schedule", "<Job 5>"), ("pause", "away")],
        rows=[("theirs", "scheduled", False)],
    )
    return history


def test_a_good_history_breaks_nothing() -> None:
    assert broken(surrounded()) == set()


def two_tasks_swap_their_answers(history: History) -> None:
    (one, asked, heard), (other, asked_too, heard_too) = history.answers
    history.answers = [(one, asked, heard_too), (other, asked_too, heard)]


def an_answer_has_another_shape(history: History) -> None:
    history.answers[0] = ("plain", "17", "[(1, 'two')]")


def a_worker_two_hours_behind_dates_a_row(history: History) -> None:
    history.final.dates["job.finished_at"] = (wall(-2 * HOUR), wall(5.0))


def a_worker_a_day_ahead_dates_an_event(history: History) -> None:
    history.final.dates["event.at"] = (wall(0.0), wall(25 * HOUR))


def rivals(history: History) -> Rivalry:
    assert history.rivalry is not None
    return history.rivalry


def another_site_cancels_a_job(history: History) -> None:
    rivals(history).attempts.append(("cancel", "done"))


def another_site_pauses_a_queue(history: History) -> None:
    rivals(history).attempts.append(("pause", "None"))


def another_site_runs_a_job(history: History) -> None:
    rivals(history).runs.append(("plain", "f"))


def a_job_of_another_site_is_published(history: History) -> None:
    rivals(history).rows.append(("theirs", "scheduled", True))


def a_row_of_another_site_says_that_it_has_run(history: History) -> None:
    rivals(history).rows.append(("theirs", "succeeded", False))


def a_queue_becomes_that_of_another_site(history: History) -> None:
    history.final.sites["orders"] = "b2"


BREACHES: dict[Callable[[History], None], str] = {
    two_tasks_swap_their_answers: ANSWERS,
    an_answer_has_another_shape: ANSWERS,
    a_worker_two_hours_behind_dates_a_row: DATES,
    a_worker_a_day_ahead_dates_an_event: DATES,
    another_site_cancels_a_job: REFUSED,
    another_site_pauses_a_queue: REFUSED,
    another_site_runs_a_job: CROSSES,
    a_job_of_another_site_is_published: CROSSES,
    a_row_of_another_site_says_that_it_has_run: CROSSES,
    a_queue_becomes_that_of_another_site: STAYS,
}


@pytest.mark.parametrize(("breach", "name"), BREACHES.items(), ids=lambda it: getattr(it, "__name__", ""))
def test_each_breach_is_found_by_its_law(breach: Callable[[History], None], name: str) -> None:
    history = surrounded()
    breach(history)
    assert broken(history) == {name}


def test_a_step_of_the_clock_of_redis_dates_rows_and_so_does_a_database_without_a_clock() -> None:
    history = surrounded()
    history.final.dates["event.at"] = (wall(0.0), wall(HOUR))
    assert broken(history) == {DATES}
    assert broken(replace(history, steps=[Step(at=at(1), until=at(2), offset=HOUR * 1000)])) == set()
    assert broken(replace(history, dated_by_hosts=True)) == set()


def test_each_of_these_laws_is_seen_broken() -> None:
    assert {law.name for law in LAWS if law.find.__module__ == of_surroundings.__name__} == set(BREACHES.values())
