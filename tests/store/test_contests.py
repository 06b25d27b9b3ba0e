"""The holder of a key if another job needs it: late jobs, jobs after a holder, calls that only check, and data that Redis may lack."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from django_delayq import codec, ids
from django_delayq.job_meta import NAMED, ONLY
from django_delayq.store.connection.error_replies import StoreError
from django_delayq.store.scripts import loader, site
from django_delayq.store.scripts.events import FIRST
from django_delayq.store.scripts.record import NOBODY, ScheduleItem, ScheduleReply
from django_delayq.store.scripts.recovery import EpochStore
from tests.store.board import LEASE, NOW, job_id, record

HELD = ids.short(job_id(1))


def publish(
    board, number: int, due: int = NOW + 5000, policy: str = "keep", *, key: str = "k", mode: str = "", **options: Any
) -> ScheduleReply:
    """Publishes like the publisher, without having asked the rows, unless `mode` says otherwise."""
    item = ScheduleItem.of(record(number, key=key), due_ms=due, on_conflict=policy)
    (reply,) = board.store.start_schedule([item], mode=mode, now_ms=NOW, **options)()[1]
    return reply


def confirm(board, **options: str) -> None:
    """Redis holds what the database has seen, and so all jobs that hold keys."""
    board.store.epoch()
    epoch = EpochStore(board.store)
    found = epoch.look(FIRST)
    assert epoch.confirm(found.generation, server=found.server, now_ms=NOW, **options) == "ok"


@pytest.fixture
def held(board):
    """Job 1 has the key, and is due in five seconds."""
    confirm(board)
    board.put(1, NOW + 5000, key="k")
    return board


def everything(board) -> tuple[Any, ...]:
    return board.dump(), board.happened(), board.link.execute("HGETALL", board.keys["meta"])


@pytest.mark.parametrize("policy", ["replace@", "latest@", "after@", "replace@" + ids.short(job_id(9))])
def test_a_late_one_leaves_no_trace_where_another_holds_the_key_than_it_names(held, policy):
    before = everything(held)
    reply = publish(held, 2, NOW + 6000, policy)
    assert (reply.status, reply.id) == ("contested", job_id(1))
    assert everything(held) == before


def test_a_late_one_acts_on_the_holder_that_it_names(held):
    assert publish(held, 2, NOW + 6000, "latest@" + HELD).status == "moved"
    items = [item for entry in held.log.read("0-0", 10)[-1:] for item in entry.items]
    assert [item.kind for item in items] == ["rescheduled", "merged"]
    assert items[1].fields == (ids.short(job_id(2)), HELD, "latest")
    assert publish(held, 3, NOW + 9000, "replace@" + HELD).status == "replaced"
    assert held.dump() == {"jobs": [3], "normal": {3: 9000}, "keys": {"k": 3}, "finished": {1: 0, 2: 0}}


def test_a_late_one_whose_place_another_has_taken_ends(board):
    by = ids.short(job_id(9))
    assert publish(board, 1, policy="replaced@" + by, key="").status == "displaced"
    assert board.dump() == {"finished": {1: 0}}
    (item,) = board.log.read("0-0", 10)[-1].items
    assert (item.kind, item.body) == ("cancelled", f'{{"m":"replaced by {by}","r":"{by}"}}'.encode())


@pytest.mark.parametrize(("due", "wanted"), [(3000, 3000), (5000, 5000), (8000, 5000)])
def test_once_more_takes_the_place_of_what_waits_and_its_date_if_that_is_earlier(held, due, wanted):
    assert publish(held, 2, NOW + due, "after").status == "replaced"
    assert held.dump() == {"jobs": [2], "normal": {2: wanted}, "keys": {"k": 2}, "finished": {1: 0}}


@pytest.mark.parametrize("retried", [False, True])
def test_once_more_waits_as_a_row_behind_what_has_begun(held, retried):
    held.claim(now=NOW + 5000)
    if retried:
        held.settle(1, "retry", delay=60_000)
    before = everything(held)
    reply = publish(held, 2, NOW + 6000, "after")
    assert (reply.status, reply.id) == ("behind", job_id(1))
    assert everything(held) == before


@pytest.mark.parametrize(("due", "status"), [(7999, "moved"), (8000, "replaced"), (9000, "replaced")])
def test_a_holder_that_would_be_moved_behind_its_expiry_is_replaced(board, due, status):
    confirm(board)
    board.put(1, NOW + 5000, key="k", expires_ms=NOW + 8000)
    assert publish(board, 2, NOW + due, "latest").status == status
    assert board.dump()["normal"] == {1 if status == "moved" else 2: due}


def test_a_holder_that_expired_unrun_gives_way(board):
    confirm(board)
    board.put(1, key="k", expires_ms=NOW)
    assert publish(board, 2).status == "replaced"
    assert board.dump() == {"jobs": [2], "normal": {2: 5000}, "keys": {"k": 2}, "finished": {1: 0}}
    assert board.happened()[-2:] == ["expired 1", "scheduled 2"]
    assert board.put(1, key="k") == "displaced"


@pytest.mark.parametrize(("ends", "told"), [(["retry"], ("1", "0")), (["crash"], ("0", "1")), (["crash", "retry"], ("1", "1"))])
def test_a_holder_that_expired_between_its_runs_has_failed(board, ends, told):
    confirm(board)
    board.put(1, NOW - 1, key="k", expires_ms=NOW)
    for number, outcome in enumerate(ends):
        board.claim(f"n{number}", now=NOW - 1)
        assert board.settle(1, outcome, fence=f"n{number}", now=NOW - 1) == "done"
    assert publish(board, 2).status == "replaced"
    assert board.dump() == {"jobs": [1, 2], "normal": {2: 5000}, "keys": {"k": 2}, "failed": {1: 0}}
    failed, _ = board.log.read("0-0", 10)[-1].items
    assert (failed.kind, failed.fields) == ("failed", (HELD, *told, "-"))


def test_a_question_to_an_empty_store_changes_nothing(board):
    assert publish(board, 1, mode="ask").status == "asked"
    assert publish(board, 1, mode="ask told").status == "free"
    assert publish(board, 1, key="", mode="ask").status == "free"
    assert everything(board) == ({}, [], [b"site", site.of("t").encode(), b"format", b"1"])


@pytest.mark.parametrize(
    ("policy", "expires", "status"),
    [
        ("keep", 0, "kept"),
        ("error", 0, "taken"),
        ("replace", 0, "free"),
        ("after", 0, "free"),
        ("latest", 0, "moved"),
        ("keep", NOW, "free"),
    ],
)
def test_a_question_says_what_would_become_of_a_job_and_changes_nothing(board, policy, expires, status):
    confirm(board)
    board.put(1, key="k", expires_ms=expires)
    before = everything(board)
    reply = publish(board, 2, policy=policy, mode="ask")
    assert (reply.status, reply.id) == (status, job_id(2 if status == "free" else 1))
    assert everything(board) == before


def test_who_has_not_asked_the_rows_takes_no_key_from_a_store_that_none_has_confirmed(board):
    assert publish(board, 1).status == "asked"
    assert publish(board, 2, key="").status == "created"
    assert publish(board, 3, mode="told").status == "created"
    reply = publish(board, 4)
    assert (reply.status, reply.id) == ("kept", job_id(3)), "what came after a wipe is known here"
    assert board.dump() == {"jobs": [2, 3], "normal": {2: 5000, 3: 5000}, "keys": {"k": 3}, "finished": {4: 0}}


@pytest.mark.parametrize("lacks", ["what comes back", "what another server had"])
def test_who_has_not_asked_the_rows_takes_no_key_while_redis_may_lack_some(held, lacks):
    if lacks == "what comes back":
        confirm(held, phase="rest", progress="me 0 0")
    else:
        held.link.execute("HSET", held.keys["meta"], "server", "another")
    before = everything(held)
    assert publish(held, 2, policy="replace").status == "asked"
    assert publish(held, 3, key="free").status == "asked"
    assert everything(held) == before
    confirm(held)
    assert publish(held, 3, key="free").status == "created"


def test_what_was_known_of_rows_in_another_epoch_is_not_believed(board):
    item = ScheduleItem.of(record(1), due_ms=NOW)
    here = board.store.epoch()
    assert board.store.start_schedule([item], epoch="another:server", now_ms=NOW)() == (here, [])
    assert board.dump() == {}
    assert board.store.start_schedule([], now_ms=NOW)() == (here, [])
    assert board.store.start_schedule([item], epoch=here, now_ms=NOW)()[1][0].status == "created"


def test_who_schedules_first_gives_the_store_a_generation_that_stays(board):
    board.put(1, NOW + LEASE)
    first = board.link.execute("HGET", board.keys["meta"], "generation")
    assert first.decode().isalnum()
    board.put(2, NOW + LEASE, key="k")
    assert board.claim().generation == first.decode()


def test_a_holder_that_is_moved_to_an_earlier_date_wakes_a_worker(held):
    assert held.claim().wait_ms == 1000
    held.link.execute("DEL", held.keys["wake"])
    assert publish(held, 2, NOW + 500, "earliest").status == "moved"
    assert held.tokens() == 1


@pytest.mark.parametrize(
    ("policy", "meanwhile", "then"),
    [("replace", "running", "replaced"), ("earliest", "kept", "moved"), ("latest", "kept", "moved"), ("after", "behind", "replaced")],
)
def test_a_holder_that_came_back_overdue_is_left_alone_as_long_as_a_worker_of_before_may_hold_it(held, policy, meanwhile, then):
    due = NOW + 1000 if policy == "earliest" else NOW + 9000
    held.link.execute("HSET", held.keys["meta"], "brought_back", f"{NOW + 5000} {NOW + LEASE}")
    before = held.dump()
    assert publish(held, 2, due, policy, mode="ask").status == meanwhile
    assert held.dump() == before
    held.link.execute("HSET", held.keys["meta"], "brought_back", f"{NOW + 5000} {NOW}")
    assert publish(held, 3, due, policy).status == then


def test_a_holder_that_came_back_overdue_and_has_expired_holds_no_key(board):
    confirm(board)
    board.put(1, NOW - 2000, key="k", expires_ms=NOW - 1, now=NOW - 2000)
    board.link.execute("HSET", board.keys["meta"], "brought_back", f"{NOW} {NOW + LEASE}")
    assert publish(board, 2).status == "replaced"


# --- a sender that may know of jobs of some tasks only ---


def limited(number: int, *tasks: str, key: str = "k") -> Any:
    payload = codec.encode_payload((number,), {}, {"meta": {ONLY: [*tasks]}}, limit=10_000, task="t")
    return replace(record(number, key=key), payload=payload)


@pytest.mark.parametrize("late", ["", "@", f"@{HELD}"])
@pytest.mark.parametrize("policy", ["keep", "error", "replace", "earliest", "latest", "after"])
def test_a_holder_of_a_task_that_the_sender_may_not_know_stays_and_is_not_named(held, policy, late):
    before = held.dump()
    item = ScheduleItem.of(limited(2, "another.task", "yet.another"), due_ms=NOW + 1, on_conflict=policy + late)
    for mode in ("ask", ""):
        ((epoch, (reply,)), told) = held.store.start_schedule([item], mode=mode, now_ms=NOW)(), held.happened()
        assert (reply.status, reply.id) == ("forbidden", NOBODY)
        assert epoch
    assert HELD not in str(told)
    assert held.dump() == {**before, "finished": {2: 0}}, "the job that was refused has a tombstone, as a merged one has"


@pytest.mark.parametrize("tasks", [(), ("tas",), ("task.",), ("ask",), ("a b",)])
def test_only_the_whole_name_of_a_task_counts(held, tasks):
    name = record(1).task
    item = ScheduleItem.of(limited(2, *tasks, *(part for part in (name[:-1], name[1:]) if tasks)), due_ms=NOW, on_conflict="keep")
    assert held.store.schedule([item], now_ms=NOW)[0].status == "forbidden"
    item = ScheduleItem.of(limited(3, *tasks, name), due_ms=NOW, on_conflict="keep")
    assert held.store.schedule([item], now_ms=NOW)[0].status == "kept"


def test_without_a_limit_or_without_a_key_nothing_more_is_sent(held, monkeypatch):
    sent = []
    monkeypatch.setattr(loader, "start", lambda *told: sent.append(told) or (lambda: [b"g:"]))
    for one in (record(2, key="k"), limited(3, "a.task", key="")):
        held.store.start_schedule([ScheduleItem.of(one, due_ms=NOW, on_conflict="keep")], now_ms=NOW)()
    assert [told[-2] for told in sent] == ["keep", "keep"]


@pytest.mark.parametrize("named", [False, True])
def test_while_jobs_leave_a_key_is_given_to_nobody(board, named):
    options = {"payload": json.dumps([[], {}, {"meta": {NAMED: ["order:1", 1]}}], separators=(",", ":")).encode()} if named else {}
    board.put(9)  # the store has a generation
    board.link.execute("HSET", board.keys["meta"], "rolled", "sweep")
    item = ScheduleItem.of(record(1, key="k", **options), due_ms=NOW)
    with pytest.raises(StoreError, match="RESTORING") as refused:
        board.store.schedule([item], now_ms=NOW)
    assert refused.value.nothing_done
    assert board.dump()["jobs"] == [9]
    [reply] = board.store.start_schedule([item], mode="ask told", now_ms=NOW)()[1]
    assert reply.status == "free"
    assert board.put(2) == "created"
    board.link.execute("HSET", board.keys["meta"], "rolled", "adopt")
    assert board.put(1, key="k") == "created"
