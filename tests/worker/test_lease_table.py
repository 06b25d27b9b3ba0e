from __future__ import annotations

import os
import signal
import time

import pytest

from django_delayq.worker import lease_table as h
from django_delayq.worker.lease_table import LeaseTable
from django_delayq.worker.tally import LatestText

ID = "0351GEiPiO6ubpyarjQkn6"


@pytest.fixture
def leases():
    leases = LeaseTable(4, 3)
    yield leases
    leases.close()


def put(leases: LeaseTable, row: int = 1, **fields):
    return leases.put(row, **{"line": 2, "id": ID, "fence": "abc1", "attempt": 7, "taken": 5.0, "good_until": 35.0, **fields})


def test_a_job_is_read_as_it_was_written(leases: LeaseTable) -> None:
    turn = put(leases)
    leases.start(1, started=6.0, task=3, hard=99.0, retry_ms=1500)
    leases.progress(1, "5/10")
    (held,) = leases.held()
    assert held == h.LeaseSlot(
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
    leases.settling(1)
    assert [held.state for held in leases.held()] == [h.SETTLING]
    leases.empty(1)
    assert list(leases.held()) == []


def test_what_was_said_about_a_job_means_nothing_to_the_next_one_in_its_row(leases: LeaseTable) -> None:
    first = put(leases)
    (held,) = leases.held()
    leases.empty(1)
    second = put(leases, good_until=50.0)
    leases.lose(held.row, held.turn)
    leases.cancel(held)
    leases.extended(held, 1000.0)
    assert leases.is_lost(1, first)
    assert not leases.is_lost(1, second)
    assert not leases.is_cancelled(1, second)
    assert leases.good_until(1, second) == 50.0
    assert leases.state(held) is None


def test_an_extension_moves_the_date_until_which_the_lease_is_good(leases: LeaseTable) -> None:
    turn = put(leases)
    (held,) = leases.held()
    assert leases.good_until(1, turn) == 35.0
    leases.extended(held, 60.0)
    assert leases.good_until(1, turn) == 60.0


def test_a_row_written_anew_while_it_is_read_is_passed_over(leases: LeaseTable, monkeypatch) -> None:
    put(leases)
    texts = h._text

    def read_slowly(raw: bytes) -> str:
        if raw.startswith(ID.encode()):
            put(leases, id="another")
        return texts(raw)

    monkeypatch.setattr(h, "_text", read_slowly)
    assert list(leases.held()) == []


def test_the_parent_sees_what_a_child_writes(leases: LeaseTable) -> None:
    leases.count(0, 0)
    pid = os.fork()
    if pid == 0:
        put(leases, 3)
        leases.claiming(1, "nonce9")
        leases.count(5, 2)
        os._exit(0)
    os.waitpid(pid, 0)
    assert [held.row for held in leases.held()] == [3]
    assert leases.nonces([0, 0, 0]) == ["", "nonce9", ""]
    assert leases.counts() == (5, 2)


def test_what_was_written_last_is_read() -> None:
    board = LatestText(4096)
    assert board.read() == b""
    assert board.write(b"first, and longer")
    assert board.write(b"second")
    assert board.read() == b"second"


def test_what_is_too_long_leaves_the_last_text() -> None:
    board = LatestText(4096)
    board.write(b"short")
    assert board.write(b"x" * 5000) is False
    assert board.read() == b"short"


def test_a_text_that_was_begun_is_none_until_another_was_written() -> None:
    board = LatestText(4096)
    board.write(b"whole")
    board._map[0] |= 1  # a writer was killed after this
    board._map[16:18] = b"XX"
    assert board.read() == b""
    board.write(b"new")
    assert board.read() == b"new"


@pytest.mark.slow
def test_a_reader_of_another_process_sees_whole_texts_only() -> None:
    board = LatestText(1 << 20)
    pid = os.fork()
    if pid == 0:
        number = 0
        while True:
            number = (number + 1) % 10
            board.write(str(number).encode() * (1 + 30_000 * number))
    try:
        seen: set[bytes] = set()
        deadline = time.monotonic() + 30
        while len(seen) < 5 and time.monotonic() < deadline:
            text = board.read()
            assert len(set(text)) <= 1, "two texts are mixed"
            if text:
                assert len(text) == 1 + 30_000 * int(text[:1])
                seen.add(text[:1])
        assert len(seen) >= 5
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
