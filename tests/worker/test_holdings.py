from __future__ import annotations

import os

import pytest

from django_delayq.worker import holdings as h
from django_delayq.worker.holdings import Holdings

ID = "0351GEiPiO6ubpyarjQkn6"


@pytest.fixture
def holdings():
    holdings = Holdings(4, 3)
    yield holdings
    holdings.close()


def put(holdings: Holdings, row: int = 1, **fields):
    return holdings.put(row, **{"line": 2, "id": ID, "fence": "abc1", "attempt": 7, "taken": 5.0, "good_until": 35.0, **fields})


def test_a_job_is_read_as_it_was_written(holdings: Holdings) -> None:
    turn = put(holdings)
    holdings.start(1, started=6.0, task=3, hard=99.0, retry_ms=1500)
    holdings.progress(1, "5/10")
    (held,) = holdings.held()
    assert held == h.Held(
        row=1,
        turn=turn,
        state=h.RUNNING,
        line=2,
        id=ID,
        fence="abc1",
        attempt=7,
        task=3,
        taken=5.0,
        started=6.0,
        hard=99.0,
        retry_ms=1500,
        progress="5/10",
        progress_turn=1,
    )
    holdings.settling(1)
    assert [held.state for held in holdings.held()] == [h.SETTLING]
    holdings.empty(1)
    assert list(holdings.held()) == []


def test_what_was_said_about_a_job_means_nothing_to_the_next_one_in_its_row(holdings: Holdings) -> None:
    first = put(holdings)
    (held,) = holdings.held()
    holdings.empty(1)
    second = put(holdings, good_until=50.0)
    holdings.lost(held)
    holdings.cancel(held)
    holdings.extended(held, 1000.0)
    assert holdings.is_lost(1, first)
    assert not holdings.is_lost(1, second)
    assert not holdings.is_cancelled(1, second)
    assert holdings.good_until(1, second) == 50.0
    assert holdings.state(held) is None


def test_an_extension_moves_the_date_until_which_the_lease_is_good(holdings: Holdings) -> None:
    turn = put(holdings)
    (held,) = holdings.held()
    assert holdings.good_until(1, turn) == 35.0
    holdings.extended(held, 60.0)
    assert holdings.good_until(1, turn) == 60.0


def test_a_row_written_anew_while_it_is_read_is_passed_over(holdings: Holdings, monkeypatch) -> None:
    put(holdings)
    texts = h._text

    def read_slowly(raw: bytes) -> str:
        if raw.startswith(ID.encode()):
            put(holdings, id="another")
        return texts(raw)

    monkeypatch.setattr(h, "_text", read_slowly)
    assert list(holdings.held()) == []


def test_the_parent_sees_what_a_child_writes(holdings: Holdings) -> None:
    holdings.count(0, 0)
    pid = os.fork()
    if pid == 0:
        put(holdings, 3)
        holdings.claiming(1, "nonce9")
        holdings.count(5, 2)
        os._exit(0)
    os.waitpid(pid, 0)
    assert [held.row for held in holdings.held()] == [3]
    assert holdings.nonces([0, 0, 0]) == ["", "nonce9", ""]
    assert holdings.counts() == (5, 2)
