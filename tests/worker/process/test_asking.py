"""The executor's outcome for a task that gets "not yet"."""

from __future__ import annotations

import logging

import pytest

import django_delayq as delayq
from django_delayq import signals
from django_delayq.exceptions import GaveUp
from django_delayq.ladder import POLL, Ladder
from django_delayq.worker import outcome
from tests.worker.bench import Bench
from tests.worker.process.test_executor import run


def waits():
    raise delayq.NotYet("the bank has not booked it")


def asked(bench: Bench, fn, asks: int, **fields):
    """Runs a task once whose job has asked so often before."""
    bench.register(fn, **fields)
    bench.put(fn.__name__, max_attempts=1)
    bench.move()
    taken = bench.take()
    taken.job = taken.job._replace(asks=asks)
    outcome = bench.executor.run(taken)
    bench.settler.add(taken, outcome)
    bench.settler.poll()
    return outcome


@pytest.mark.parametrize(("asks", "delay_ms"), [(0, 15_000), (1, 180_000), (8, 54_000_000)])
def test_a_task_that_says_nothing_asks_along_the_usual_ladder_whatever_attempts_are_left(bench: Bench, asks, delay_ms) -> None:
    outcome = asked(bench, waits, asks)
    assert (outcome.kind, outcome.delay_ms, outcome.reason) == ("ask", delay_ms, "the bank has not booked it")


def test_coroutines_ask_too(bench: Bench) -> None:
    async def waits():
        raise delayq.NotYet

    outcome = run(bench, waits, poll=Ladder("7s"), is_async=True, max_attempts=1)
    assert (outcome.kind, outcome.delay_ms) == ("ask", 7000)


def test_behind_the_last_step_it_gives_up_with_the_last_reason_and_what_it_was_for(bench: Bench) -> None:
    def looks():
        try:
            {}["booking"]
        except KeyError as error:
            raise delayq.NotYet("no booking") from error

    outcome = asked(bench, looks, 2, poll=Ladder("1s 2s"))
    assert outcome.kind == "fail"
    assert isinstance(outcome.error, GaveUp)
    assert isinstance(outcome.error.__cause__, KeyError)
    detail = bench.body("failed")
    assert (detail["c"], detail["d"]) == ("django_delayq.exceptions.GaveUp", "no booking")
    assert "KeyError" in detail["t"]
    asked(bench, waits, 2, poll=Ladder("1s 2s"))
    assert "t" not in bench.body("failed"), "it says nothing of where"


def test_a_formula_that_errs_gives_way_to_the_usual_ladder(caplog) -> None:
    ladder = Ladder.formula(lambda n: 1 / 0, times=3)
    assert outcome.poll_ms(ladder, 1) == POLL.delay(2) * 1000
    assert "the poll ladder" in caplog.text
    assert outcome.poll_ms(ladder, 3) is None


def test_a_formula_longer_than_the_usual_ladder_that_errs_takes_its_last_step() -> None:
    assert outcome.poll_ms(Ladder.formula(lambda n: 1 / 0, times=50), 30) == POLL.delay(9) * 1000


def test_to_ask_is_told_as_no_problem(bench: Bench, caplog) -> None:
    caplog.set_level(logging.INFO)
    asked(bench, waits, 0)
    [line] = [record for record in caplog.records if record.name == "django_delayq.worker.job"]
    assert line.levelno == logging.INFO
    assert "waits must poll again after" in line.getMessage()
    assert "runs again in 15s" in line.getMessage()
    assert "booked" not in line.getMessage()
    caplog.clear()
    asked(bench, waits, 9)
    [line] = [record for record in caplog.records if record.name == "django_delayq.worker.job"]
    assert line.levelno == logging.ERROR
    assert "GaveUp" in line.getMessage()


def test_receivers_hear_of_it_as_of_a_snooze(bench: Bench) -> None:
    heard = []

    def snoozed(sender, outcome, **_):
        heard.append(("snoozed", outcome.kind))

    def failed(sender, outcome, **_):
        heard.append(("failed", type(outcome.error).__name__))

    signals.job_snoozed.connect(snoozed)
    signals.job_failed.connect(failed)
    try:
        asked(bench, waits, 0)
        asked(bench, waits, 9)
    finally:
        signals.job_snoozed.disconnect(snoozed)
        signals.job_failed.disconnect(failed)
    assert heard == [("snoozed", "ask"), ("failed", "GaveUp")]
