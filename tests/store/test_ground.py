"""What is known of the ground: whether a job that is not here may run, how far the mirror has come, which ends are remembered."""

from __future__ import annotations

import pytest

from django_delayq.states import Change
from django_delayq.store import scripts
from django_delayq.store.events import FIRST
from django_delayq.store.recovery import GroundStore
from tests.store.board import NOW, job_id


@pytest.fixture
def ground(board) -> GroundStore:
    return GroundStore(board.store)


def confirm(ground: GroundStore, **options: str) -> str:
    found = ground.look(FIRST)
    return ground.confirm(found.generation, server=found.server, now_ms=NOW, **options)


@pytest.mark.parametrize(
    ("confirmed", "phase", "lacking", "wanted"),
    [
        (False, "", str(NOW), Change.RUNNING),
        (True, "sweep", str(NOW), Change.RUNNING),
        (True, "rest", str(NOW), Change.RUNNING),
        (True, "", str(NOW), Change.DONE),
        (False, "", str(NOW + 1), Change.DONE),
        (True, "", "running", Change.RUNNING),
        (False, "", "scheduled", Change.DONE),
    ],
)
def test_a_job_that_is_not_here_may_run_if_it_was_due_on_ground_that_none_has_confirmed(
    board, ground, confirmed, phase, lacking, wanted
):
    board.claim()  # so that there is a generation
    if confirmed:
        assert confirm(ground) == "ok"
    if phase:
        assert confirm(ground, phase=phase) == "ok"
    assert board.store.cancel([job_id(1)], lacking=lacking, now_ms=NOW) == [wanted]


def test_who_confirms_a_server_wakes_a_worker(board, ground):
    board.claim()
    board.link.execute("DEL", board.keys["wake"])
    assert confirm(ground) == "ok"
    assert board.tokens() == 1


def test_what_is_found_is_noted_and_the_server_is_not_confirmed_by_it(board, ground):
    board.claim()
    assert confirm(ground, phase="found") == "ok"
    meta = board.link.execute("HMGET", board.keys["meta"], "rolled", "server")
    assert meta == [b"found", None]


@pytest.mark.parametrize(("first", "second", "wanted"), [
    ("1000-5", "999-7", "1000-5"),
    ("1000-5", "1000-4", "1000-5"),
    ("1000-5", "1000-6", "1000-6"),
    ("1000-5", "1001-0", "1001-0"),
])  # fmt: skip
def test_a_slower_mirror_takes_nothing_back(board, first, second, wanted):
    board.log.trim(first)
    board.log.trim(second)
    assert board.link.execute("HGET", board.keys["meta"], "mirrored").decode() == wanted


@pytest.fixture
def few(monkeypatch):
    """Of ends that the database has heard of, three are remembered."""
    real = scripts._read
    monkeypatch.setattr(scripts, "_read", lambda path: real(path).replace("TOMBSTONES = 200000", "TOMBSTONES = 3"))
    scripts.load.cache_clear()
    yield
    scripts.load.cache_clear()


def by_cancel(board) -> None:
    board.store.cancel([job_id(1)], now_ms=NOW)


def by_purge(board) -> None:
    board.store.purge(now_ms=NOW)


def by_settle(board) -> None:
    board.claim()
    board.settle(1, "ack")


@pytest.mark.parametrize("end", [by_cancel, by_purge, by_settle])
@pytest.mark.parametrize(
    ("heard", "left"), [(6, [104, 105, 106, 1]), (4, [102, 103, 104, 105, 106, 1]), (0, [101, 102, 103, 104, 105, 106, 1])]
)
def test_of_many_ends_the_oldest_that_the_database_has_heard_of_are_forgotten(board, few, end, heard, left):
    for number in range(1, 7):
        board.put(100 + number)
        board.store.cancel([job_id(100 + number)], now_ms=NOW - 1000 + number)
    board.put(1)
    board.link.execute("HSET", board.keys["meta"], "mirrored", f"{NOW - 1000 + heard + 1}-0" if heard else "0-0")
    end(board)
    assert list(board.dump()["finished"]) == left


def test_a_stream_is_trimmed_on_the_server_that_it_was_read_from_and_on_no_other(board, ground):
    board.put(1)
    board.log.trim(board.log.last_id(), server="another")
    assert board.log.length() == 1
    board.log.trim(board.log.last_id(), server=ground.look(FIRST).server)
    assert board.log.length() == 0
