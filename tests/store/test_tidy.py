"""tidy: what has had its time."""

from __future__ import annotations

from itertools import chain

from django_delayq import ids
from django_delayq.states import Change
from django_delayq.store.scripts.events import FIRST
from django_delayq.store.scripts.recovery import EpochStore
from tests.store.board import NOW, job_id


def test_tidy_drops_what_has_had_its_time(board):
    board.put(1)
    board.put(2)
    board.claim()
    board.settle(1, "ack")
    board.settle(2, "fail", now=NOW + 10)
    later = NOW + 3_600_001
    assert board.store.tidy(now_ms=later).tombstones == 1
    assert board.dump() == {"jobs": [2], "failed": {2: 10}}
    assert board.store.tidy(now_ms=later, failed_before_ms=NOW + 11).failed == 1
    assert board.dump() == {"finished": {2: 3_600_001}}
    assert board.put(2, now=later) == "finished"


def test_tidy_looks_through_all_claims(board):
    """One for each process that ever claimed."""
    for start in range(0, 3000, 500):
        old = [part for number in range(start, start + 500) for part in (f"w/{number}", f"n {NOW} x=1")]
        board.link.execute("HSET", board.keys["claims"], *old)
    board.link.execute("HSET", board.keys["claims"], "young", f"n {NOW + 25 * 3_600_000} x=1")
    cursor, calls = "0", 0
    while not calls or cursor != "0":
        cursor = board.store.tidy(cursor=cursor, now_ms=NOW + 26 * 3_600_000).cursor
        calls += 1
    assert board.link.execute("HKEYS", board.keys["claims"]) == [b"young"]
    assert calls > 5, "each call is bounded"


def test_tidy_drops_two_hundred_of_a_kind_at_once(board):
    for name, first in (("finished", 0), ("failed", 300)):
        found = ((NOW, ids.short(job_id(number))) for number in range(first, first + 201))
        board.link.execute("ZADD", board.keys[name], *chain.from_iterable(found))
    for wanted in (200, 1, 0):
        tidied = board.store.tidy(now_ms=NOW + 3_600_000, failed_before_ms=NOW + 1)
        assert (tidied.tombstones, tidied.failed) == (wanted, wanted)


def test_tidy_keeps_failed_jobs_of_the_moment_up_to_which_the_mirror_has_come(board):
    board.link.execute("ZADD", board.keys["failed"], NOW, ids.short(job_id(1)))
    assert [board.store.tidy(now_ms=NOW, failed_before_ms=NOW + later).failed for later in (0, 1)] == [0, 1]


def test_tidy_drops_counters_behind_eight_days_and_claims_behind_one(board):
    board.put(1)
    board.claim()
    board.settle(1, "ack")
    day, counted = 24 * 3_600_000, board.link.execute("HLEN", board.keys["stats"])
    left = []
    for later in (day, day + 1, 8 * day, 8 * day + 60_000):
        board.store.tidy(now_ms=NOW + later)
        left.append([board.link.execute("HLEN", board.keys[name]) for name in ("claims", "stats")])
    assert left == [[1, counted], [0, counted], [0, counted], [0, 0]]


def test_tidy_drops_what_was_asked_of_a_job_that_nobody_runs_and_nothing_else(board):
    board.put(1)
    board.claim()
    asked = board.store.cancel([job_id(2), job_id(3)], lacking="running", now_ms=NOW)
    assert asked == [Change.RUNNING] * 2, "nobody knows whether they run"
    assert board.store.cancel([job_id(1)], now_ms=NOW) == [Change.RUNNING]
    board.store.tidy(now_ms=NOW)
    assert sorted(board.dump().get("cancels", ())) == [1, 2, 3], "nobody has confirmed yet that this server lacks nothing"
    assert confirm(board) == "ok"
    board.store.tidy(now_ms=NOW)
    assert sorted(board.dump().get("cancels", ())) == [1], "job 1 runs here"
    assert board.extend(1) == "cancel"


def confirm(board) -> str:
    """The database has seen all data in Redis."""
    epoch = EpochStore(board.store)
    found = epoch.look(FIRST)
    return epoch.confirm(found.generation, server=found.server, now_ms=NOW)
