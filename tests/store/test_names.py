"""Concurrency names: the holders, the waiting jobs, and their order."""

from __future__ import annotations

import json

import pytest

from django_delayq import ids
from django_delayq.job_meta import NAMED
from django_delayq.states import Change
from django_delayq.store.reads.inspector import Inspector
from django_delayq.store.scripts import queue
from django_delayq.store.scripts.queue import Outcome
from django_delayq.store.scripts.record import Band, ScheduleItem, common_turn
from django_delayq.store.scripts.recovery import EpochStore, RestoreItem
from tests.depths import queue_depth
from tests.store.board import LEASE, NOW, Board, job_id, numbers, record


def payload(name: str = "order:1", most: int = 1) -> bytes:
    return json.dumps([[], {}, {"meta": {NAMED: [name, most]}}], separators=(",", ":")).encode()


def put(board: Board, number: int, due: int = NOW, name: str = "order:1", most: int = 1, **fields) -> str:
    return board.put(number, due, payload=payload(name, most), **fields)


def look(board: Board, number: int):
    return Inspector(board.link, prefix="t").job("q", job_id(number))


def test_one_of_a_name_is_claimed_and_the_others_wait(board):
    for number in (1, 2, 3):
        put(board, number, NOW - 10 + number)
    board.put(4)
    claim = board.claim()
    assert numbers(claim) == [1, 4]
    found = board.dump()
    assert found["holders"] == [("order:1", 1)]
    assert found["waiters"] == [("order:1", 2), ("order:1", 3)]
    assert found["blocked"] == {2: -8, 3: -7}
    assert "normal" not in found
    assert not claim.more
    assert board.claim("n2").wait_ms > 0


def test_the_name_of_a_failed_job_is_dropped_with_its_record(board):
    put(board, 1)
    board.claim()
    board.settle(1, "fail")
    board.store.tidy(failed=[job_id(1)], now_ms=NOW)
    assert "names" not in board.dump()


def test_what_all_jobs_of_a_claim_have_is_said_once_and_else_of_each(board, monkeypatch):
    said: list[bytes] = []
    monkeypatch.setattr(queue, "common_turn", lambda pasts: said.append(pasts) or common_turn(pasts))
    for number in (1, 2, 3):
        put(board, number, NOW - 10 + number, name=f"order:{number}")
    turns = {job.turn for job in board.claim("n1").jobs}
    assert (len(turns), said) == (1, [b"*=t%d" % turns.pop()])
    put(board, 4, NOW - 5, name="order:4")
    board.put(5, NOW - 4)
    claim = board.claim("n2")
    assert said[1:] == [f"{claim.jobs[0].id}=t{claim.jobs[0].turn}".encode()]
    for number in (6, 7):
        put(board, number, NOW - 10 + number, name="tenant:6", most=2)
    claim = board.claim("n3")
    assert said[2:] == [" ".join(f"{job.id}=t{job.turn}" for job in claim.jobs).encode()]


@pytest.mark.parametrize("kind", ["ack", "fail", "cancel", "retry", "snooze", "ask", "park", "evict"])
def test_whatever_ends_a_run_frees_its_name_for_the_oldest_that_waits(board, kind):
    for number, due in ((1, NOW - 9), (2, NOW - 1), (3, NOW - 5)):
        put(board, number, due)
    board.claim()
    board.link.execute("DEL", board.keys["wake"])
    assert board.settle(1, kind, delay=60_000) == "done"
    assert board.dump()["normal"].items() >= {3: -5}.items()
    assert numbers(board.claim("n2")) == [3]
    assert board.dump()["waiters"] == [("order:1", 2)]


def test_of_jobs_that_go_in_together_only_those_with_a_name_have_one(board):
    items = [ScheduleItem.of(record(n, payload=payload() if n < 3 else b"[[]]"), due_ms=NOW - 9 + n) for n in (1, 2, 3, 4)]
    assert [reply.status for reply in board.store.schedule(items, now_ms=NOW)] == ["created"] * 4
    assert numbers(board.claim()) == [1, 3, 4]
    assert sorted(board.dump()["names"]) == [1, 2]


