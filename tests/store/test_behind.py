"""By how many jobs the mirror may be behind, and who is refused then."""

from __future__ import annotations

import pytest

from django_delayq.store.connection.error_replies import StoreError
from django_delayq.store.reads.inspector import Inspector
from django_delayq.store.scripts.events import FIRST, EventLog
from django_delayq.store.scripts.queue import Outcome, ScheduleItem
from tests.depths import queue_depth
from tests.store.board import NOW, record

LIMIT = 6


def schedule(board, *numbers: int, **options):
    return board.store.schedule([ScheduleItem.of(record(n), due_ms=NOW) for n in numbers], now_ms=NOW, **options)


def claim(board, nonce: str, **options):
    return board.store.claim("w1", nonce, want=200, lease_ms=30_000, max_crashes=3, **options).jobs


def settle(board, jobs) -> list[str]:
    items = [Outcome(id=job.id, attempt=job.attempt, fence=job.fence, kind="ack") for job in jobs]
    return board.store.settle(items, worker="w1", max_crashes=3, now_ms=NOW)


def untold(board) -> int:
    return queue_depth("q", Inspector(board.link, prefix="t")).untold


def trim(board, entries: int | None = None) -> None:
    log = EventLog(board.link, board.keys)
    found = log.read(FIRST, 100)[:entries]
    log.trim(found[-1].id, surplus=sum(len(entry.items) - 1 for entry in found))


def test_jobs_are_counted_and_not_entries(board):
    schedule(board, *range(LIMIT), max_events=LIMIT)
    assert board.link.execute("XLEN", board.keys["events"]) == 1
    assert untold(board) == LIMIT
    with pytest.raises(StoreError, match="EVENTSFULL"):
        schedule(board, 100, max_events=LIMIT)
    schedule(board, 101, max_events=LIMIT + 1)
    schedule(board, 102)  # policy grow


def test_at_twice_the_limit_nothing_is_claimed_and_whatever_ends_is_told(board):
    schedule(board, *range(5))
    held = claim(board, "n1", max_events=LIMIT, now_ms=NOW)
    schedule(board, 5, 6)
    assert len(held) == 5
    assert untold(board) == 2 * LIMIT
    assert claim(board, "n2", max_events=LIMIT, now_ms=NOW) == []
    assert claim(board, "n2", max_events=LIMIT, now_ms=NOW + 600_000) == [], "a lost lease neither"
    assert [job.id for job in claim(board, "n1", max_events=LIMIT, now_ms=NOW)] == [job.id for job in held], "a re-send"
    items = [(job.id, job.fence) for job in held]
    assert set(board.store.extend(items, worker="w1", lease_ms=30_000, now_ms=NOW).values()) == {"ok"}
    assert settle(board, held) == ["done"] * 5
    assert board.store.cancel(record(5).id, now_ms=NOW).change == "done"
    assert board.store.requeue(record(5).id, record(5), now_ms=NOW)[0] == "done"
    assert untold(board) == 2 * LIMIT + 7
    trim(board)
    assert untold(board) == 0
    assert len(claim(board, "n3", max_events=LIMIT, now_ms=NOW)) == 2


def test_a_claim_does_not_ask_where_the_stream_may_grow(board):
    schedule(board, *range(3 * LIMIT))
    assert len(claim(board, "n1", now_ms=NOW)) == 3 * LIMIT


def test_what_the_mirror_has_taken_in_is_counted_no_more(board):
    schedule(board, 1, 2, 3)
    schedule(board, 4, 5)
    trim(board, 1)
    assert untold(board) == 2


@pytest.mark.parametrize("drifted", ["-7", "1000000", "nan", "garbage", "1e300"])
def test_a_count_that_went_wrong_does_not_last(board, drifted):
    schedule(board, 1)
    board.link.execute("HSET", board.keys["meta"], "surplus", drifted)
    schedule(board, 2, max_events=1000)  # two entries have 800 jobs at most
    trim(board, 1)
    assert 1 <= untold(board) <= 400
    trim(board)
    assert untold(board) == 0
    schedule(board, 3, 4)
    assert untold(board) == 2


@pytest.mark.parametrize(("drifted", "counts"), [("1000000", 400), ("-7", 1), ("nan", 1), ("garbage", 1)])
def test_an_entry_counts_for_one_job_at_least_and_four_hundred_at_most(board, drifted, counts):
    schedule(board, 1)
    board.link.execute("HSET", board.keys["meta"], "surplus", drifted)
    with pytest.raises(StoreError, match="EVENTSFULL"):
        schedule(board, 2, max_events=counts)
    schedule(board, 2, max_events=counts + 1)


def test_where_nobody_has_counted_the_mirror_counts_nothing_up(board):
    schedule(board, 1)
    schedule(board, 2)
    trim(board, 1)
    assert untold(board) == 1


def test_a_release_that_does_not_count_is_bounded_by_its_entries(board):
    for number in range(4):
        schedule(board, number)
    board.link.execute("HDEL", board.keys["meta"], "surplus")
    assert untold(board) == 4
    with pytest.raises(StoreError, match="EVENTSFULL"):
        schedule(board, 9, max_events=4)


def test_a_call_that_tells_of_one_job_counts_nothing(board):
    schedule(board, 1)
    assert board.link.execute("HGET", board.keys["meta"], "surplus") is None
