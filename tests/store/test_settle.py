from __future__ import annotations

from typing import get_args

import pytest

from django_delayq import ids
from django_delayq.store.scripts.queue import Kind, Outcome
from tests.store.board import LEASE, NOW, job_id


@pytest.fixture
def running(board):
    """Job 1, with a key, in its first attempt under the fence n1."""
    board.put(1, key="k")
    board.claim()
    return board


def test_ack_removes_the_job_and_leaves_a_tombstone(running):
    assert running.settle(1, "ack") == "done"
    assert running.dump() == {"finished": {1: 0}}
    assert running.happened()[-1] == "succeeded 1"


def test_retry_puts_it_back_and_the_attempt_counts(running):
    assert running.settle(1, "retry", delay=15_000) == "done"
    assert running.dump() == {"jobs": [1], "normal": {1: 15_000}, "runs": {1: "1:0:N:"}, "keys": {"k": 1}}
    assert running.claim("n2", now=NOW + 15_000).jobs[0].attempt == 2


def test_snooze_puts_it_back_and_the_attempt_does_not_count(running):
    assert running.settle(1, "snooze", delay=5_000) == "done"
    assert running.dump() == {"jobs": [1], "normal": {1: 5_000}, "keys": {"k": 1}}
    assert running.claim("n2", now=NOW + 5_000).jobs[0].attempt == 1


def test_fail_keeps_the_record_and_frees_the_key(running):
    assert running.settle(1, "fail") == "done"
    assert running.dump() == {"jobs": [1], "failed": {1: 0}}
    assert running.put(2, key="k") == "created"


def test_cancel_ends_the_run_as_cancelled(running):
    assert running.settle(1, "cancel") == "done"
    assert running.dump() == {"finished": {1: 0}}
    assert running.happened()[-1] == "cancelled 1"


def test_crash_gives_the_job_back_at_once_with_the_same_attempt_number(running):
    assert running.settle(1, "crash") == "done"
    assert running.dump() == {"jobs": [1], "normal": {1: 0}, "runs": {1: "0:1:N:"}, "keys": {"k": 1}}
    job = running.claim("n2").jobs[0]
    assert (job.attempt, job.crashes) == (1, 1)


def test_evictions_and_since_when_nobody_knows_the_task_are_noted_until_a_run_ends_by_itself(running):
    since = NOW + 2
    steps = [
        ("evict", 0, "e1"),
        ("evict", 0, "e2"),
        ("park", 0, f"e2u{since}"),
        ("park", 0, f"e2u{since}"),
        ("evict", 0, f"e3u{since}"),
        ("snooze", 0, f"e3u{since}"),  # it was given back
        ("crash", 0, f"e3u{since}"),
        ("snooze", 1, ""),
        ("park", 0, f"u{NOW + 8}"),
        ("retry", 0, ""),
    ]
    for number, (outcome, delay, noted) in enumerate(steps):
        now = NOW + number
        assert running.settle(1, outcome, fence=f"n{number + 1}", delay=delay, now=now) == "done"
        assert running.dump().get("runs", {1: ":::"})[1].split(":", 4)[4:] == ([noted] if noted else []), outcome
        assert len(running.claim(f"n{number + 2}", now=now + 1).jobs) == 1


def test_the_earliest_of_those_that_are_put_back_wakes_a_worker(board):
    for number in (1, 2, 3):
        board.put(number)
    board.claim("n1", "w1", want=3)
    assert board.claim("n2", "w2").wait_ms == 1000
    board.link.execute("DEL", board.keys["wake"])
    items = [
        Outcome(id=ids.short(job_id(number)), attempt=1, fence="n1", kind="retry", delay_ms=delay)
        for number, delay in ((1, 600), (2, 200), (3, 400))
    ]
    assert board.store.settle(items, worker="w1", max_crashes=3, now_ms=NOW) == ["done"] * 3
    assert board.tokens() == 1
    assert board.link.execute("HGET", board.keys["meta"], "armed") == str(NOW + 200).encode()


def test_one_crash_too_many_fails(running):
    went_on = []
    for number in range(1, 5):
        running.settle(1, "crash", fence=f"n{number}")
        went_on.append(len(running.claim(f"n{number + 1}").jobs))
    assert went_on == [1, 1, 1, 0]
    assert running.dump() == {"jobs": [1], "failed": {1: 0}}
    counts = running.link.execute("HMGET", running.keys["stats"], *(f"{NOW // 60_000}:{kind}" for kind in ("crashed", "failed")))
    assert counts == [b"4", b"1"]


@pytest.mark.parametrize(
    ("outcome", "kind", "more"),
    [
        ("ack", "succeeded", ("0", "n1")),
        ("retry", "retried", ("0", "n1", str(NOW + 500))),
        ("snooze", "snoozed", ("0", "n1", str(NOW + 500))),
        ("evict", "snoozed", ("0", "n1", str(NOW + 500))),
        ("park", "snoozed", ("0", "n1", str(NOW + 500))),
        ("fail", "failed", ("0", "n1")),
        ("crash", "crashed", ("1", "n1", str(NOW))),
        ("cancel", "cancelled", ("0", "n1")),
    ],
)
def test_each_end_is_told_with_the_run_that_it_was(running, outcome, kind, more):
    running.settle(1, outcome, delay=500)
    item = running.log.read("0-0", 10)[-1].items[-1]
    assert (item.kind, item.fields) == (kind, (ids.short(job_id(1)), "1", *more))
    assert item.body == (b"" if outcome == "crash" else b"{}")


