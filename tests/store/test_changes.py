"""cancel, reschedule, requeue, pause, purge, tidy."""

from __future__ import annotations

import pytest

from django_delayq import clock, ids
from django_delayq.states import Change
from django_delayq.store.events import FIRST
from django_delayq.store.recovery import GroundStore
from tests.store.board import NOW, job_id, record


def test_cancel_removes_a_scheduled_job(board):
    board.put(1, NOW + 5000, key="k")
    assert board.store.cancel([job_id(1)], actor="clerk", reason="paid", now_ms=NOW) == [Change.DONE]
    assert board.dump() == {"finished": {1: 0}}
    entry = board.log.read("0-0", 10)[-1]
    assert (entry.by, entry.why, entry.items[0].kind) == ("clerk", "paid", "cancelled")
    assert board.claim(now=NOW + 6000).jobs == []


def test_cancel_of_a_waiting_retry_forgets_its_attempts(board):
    board.put(1)
    board.claim()
    board.settle(1, "retry", delay=5000)
    assert board.store.cancel([job_id(1)], now_ms=NOW) == [Change.DONE]
    assert board.dump() == {"finished": {1: 0}}


def test_cancel_answers_honestly_for_every_state(board):
    board.put(1)
    board.put(2)
    board.claim()
    board.settle(1, "ack")
    board.put(3, NOW + 1000)
    asked = [job_id(1), job_id(2), job_id(3), job_id(4)]
    assert board.store.cancel(asked, now_ms=NOW) == [Change.FINISHED, Change.RUNNING, Change.DONE, Change.UNKNOWN]
    assert board.dump()["cancels"] == {2: ""}


def test_cancel_by_key(board):
    board.put(1, NOW + 5000, key="order 7")
    assert board.store.cancel_one("order 7")[:2] == (Change.DONE, job_id(1))
    assert board.store.cancel_one("order 7")[:2] == (Change.UNKNOWN, None)


def test_cancel_does_nothing_on_the_ground_that_it_is_told(board):
    board.put(1, NOW + 5000, key="order 7")
    ground = board.store.cancel_one(job_id(2)).ground
    assert board.store.cancel_one(job_id(1), unless=ground) == (Change.UNKNOWN, None, ground, "", 0)
    assert board.store.reschedule(job_id(1), delay_ms=0, unless=ground) == (Change.UNKNOWN, None, ground, "", 0)
    assert board.store.cancel_one("order 7", unless="other:ground")[:3] == (Change.DONE, job_id(1), ground)


def test_a_change_answers_which_event_tells_of_it(board):
    board.put(1, NOW + 5000)
    moved = board.store.reschedule(job_id(1), delay_ms=9000).event
    cancelled = board.store.cancel_one(job_id(1)).event
    assert [entry.id for entry in board.log.read("0-0", 10)][1:] == [moved, cancelled]
    assert board.store.cancel_one(job_id(1)).event == "", "nothing has happened"


def test_a_cancel_sent_again_answers_done_for_what_is_cancelled(board):
    board.put(1, NOW + 5000)
    board.put(2, NOW)
    board.claim()
    board.settle(2, "ack")
    assert board.store.cancel_one(job_id(1))[0] is Change.DONE
    assert board.store.cancel_one(job_id(1))[0] is Change.DONE
    assert board.store.cancel_one(job_id(2))[0] is Change.FINISHED


def test_a_job_that_was_replaced_answers_finished_to_a_cancel(board):
    board.put(1, NOW + 5000, key="k")
    board.put(2, NOW + 5000, key="k", on_conflict="replace")
    assert board.store.cancel_one(job_id(1))[0] is Change.FINISHED
    assert board.store.cancel_one(job_id(2))[0] is Change.DONE


def test_a_cancelled_unknown_job_cannot_be_published_late(board):
    assert board.store.cancel([job_id(1)], lacking="scheduled") == [Change.DONE]
    assert [item.kind for entry in board.log.read("0-0", 10) for item in entry.items] == ["cancelled"], "the row hears of it"
    assert board.put(1) == "cancelled"
    assert board.claim().jobs == []


def test_reschedule_moves_the_date(board):
    board.put(1, NOW + 5000, key="k")
    moved = board.store.reschedule(job_id(1), due_ms=NOW + 60_000)
    assert (moved.change, moved.id, moved.due_ms) == (Change.DONE, job_id(1), NOW + 60_000)
    moved = board.store.reschedule("k", delay_ms=1000, now_ms=NOW)
    assert (moved.change, moved.id, moved.due_ms) == (Change.DONE, job_id(1), NOW + 1000)
    assert board.dump()["normal"] == {1: 1000}


