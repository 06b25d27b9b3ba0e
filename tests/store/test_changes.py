"""cancel, reschedule, requeue, pause, purge."""

from __future__ import annotations

from uuid import UUID

import pytest

from django_delayq import clock, ids
from django_delayq.states import Change
from django_delayq.store.connection.error_replies import StoreError
from tests.store.board import NOW, job_id, record


def test_cancel_removes_a_scheduled_job(board):
    board.put(1, NOW + 5000, key="k")
    assert board.store.cancel(job_id(1), actor="clerk", reason="paid", now_ms=NOW).change == Change.DONE
    assert board.dump() == {"finished": {1: 0}}
    entry = board.log.read("0-0", 10)[-1]
    assert (entry.by, entry.why, entry.items[0].kind) == ("clerk", "paid", "cancelled")
    assert board.claim(now=NOW + 6000).jobs == []


def test_cancel_of_a_waiting_retry_forgets_its_attempts(board):
    board.put(1)
    board.claim()
    board.settle(1, "retry", delay=5000)
    assert board.store.cancel(job_id(1), now_ms=NOW).change == Change.DONE
    assert board.dump() == {"finished": {1: 0}}


def test_cancel_answers_honestly_for_every_state(board):
    board.put(1)
    board.put(2)
    board.claim()
    board.settle(1, "ack")
    board.put(3, NOW + 1000)
    answers = [board.store.cancel(job_id(number), now_ms=NOW).change for number in (1, 2, 3, 4)]
    assert answers == [Change.FINISHED, Change.RUNNING, Change.DONE, Change.UNKNOWN]
    assert board.dump()["cancels"] == {2: ""}
    assert "cancel_requested 2" in board.happened()
    assert board.store.cancel(job_id(2), now_ms=NOW).change == Change.RUNNING
    assert board.happened().count("cancel_requested 2") == 1


def test_cancel_leaves_a_key_that_another_job_holds(board):
    board.put(1, NOW + 5000, key="k")
    board.put(2, NOW + 5000)
    board.link.execute("HSET", board.keys["keys"], "k", ids.short(job_id(2)))
    assert board.store.cancel(job_id(1), now_ms=NOW).change == Change.DONE
    assert board.dump()["keys"] == {"k": 2}


def test_an_abort_of_what_waits_is_a_cancel(board):
    board.put(1, NOW + 5000)
    assert board.store.cancel(job_id(1), abort=True, now_ms=NOW).change == Change.DONE
    assert board.dump() == {"finished": {1: 0}}


def test_an_abort_is_told_to_the_run_and_says_who_asked(board):
    board.put(1)
    board.claim()
    assert board.store.cancel(job_id(1), actor="clerk", abort=True)[0] is Change.RUNNING
    assert board.dump()["cancels"] == {1: "\1clerk"}
    assert board.extend(1) == "abort"
    (told,) = [item.fields for entry in board.log.read("0-0", 10) for item in entry.items if item.kind == "cancel_requested"]
    assert told == (ids.short(job_id(1)), "abort")


def test_an_abort_takes_the_place_of_a_request_and_no_request_that_of_an_abort(board):
    board.put(1)
    board.claim()
    asked = [board.store.cancel(job_id(1), actor=actor, abort=abort) for actor, abort in (("a", False), ("b", True), ("c", True))]
    assert [bool(answer.event) for answer in asked] == [True, True, False], "one event for each that changes something"
    assert not board.store.cancel(job_id(1), actor="d").event
    assert board.dump()["cancels"] == {1: "\1b"}


def test_nobody_aborts_by_a_name(board):
    board.put(1)
    board.claim()
    board.store.cancel(job_id(1), actor="\1\1clerk")
    assert board.dump()["cancels"] == {1: "clerk"}
    assert board.extend(1) == "cancel"


