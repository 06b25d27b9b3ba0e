from __future__ import annotations

import pytest

from django_delayq import clock, ids
from django_delayq.store.queue import Outcome
from tests.store.board import LEASE, NOW, job_id, record

HOUR = 3_600_000


def numbers(claim) -> list[int]:
    return [ids.full(job.id).int & 0xFFFF for job in claim.jobs]


def test_due_jobs_come_oldest_first_and_none_before_its_date(board):
    board.put(1, NOW)
    board.put(2, NOW - 10)
    board.put(3, NOW + 1)
    claim = board.claim()
    assert numbers(claim) == [2, 1]
    assert [(job.attempt, job.crashes, job.due_ms) for job in claim.jobs] == [(1, 0, NOW - 10), (1, 0, NOW)]
    assert claim.jobs[0].record == record(2).encode()
    assert board.dump() == {
        "jobs": [1, 2, 3],
        "normal": {3: 1},
        "leases": {1: LEASE, 2: LEASE},
        "runs": {1: "1:0:n:n1", 2: "1:0:n:n1"},
    }


def test_high_lane_before_normal_before_low(board):
    for number, lane in ((1, "low"), (2, "normal"), (3, "high")):
        board.put(number, NOW, lane=lane)
    assert numbers(board.claim(want=2)) == [3, 2]
    assert numbers(board.claim("n2")) == [1]


def test_a_repeated_claim_answers_with_the_same_jobs(board):
    board.put(1)
    board.put(2)
    first = board.claim()
    before, events = board.dump(), board.happened()
    assert board.claim().jobs == first.jobs
    assert board.dump() == before
    assert board.happened() == events


def test_a_repeated_claim_leaves_out_what_was_settled_or_lost(board):
    board.put(1)
    board.put(2)
    board.claim()
    board.settle(1, "ack")
    assert numbers(board.claim()) == [2]


def test_a_lease_that_ran_out_is_taken_over_with_the_same_attempt_number(board):
    board.put(1)
    board.claim("n1", "w1")
    claim = board.claim("n3", "w2", now=board.pass_lease())
    assert [(job.attempt, job.crashes, job.fence) for job in claim.jobs] == [(1, 1, "n3")]
    assert board.dump()["runs"] == {1: "1:1:n:n3"}
    assert board.happened() == ["scheduled 1", "claimed 1", "crashed 1", "claimed 1"]


def test_a_lease_is_good_to_its_last_millisecond(board):
    board.put(1)
    board.claim()
    assert board.claim("n3", "w2", now=board.pass_lease() - 1).jobs == []


def test_too_many_crashes_end_as_failed(board):
    board.put(1, key="k")
    now = NOW
    board.claim("n0", now=now, max_crashes=1)
    for nonce in ("n1", "n2"):
        now = board.pass_lease(now)
        claim = board.claim(nonce, now=now, max_crashes=1)
    assert claim.jobs == []
    assert board.dump() == {"jobs": [1], "failed": {1: 2 * (LEASE + 1)}}
    assert board.happened()[-1] == "failed 1"


def test_a_cancel_request_ends_a_job_whose_worker_vanished(board):
    board.put(1, key="k")
    board.claim()
    board.store.cancel([job_id(1)], now_ms=NOW)
    assert board.claim("n3", "w2", now=board.pass_lease()).jobs == []
    assert board.dump() == {"finished": {1: LEASE + 1}}


def test_after_an_outage_nobody_takes_over_a_lease_for_one_lease(board):
    board.put(1)
    board.claim("n1", "w1")
    back = NOW + 2 * LEASE
    assert board.claim("n2", "w2", now=back, away=2 * LEASE).jobs == []
    assert board.extend(1, now=back + 1000) == "ok"
    assert board.dump()["leases"] == {1: 3 * LEASE + 1000}


def test_after_an_outage_a_vanished_workers_jobs_are_taken_over_one_lease_later(board):
    board.put(1)
    board.claim("n1", "w1")
    back = NOW + 2 * LEASE
    for second in range(0, LEASE, 5000):
        away = 0 if second else 2 * LEASE
        assert board.claim(f"a{second}", "w2", now=back + second, away=away).jobs == []
    assert numbers(board.claim("n3", "w2", now=back + LEASE)) == [1]


