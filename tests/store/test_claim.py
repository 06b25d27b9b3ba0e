from __future__ import annotations

from random import Random

import pytest

from django_delayq import clock, ids
from django_delayq.store.scripts.queue import Outcome
from tests.store.board import LEASE, NOW, Board, job_id, numbers, record

HOUR = 3_600_000


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


def test_the_answer_says_whether_more_is_due(board):
    for number in (1, 2, 3):
        board.put(number)
    assert [board.claim(f"n{number}", want=2).more for number in (1, 2)] == [True, False]


def test_high_band_before_normal_before_low(board):
    for number, band in ((1, "low"), (2, "normal"), (3, "high")):
        board.put(number, NOW, band=band)
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


def test_what_is_taken_over_counts_for_what_is_wanted(board):
    board.put(1)
    board.claim()
    for number in (2, 3):
        board.put(number, NOW + LEASE)
    assert numbers(board.claim("n3", "w2", now=board.pass_lease(), want=2)) == [1, 2]


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
    board.store.cancel(job_id(1), now_ms=NOW)
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
    for second in range(4000, LEASE + 3000, 1000):
        assert board.claim(f"a{second}", "w2", now=back + second).jobs == []
    assert numbers(board.claim("n4", "w2", now=back + LEASE + 3000)) == [1]


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


def guard(board, *more: str) -> list[int | None]:
    """From when until when, in ms from NOW."""
    found = board.link.execute("HMGET", board.keys["meta"], *(f"guard_{name}" for name in ("from", "until", *more)))
    return [value and int(value) - NOW for value in found]


@pytest.mark.parametrize(
    ("gap", "away", "wanted"),
    [
        (15_000, 0, [None, None]),
        (15_001, 0, [0, 20_001]),
        (1000, 15_000, [None, None]),
        (1000, 15_001, [-14_001, 31_000]),
        (20_000, 15_001, [0, 50_000]),
    ],
)
def test_what_lasts_longer_than_half_a_lease_is_silence_or_an_outage(board, gap, away, wanted):
    """Silence holds takeovers up for a breath, an outage for a lease; from when somebody was last here."""
    board.claim("n1", "w1")
    board.claim("n2", "w2", now=NOW + gap, away=away)
    assert guard(board) == wanted


def test_a_breath_is_no_longer_than_half_a_lease(board):
    for nonce, now in (("n1", NOW), ("n2", NOW + 3001)):
        board.store.claim("w1", nonce, want=1, lease_ms=6000, max_crashes=3, now_ms=now)
    assert guard(board) == [0, 6001]


@pytest.mark.parametrize(("back", "away"), [(105_000, 0), (105_000, 14_501), (106_000, 15_500), (150_000, 59_500)])
@pytest.mark.parametrize("restarted", [False, True])
def test_a_second_outage_takes_nothing_from_those_whom_the_first_one_kept_away(board, back, away, restarted):
    """The first outage lasts for three leases, then half a second passes: too short to extend a lease."""
    board.put(1)
    board.claim("n1", "w1")
    assert board.claim("n2", "w2", now=NOW + 90_000, away=90_000).jobs == []
    board.claim("n3", "w2", now=NOW + 90_500)
    if restarted:
        board.link.execute("HSET", board.keys["meta"], "run", "of-another-server")
    assert board.claim("n4", "w2", now=NOW + back, away=away).jobs == []
    assert board.extend(1, now=NOW + back + 1000) == "ok"


def test_a_second_outage_of_which_only_the_second_caller_knows_takes_nothing_either(board):
    board.put(1)
    board.claim("n1", "w1")
    assert board.claim("n2", "w2", now=NOW + 90_000, away=90_000).jobs == []
    assert board.claim("n3", "w2", now=NOW + 200_000).jobs == [], "a call that lay in a buffer"
    assert board.claim("n4", "w3", now=NOW + 203_000, away=113_000).jobs == []
    assert guard(board) == [0, 203_000 + LEASE]