def test_who_sleeps_is_woken_for_the_one_that_comes_next(board):
    put(board, 1)
    put(board, 2)
    board.claim("n1")
    board.claim("idle", "w2")
    assert board.tokens() == 0
    board.settle(1, "ack")
    assert board.tokens() == 1


def test_bands_hold_within_a_name_and_ids_decide_between_equal_dates(board):
    put(board, 9, NOW - 50)
    board.claim("n0")
    bands: list[tuple[int, int, Band]] = [(4, 2, "low"), (3, 3, "normal"), (2, 3, "normal"), (1, 1, "high"), (5, 9, "low")]
    for number, late, band in bands:
        put(board, number, NOW - late, band=band)
    assert numbers(board.claim("n1")) == []
    order, last, nonce = [], 9, "n0"
    for step in range(5):
        board.settle(last, "ack", fence=nonce)
        nonce = f"m{step}"
        [last] = numbers(board.claim(nonce))
        order.append(last)
    assert order == [1, 2, 3, 5, 4]


def test_a_number_rises_with_each_holder_also_where_the_last_one_is_unknown(board):
    turns = []
    for number in range(1, 5):
        put(board, number)
        turns.append(board.claim(f"n{number}").jobs[0].turn)
        board.settle(number, "ack", fence=f"n{number}")
    assert turns == [NOW * 1000 + n for n in range(4)]
    board.link.execute("FLUSHALL")
    put(board, 9, NOW + 1)
    assert board.claim("n9", now=NOW + 1).jobs[0].turn > turns[-1]


def test_a_claim_that_is_sent_again_has_the_same_number(board):
    put(board, 1)
    first = board.claim("n1").jobs
    assert board.claim("n1", now=NOW + 3).jobs == first
    assert first[0].turn


def test_as_many_of_a_name_run_at_a_time_as_the_one_that_is_claimed_says(board):
    for number in range(1, 6):
        put(board, number, NOW - 10 + number, "tenant:1", 3)
    assert numbers(board.claim()) == [1, 2, 3]
    put(board, 6, NOW - 20, "tenant:1", 4)
    assert numbers(board.claim("n2")) == [6]
    board.settle(2, "ack")
    assert numbers(board.claim("n3")) == []  # three still run
    board.settle(1, "ack")
    assert numbers(board.claim("n4")) == [4]


def test_a_takeover_keeps_the_name_with_another_number(board):
    put(board, 1)
    put(board, 2)
    first = board.claim().jobs[0]
    now = board.pass_lease()
    claim = board.claim("n2", "w2", now=now)
    assert numbers(claim) == [1]
    assert claim.jobs[0].turn > first.turn
    assert board.dump()["holders"] == [("order:1", 1)]
    assert board.settle(1, "ack", now=now) == "lost"
    assert board.dump()["waiters"] == [("order:1", 2)]
    board.settle(1, "ack", fence="n2", now=now)
    assert numbers(board.claim("n3", now=now)) == [2]


def test_poison_and_a_request_to_cancel_free_the_name_of_a_lost_run(board):
    put(board, 1)
    put(board, 2)
    board.claim()
    now = board.pass_lease()
    assert numbers(board.claim("n2", "w2", now=now, max_crashes=0)) == []
    assert board.dump()["failed"].keys() == {1}
    assert numbers(board.claim("n3", "w2", now=now)) == [2]


def test_what_crashed_or_was_given_back_comes_before_those_that_wait(board):
    put(board, 1, NOW - 9)
    put(board, 2, NOW - 5)
    for nonce, kind in (("n1", "crash"), ("n2", "snooze"), ("n3", "ack")):
        assert numbers(board.claim(nonce)) == [1]
        assert board.settle(1, kind, fence=nonce, now=NOW + 1) == "done"
    assert numbers(board.claim("n4")) == [2]


