from __future__ import annotations

from dataclasses import MISSING, fields

import pytest

from django_delayq import ids
from django_delayq.store.connection.error_replies import StoreError
from django_delayq.store.scripts.queue import ScheduleItem
from django_delayq.store.scripts.record import JobRecord
from tests.store.board import NOW, job_id, record


def test_a_job_lies_in_its_band_under_its_date(board):
    assert board.put(1, NOW + 5000) == "created"
    assert board.put(2, NOW, band="high", key="order:2") == "created"
    assert board.dump() == {"jobs": [1, 2], "normal": {1: 5000}, "high": {2: 0}, "keys": {"order:2": 2}}
    assert board.happened() == ["scheduled 1", "scheduled 2"]


def test_a_delay_is_added_to_redis_time(board):
    reply = board.store.schedule([ScheduleItem.of(record(1), delay_ms=1500)], now_ms=NOW)
    assert reply[0].due_ms == NOW + 1500
    assert board.dump()["normal"] == {1: 1500}


def test_the_same_job_sent_again_changes_nothing(board):
    board.put(1, NOW + 5000)
    before = board.dump()
    assert board.put(1, NOW + 9000) == "again"
    assert board.dump() == before
    assert board.happened() == ["scheduled 1"]


def test_the_date_of_a_job_that_ran_already_is_not_made_up(board):
    def told():
        return board.store.schedule([ScheduleItem.of(record(1), delay_ms=0)], now_ms=NOW + 9000)[0].due_ms

    board.put(1)
    assert told() == NOW
    board.claim()
    assert told() == 0
    board.settle(1, "retry", delay=5000)
    assert told() == 0
    board.claim("n2", now=NOW + 6000)
    assert board.settle(1, "ack", attempt=2, fence="n2") == "done"
    assert told() == 0


def test_a_finished_job_sent_again_does_not_rise(board):
    board.put(1)
    board.claim()
    board.settle(1, "ack")
    assert board.put(1) == "succeeded"
    assert "jobs" not in board.dump()


def test_a_failed_job_sent_again_does_not_rise(board):
    board.put(1)
    board.claim()
    board.settle(1, "fail")
    assert board.put(1) == "failed"
    assert board.dump() == {"jobs": [1], "failed": {1: 0}}


@pytest.mark.parametrize(("policy", "status"), [("keep", "kept"), ("error", "taken")])
def test_a_held_key_keeps_its_holder(board, policy, status):
    board.put(1, NOW + 5000, key="k")
    reply = board.store.schedule([ScheduleItem.of(record(2, key="k"), due_ms=NOW, on_conflict=policy)], now_ms=NOW)[0]
    assert (reply.status, reply.id, reply.created) == (status, job_id(1), False)
    assert board.dump() == {"jobs": [1], "normal": {1: 5000}, "keys": {"k": 1}, "finished": {2: 0}}
    assert board.happened() == ["scheduled 1", "merged 2"]


@pytest.mark.parametrize(
    ("policy", "due", "status", "date"),
    [
        ("earliest", 3000, "moved", 3000),
        ("earliest", 9000, "kept", 5000),
        ("earliest", 5000, "kept", 5000),
        ("latest", 9000, "moved", 9000),
        ("latest", 3000, "kept", 5000),
        ("latest", 5000, "kept", 5000),
    ],
)
def test_earliest_and_latest_move_the_holders_date(board, policy, due, status, date):
    board.put(1, NOW + 5000, key="k")
    assert board.put(2, NOW + due, key="k", on_conflict=policy) == status
    assert board.dump() == {"jobs": [1], "normal": {1: date}, "keys": {"k": 1}, "finished": {2: 0}}


def test_replace_puts_the_new_job_in_the_holders_place(board):
    board.put(1, NOW + 5000, key="k")
    assert board.put(2, NOW + 7000, key="k", on_conflict="replace") == "replaced"
    assert board.dump() == {"jobs": [2], "normal": {2: 7000}, "keys": {"k": 2}, "finished": {1: 0}}
    assert board.happened() == ["scheduled 1", "cancelled 1", "scheduled 2"]