def test_many_who_tell_of_one_outage_are_one(board):
    board.put(1)
    board.claim("n1", "w1")
    for outage, back in enumerate((90_000, 150_000)):
        for number in range(8):
            later = 500 * number
            claim = board.claim(f"{outage}n{number}", f"w{number}", now=NOW + back + later, away=50_000 + later)
            assert claim.jobs == []
    assert board.extend(1, now=NOW + 154_000) == "ok"


@pytest.mark.parametrize("away", [0, 15_000])
def test_a_guard_is_not_renewed_by_restarts_when_redis_has_been_there_for_a_lease(board, away):
    board.put(1)
    board.claim("n1", "w1")
    assert board.claim("n2", "w2", now=NOW + 20_000, away=20_000).jobs == []
    taken = []
    for second in range(21, 140):
        if second % 10 == 0:
            board.link.execute("HSET", board.keys["meta"], "run", f"server{second}")
        taken += [(number, second) for number in numbers(board.claim(f"s{second}", "w2", now=NOW + second * 1000, away=away))]
    assert [number for number, _ in taken] == [1]


def test_one_host_whose_line_is_bad_keeps_no_lease_good_for_more_than_three(board):
    """The others come as ever, so that Redis has been there all the time."""
    board.put(1)
    board.claim("n1", "w1")
    taken = []
    for second in range(20, 140):
        away = 16_000 if second % 17 == 3 else 0
        taken += [(number, second) for number in numbers(board.claim(f"s{second}", "w2", now=NOW + second * 1000, away=away))]
    [(number, second)] = taken
    assert (number, second * 1000 <= 4 * LEASE) == (1, True)


@pytest.mark.parametrize(
    ("now", "wanted"),
    [
        (13_000, [-15_000, 43_000, 1000, -2001]),
        (16_000, [-15_000, 46_000, 1000, 999]),
        (17_000, [-15_000, 47_000, 1000, 999]),
        (31_000, [-15_000, 61_000, 1000, 999]),
        (31_001, [999, 61_001, 31_001, 16_000]),
    ],
)
def test_a_guard_goes_on_from_the_last_outage_behind_which_redis_was_there_for_half_a_lease(board, now, wanted):
    board.claim("n1", "w1")
    board.claim("n2", "w2", now=NOW + 1000, away=16_000)
    for later in (13_000, 16_000, 17_000, 31_000, 31_001):
        if later <= now:
            board.claim(f"m{later}", "w2", now=NOW + later, away=15_001)
    assert guard(board, "since", "next") == wanted


def test_a_guard_of_an_earlier_release_began_a_lease_before_its_end(board):
    board.claim("n1", "w1")
    board.link.execute("HSET", board.keys["meta"], "guard_from", NOW - 20_000, "guard_until", NOW + 20_000)
    board.claim("n2", "w2", now=NOW + 14_000, away=15_001)
    assert guard(board, "since", "next") == [-20_000, 44_000, -10_000, -1001]


def test_rare_polls_behind_an_outage_renew_its_guard_by_one_breath(board):
    board.put(1)
    board.claim("n1", "w1")
    assert board.claim("n2", "w2", now=NOW + 90_000, away=90_000).jobs == []
    assert board.claim("n3", "w2", now=NOW + 3_600_000).jobs == []
    assert guard(board) == [0, 3_605_000]
    assert numbers(board.claim("n4", "w2", now=NOW + 7_200_000)) == [1]


def test_a_guard_further_ahead_than_a_lease_is_cut(board):
    board.claim("n1", "w1")
    board.link.execute("HSET", board.keys["meta"], "guard_from", NOW - 5, "guard_until", NOW + 100 * LEASE)
    board.claim("n2", "w2", now=NOW + 7)
    assert guard(board) == [-5, LEASE + 7]


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
    assert asides(board) == [(ids.short(job_id(9)), "no_job", "a date without a job")]


def test_an_unreadable_record_is_set_aside_and_kept(board):
    board.link.execute("HSET", board.keys["jobs"], ids.short(job_id(9)), "no header")
    board.link.execute("ZADD", board.keys["normal"], NOW - 5, ids.short(job_id(9)))
    assert board.claim().jobs == []
    assert board.dump() == {"jobs": [9], "failed": {9: 0}}
    assert asides(board) == [(ids.short(job_id(9)), "bad_record", "unreadable record")]