def test_an_abort_whose_worker_is_gone_ends_the_job_when_its_lease_ends(board):
    board.put(1)
    board.claim()
    board.store.cancel(job_id(1), abort=True, now_ms=NOW)
    assert board.claim("n2", "w2", now=board.pass_lease()).jobs == []
    assert list(board.dump()) == ["finished"]
    assert board.happened()[-1] == "cancelled 1"


def test_cancel_by_key(board):
    board.put(1, NOW + 5000, key="order 7")
    assert board.store.cancel("order 7")[:2] == (Change.DONE, job_id(1))
    assert board.store.cancel("order 7")[:2] == (Change.UNKNOWN, None)


def test_cancel_does_nothing_in_the_epoch_that_it_is_told(board):
    board.put(1, NOW + 5000, key="order 7")
    epoch = board.store.cancel(job_id(2)).epoch
    assert board.store.cancel(job_id(1), unless=epoch) == (Change.UNKNOWN, None, epoch, "", 0, 0)
    assert board.store.reschedule(job_id(1), delay_ms=0, unless=epoch) == (Change.UNKNOWN, None, epoch, "", 0, 0)
    assert board.store.cancel("order 7", unless="other:epoch")[:3] == (Change.DONE, job_id(1), epoch)


def test_a_change_answers_which_event_tells_of_it(board):
    board.put(1, NOW + 5000)
    moved = board.store.reschedule(job_id(1), delay_ms=9000).event
    cancelled = board.store.cancel(job_id(1)).event
    assert [entry.id for entry in board.log.read("0-0", 10)][1:] == [moved, cancelled]
    assert board.store.cancel(job_id(1)).event == "", "nothing has happened"


def test_a_cancel_sent_again_answers_done_for_what_is_cancelled(board):
    board.put(1, NOW + 5000)
    board.put(2, NOW)
    board.claim()
    board.settle(2, "ack")
    assert board.store.cancel(job_id(1))[0] is Change.DONE
    assert board.store.cancel(job_id(1))[0] is Change.DONE
    assert board.store.cancel(job_id(2))[0] is Change.FINISHED


@pytest.mark.parametrize(
    ("how", "lacking", "change", "told"),
    [
        ("cancelled", "scheduled", Change.DONE, 1),
        ("cancelled", "", Change.DONE, 0),
        ("displaced", "scheduled", Change.FINISHED, 1),
        ("succeeded", "scheduled", Change.FINISHED, 0),
    ],
)
def test_a_row_that_has_not_heard_of_an_end_hears_of_it_with_the_next_cancel(board, how, lacking, change, told):
    scores = {"cancelled": ".5", "displaced": ".75", "succeeded": ".25"}
    board.link.execute("ZADD", board.keys["finished"], f"{NOW}{scores[how]}", ids.short(job_id(1)))
    assert board.store.cancel(job_id(1), lacking=lacking, now_ms=NOW).change == change
    assert board.happened() == ["cancelled 1"] * told


def test_a_job_that_has_failed_is_not_cancelled(board):
    board.put(1)
    board.claim()
    board.settle(1, "fail")
    before = board.dump()
    assert board.store.cancel(job_id(1), now_ms=NOW).change == Change.FINISHED
    assert board.dump() == before


def test_a_job_that_was_replaced_answers_finished_to_a_cancel(board):
    board.put(1, NOW + 5000, key="k")
    board.put(2, NOW + 5000, key="k", on_conflict="replace")
    assert board.store.cancel(job_id(1))[0] is Change.FINISHED
    assert board.store.cancel(job_id(2))[0] is Change.DONE


def test_a_cancelled_unknown_job_cannot_be_published_late(board):
    assert board.store.cancel(job_id(1), lacking="scheduled").change == Change.DONE
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


