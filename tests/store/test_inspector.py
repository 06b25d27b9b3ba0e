"""The details of a job that users see, in every state."""

from __future__ import annotations

import pytest

from django_delayq.store.reads.inspector import Inspector
from tests.store.board import LEASE, NOW, job_id


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
    board.store.cancel([job_id(1)], actor="clerk", now_ms=NOW + 6000)
    assert shown(1) == [("running", 6000 + LEASE, 1, 0, "n1", "clerk", "1/3", "k")]
    board.settle(1, "fail", now=NOW + 7000)
    assert shown(1) == [("failed", 7000, 0, 0, "", "", "", "k")]


def test_who_asks_for_an_abort_is_shown_by_name(board, shown):
    board.put(1)
    board.claim("n1")
    board.store.cancel([job_id(1)], actor="clerk", abort=True)
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