@pytest.mark.parametrize(("policy", "status"), [("replace", "running"), ("earliest", "kept"), ("latest", "kept"), ("keep", "kept")])
def test_a_running_holder_is_left_alone(board, policy, status):
    board.put(1, key="k")
    board.claim()
    assert board.put(2, NOW, key="k", on_conflict=policy) == status
    assert board.dump()["leases"] == {1: 30_000}
    assert board.dump()["jobs"] == [1]


def test_a_key_left_behind_by_nobody_is_free(board):
    board.link.execute("HSET", board.keys["keys"], "k", ids.short(job_id(9)))
    assert board.put(1, key="k") == "created"
    assert board.dump()["keys"] == {"k": 1}


@pytest.mark.parametrize(
    ("jobs", "wanted"),
    [
        (((1, ""), (1, "")), ["created", "again"]),
        (((1, "k"), (2, "k"), (1, "k")), ["created", "kept", "again"]),
        (((1, ""), (2, "k"), (1, "")), ["created", "created", "again"]),
    ],
)
def test_what_comes_twice_in_a_call_is_there_once(board, jobs, wanted):
    items = [ScheduleItem.of(record(number, key=key), due_ms=NOW + 5) for number, key in jobs]
    assert [reply.status for reply in board.store.schedule(items, now_ms=NOW)] == wanted
    assert len([told for told in board.happened() if told.startswith("scheduled")]) == wanted.count("created")


def test_the_earliest_of_a_call_wakes_a_worker(board):
    assert board.claim().wait_ms == 1000
    items = [ScheduleItem.of(record(number), due_ms=NOW + due) for number, due in ((1, 600), (2, 200), (3, 400))]
    board.store.schedule(items, now_ms=NOW)
    assert board.tokens() == 1
    assert board.link.execute("HGET", board.keys["meta"], "armed") == str(NOW + 200).encode()


def test_a_record_that_is_put_in_keeps_all_that_it_says():
    says = {"task": "t", "band": "high", "durable": False, "max_attempts": 3, "expires_ms": NOW + 9, "key": "a\u2028k", "scope": "a"}
    given = JobRecord(id=record(1).id, payload=b"[[1],{}]", **says)
    unlike = {one.name for one in fields(JobRecord) if one.default is not MISSING and getattr(given, one.name) == one.default}
    assert unlike == set()  # each field says something, so that none can be left behind
    item = ScheduleItem.of(given, delay_ms=0)
    assert [getattr(item, one.name) for one in fields(JobRecord)] == [getattr(given, one.name) for one in fields(JobRecord)]


def test_a_bad_record_refuses_the_whole_call_before_any_write(board):
    good, bad = (ScheduleItem.of(record(number), due_ms=NOW) for number in (1, 2))
    bad._line = b"many"  # which no record is made with
    with pytest.raises(StoreError, match="BADRECORD 2"):
        board.store.schedule([good, bad])
    assert board.dump() == {}


def test_a_full_event_stream_refuses_schedules(board):
    board.put(1)
    with pytest.raises(StoreError, match="EVENTSFULL"):
        board.store.schedule([ScheduleItem.of(record(2), due_ms=NOW)], max_events=1)
    assert board.dump()["jobs"] == [1]


def test_too_many_jobs_in_a_call_are_refused(board):
    items = [ScheduleItem.of(record(n), due_ms=NOW) for n in range(201)]
    with pytest.raises(StoreError, match="at most 200"):
        board.store.schedule(items)


def test_a_durable_jobs_event_carries_no_record(board):
    board.put(1, durable=True)
    board.put(2, durable=False)
    bodies = [entry.items[0].body for entry in board.log.read("0-0", 10)]
    assert bodies == [b"", record(2).encode()]


def test_what_somebody_else_has_put_in_the_place_of_the_stream_gives_way_to_what_happens(board):
    board.link.execute("SET", board.keys["events"], "nothing of ours")
    assert board.put(1) == "created"
    assert board.happened() == ["scheduled 1"]