def asides(board) -> list[tuple[str, ...]]:
    """Which jobs were set aside, and why."""
    items = [item for entry in board.log.read("0-0", 1000) for item in entry.items if item.kind == "aside"]
    return [(*item.fields, item.body.decode()) for item in items]


@pytest.mark.parametrize("name", ["no id", "0 id", "0" * 21, "0" * 23, "0" * 21 + "-", "8" + "0" * 21])
def test_a_job_that_nobody_could_name_is_removed(board, name):
    for key in ("jobs", "runs"):
        board.link.execute("HSET", board.keys[key], name, "no header")
    board.link.execute("ZADD", board.keys["leases"], NOW - 5, name)
    assert board.claim().jobs == []
    assert asides(board) == [("?", "bad_run", "unreadable record or run")]
    assert board.dump() == {}


def test_a_run_whose_record_is_gone_is_set_aside(board):
    board.put(1)
    board.claim()
    board.link.execute("DEL", board.keys["jobs"])
    assert board.claim("n2", "w2", now=board.pass_lease()).jobs == []
    assert asides(board) == [(ids.short(job_id(1)), "lease_only", "a lease without a job")]
    assert board.dump() == {}


@pytest.mark.parametrize(
    ("value", "ours"),
    [
        ("9" * 9 + ":0:n:n1", True),
        ("9" * 10 + ":0:n:n1", False),
        ("1:" + "9" * 9 + ":n:n1", True),
        ("1:" + "9" * 10 + ":n:n1", False),
        ("1:0:n:n1:e" + "1" * 30, True),
        ("1:0:n:n1:e" + "1" * 31, False),
        ("1:0:n:n1:x", False),
        ("1:0:x:n1", False),
    ],
)
def test_a_run_that_is_none_of_ours_is_set_aside(board, value, ours):
    board.put(1)
    board.claim()
    board.link.execute("HSET", board.keys["runs"], ids.short(job_id(1)), value)
    board.claim("n2", "w2", now=board.pass_lease(), max_crashes=10**8)
    assert [code for _, code, _ in asides(board)] == ([] if ours else ["bad_run"])


def test_a_job_with_a_date_in_two_bands_runs_once(board):
    board.put(1, NOW - 5, band="high")
    board.link.execute("ZADD", board.keys["normal"], NOW - 5, ids.short(job_id(1)))
    assert numbers(board.claim()) == [1]
    assert asides(board) == [(ids.short(job_id(1)), "second_date", "a second date of a running job")]
    assert board.dump() == {"jobs": [1], "leases": {1: LEASE}, "runs": {1: "1:0:h:n1"}}


def test_a_second_date_of_a_running_job_is_set_aside_and_the_run_goes_on(board):
    board.put(1)
    board.claim()
    before = board.dump()
    board.link.execute("ZADD", board.keys["normal"], NOW - 5, ids.short(job_id(1)))
    assert board.claim("n2", "w2").jobs == []
    assert asides(board) == [(ids.short(job_id(1)), "second_date", "a second date of a running job")]
    assert board.dump() == before
    board.link.execute("DEL", board.keys["leases"])  # then nobody would take it over
    board.link.execute("ZADD", board.keys["normal"], NOW - 5, ids.short(job_id(1)))
    assert numbers(board.claim("n3", "w2")) == [1]


def test_a_date_before_1970_is_told_as_its_beginning(board):
    board.put(1, -5)
    assert board.claim().jobs[0].due_ms == 0


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
    board.put(1, NOW - 10, expires_ms=NOW, key="k")
    board.put(2, NOW - 10, expires_ms=NOW + 1)
    assert numbers(board.claim()) == [2]
    assert board.dump()["finished"] == {1: 0}
    assert "keys" not in board.dump()


def test_a_job_that_expired_while_its_worker_vanished_is_not_run_again_and_has_failed(board):
    board.put(1, expires_ms=NOW + LEASE + 1, key="k")
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