def test_after_a_restart_of_redis_nobody_takes_over_a_lease_for_one_lease(board):
    board.put(1)
    board.claim("n1", "w1")
    back = NOW + 2 * LEASE
    board.link.execute("HSET", board.keys["meta"], "run", "of-another-server")
    for second in range(0, LEASE, 5000):
        assert board.claim(f"a{second}", "w2", now=back + second).jobs == []
    assert numbers(board.claim("n3", "w2", now=back + LEASE)) == [1]


def test_an_outage_of_which_only_the_second_caller_knows_guards_as_well(board):
    """The first one's call lay in a buffer of the server, or it has just been started."""
    board.put(1)
    board.claim("n1", "w1")
    back = NOW + 2 * LEASE
    assert board.claim("n2", "w2", now=back).jobs == []
    assert board.claim("n3", "w3", now=back + 3000, away=2 * LEASE + 3000).jobs == []
    assert board.claim("n4", "w2", now=back + LEASE).jobs == []
    assert numbers(board.claim("n5", "w2", now=back + LEASE + 3000)) == [1]


def test_silence_is_no_outage(board):
    """The only worker is lost with its host, and another one starts later: it waits for the end of the lease, not for one more."""
    board.put(1)
    board.claim("n1", "w1")
    for second in range(20_000, LEASE + 1, 1000):
        assert board.claim(f"a{second}", "w2", now=NOW + second).jobs == []
    assert numbers(board.claim("n3", "w2", now=NOW + LEASE + 1)) == [1]


def test_who_asks_rarely_takes_over_when_it_asks_again(board):
    board.put(1)
    board.claim("n1", "w1")
    hour = 3_600_000
    assert board.claim("n2", "w2", now=NOW + hour).jobs == []
    assert numbers(board.claim("n3", "w2", now=NOW + 2 * hour)) == [1]


@pytest.mark.parametrize("lease", [1000, 2000, 5000, 30_000])
def test_idle_polls_do_not_guard_a_lease_for_ever(board, lease):
    board.put(1)
    board.store.claim("w1", "n1", want=1, lease_ms=lease, max_crashes=3, now_ms=NOW)
    later = range(NOW + 1001, NOW + 2 * lease + 3003, 1001)
    claims = (board.store.claim("w2", f"n{now}", want=1, lease_ms=lease, max_crashes=3, now_ms=now) for now in later)
    assert any(claim.jobs for claim in claims)


def test_one_outage_after_another_makes_no_lease_good_for_ever(board):
    board.put(1)
    board.claim("n1", "w1")
    now, taken = NOW, []
    for number in range(8):  # a host whose line to Redis is cut every time the guard has nearly ended
        now += LEASE - 1000
        taken += numbers(board.claim(f"m{number}", "w2", now=now, away=LEASE - 1000))
    assert taken == [1]


def test_leases_that_had_ended_before_the_outage_are_not_guarded(board):
    board.put(1)
    board.claim("n1", "w1")
    for second in range(0, LEASE, 10_000):
        board.link.execute("HSET", board.keys["meta"], "alive", NOW + second)
    board.link.execute("HSET", board.keys["meta"], "alive", NOW + LEASE + 500)
    assert numbers(board.claim("n2", "w2", now=NOW + 3 * LEASE, away=2 * LEASE - 500)) == [1]


def test_a_clock_put_back_after_an_outage_takes_nothing_from_those_who_hold_it(board):
    board.put(1, NOW - HOUR)
    back = NOW + 2 * LEASE
    assert board.claim("n0", "w1", now=NOW).jobs
    assert board.claim("n1", "w2", now=back, away=2 * LEASE).jobs == [], "guarded"
    board.put(2, NOW - HOUR)
    assert numbers(board.claim("n2", "w1", now=back - HOUR)) == [2]
    assert board.claim("n3", "w2", now=back - HOUR + 20).jobs == []


def test_a_guard_that_somebody_wrote_stops_no_claim(board):
    board.put(1)
    board.claim("n1", "w1")
    board.link.execute("HSET", board.keys["meta"], "guard_from", "nan", "guard_until", NOW + 100 * LEASE)
    assert numbers(board.claim("n2", "w2", now=board.pass_lease())) == [1]


def test_an_outage_is_noticed_also_where_the_clock_was_put_back(board):
    board.put(1, NOW - HOUR)
    board.claim("n0", "w1", now=NOW)
    assert board.claim("n1", "w2", now=NOW - HOUR).jobs == []
    board.put(2, NOW - HOUR)
    assert numbers(board.claim("n2", "w1", now=NOW - HOUR + 1)) == [2]
    assert board.claim("n3", "w2", now=NOW).jobs == [], "nobody could reach Redis for an hour, it seems"


