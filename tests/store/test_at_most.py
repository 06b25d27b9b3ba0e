"""`at_most` in the scripts: a job is moved to at most that long after its first date."""

from __future__ import annotations

from typing import Any

import pytest

from django_delayq import ids
from django_delayq.states import Change
from django_delayq.store.scripts.record import DebouncePolicy, ScheduleItem, ScheduleReply
from django_delayq.store.scripts.recovery import EpochStore, RestoreItem
from tests.store.board import NOW, job_id, record

MINUTE = 60_000
LATEST = str(DebouncePolicy(10 * MINUTE))


def put(
    board, number: int, minute: float, *, policy: str = LATEST, delay: float = 4, mode: str = "told", **fields: Any
) -> ScheduleReply:
    """A call at this minute, with a delay in minutes."""
    item = ScheduleItem.of(record(number, key="k", **fields), delay_ms=int(delay * MINUTE), on_conflict=policy)
    (reply,) = board.store.start_schedule([item], mode=mode, now_ms=NOW + int(minute * MINUTE))()[1]
    return reply


def due(board, number: int = 1) -> float:
    """In how many minutes after NOW a job is due."""
    return board.dump()["normal"][number] / MINUTE


def commands(board, call) -> dict[str, int]:
    """How often the server ran each command during a call."""
    board.link.execute("CONFIG", "RESETSTAT")
    call()
    stats = board.link.execute("INFO", "commandstats").decode().splitlines()
    found = (line.removeprefix("cmdstat_").partition(":calls=") for line in stats if line.startswith("cmdstat_"))
    return {name: int(rest.partition(",")[0]) for name, _, rest in found if name not in ("info", "config|resetstat", "config")}


def test_no_stream_of_calls_moves_a_job_beyond_the_first_call_and_at_most(board):
    assert put(board, 1, 0).status == "created"
    assert [put(board, 1 + n, 3 * n).status for n in range(1, 5)] == ["moved", "moved", "kept", "kept"]
    assert due(board) == 10
    assert board.dump()["firsts"] == {1: str(NOW)}


def test_calls_that_only_ask_get_the_same_answers_and_write_nothing(board):
    put(board, 1, 0)
    for minute, status in ((3, "moved"), (7, "moved"), (12, "moved")):
        before = board.dump()
        assert put(board, 9, minute, mode="ask told").status == status
        assert board.dump() == before
    put(board, 2, 8)
    assert put(board, 9, 9, mode="ask told").status == "kept"


def test_a_job_that_was_scheduled_without_it_counts_from_the_first_call_that_moves_it(board):
    put(board, 1, 0, policy="keep")
    for number, minute in enumerate((3, 6, 9, 12), start=2):
        put(board, number, minute)
    assert due(board) == 13
    assert board.dump()["firsts"] == {1: str(NOW + 3 * MINUTE)}


def test_each_call_counts_its_own_at_most_and_one_without_it_has_no_limit(board):
    put(board, 1, 0)
    put(board, 2, 8, policy=str(DebouncePolicy(20 * MINUTE)))
    assert due(board) == 12
    assert put(board, 3, 9).status == "kept"
    put(board, 4, 30, policy="latest")
    assert due(board) == 34


def test_the_first_call_has_the_limit_too(board):
    assert put(board, 1, 0, delay=15) == ScheduleReply("created", job_id(1), NOW + 10 * MINUTE)
    assert due(board) == 10


def test_a_job_that_replaces_one_which_would_expire_has_its_first_date(board):
    put(board, 1, 0, expires_ms=NOW + 6 * MINUTE)
    assert put(board, 2, 3, expires_ms=NOW + 9 * MINUTE).status == "replaced"
    assert put(board, 3, 6, expires_ms=NOW + 30 * MINUTE).status == "replaced"
    assert due(board, 3) == 10
    assert board.dump()["firsts"][3] == str(NOW)


def test_a_job_of_an_expired_holder_counts_from_now(board):
    put(board, 1, 0, expires_ms=NOW + 6 * MINUTE)
    assert put(board, 2, 7).status == "replaced"
    assert (due(board, 2), board.dump()["firsts"][2]) == (11, str(NOW + 7 * MINUTE))


