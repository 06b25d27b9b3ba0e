"""The details of a job that users see, in every state."""

from __future__ import annotations

import pytest

from django_delayq import clock
from django_delayq.store.reads.figures import COUNT_US_BEYOND, HOUR_MS, MINUTE_MS, MOST_US, Figures
from django_delayq.store.reads.inspector import Inspector
from tests.depths import queue_depths
from tests.store.board import LEASE, NOW, Board, job_id


@pytest.fixture
def shown(board):
    """Number of a job -> state, date after NOW, attempt, crashes, fence, actor of the cancel, progress, key."""

    def show(*numbers: int) -> list[tuple | None]:
        views = Inspector(board.link, prefix="t").jobs("q", [job_id(number) for number in numbers])
        return [
            view
            and (
                view.state,
                view.date_ms - NOW,
                view.attempt,
                view.crashes,
                view.fence,
                view.cancel_by,
                view.progress,
                view.record and view.record.key,
            )
            for view in views
        ]

    return show


def test_a_job_is_shown_as_it_stands_in_every_state(board, shown):
    board.put(1, NOW + 5000, key="k")
    assert shown(1, 2) == [("scheduled", 5000, 0, 0, "", "", "", "k"), None]
    board.claim("n1", now=NOW + 5000)
    board.extend(1, now=NOW + 6000, progress="1/3")
    board.store.cancel(job_id(1), actor="clerk", now_ms=NOW + 6000)
    assert shown(1) == [("running", 6000 + LEASE, 1, 0, "n1", "clerk", "1/3", "k")]
    board.settle(1, "fail", now=NOW + 7000)
    assert shown(1) == [("failed", 7000, 0, 0, "", "", "", "k")]


def test_who_asks_for_an_abort_is_shown_by_name(board, shown):
    board.put(1)
    board.claim("n1")
    board.store.cancel(job_id(1), actor="clerk", abort=True)
    assert shown(1) == [("running", LEASE, 1, 0, "n1", "clerk", "", "")]


def test_what_has_ended_or_waits_for_another_attempt_is_shown_as_such(board, shown):
    board.put(1)
    board.put(2)
    board.claim("n1")
    board.settle(1, "ack", now=NOW + 9)
    board.settle(2, "retry", delay=500)
    assert shown(1, 2) == [("finished", 9, 0, 0, "", "", "", None), ("scheduled", 500, 1, 0, "", "", "", "")]
    board.claim("n2", now=NOW + 500)
    board.settle(2, "crash", attempt=2, fence="n2", now=NOW + 600)
    assert shown(2) == [("scheduled", 600, 1, 1, "", "", "", "")]


EMPTY = (0,) * 60


@pytest.fixture
def now(board: Board) -> int:
    """By the clock of Redis, a little after a whole minute would be too late to be sure of: tests look at sums."""
    seconds, micros = board.link.execute("TIME")
    return int(seconds) * 1000 + int(micros) // 1000


@pytest.fixture
def figures(board: Board) -> Figures:
    return Figures(board.link, prefix="t")


def test_a_queue_that_has_done_nothing(figures):
    [hour] = figures.hours(["q"])
    assert (hour.succeeded, hour.failed, hour.retried) == (EMPTY, EMPTY, EMPTY)
    assert (hour.done, hour.done_per_minute, hour.failure_share) == (0, 0.0, None)


def test_what_was_done_in_the_hour_is_told_per_minute(board, figures, now):
    for number, (outcome, minutes) in enumerate((("ack", 75), ("retry", 3), ("fail", 2), ("ack", 1), ("ack", 1)), 1):
        then = now - minutes * MINUTE_MS
        board.put(number, due=then, now=then)
        board.claim(f"n{number}", now=then)
        board.settle(number, outcome, fence=f"n{number}", now=then, delay=10**8, ran=5)
    [hour] = figures.hours(["q"])
    assert sum(hour.succeeded) == 2
    assert 2 in hour.succeeded[-3:]
    assert (sum(hour.failed), sum(hour.retried), hour.done) == (1, 1, 3)
    assert hour.failure_share == pytest.approx(1 / 3)
    assert hour.done_per_minute == pytest.approx(3 / 5)
    assert sum(hour.late) == sum(hour.ran) == 3, "a retry is not the last run"