def test_a_job_that_waits_for_its_name_is_cancelled_moved_and_looked_at_like_any(board):
    for number in (1, 2, 3, 4):
        put(board, number, NOW - 10 + number)
    board.claim()
    view = look(board, 2)
    assert (view.state, view.blocked, view.name, view.most, view.name_holder) == ("scheduled", True, "order:1", 1, job_id(1))
    assert view.date_ms == NOW - 8
    assert board.store.cancel(job_id(2), now_ms=NOW).change == Change.DONE
    assert board.store.reschedule(job_id(3), delay_ms=5_000, now_ms=NOW).change is Change.DONE
    found = board.dump()
    assert (found["waiters"], found["blocked"], found["normal"]) == ([("order:1", 4)], {4: -6}, {3: 5_000})
    assert sorted(found["names"]) == [1, 3, 4]
    depth = queue_depth("q", Inspector(board.link, prefix="t"))
    assert (depth.scheduled, depth.due, depth.blocked) == (2, 1, 1)


@pytest.mark.parametrize("how", ["cancel", "reschedule", "expire", "replace"])
def test_where_the_next_one_goes_away_the_one_behind_it_is_put_back(board, how):
    put(board, 1, NOW - 9)
    put(board, 2, NOW - 8, key="k", expires_ms=NOW + 50)
    put(board, 3, NOW - 7)
    board.claim()
    board.settle(1, "ack")
    assert board.dump()["normal"] == {2: -8}
    if how == "cancel":
        board.store.cancel(job_id(2), now_ms=NOW)
    elif how == "reschedule":
        board.store.reschedule(job_id(2), due_ms=NOW + 40, now_ms=NOW)
    elif how == "replace":
        assert board.put(4, NOW + 60_000, key="k", on_conflict="replace") == "replaced"
    now = NOW + 60 if how == "expire" else NOW
    assert numbers(board.claim("n2", now=now)) == ([] if how == "expire" else [3])
    assert numbers(board.claim("n3", now=now)) == ([3] if how == "expire" else [])


def test_a_key_is_replaced_and_moved_while_its_holder_waits_for_a_name(board):
    put(board, 1)
    put(board, 2, key="k")
    board.claim()
    assert put(board, 3, NOW + 90, key="k", on_conflict="latest") == "moved"
    assert board.dump()["normal"] == {2: 90}
    assert "waiters" not in board.dump()
    board.claim("n2", now=NOW + 90)
    assert put(board, 4, key="k", on_conflict="replace") == "replaced"
    found = board.dump()
    assert "blocked" not in found
    assert "waiters" not in found
    assert found["normal"] == {4: 0}
    assert sorted(found["names"]) == [1, 4]


def test_purge_takes_those_that_wait_for_a_name_too(board):
    for number in range(1, 6):
        put(board, number)
    board.claim()
    assert board.store.purge(now_ms=NOW) == (4, 0)
    assert board.dump().keys() == {"jobs", "leases", "runs", "names", "holders", "finished"}


def test_a_requeued_job_has_its_name_again_or_that_of_the_record_that_is_given(board):
    put(board, 1)
    board.claim()
    board.settle(1, "fail")
    assert board.store.requeue(job_id(1), now_ms=NOW)[0] is Change.DONE
    put(board, 2)
    assert numbers(board.claim("n2")) == [1]
    board.settle(1, "fail", fence="n2")
    board.store.requeue(job_id(1), record(1, payload=payload("order:7")), now_ms=NOW)
    assert sorted(numbers(board.claim("n3"))) == [1, 2]


def test_the_busy_name_at_the_head_of_a_band_is_looked_at_once(board):
    for number in range(1, 400):
        put(board, number, NOW - 1000 + number)
    board.put(500)
    found = [numbers(board.claim(f"n{step}", want=50)) for step in range(9)]
    assert [one for claimed in found for one in claimed] == [1, 500]
    assert len(board.dump()["waiters"]) == 398


