"""tidy: what has had its time."""

from __future__ import annotations

from itertools import chain

import pytest

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


def test_tidy_drops_the_failed_jobs_that_the_caller_names_and_no_other_job(board):
    for number in (1, 2, 3, 4):
        board.put(number)
    board.claim(want=3)
    for number in (1, 2):
        board.settle(number, "fail", now=NOW + 10)
    named = [job_id(number) for number in (1, 3, 4, 5)]
    assert board.store.tidy(failed=named, now_ms=NOW + 10).failed == 1
    found = board.dump()
    assert (found["failed"], found["finished"]) == ({2: 10}, {1: 10})
    assert sorted(found["jobs"]) == [2, 3, 4]
    assert board.put(1, now=NOW + 20) == "finished"


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
    for number in (2, 3):
        asked = board.store.cancel(job_id(number), lacking="running", now_ms=NOW)
        assert asked.change == Change.RUNNING, "nobody knows whether it runs"
    assert board.store.cancel(job_id(1), now_ms=NOW).change == Change.RUNNING
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


MINUTE = NOW // 60_000


@pytest.fixture
def counted(board):
    """Kind -> how many, of this minute; with what a second call counts no more."""

    def look() -> dict[str, int]:
        flat = board.link.execute("HGETALL", board.keys["stats"])
        found = {key.decode(): int(value) for key, value in zip(flat[::2], flat[1::2], strict=True)}
        return {key.removeprefix(f"{MINUTE}:"): count for key, count in found.items() if key.startswith(f"{MINUTE}:")}

    return look


def ends(counted) -> dict[str, int]:
    return {kind: count for kind, count in counted().items() if kind.isalpha() and kind != "scheduled"}


def test_a_cancel_counts_what_it_has_ended_and_nothing_else(board, counted):
    for number in (1, 2):
        board.put(number)
    for number in (1, 2, 3, 1):
        board.store.cancel(job_id(number), now_ms=NOW)
    assert ends(counted) == {"cancelled": 2}


@pytest.mark.parametrize(
    ("outcome", "wanted"),
    [
        ("ack", {"succeeded": 1}),
        ("retry", {"retried": 1}),
        ("fail", {"failed": 1}),
        ("cancel", {"cancelled": 1}),
        ("snooze", {"snoozed": 1}),
        ("evict", {"snoozed": 1}),
        ("park", {"snoozed": 1}),
        ("crash", {"crashed": 1}),
    ],
)
def test_each_end_of_a_run_counts_once(board, counted, outcome, wanted):
    board.put(1)
    board.claim()
    board.settle(1, outcome)
    board.settle(1, outcome)
    assert ends(counted) == wanted


def test_a_purge_counts_what_it_has_ended(board, counted):
    for number in (1, 2):
        board.put(number)
    board.store.purge(limit=10, now_ms=NOW)
    assert ends(counted) == {"cancelled": 2}


def test_a_purge_takes_no_more_than_it_was_told_to_over_all_bands(board, counted):
    for number, band in enumerate(("high", "normal", "normal", "low"), 1):
        board.put(number, band=band)
    assert board.store.purge(limit=2, now_ms=NOW)[1] == 2
    assert board.dump()["jobs"] == [3, 4]
    assert ends(counted) == {"cancelled": 2}


def test_what_expires_counts_as_cancelled_or_once_it_has_run_as_failed(board, counted):
    board.put(1, expires_ms=NOW - 1)
    board.claim("n1")
    assert ends(counted) == {"cancelled": 1}
    board.put(2, expires_ms=NOW + 1)
    board.claim("n2")
    board.settle(2, "retry", fence="n2")
    board.claim("n3", now=NOW + 1)
    assert ends(counted) == {"cancelled": 1, "retried": 1, "failed": 1}


def test_a_crash_of_what_was_asked_to_end_counts_no_failure(board, counted):
    board.put(1)
    board.claim()
    board.store.cancel(job_id(1), now_ms=NOW)
    board.settle(1, "crash")
    assert ends(counted) == {"crashed": 1}


def test_a_cancel_that_was_asked_for_while_nobody_knew_of_the_job_counts_when_it_is_found(board, counted):
    board.claim("n0")
    assert board.store.cancel(job_id(1), lacking="running", now_ms=NOW).change == "running"
    board.put(1)
    assert board.claim("n1").jobs == []
    assert board.happened()[-1] == "cancelled 1"
    assert ends(counted) == {"cancelled": 1}


def test_what_a_dead_worker_held_counts_a_crash_and_poison_a_failure_too(board, counted):
    start = NOW // 60_000 * 60_000  # so that the lease ends in the same minute
    board.put(1, start, now=start)
    board.claim(now=start)
    late = board.pass_lease(start)
    before = counted()
    board.claim("n2", "w2", now=late, max_crashes=0)
    assert before == {kind: count for kind, count in counted().items() if kind not in ("crashed", "failed")}
    assert ends(counted) == {"crashed": 1, "failed": 1}


def test_a_purge_tells_of_each_job_and_of_itself(board):
    board.put(1)
    board.put(2)
    board.store.purge(limit=10, now_ms=NOW)
    assert board.happened()[-3:] == ["cancelled 1", "cancelled 2", "purged"]