def test_a_date_without_a_job_is_set_aside_and_the_rest_goes_on(board):
    board.link.execute("ZADD", board.keys["normal"], NOW - 5, ids.short(job_id(9)))
    board.put(1)
    assert numbers(board.claim()) == [1]
    assert "normal" not in board.dump()
    assert "aside 9" in board.happened()
    [aside] = [item for entry in board.log.read("0-0", 10) for item in entry.items if item.kind == "aside"]
    assert aside.fields == (ids.short(job_id(9)), "no_job")
    assert aside.body == b"a date without a job", "mirrors of earlier releases go by these words"


def test_an_unreadable_record_is_set_aside_and_kept(board):
    board.link.execute("HSET", board.keys["jobs"], ids.short(job_id(9)), "no header")
    board.link.execute("ZADD", board.keys["normal"], NOW - 5, ids.short(job_id(9)))
    assert board.claim().jobs == []
    assert board.dump() == {"jobs": [9], "failed": {9: 0}}


def test_a_job_that_is_set_aside_frees_its_key(board):
    board.put(1, key="k")
    board.claim()
    board.link.execute("DEL", board.keys["runs"])
    assert board.claim("n2", "w2", now=board.pass_lease()).jobs == []
    assert "aside 1" in board.happened()
    assert board.put(2, key="k") == "created"


def test_a_lease_without_a_job_is_set_aside(board):
    board.link.execute("ZADD", board.keys["leases"], NOW - 5, ids.short(job_id(9)))
    assert board.claim().jobs == []
    assert board.dump() == {}


def test_an_expired_job_is_cancelled_instead_of_run(board):
    board.put(1, NOW - 10, expires_ms=NOW - 1, key="k")
    board.put(2, NOW - 10, expires_ms=NOW + 1)
    assert numbers(board.claim()) == [2]
    assert board.dump()["finished"] == {1: 0}
    assert "keys" not in board.dump()


def test_a_job_that_expired_while_its_worker_vanished_is_not_run_again_and_has_failed(board):
    board.put(1, expires_ms=NOW + 5000, key="k")
    board.claim()
    assert board.claim("n2", "w2", now=board.pass_lease()).jobs == []
    assert list(board.dump()) == ["jobs", "failed"]
    assert board.happened()[-2:] == ["crashed 1", "failed 1"]


def test_what_expired_unrun_leaves_word_that_nobody_cancelled_it_and_can_be_requeued(board):
    board.put(1, NOW - 10, expires_ms=NOW - 1)
    board.claim()
    assert float(board.link.execute("ZSCORE", board.keys["finished"], ids.short(job_id(1)))) % 1 == 0.75
    assert board.store.requeue(job_id(1), record(1), vouched=False, now_ms=NOW)[0] == "done"


def test_a_paused_queue_gives_nothing(board):
    board.put(1)
    board.store.pause(actor="clerk", reason="bank holiday")
    claim = board.claim()
    assert (claim.jobs, claim.paused) == ([], True)
    board.store.resume()
    assert numbers(board.claim("n2")) == [1]


def test_a_claim_repeated_after_the_queue_was_paused_answers_with_the_same_jobs(board):
    board.put(1)
    board.put(2)
    first = board.claim(want=1)
    board.store.pause(actor="clerk")
    again = board.claim(want=1)
    assert (again.jobs, again.paused) == (first.jobs, True)
    assert board.claim("n2").jobs == []


def test_another_generation_gives_nothing(board):
    board.put(1)
    claim = board.store.claim("w1", "n1", want=1, lease_ms=LEASE, max_crashes=3, ground="old:server", now_ms=NOW)
    assert claim.jobs == []
    assert claim.generation != "old"


def test_the_answer_says_when_to_come_back(board):
    board.put(1, NOW + 300)
    assert board.claim("n1", "w1").wait_ms == 300
    assert board.claim("n2", "w2").wait_ms == 325
    assert board.claim("n3", "w3").wait_ms == 1000