def test_rows_bring_names_back_and_what_ran_holds_its_own(board):
    epoch = EpochStore(board.store)
    store_epoch = board.store.epoch()
    items = [
        RestoreItem(ids.short(job_id(1)), record(1, payload=payload()).encode(), begun="run", delay_ms=LEASE),
        RestoreItem(ids.short(job_id(2)), record(2, payload=payload()).encode(), due_ms=NOW),
    ]
    assert epoch.restore(items, epoch=store_epoch, now_ms=NOW) == ["restored", "restored"]
    assert numbers(board.claim("n2")) == []
    found = board.dump()
    assert (found["holders"], found["waiters"]) == ([("order:1", 1)], [("order:1", 2)])


def test_a_run_that_is_adopted_holds_its_name_and_leaves_those_that_wait(board):
    put(board, 1)
    put(board, 2)
    board.claim()
    board.link.execute("FLUSHALL")
    epoch = EpochStore(board.store)
    raw = record(1, payload=payload()).encode()
    answer = epoch.adopt([RestoreItem(ids.short(job_id(1)), raw, 1, 0, "n1", NOW + LEASE)], worker="w1", epoch="other:x", now_ms=NOW)
    assert answer[1] == ["adopted"]
    put(board, 2)
    assert numbers(board.claim("n2")) == []
    assert board.settle(1, "ack") == "done"
    assert numbers(board.claim("n3")) == [2]


def test_durable_jobs_that_are_swept_free_their_names(board):
    put(board, 1, durable=True)
    put(board, 2)
    board.claim()
    board.link.execute("HSET", board.keys["meta"], "rolled", "sweep")
    generation = board.link.execute("HGET", board.keys["meta"], "generation").decode()
    assert EpochStore(board.store).sweep(generation, now_ms=NOW) == ("0", 1)
    found = board.dump()
    assert "holders" not in found
    assert found["normal"] == {2: 0}
    assert list(found["names"]) == [2]


def test_tidy_frees_what_nobody_holds_and_puts_back_who_waits_for_nobody(board):
    put(board, 1)
    put(board, 2)
    put(board, 3, name="order:9")
    board.claim()
    board.link.execute("ZREM", board.keys["leases"], ids.short(job_id(1)))  # as a release that knows no names ends a run
    board.link.execute("HDEL", board.keys["jobs"], ids.short(job_id(1)))
    cursor = "0"
    while (cursor := board.store.tidy(cursor=cursor, now_ms=NOW).cursor) != "0":
        pass
    found = board.dump()
    assert (found["holders"], found["normal"], sorted(found["names"])) == ([("order:9", 3)], {2: 0}, [2, 3])


@pytest.mark.parametrize("value", ["", "x", "1:2", "0:0:0:a\tb", "99999:0:0:n", "nan:0:0:n", "1:0:0:"])
def test_a_name_that_nobody_of_us_has_written_is_none(board, value):
    put(board, 1)
    put(board, 2)
    for number in (1, 2):
        board.link.execute("HSET", board.keys["names"], ids.short(job_id(number)), value)
    assert numbers(board.claim()) == [1, 2]
    assert board.store.settle(
        [Outcome(ids.short(job_id(n)), 1, "n1", "ack", 0, b"{}") for n in (1, 2)], worker="w1", max_crashes=3, now_ms=NOW
    ) == ["done", "done"]
    assert board.dump().keys() == {"finished"}


def test_scheduling_again_and_settling_again_change_nothing_of_names(board):
    assert put(board, 1) == "created"
    assert put(board, 2) == "created"
    board.claim()
    before = board.dump()
    assert put(board, 2) == "again"
    assert put(board, 1) == "again"
    assert board.dump() == before
    board.settle(1, "ack")
    after = board.dump()
    assert board.settle(1, "ack") == "already"
    assert board.dump() == after