def test_a_pause_ends_at_its_date_and_a_worker_is_told_to_come_then(board):
    board.put(1)
    board.store.pause(until_ms=NOW + 3_000, now_ms=NOW)
    claim = board.claim()
    assert (claim.jobs, claim.paused, claim.wait_ms <= 3_000) == ([], True, True)
    claim = board.claim("n2", now=NOW + 3_000)
    assert (numbers(claim), claim.paused) == ([1], False)


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
    claim = board.store.claim("w1", "n1", want=1, lease_ms=LEASE, max_crashes=3, epoch="old:server", now_ms=NOW)
    assert claim.jobs == []
    assert claim.generation != "old"


@pytest.mark.parametrize(
    ("there", "stays"), [("a" * 64, True), ("a" * 65, False), ("of ours", False), ("old:server", False), ("", False)]
)
def test_a_generation_that_is_none_of_ours_gives_way(board, there, stays):
    """It is a word of epochs, which a colon parts."""
    board.link.execute("HSET", board.keys["meta"], "generation", there)
    generation = board.claim().generation
    assert (generation == there) == stays
    assert generation.isalnum()
    assert board.claim("n2").generation == generation


def test_the_answer_says_when_to_come_back(board):
    board.put(1, NOW + 300)
    assert board.claim("n1", "w1").wait_ms == 300
    assert board.claim("n2", "w2").wait_ms == 325
    assert board.claim("n3", "w3").wait_ms == 16_000


@pytest.mark.parametrize(("date", "wanted"), [(None, 301), (301, 301), (300, 300), (302, 301), (5000, 301)])
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
    board.put(high, band="high")
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


LIVING, LOST = 1, 2
THERE = (500, 1000, 2500, 4000, 8000, 20_000, 40_000)  # ms for which Redis is there; workers come each second, back within three
AWAY = (16_000, 20_000, 29_000, 31_000, 60_000, 90_000, 200_000)  # longer than half a lease


class Times:
    """Two movers, a worker that runs a job and extends its lease as soon as it is back, and one that was lost with its host."""

    def __init__(self, board: Board, seed: int) -> None:
        self.board, self.random = board, Random(seed)
        self.now, self.heard = NOW, NOW
        self.claims = 0
        self.there = 0  # ms for which Redis has been there
        self.taken: dict[int, int] = {}  # job -> when it was taken over, by those ms
        for number in (LIVING, LOST):
            board.put(number)
            board.claim(f"n{number}", f"w{number}", want=1)

    def claim(self, away: int) -> None:
        self.claims += 1
        for number in numbers(self.board.claim(f"m{self.claims}", f"mover{self.claims % 2}", now=self.now, away=away)):
            self.taken.setdefault(number, self.there)

    def come(self, length: int) -> None:
        """Redis is available; the first caller may not know of an outage, because its call waited in a buffer of the server."""
        end, extends = self.now + length, self.now + 3000
        knows = self.random.random() < 0.6
        away = self.now - self.heard
        while self.now <= end:
            self.claim(away if knows else 0)
            self.claim(away)
            if self.now >= extends and LIVING not in self.taken:
                assert self.board.extend(LIVING, now=self.now) == "ok"
                extends = self.now + LEASE // 3
            knows, away = True, 0
            self.now += 999
            self.there += 999
        self.heard = self.now

    def go(self) -> None:
        self.now += self.random.choice(AWAY)
        if self.random.random() < 0.4:
            self.board.link.execute("HSET", self.board.keys["meta"], "run", "of-another-server")


@pytest.mark.parametrize("seed", range(12))
def test_outages_one_after_the_other_take_no_lease_from_the_living(board, seed):
    """While Redis is available for three of every nine seconds: too short to extend a lease."""
    times, short = Times(board, seed), 0
    for _ in range(14):
        length = times.random.choice(THERE if short < 3 else THERE[3:])
        short = short + 1 if length < 3500 else 0
        times.come(length)
        times.go()
    assert list(times.taken) == [LOST]
    assert times.taken[LOST] <= 4 * LEASE


def test_a_line_that_is_cut_again_and_again_ends_nothing(board):
    times = Times(board, 1)
    for _ in range(20):
        times.come(500)
        times.go()
    assert LOST in times.taken