@pytest.mark.parametrize(("date", "wanted"), [(None, 301), (301, 301), (300, 300), (5000, 301)])
def test_the_answer_says_to_come_back_when_the_next_lease_has_ended(board, date, wanted):
    board.put(1)
    board.claim("n1", "w1")
    for step in (10_000, 20_000):
        board.claim(f"idle{step}", "w2", now=NOW + step)
    now = NOW + LEASE - 300
    if date is not None:
        board.put(2, now + date, now=now)
    assert board.claim("n2", "w2", now=now).wait_ms == wanted


def test_by_redis_own_clock_the_answer_ends_with_the_date_to_the_microsecond(board):
    due = clock.wall_ms() + 900
    board.put(1, due)
    claims = [board.store.claim("w1", f"n{n}", want=1, lease_ms=LEASE, max_crashes=3) for n in range(20)]
    ahead = [claim.wait_ms - (due - claim.now_ms) for claim in claims]
    assert all(-1 < early <= 0 for early in ahead), "the rest of a millisecond that had begun is not waited for"
    assert len(set(ahead)) > 1


def test_a_full_owner_hands_the_timer_over_and_wakes_another(board):
    board.claim("n1", "w1")
    board.put(1)
    board.put(2, NOW + 300)
    board.link.execute("DEL", board.keys["wake"])
    assert board.claim("n2", "w1", want=1).wait_ms == 0
    assert board.tokens() == 1
    assert board.claim("n3", "w2").wait_ms == 300


def test_a_job_due_before_the_owner_wakes_pushes_a_token_once(board):
    board.claim()
    board.put(1, NOW + 1500)
    assert board.tokens() == 0
    board.put(2, NOW + 500)
    board.put(3, NOW + 600)
    assert board.tokens() == 1


def test_a_job_taken_by_another_does_not_leave_the_next_one_without_a_token(board):
    board.claim("n1", "w1")
    board.claim("n2", "w2")
    board.put(1, NOW + 10, now=NOW + 10)
    board.link.execute("DEL", board.keys["wake"])
    assert numbers(board.claim("n3", "w2", now=NOW + 11)) == [1]
    board.put(2, NOW + 100, now=NOW + 100)
    assert board.tokens() == 1


def test_who_learns_of_an_earlier_date_becomes_the_timer_owner(board):
    board.claim("n1", "w1")
    board.put(1, NOW + 500)
    assert board.claim("n2", "w2", now=NOW + 10).wait_ms == 490
    assert board.link.execute("HGET", board.keys["meta"], "timer") == b"w2"


def test_a_full_owner_hands_over_also_when_nothing_is_left(board):
    board.claim("n1", "w1")
    board.put(1)
    board.link.execute("DEL", board.keys["wake"])
    board.claim("n2", "w1", want=1)
    assert board.tokens() == 1


def test_no_more_than_four_tokens_wait(board):
    board.claim()
    for number in range(1, 10):
        board.put(number, NOW + 900 - number * 100)
    assert board.tokens() == 4


def test_a_dead_timer_owner_is_replaced(board):
    board.put(1, NOW + 60_000)
    board.claim("n1", "w1")
    assert board.claim("n2", "w2", now=NOW + 2000).wait_ms == 1000
    owner = board.link.execute("HGET", board.keys["meta"], "timer")
    assert owner == b"w2"


def test_jobs_of_one_call_with_different_headers_and_runs_are_told_apart(board):
    """A script reads each header line and each run once, however many jobs have the same."""
    plain, keyed, high, expired, other = 1, 2, 3, 4, 5
    board.put(plain)
    board.put(keyed, key="o:7")
    board.put(high, lane="high")
    board.put(expired, expires_ms=NOW - 1)
    board.put(other, key="o:8")
    claim = board.claim()
    assert numbers(claim) == [high, plain, keyed, other]
    assert board.dump()["runs"] == {plain: "1:0:n:n1", keyed: "1:0:N:n1", high: "1:0:h:n1", other: "1:0:N:n1"}
    ends = {plain: "retry", keyed: "retry", high: "ack", other: "ack"}
    items = [Outcome(ids.short(job_id(number)), 1, "n1", end) for number, end in ends.items()]
    assert board.store.settle(items, worker="w1", max_crashes=3, now_ms=NOW) == ["done"] * 4
    assert board.dump()["runs"] == {plain: "1:0:n:", keyed: "1:0:N:"}
    assert board.dump()["keys"] == {"o:7": keyed}
    assert numbers(board.claim("n2")) == [plain, keyed]
    assert board.settle(keyed, "ack", attempt=2, fence="n2") == "done"
    assert "keys" not in board.dump()