def tidied(board: Board) -> None:
    """To the end, which comes in a few calls."""
    cursor = "0"
    for _ in range(20):
        cursor = board.store.tidy(cursor=cursor, now_ms=NOW).cursor
        if cursor == "0":
            return
    raise AssertionError(f"tidy does not come to an end: {cursor}")


def test_tidy_looks_at_every_holder_however_many_there_are(board):
    put(board, 1)
    board.claim()
    for number in range(1_000, 1_205):
        board.link.execute("ZADD", board.keys["holders"], 0, f"b\0{ids.short(job_id(number))}")
        board.link.execute("ZADD", board.keys["leases"], NOW + LEASE, ids.short(job_id(number)))
    board.link.execute("ZADD", board.keys["holders"], 0, f"c\0{ids.short(job_id(9))}")  # its lease is gone
    tidied(board)
    assert board.link.execute("ZCARD", board.keys["holders"]) == 205 + 1
    assert board.link.execute("ZSCORE", board.keys["holders"], f"c\0{ids.short(job_id(9))}") is None


def test_tidy_looks_at_every_job_that_waits_however_many_there_are(board):
    put(board, 1)
    for number in range(2, 207):
        put(board, number, NOW - 1)
    for n in range(3):
        board.claim(f"n{n}", want=200)
    assert board.link.execute("ZCARD", board.keys["blocked"]) == 205
    board.link.execute("ZADD", board.keys["blocked"], NOW + 9, ids.short(job_id(9_999)))  # its record is gone
    tidied(board)
    assert board.link.execute("ZCARD", board.keys["blocked"]) == 205


def test_one_round_of_tidy_drops_all_that_hold_a_name_without_a_lease(board):
    put(board, 1)
    board.claim()
    dead = [part for number in range(600) for part in (0, f"b\0{ids.short(job_id(5_000 + number))}")]
    board.link.execute("ZADD", board.keys["holders"], *dead)
    tidied(board)
    assert board.dump()["holders"] == [("order:1", 1)]


def test_one_round_of_tidy_drops_all_that_wait_and_are_gone(board):
    put(board, 1)
    put(board, 2)
    board.claim()
    gone = [part for number in range(600) for part in (NOW - 9, ids.short(job_id(5_000 + number)))]
    board.link.execute("ZADD", board.keys["blocked"], *gone)
    tidied(board)
    assert board.dump()["blocked"] == {2: 0}


def test_tidy_drops_one_that_waited_and_is_gone_with_all_that_is_known_of_it(board):
    put(board, 1)
    put(board, 2)
    board.claim()
    board.link.execute("HDEL", board.keys["jobs"], ids.short(job_id(2)))  # as a release that knows no names takes a job away
    tidied(board)
    found = board.dump()
    assert sorted(found["names"]) == [1]
    assert "blocked" not in found
    board.settle(1, "ack")
    assert board.dump().keys() == {"finished"}


def test_tidy_forgets_that_there_were_names_when_there_are_none(board):
    put(board, 1)
    put(board, 2)
    board.claim()
    tidied(board)
    assert board.link.execute("HGET", board.keys["meta"], "named") == b"1"
    board.settle(1, "ack")
    board.claim("n2")
    board.settle(2, "ack", fence="n2")
    tidied(board)
    assert board.link.execute("HGET", board.keys["meta"], "named") is None


def test_a_last_turn_that_is_no_time_counts_for_nothing(board):
    board.link.execute("HSET", board.keys["meta"], "turn", "9" * 17)
    put(board, 1)
    board.claim()
    assert look(board, 1).turn == NOW * 1_000