def test_a_forecast_counts_what_becomes_due_and_not_what_is(board, figures, now):
    half_past = now - now % MINUTE_MS + 30_000  # in the middle of a minute
    for number, due in enumerate(
        (now - 1, half_past + 5 * MINUTE_MS, half_past + 5 * MINUTE_MS, half_past + 59 * MINUTE_MS, now + 20 * HOUR_MS),
        1,
    ):
        board.put(number, due=due, now=now, max_attempts=1)
    ahead = figures.forecast(["q"])
    assert (ahead.minute_step, ahead.hour_step, len(ahead.minutes), len(ahead.hours)) == (1, 1, 60, 24)
    assert sum(ahead.hours) == 4
    assert sum(ahead.minutes) in (2, 3)  # a minute may have begun meanwhile
    assert 2 in ahead.minutes[4:6]


def test_every_band_is_in_the_forecast(board, figures, now):
    for number, band in enumerate(("high", "normal", "low"), 1):
        board.put(number, due=now + 10 * MINUTE_MS, now=now, band=band)
    assert sum(figures.forecast(["q"]).minutes) == 3


def zcounts(board: Board) -> int:
    stats = board.link.execute("INFO", "commandstats").decode()
    return int(stats.partition("cmdstat_zcount:calls=")[2].partition(",")[0])


def test_a_forecast_of_many_short_queues_is_told_by_the_minute_and_the_hour(board, figures, now):
    queues = [f"q{number}" for number in range(25)]
    for queue in queues:
        key = f"t:{{{queue}}}:schedule:normal"
        board.link.execute("ZADD", key, now + 30 * MINUTE_MS, "a", now + 5 * HOUR_MS, "b")
    ahead = figures.forecast(queues)
    assert (ahead.minute_step, ahead.hour_step, len(ahead.minutes), len(ahead.hours)) == (1, 1, 60, 24)
    assert (sum(ahead.minutes), sum(ahead.hours)) == (25, 50)


def test_a_forecast_of_many_long_queues_is_coarser_and_costs_no_more(board, figures, now):
    queues = [f"q{number}" for number in range(40)]
    far = [value for n in range(10_001) for value in (now + 48 * HOUR_MS, f"far{n}")]
    board.link.execute("ZADD", "t:{q0}:schedule:normal", *far)
    for queue in queues[1:]:
        board.link.execute("COPY", "t:{q0}:schedule:normal", f"t:{{{queue}}}:schedule:normal")
    for queue in queues:
        key = f"t:{{{queue}}}:schedule:normal"
        board.link.execute("ZADD", key, now + 30 * MINUTE_MS, "a", now + 5 * HOUR_MS, "b")
    board.link.execute("CONFIG", "RESETSTAT")
    ahead = figures.forecast(queues)
    assert zcounts(board) <= MOST_US / COUNT_US_BEYOND + 3 * len(queues)
    assert ahead.minute_step > 1
    assert (sum(ahead.minutes), sum(ahead.hours)) == (40, 80)
    assert len(ahead.minutes) * ahead.minute_step == 60
    assert len(ahead.hours) * ahead.hour_step == 24


def test_no_queue_has_no_forecast(figures):
    assert sum(figures.forecast([]).minutes) == 0
    assert figures.hours([]) == []


def test_depths_of_many_queues_are_asked_in_two_round_trips(board, monkeypatch):
    board.put(1, due=clock.wall_ms() - 60_000)
    inspector = Inspector(board.link, prefix="t")
    trips = []
    ask = type(board.link).execute_many
    monkeypatch.setattr(type(board.link), "execute_many", lambda link, commands: trips.append(1) or ask(link, commands))
    depths = queue_depths(["other", "q", "third"], inspector)
    assert len(trips) == 2
    assert [depth.queue for depth in depths] == ["other", "q", "third"]
    assert [depth.due for depth in depths] == [0, 1, 0]
    assert queue_depths([], inspector) == []