@pytest.mark.parametrize(("policy", "due"), [("earliest", 5000), ("earliest", 9000), ("latest", 5000), ("latest", 3000)])
def test_a_date_that_is_so_already_stays_and_nothing_is_told(board, policy, due):
    board.put(1, NOW + 5000)
    assert board.claim(now=NOW + 4500).wait_ms == 500
    board.link.execute("HSET", board.keys["meta"], "armed", NOW + 60_000)
    moved = board.store.reschedule(job_id(1), due_ms=NOW + due, policy=policy, now_ms=NOW)
    assert (moved.change, moved.due_ms, moved.event) == (Change.DONE, NOW + 5000, "")
    assert board.dump()["normal"] == {1: 5000}
    assert board.tokens() == 0


@pytest.mark.parametrize(
    ("lacking", "wanted"), [("", "unknown"), ("running", "running"), (str(NOW), "running"), (str(NOW + 1), "unknown")]
)
def test_a_job_that_is_not_here_gets_no_date_and_may_run(board, lacking, wanted):
    assert board.store.reschedule(job_id(1), delay_ms=0, lacking=lacking, now_ms=NOW).change == wanted
    assert board.store.reschedule("no such key", delay_ms=0, lacking=lacking, now_ms=NOW).change is Change.UNKNOWN
    board.put(1)
    board.claim()
    board.settle(1, "ack")
    assert board.store.reschedule(job_id(1), delay_ms=0, lacking=lacking, now_ms=NOW).change is Change.FINISHED


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


def test_requeue_takes_the_edit_and_tells_of_it_where_no_row_does(board):
    for number, durable in ((1, False), (2, True)):
        board.put(number)
        board.claim(f"n{number}")
        board.settle(number, "fail", fence=f"n{number}")
        edited = record(number, payload=b"[[7]]", durable=durable)
        assert board.store.requeue(job_id(number), edited, delay_ms=500, now_ms=NOW)[0] is Change.DONE
        assert board.link.execute("HGET", board.keys["jobs"], ids.short(job_id(number))) == edited.encode()
        (item,) = board.log.read("0-0", 100)[-1].items
        assert (item.kind, item.fields[1:], item.body) == ("requeued", (str(NOW + 500),), b"" if durable else edited.encode())


def test_requeue_of_a_forgotten_job_takes_the_record_given(board):
    board.put(1)
    board.store.cancel(job_id(1))
    assert board.store.requeue(job_id(1))[0] is Change.UNKNOWN
    assert board.store.requeue(job_id(2), record(2), vouched=False)[0] is Change.UNKNOWN
    assert board.store.requeue(job_id(1), record(1), vouched=False, now_ms=NOW)[0] is Change.DONE
    assert board.dump() == {"jobs": [1], "normal": {1: 0}}


def test_requeue_takes_the_record_that_is_kept_where_nobody_vouches_for_another(board):
    board.put(1)
    board.claim()
    board.settle(1, "fail")
    assert board.store.requeue(job_id(1), record(1, payload=b"[[7]]"), vouched=False, due_ms=NOW + 7)[0] is Change.DONE
    assert board.link.execute("HGET", board.keys["jobs"], ids.short(job_id(1))) == record(1).encode()
    assert board.dump()["normal"] == {1: 7}


def test_requeue_wakes_a_worker_and_is_counted_once(board):
    for number in (1, 2):
        board.put(number)
        board.claim(f"n{number}")
        board.settle(number, "fail", fence=f"n{number}")
    assert board.claim("n3").jobs == []
    board.link.execute("DEL", board.keys["wake"])
    for _ in range(2):
        board.store.requeue(job_id(1), now_ms=NOW)
    assert board.tokens() == 1
    assert board.link.execute("HGET", board.keys["stats"], f"{NOW // 60_000}:requeued") == b"1"


def test_requeue_is_refused_while_what_was_rolled_back_is_put_right(board):
    board.put(1)
    board.claim()
    board.settle(1, "fail")
    board.link.execute("HSET", board.keys["meta"], "rolled", "rest")
    before = board.dump()
    with pytest.raises(StoreError, match="RESTORING"):
        board.store.requeue(job_id(1), now_ms=NOW)
    assert board.dump() == before