@pytest.mark.parametrize(
    ("value", "held"),
    [
        ("1000:0:0:n", True),
        ("10000:0:0:n", False),
        (f"1:{'9' * 16}:0:n", True),
        (f"1:{'9' * 17}:0:n", False),
        (f"1:0:{'9' * 15}:n", True),
        (f"1:0:{'9' * 16}:n", False),
    ],
)
def test_numbers_beside_a_name_that_are_too_long_were_not_written_by_us(board, value, held):
    put(board, 1)
    board.link.execute("HSET", board.keys["names"], ids.short(job_id(1)), value)
    assert numbers(board.claim()) == [1]
    assert board.dump().get("holders") == ([("n", 1)] if held else None)


def test_a_run_that_crashes_behind_a_retry_keeps_the_date_of_that(board):
    put(board, 1, NOW - 9)
    board.claim()
    board.settle(1, "retry", delay=5)
    board.claim("n2", now=NOW + 10)
    board.settle(1, "crash", attempt=2, fence="n2", now=NOW + 20)
    assert board.dump()["normal"] == {1: 5}


def test_whose_end_makes_room_for_fewer_than_wait_for_it_calls_the_first_alone(board):
    put(board, 1)
    for number in range(2, 6):
        put(board, number, NOW - 1)
    board.claim("n1", want=1)  # of the oldest
    board.claim("n2")
    [holder] = [number for _, number in board.dump()["holders"]]
    board.settle(holder, "ack")
    assert len(board.dump()["normal"]) == 1
    assert len(board.dump()["waiters"]) == 3


@pytest.mark.parametrize("gone", [1, 3, 450])
@pytest.mark.parametrize("doubtful", [False, True])
def test_those_that_wait_no_more_use_up_no_call_of_the_name(board, gone, doubtful):
    put(board, 1, NOW - 1000)
    board.claim()
    for number in range(2, gone + 4):
        put(board, number, NOW - 900 + number)
    if doubtful:  # the next one has been called, and goes: then the room is looked at
        put(board, gone + 10, NOW - 950)
    while board.claim("n2", want=200).more:
        pass
    keys = board.keys
    for number in range(2, gone + 2):  # as a release that knows no names, or somebody else, ends a job
        if number % 2:
            board.link.execute("ZREM", keys["blocked"], ids.short(job_id(number)))
        board.link.execute("HDEL", keys["jobs"], ids.short(job_id(number)))
    board.settle(1, "ack")
    if doubtful:
        assert board.dump()["normal"].keys() == {gone + 10}
        assert board.store.cancel(job_id(gone + 10), now_ms=NOW).change == Change.DONE
    found = board.dump()
    assert found["normal"].keys() == {gone + 2}
    assert found["waiters"] == [("order:1", gone + 3)]
    assert found["blocked"].keys() == {gone + 3}


def test_a_call_of_a_name_drops_a_thousand_at_most_and_tidy_does_the_rest(board):
    put(board, 1)
    put(board, 2)
    board.claim()
    board.claim("n2")
    gone = [part for number in range(1500) for part in (0, f"order:1\0{1}{number:015}\0{ids.short(job_id(5_000 + number))}")]
    board.link.execute("ZADD", board.keys["waiters"], *gone)
    board.settle(1, "ack")
    assert 300 < board.link.execute("ZCARD", board.keys["waiters"]) <= 501
    tidied(board)
    assert board.dump()["normal"].keys() == {2}


def test_each_call_of_tidy_looks_at_names_however_much_else_there_is(board):
    for start in range(0, 3000, 500):
        old = [part for number in range(start, start + 500) for part in (f"w/{number}", f"n {NOW} x=1")]
        board.link.execute("HSET", board.keys["claims"], *old)
    put(board, 1)
    put(board, 2)
    cursor = board.store.tidy(now_ms=NOW).cursor
    board.claim()
    board.link.execute("ZREM", board.keys["leases"], ids.short(job_id(1)))  # as a release that knows no names ends a run
    board.link.execute("HDEL", board.keys["jobs"], ids.short(job_id(1)))
    cursor = board.store.tidy(cursor=cursor, now_ms=NOW).cursor
    assert cursor != "0"
    assert board.dump()["normal"] == {2: 0}
    tidied(board)
