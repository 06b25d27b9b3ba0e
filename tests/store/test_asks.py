"""Jobs that poll and get "not yet": their poll count is kept until they end or start anew."""

from __future__ import annotations

import pytest

from django_delayq import ids
from django_delayq.states import Change
from django_delayq.store.scripts.record import JobRecord
from django_delayq.store.scripts.recovery import EpochStore, RestoreItem
from tests.store.board import LEASE, NOW, job_id, record

SHORT = ids.short(job_id(1))


@pytest.fixture
def asking(board):
    """Job 1, of key k, has asked twice, and waits for its next run."""
    board.put(1, key="k", expires_ms=NOW + LEASE)
    for nonce in ("n1", "n2"):
        board.claim(nonce)
        assert board.settle(1, "ask", fence=nonce) == "done"
    assert board.dump() == {"jobs": [1], "normal": {1: 0}, "runs": {1: "0:0:N:"}, "asks": {1: "2"}, "keys": {"k": 1}}
    return board


def asks(claim) -> list[int]:
    return [job.asks for job in claim.jobs]


def test_a_run_that_asks_is_no_attempt_and_its_event_says_how_often_that_was(asking):
    claim = asking.claim("n3")
    assert [(job.attempt, job.asks) for job in claim.jobs] == [(1, 2)]
    assert asking.settle(1, "ask", fence="n3", delay=500) == "done"
    item = asking.log.read("0-0", 20)[-1].items[-1]
    assert (item.kind, item.fields) == ("snoozed", (SHORT, "1", "0", "n3", str(NOW + 500), "3"))
    counted = asking.link.execute("HMGET", asking.keys["stats"], f"{NOW // 60_000}:snoozed", f"{NOW // 60_000}:failed")
    assert counted == [b"3", None]


def test_a_claim_that_is_sent_again_says_it_too(asking):
    assert asks(asking.claim("n3")) == asks(asking.claim("n3")) == [2]


def test_who_takes_a_lost_lease_over_learns_it_or_lets_it_expire(board):
    board.put(1)
    board.put(2, expires_ms=NOW + LEASE)
    board.claim("n1")
    for number in (1, 2):
        board.settle(number, "ask")
    board.claim("n2")
    later = board.pass_lease()
    assert [(job.crashes, job.asks) for job in board.claim("n3", "w2", now=later).jobs] == [(1, 1)]
    assert (board.dump()["failed"], board.dump()["asks"]) == ({2: later - NOW}, {1: "1"})


@pytest.mark.parametrize(
    ("outcome", "run"),
    [("snooze", "0:0:N:"), ("park", f"0:0:N::u{NOW}"), ("evict", "0:0:N::e1"), ("crash", "0:1:N:"), ("retry", "1:0:N:")],
)
@pytest.mark.parametrize("delay", [0, 1000])
def test_the_number_outlasts_every_other_end_of_a_run(asking, outcome, run, delay):
    asking.claim("n3")
    assert asking.settle(1, outcome, fence="n3", delay=delay) == "done"
    left = asking.dump()
    assert (left["runs"], left["asks"]) == ({1: run}, {1: "2"})
    assert asks(asking.claim("n4", now=NOW + 1000)) == [2]


@pytest.mark.parametrize("outcome", ["ack", "fail", "cancel"])
def test_with_its_end_the_number_goes(asking, outcome):
    asking.claim("n3")
    assert asking.settle(1, outcome, fence="n3") == "done"
    assert "asks" not in asking.dump()


@pytest.mark.parametrize("how", ["cancel", "purge", "poison", "sweep", "garbage", "replaced"])
def test_whatever_ends_it_the_number_goes(asking, how):
    if how == "cancel":
        asking.store.cancel(job_id(1), now_ms=NOW)
    elif how == "purge":
        asking.store.purge(now_ms=NOW)
    elif how == "poison":
        asking.claim("n3")
        asking.link.execute("HSET", asking.keys["runs"], SHORT, "1:3:N:n3")
        asking.settle(1, "crash", fence="n3")
    elif how == "sweep":
        EpochStore(asking.store).drop([SHORT], now_ms=NOW)
    elif how == "garbage":
        asking.link.execute("HSET", asking.keys["jobs"], SHORT, "nonsense")
        asking.claim("n3")
    else:
        asking.put(2, key="k", on_conflict="replace")
    assert "asks" not in asking.dump()


def test_a_cancel_that_was_asked_for_ends_a_run_that_asks(asking):
    asking.claim("n3")
    asking.store.cancel(job_id(1), now_ms=NOW)
    asking.settle(1, "ask", fence="n3")
    assert asking.dump() == {"finished": {1: 0}}
    assert asking.happened()[-1] == "cancelled 1"