def test_requeue_of_a_job_that_succeeded_is_refused_though_an_old_row_vouches_for_it(board):
    board.put(1)
    board.store.cancel(job_id(1))
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


@pytest.mark.parametrize("how", ["fail", "cancel"])
def test_requeue_of_another_end_than_the_one_that_was_seen_is_refused(board, how):
    def end(number: int) -> None:
        board.claim(f"n{number}")
        board.settle(1, how, fence=f"n{number}", now=NOW + number)

    def requeue(ends: dict[UUID, str]) -> Change:
        [(change, _)] = board.store.requeue_each([(job_id(1), record(1), "1")], ends=ends, date=(NOW, 0), now_ms=NOW)
        return change

    board.put(1)
    never = board.store.ends([job_id(1)])
    end(1)
    first = board.store.ends([job_id(1)])
    assert requeue(never) is Change.CONFLICT
    assert [requeue(first), requeue(first)] == [Change.DONE, Change.CONFLICT]
    end(2)
    before = board.dump()
    assert requeue(first) is Change.CONFLICT
    assert board.dump() == before
    assert requeue(board.store.ends([job_id(1)])) is Change.DONE


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
    assert board.store.pause(actor="clerk", until_ms=NOW) is True
    assert board.store.pause(actor="clerk", until_ms=NOW) is False
    assert board.store.pause(actor="clerk") is True
    assert board.store.resume() is True
    assert board.store.resume() is False
    assert board.happened() == ["paused", "paused", "paused", "resumed"]


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


@pytest.mark.parametrize("letter", ["x", "ü", "😀"])
def test_who_and_why_are_cut_at_2_kb(board, letter):
    board.put(1)
    board.store.cancel(job_id(1), actor=letter * 3000, reason=letter * 1_000_000)
    (said,) = [entry for entry in board.log.read("0-0", 10) if entry.items[0].kind == "cancelled"]
    for text in (said.by, said.why):
        assert 2040 <= len(text.encode()) <= 2048
        assert set(text) == {letter, "…"}
    board.store.pause(reason=letter * 3000)
    assert len(board.link.execute("HGET", board.keys["meta"], "paused_why")) <= 2048


@pytest.mark.parametrize("given", ["", "short", "ü" * 11])
def test_ids_that_are_none_are_refused_before_redis_sees_them(given):
    with pytest.raises(ValueError, match="id"):
        ids.parse(given)


def test_a_requeued_job_is_not_cancelled_by_what_was_asked_of_a_run_that_redis_had_lost(board):
    assert board.store.cancel(job_id(1), lacking="running").change == Change.RUNNING
    assert board.store.requeue(job_id(1), record(1), vouched=True, now_ms=NOW)[0] is Change.DONE
    board.claim()
    assert board.settle(1, "retry", now=NOW) == "done"
    assert board.dump()["normal"] == {1: 0}, "it waits for its next attempt"


def test_what_was_asked_while_nobody_knew_whether_it_runs_ends_it_when_it_has_come_back(board):
    for number in (1, 3):
        assert board.store.cancel(job_id(number), lacking="running", now_ms=NOW).change == Change.RUNNING
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
    board.store.cancel(job_id(1), lacking="running", now_ms=NOW)
    board.put(1)
    board.claim("n1")
    board.claim("n2")
    assert board.link.execute("HGET", board.keys["meta"], "asked") is None


@pytest.mark.parametrize(("policy", "told"), [("", []), ("earliest", ["earliest"])])
def test_a_new_date_is_told_with_the_policy_that_moved_it(board, policy, told):
    board.put(1, NOW + 5000)
    board.store.reschedule(job_id(1), due_ms=NOW + 3000, policy=policy, now_ms=NOW)
    (item,) = board.log.read("0-0", 10)[-1].items
    assert (item.kind, list(item.fields[1:])) == ("rescheduled", [str(NOW + 3000), *told])