@pytest.mark.parametrize("outcome", get_args(Kind))
def test_a_second_settle_answers_already_and_changes_nothing(running, outcome):
    running.settle(1, outcome, delay=1000)
    before, events = running.dump(), running.happened()
    assert running.settle(1, outcome, delay=1000) == "already"
    assert running.dump() == before
    assert running.happened() == events


@pytest.mark.parametrize("outcome", get_args(Kind))
def test_a_lost_claim_changes_nothing(running, outcome):
    running.claim("n3", "w2", now=running.pass_lease())
    before, events = running.dump(), running.happened()
    assert running.settle(1, outcome, fence="n1") == "lost"
    assert running.dump() == before
    assert running.happened() == events


def test_a_wrong_attempt_number_changes_nothing(running):
    before = running.dump()
    assert running.settle(1, "ack", attempt=2) == "lost"
    assert running.dump() == before


def test_nothing_is_settled_by_an_empty_batch(running):
    before = running.dump()
    assert running.store.settle([], worker="w1", max_crashes=3, now_ms=NOW) == []
    assert running.dump() == before


def test_the_same_job_twice_in_one_batch_settles_once(running):
    item = Outcome(id=ids.short(job_id(1)), attempt=1, fence="n1", kind="ack")
    other = Outcome(id=ids.short(job_id(1)), attempt=1, fence="n1", kind="fail")
    assert running.store.settle([item, other], worker="w1", max_crashes=3, now_ms=NOW) == ["done", "already"]
    assert running.dump() == {"finished": {1: 0}}


@pytest.mark.parametrize("outcome", ["retry", "snooze", "evict", "park", "crash"])
def test_a_requested_cancel_takes_effect_when_the_run_ends_without_success(running, outcome):
    running.store.cancel(job_id(1))
    assert running.settle(1, outcome) == "done"
    assert running.dump() == {"finished": {1: 0}}
    assert running.happened()[-1] == "cancelled 1"


@pytest.mark.parametrize(("outcome", "told"), [("ack", "succeeded 1"), ("fail", "failed 1")])
def test_a_requested_cancel_does_not_undo_an_end(running, outcome, told):
    running.store.cancel(job_id(1))
    running.settle(1, outcome)
    assert running.happened()[-1] == told
    assert "cancels" not in running.dump()


def test_extend_moves_the_lease_and_keeps_the_progress(running):
    assert running.extend(1, now=NOW + 10_000, progress="3/7") == "ok"
    assert running.dump()["leases"] == {1: 10_000 + LEASE}
    assert running.dump()["progress"] == {1: "3/7"}
    assert running.link.execute("HGET", running.keys["meta"], "alive") == str(NOW + 10_000).encode(), "a sign of life"


def test_each_of_several_is_extended_by_its_own_fence(board):
    for number in (1, 2, 3, 4):
        board.put(number)
    board.claim("n1", want=2)
    board.claim("n2", want=2)
    board.settle(4, "retry", fence="n2", delay=1000)
    shorts = [ids.short(job_id(number)) for number in (1, 2, 3, 4)]
    answers = board.store.extend(
        list(zip(shorts, ("n1", "n2", "n2", ""), strict=True)),
        worker="w1",
        lease_ms=LEASE,
        progress={shorts[0]: "1/2", shorts[1]: "2/2", shorts[3]: "2/2"},
        now_ms=NOW + 500,
    )
    assert list(answers.values()) == ["ok", "lost", "ok", "gone"]
    assert board.dump()["leases"] == {1: LEASE + 500, 2: LEASE, 3: LEASE + 500}
    assert board.dump()["progress"] == {1: "1/2"}
    assert board.store.extend([], worker="w1", lease_ms=LEASE, now_ms=NOW) == {}


def test_extend_of_a_lost_claim_changes_nothing(running):
    before = running.dump()
    assert running.extend(1, fence="other", now=NOW + 10_000) == "lost"
    assert running.extend(7, now=NOW + 10_000) == "gone"
    assert running.dump() == before


def test_extend_of_a_settled_job_says_that_nobody_holds_it(running):
    running.settle(1, "retry", delay=1000)
    assert running.extend(1) == "gone"
    assert "leases" not in running.dump()


def test_extend_tells_of_a_requested_cancel(running):
    running.store.cancel(job_id(1), actor="clerk")
    assert running.extend(1) == "cancel"


def test_tombstones_of_what_the_database_has_not_heard_of_stay_however_many(board):
    for start in range(0, 200_010, 66_670):
        pairs = [value for n in range(start, start + 66_670) for value in (NOW - 300_000 + n, f"t{n}")]
        board.link.execute("ZADD", board.keys["finished"], *pairs)
    board.put(1)
    board.put(2)
    board.claim()
    board.link.execute("HSET", board.keys["meta"], "mirrored", f"{NOW - 300_000 + 5}-0")
    board.settle(1, "ack")
    assert board.link.execute("ZCARD", board.keys["finished"]) == 200_011
    board.link.execute("HSET", board.keys["meta"], "mirrored", f"{NOW - 300_000 + 200_008}-0")
    board.settle(2, "ack")
    assert board.link.execute("ZCARD", board.keys["finished"]) == 200_004  # 200,000, and four that it has not heard of
    assert board.link.execute("ZSCORE", board.keys["finished"], "t7") is None