def test_a_job_that_expires_after_it_has_asked_has_failed(asking):
    asking.claim("n3", now=NOW + LEASE)
    assert asking.dump() == {"jobs": [1], "failed": {1: LEASE}}
    assert asking.happened()[-1] == "failed 1"


def test_a_holder_that_has_asked_and_expires_has_failed_too(asking):
    assert asking.put(2, key="k", now=NOW + LEASE) == "replaced"
    assert asking.happened()[-2:] == ["failed 1", "scheduled 2"]
    assert "asks" not in asking.dump()


@pytest.mark.parametrize("key", ["", "k"])
def test_one_that_has_asked_as_often_as_it_has_failed_has_failed_when_it_expires(asking, key):
    for attempt, nonce in ((1, "n3"), (2, "n4")):
        asking.claim(nonce)
        asking.settle(1, "retry", attempt=attempt, fence=nonce)
    assert (asking.dump()["runs"], asking.dump()["asks"]) == ({1: "2:0:N:"}, {1: "2"})
    if key:
        asking.put(2, key=key, now=NOW + LEASE)
    else:
        asking.claim("n5", now=NOW + LEASE)
    assert "failed 1" in asking.happened()
    assert "asks" not in asking.dump()


def test_a_holder_that_has_asked_has_begun(asking):
    assert asking.put(2, key="k", on_conflict="after@" + SHORT) == "behind"


def test_a_requeue_begins_anew(asking):
    asking.link.execute("HSET", asking.keys["asks"], SHORT, "7")
    asking.claim("n3")
    asking.settle(1, "fail", fence="n3")
    asking.link.execute("HSET", asking.keys["asks"], SHORT, "7")  # as an older release would leave it
    assert asking.store.requeue(job_id(1), now_ms=NOW)[0] is Change.DONE
    assert "asks" not in asking.dump()


@pytest.mark.parametrize(
    ("text", "counts"),
    [("", 0), ("x", 0), ("-3", 0), ("1e9", 0), ("nan", 0), (" 3", 0), ("1234567890", 0), ("999999998", 999_999_998), ("7", 7)],
)
def test_a_number_that_is_none_of_ours_counts_as_nothing(board, text, counts):
    board.put(1)
    board.claim("n1")
    board.settle(1, "ask")
    board.link.execute("HSET", board.keys["asks"], SHORT, text)
    assert asks(board.claim("n2")) == [counts]
    board.settle(1, "ask", fence="n2")
    assert board.dump()["asks"] == {1: str(counts + 1)}


def test_of_a_job_without_a_run_nobody_looks_and_tidy_drops_what_is_left(board):
    for number in (1, 2, 3):
        board.put(number)
    board.claim(want=1)
    board.settle(1, "ask", delay=5000)
    for start in range(1000, 4000, 500):
        gone = [part for number in range(start, start + 500) for part in (ids.short(job_id(number)), "3")]
        board.link.execute("HSET", board.keys["asks"], ids.short(job_id(2)), "9", *gone)
    assert asks(board.claim("n2")) == [0, 0]
    cursor, calls = "0", 0
    while not calls or cursor != "0":
        cursor = board.store.tidy(cursor=cursor, now_ms=NOW).cursor
        calls += 1
    assert calls > 5, "each call is bounded"
    assert board.dump()["asks"] == {1: "1", 2: "9"}


@pytest.mark.parametrize("begun", ["", "run"])
def test_it_comes_back_from_its_row(board, begun):
    epoch = EpochStore(board.store)
    known = board.store.epoch()
    item = RestoreItem(SHORT, record(1).encode(), begun=begun, asks=4, due_ms=NOW)
    assert epoch.restore([item], epoch=known, now_ms=NOW) == ["restored"]
    left = board.dump()
    assert (left["runs"], left["asks"]) == ({1: "0:0:n:"}, {1: "4"})
    if not begun:
        assert asks(board.claim()) == [4]


def test_a_run_that_is_adopted_brings_it_along(board):
    epoch = EpochStore(board.store)
    item = RestoreItem(SHORT, record(1).encode(), attempt=1, fence="n1", delay_ms=LEASE, asks=4)
    assert epoch.adopt([item], worker="w1", epoch="another:server", now_ms=NOW)[1] == ["adopted"]
    assert board.settle(1, "ask") == "done"
    assert board.dump()["asks"] == {1: "5"}


def test_who_looks_at_it_sees_it(asking):
    reply = asking.store.run("inspect", NOW, "", "", SHORT)
    assert reply[1:6] == [b"scheduled", str(NOW).encode(), b"0", b"0", b"2"]
    assert JobRecord.decode(job_id(1), reply[9]).key == "k"