def test_reschedule_answers_honestly_for_every_state(board):
    board.put(1)
    board.put(2)
    board.claim()
    board.settle(1, "fail")
    answers = [board.store.reschedule(job_id(number), delay_ms=0)[0] for number in (1, 2, 3)]
    assert answers == [Change.FINISHED, Change.RUNNING, Change.UNKNOWN]


def test_reschedule_to_an_earlier_date_wakes_the_timer_owner(board):
    board.put(1, NOW + 60_000)
    board.claim()
    board.store.reschedule(job_id(1), due_ms=NOW + 10, now_ms=NOW)
    assert board.tokens() == 1


def test_requeue_gives_a_failed_job_a_fresh_ladder(board):
    board.put(1, key="k")
    board.claim()
    board.settle(1, "fail")
    assert board.store.requeue(job_id(1), delay_ms=0, now_ms=NOW) == (Change.DONE, job_id(1))
    assert board.dump() == {"jobs": [1], "normal": {1: 0}, "keys": {"k": 1}}
    assert board.claim("n2").jobs[0].attempt == 1


def test_requeue_of_a_forgotten_job_takes_the_record_given(board):
    board.put(1)
    board.store.cancel([job_id(1)])
    assert board.store.requeue(job_id(1))[0] is Change.UNKNOWN
    assert board.store.requeue(job_id(1), record(1), now_ms=NOW)[0] is Change.DONE
    assert board.dump() == {"jobs": [1], "normal": {1: 0}}


def test_requeue_of_a_job_that_succeeded_is_refused_though_an_old_row_vouches_for_it(board):
    board.put(1)
    board.store.cancel([job_id(1)])
    board.store.requeue(job_id(1), record(1), now_ms=NOW)
    board.claim()
    board.settle(1, "ack")
    assert board.store.requeue(job_id(1), record(1), vouched=True)[0] is Change.CONFLICT
    assert board.dump() == {"finished": {1: 0}}


def test_requeue_sent_again_does_not_run_it_twice(board):
    board.put(1)
    board.claim()
    board.settle(1, "fail")
    board.store.requeue(job_id(1), now_ms=NOW)
    assert board.store.requeue(job_id(1), now_ms=NOW)[0] is Change.CONFLICT
    assert board.dump() == {"jobs": [1], "normal": {1: 0}}


def test_requeue_does_not_take_a_key_from_its_holder(board):
    board.put(1, key="k")
    board.claim()
    board.settle(1, "fail")
    board.put(2, NOW + 5000, key="k")
    assert board.store.requeue(job_id(1)) == (Change.CONFLICT, job_id(2))
    assert board.dump()["failed"] == {1: 0}


def test_requeue_of_a_running_job_is_refused(board):
    board.put(1)
    board.claim()
    assert board.store.requeue(job_id(1), record(1))[0] is Change.RUNNING


def test_pause_and_resume_answer_whether_they_changed_anything(board):
    assert board.store.pause(actor="clerk") is True
    assert board.store.pause(actor="clerk") is False
    assert board.store.resume() is True
    assert board.store.resume() is False
    assert board.happened() == ["paused", "resumed"]


def test_purge_cancels_scheduled_jobs_and_leaves_running_ones(board):
    board.put(1)
    board.claim()
    for number in range(2, 7):
        board.put(number, NOW + 1000, key=f"k{number}")
    assert board.store.purge(limit=3, now_ms=NOW) == (3, 2)
    assert board.store.purge(limit=3, now_ms=NOW) == (2, 0)
    assert board.dump() == {
        "jobs": [1],
        "leases": {1: 30_000},
        "runs": {1: "1:0:n:n1"},
        "finished": dict.fromkeys(range(2, 7), 0),
    }


def test_a_tombstone_stays_until_the_mirror_has_heard_of_the_end_however_old_the_clock_makes_it(board):
    board.put(1)
    board.claim()
    board.settle(1, "ack", now=clock.wall_ms() - 7_200_000)  # it was put back then, and is put right now
    assert board.store.tidy().tombstones == 0
    board.log.trim(board.log.last_id())
    assert board.store.tidy().tombstones == 1


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