def test_a_late_publication_counts_from_the_date_of_its_row(board):
    put(board, 1, 8, policy=str(DebouncePolicy(10 * MINUTE, NOW)) + "@")
    assert (due(board), board.dump()["firsts"]) == (10, {1: str(NOW)})
    assert put(board, 2, 9, policy=f"{LATEST}@{ids.short(job_id(1))}").status == "kept"


def test_a_call_that_is_sent_again_changes_nothing_more(board):
    for number, minute in ((1, 0), (2, 3)):
        put(board, number, minute)
        before = board.dump(), board.happened()
        assert put(board, number, minute + 5).status in ("again", "displaced")
        assert (board.dump(), board.happened()) == before


def test_a_change_of_date_with_the_policy_has_the_same_limit(board):
    put(board, 1, 0)
    changed = board.store.reschedule(job_id(1), delay_ms=4 * MINUTE, policy=LATEST, now_ms=NOW + 8 * MINUTE)
    assert (changed.change, changed.due_ms) == (Change.DONE, NOW + 10 * MINUTE)
    changed = board.store.reschedule(job_id(1), delay_ms=4 * MINUTE, policy=LATEST, now_ms=NOW + 9 * MINUTE)
    assert (changed.change, changed.due_ms, changed.event) == (Change.DONE, NOW + 10 * MINUTE, "")
    (entry,) = board.log.read("0-0", 10)[1:]
    assert entry.items[0].fields[2:] == ("latest",)


def test_a_person_moves_it_to_any_date(board):
    put(board, 1, 0)
    board.store.reschedule(job_id(1), delay_ms=60 * MINUTE, now_ms=NOW)
    assert due(board) == 60
    assert put(board, 2, 3).status == "kept"


@pytest.mark.parametrize(("noted", "date"), [(NOW - 2 * MINUTE, 8), (NOW + 90 * MINUTE, 10), ("nan", 10), ("9" * 400, 10), ("", 10)])
def test_a_first_date_that_is_later_or_invalid_counts_as_now(board, noted, date):
    put(board, 1, 0)
    board.link.execute("HSET", board.keys["firsts"], ids.short(job_id(1)), noted)
    put(board, 2, 0, delay=10)
    assert due(board) == date


def test_a_restored_job_has_the_first_date_of_its_row_unless_redis_still_has_it(board):
    epoch = EpochStore(board.store)
    known = board.store.epoch()
    board.link.execute("HSET", board.keys["firsts"], ids.short(job_id(2)), NOW - 5)
    rows = [RestoreItem(ids.short(job_id(n)), record(n).encode(), due_ms=NOW, first_ms="" if n == 3 else NOW - 1) for n in (1, 2, 3)]
    assert epoch.restore(rows, epoch=known, now_ms=NOW) == ["restored"] * 3
    assert board.dump()["firsts"] == {1: str(NOW - 1), 2: str(NOW - 5)}


def test_tidy_removes_the_dates_of_jobs_that_are_gone(board):
    put(board, 1, 0)
    board.link.execute("HSET", board.keys["firsts"], ids.short(job_id(2)), NOW)
    cursor = board.store.tidy(now_ms=NOW).cursor
    assert (cursor, board.dump()["firsts"]) == ("0", {1: str(NOW)})


def test_calls_without_it_send_no_command_more(board):
    """The key has another type, so each command about it would fail. A call with `at_most` sends two more: to read and to write it."""
    board.link.execute("SET", board.keys["firsts"], "no hash")
    for number, policy in enumerate(("keep", "latest", "latest", "earliest", "replace", "error"), start=1):
        put(board, number, number, policy=policy)
    board.store.reschedule(job_id(5), delay_ms=MINUTE, policy="latest", now_ms=NOW)
    epoch = EpochStore(board.store)
    epoch.restore([RestoreItem(ids.short(job_id(9)), record(9).encode(), due_ms=NOW)], epoch=board.store.epoch(), now_ms=NOW)
    board.claim(now=NOW + 60 * MINUTE)
    board.settle(5, "ack", now=NOW + 60 * MINUTE)
    board.link.execute("DEL", board.keys["firsts"])
    put(board, 20, 70, policy="latest")
    without, limited = (commands(board, lambda n=n, p=p: put(board, n, n, policy=p)) for n, p in ((71, "latest"), (72, LATEST)))
    assert sum(limited.values()) == sum(without.values()) + 2
    assert (limited["hget"], limited["hset"]) == (without["hget"] + 1, without.get("hset", 0) + 1)