@pytest.mark.parametrize("letter", ["x", "ü", "😀"])
def test_who_and_why_are_cut_at_2_kb(board, letter):
    board.put(1)
    board.store.cancel([job_id(1)], actor=letter * 3000, reason=letter * 1_000_000)
    (said,) = [entry for entry in board.log.read("0-0", 10) if entry.items[0].kind == "cancelled"]
    for text in (said.by, said.why):
        assert 2040 <= len(text.encode()) <= 2048
        assert set(text) == {letter, "…"}
    board.store.pause(reason=letter * 3000)
    assert len(board.link.execute("HGET", board.keys["meta"], "paused_why")) <= 2048


def test_tidy_drops_old_counters(board):
    board.put(1)
    assert board.link.execute("HLEN", board.keys["stats"]) == 1
    board.store.tidy(now_ms=NOW + 9 * 24 * 3_600_000)
    assert board.link.execute("HLEN", board.keys["stats"]) == 0


@pytest.mark.parametrize("given", ["", "short", "ü" * 11])
def test_ids_that_are_none_are_refused_before_redis_sees_them(given):
    with pytest.raises(ValueError, match="id"):
        ids.parse(given)


def test_a_requeued_job_is_not_cancelled_by_what_was_asked_of_a_run_that_redis_had_lost(board):
    assert board.store.cancel([job_id(1)], lacking="running") == [Change.RUNNING]
    assert board.store.requeue(job_id(1), record(1), vouched=True, now_ms=NOW)[0] is Change.DONE
    board.claim()
    assert board.settle(1, "retry", now=NOW) == "done"
    assert board.dump()["normal"] == {1: 0}, "it waits for its next attempt"


def test_what_was_asked_while_nobody_knew_whether_it_runs_ends_it_when_it_has_come_back(board):
    assert board.store.cancel([job_id(1), job_id(3)], lacking="running", now_ms=NOW) == [Change.RUNNING] * 2
    board.put(1, key="k")
    board.put(2)
    assert [job.id for job in board.claim().jobs] == [ids.short(job_id(2))]
    assert sorted(board.happened()[-2:]) == ["cancelled 1", "claimed 2"]
    (told,) = [item.fields[1:] for entry in board.log.read("0-0", 100) for item in entry.items if item.kind == "cancelled"]
    assert list(told) == ["0", "0", "-"]
    left = board.dump()
    assert (left["jobs"], left["finished"], "keys" in left) == ([2], {1: 0}, False)
    assert list(left["cancels"]) == [3], "that has not come back yet"


def test_a_claim_looks_no_more_when_nothing_is_asked_any_more(board):
    board.store.cancel([job_id(1)], lacking="running", now_ms=NOW)
    board.put(1)
    board.claim("n1")
    board.claim("n2")
    assert board.link.execute("HGET", board.keys["meta"], "asked") is None


def test_tidy_drops_what_was_asked_of_a_job_that_nobody_runs_and_nothing_else(board):
    board.put(1)
    board.claim()
    assert board.store.cancel([job_id(2)], lacking="running", now_ms=NOW) == [Change.RUNNING], "nobody knows whether it runs"
    assert board.store.cancel([job_id(1)], now_ms=NOW) == [Change.RUNNING]
    board.store.tidy(now_ms=NOW)
    assert sorted(board.dump().get("cancels", ())) == [1, 2], "nobody has confirmed yet that this server lacks nothing"
    assert confirm(board) == "ok"
    board.store.tidy(now_ms=NOW)
    assert sorted(board.dump().get("cancels", ())) == [1], "job 1 runs here"
    assert board.extend(1) == "cancel"


def confirm(board) -> str:
    """What stands in Redis is all that the database has seen."""
    ground = GroundStore(board.store)
    found = ground.look(FIRST)
    return ground.confirm(found.generation, server=found.server, now_ms=NOW)


@pytest.mark.parametrize(("policy", "told"), [("", []), ("earliest", ["earliest"])])
def test_a_new_date_is_told_with_the_policy_that_moved_it(board, policy, told):
    board.put(1, NOW + 5000)
    board.store.reschedule(job_id(1), due_ms=NOW + 3000, policy=policy, now_ms=NOW)
    (item,) = board.log.read("0-0", 10)[-1].items
    assert (item.kind, list(item.fields[1:])) == ("rescheduled", [str(NOW + 3000), *told])
