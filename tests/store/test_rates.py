"""Rates: the tokens that jobs take, the jobs that wait for one, and how these return."""

from __future__ import annotations

import json

import pytest

from django_delayq.job_meta import NAMED, Quota, Rate, SharedName
from django_delayq.states import Change
from django_delayq.store.reads import queue_depth
from django_delayq.store.scripts.limits import LimitChange, LimitStore
from django_delayq.store.scripts.record import ScheduleItem
from tests.store.board import LEASE, NOW, Board, job_id, numbers, record
from tests.store.test_names import look
from tests.store.test_word_pauses import fields, named, opens, pause, resume

RATE = "bank:7"
LINE = f"\2{RATE}"
PACE = Quota(10, 1000, 1)  # a token each 100 ms


def payload(rate: str = RATE, pace: Quota = PACE, name: str = "", most: int = 1) -> bytes:
    shared = SharedName(name, most if name else 0, Rate(rate, pace))
    return json.dumps([[], {}, {"meta": {NAMED: shared.packed()}}], separators=(",", ":")).encode()


def put(board: Board, number: int, due: int = NOW, *, rate: str = RATE, pace: Quota = PACE, name: str = "", **more) -> str:
    return board.put(number, due, payload=payload(rate, pace, name), **more)


def claim(board: Board, nonce: str, now: int = NOW, *, want: int = 10, free: int | None = None, worker: str = "w1"):
    return board.store.claim(worker, nonce, want=want, lease_ms=LEASE, max_crashes=3, free=free, now_ms=now)


def rates(board: Board) -> dict[str, float]:
    flat = board.link.execute("ZRANGE", board.keys["rates"], 0, -1, "WITHSCORES")
    return {name.decode(): float(score) - NOW for name, score in zip(flat[::2], flat[1::2], strict=True)}


def set_rate(board: Board, pace: Quota | None, now: int = NOW, rate: str = RATE) -> list[bool]:
    return LimitStore(board.store).limit([LimitChange("rate", rate, pace.told() if pace else "")], now_ms=now)


def test_a_job_takes_a_token_and_the_others_wait_in_the_line_of_the_rate(board):
    for number in (1, 2, 3):
        put(board, number, NOW - 10 + number)
    board.put(4)
    answer = claim(board, "n1")
    assert (numbers(answer), answer.more, answer.for_thread) == ([1, 4], False, False)
    found = board.dump()
    assert found["blocked"] == {2: 8 - 2 * NOW, 3: 7 - 2 * NOW}
    assert found["waiters"] == [(LINE, 2), (LINE, 3)]
    assert found["names"] == dict.fromkeys((1, 2, 3), f"0:0:0:\2{PACE.told()}:{RATE}")
    assert not {"holders", "normal"} & found.keys()
    assert (rates(board), opens(board), named(board)) == ({RATE: 100}, {LINE: 100}, b"3")
    assert board.happened() == ["scheduled 1", "scheduled 2", "scheduled 3", "scheduled 4", "claimed 1", "claimed 4"]


def test_waiting_jobs_return_one_per_token_and_a_worker_is_told_when(board):
    for number in (1, 2, 3):
        put(board, number, NOW - 10 + number)
    claim(board, "n1")
    answer = claim(board, "n2", NOW + 60)
    assert (answer.jobs, answer.wait_ms) == ([], 40)
    assert numbers(claim(board, "n3", NOW + 100)) == [2]
    assert (rates(board), opens(board)) == ({RATE: 200}, {LINE: 200})
    assert numbers(claim(board, "n4", NOW + 200)) == [3]
    assert opens(board) == {LINE: 300}
    assert claim(board, "n5", NOW + 300).jobs == []
    assert opens(board) == {}
    assert not {"blocked", "waiters"} & board.dump().keys()


def test_jobs_keep_their_bands_and_dates_while_they_wait(board):
    for number, band, due in ((1, "low", -9), (2, "normal", -8), (3, "normal", -9), (4, "high", 0)):
        put(board, number, NOW + due, band=band)
    got = [numbers(claim(board, f"n{step}", NOW + step * 100)) for step in range(4)]
    assert got == [[4], [3], [2], [1]]


def test_tokens_that_no_job_takes_are_saved_up_to_the_burst(board):
    pace = Quota(10, 1000, 3)
    for number in range(1, 9):
        put(board, number, NOW - 10 + number, pace=pace)
    assert numbers(claim(board, "n1")) == [1, 2, 3]
    assert numbers(claim(board, "n2", NOW + 100)) == [4]
    assert numbers(claim(board, "n3", NOW + 60_000)) == [5, 6, 7]
    assert numbers(claim(board, "n4", NOW + 60_100)) == [8]


def test_a_fraction_of_a_ms_is_not_lost(board):
    pace = Quota(7, 1000, 1)
    for number in range(1, 10):
        put(board, number, NOW - 10 + number, pace=pace)
    when = [now for now in range(NOW, NOW + 1000) if claim(board, f"n{now}", now).jobs]
    assert [now - NOW for now in when] == [0, 143, 286, 429, 572, 715, 858]


def test_each_rate_has_its_own_tokens(board):
    for number, rate in enumerate(("bank:7", "bank:7", "bank:8", "bank:70"), 1):
        put(board, number, NOW - 10 + number, rate=rate)
    assert numbers(claim(board, "n1")) == [1, 3, 4]
    assert board.dump()["waiters"] == [(LINE, 2)]


def test_waiting_jobs_use_up_no_place_of_a_claim(board):
    items = [ScheduleItem.of(record(number, payload=payload()), due_ms=NOW - 1000 + number) for number in range(1, 191)]
    board.store.schedule(items, now_ms=NOW)
    for number in (500, 501, 502):
        board.put(number)
    assert numbers(claim(board, "n1", want=3)) == [1, 500, 501]
    assert len(board.dump()["blocked"]) == 189


def test_a_claim_moves_at_most_200_jobs_and_another_goes_on_at_once(board):
    for start in (0, 200, 400):
        jobs = range(start + 1, start + 201)
        board.store.schedule([ScheduleItem.of(record(n, payload=payload()), due_ms=NOW - 1000 + n) for n in jobs], now_ms=NOW)
    board.put(700)
    got = []
    for step in range(4):
        answer = claim(board, f"n{step}")
        got.append((numbers(answer), len(board.dump()["blocked"])))
        assert answer.wait_ms == 0 or not answer.more
    assert got == [([1], 199), ([], 399), ([], 599), ([700], 599)]


def test_a_job_with_a_rate_is_claimed_only_for_an_idle_thread(board):
    put(board, 1, NOW - 3)
    board.put(2, NOW - 2)
    answer = claim(board, "n1", free=0)
    assert (numbers(answer), answer.for_thread, answer.more) == ([2], True, True)
    assert (rates(board), opens(board)) == ({}, {LINE: 0})
    again = claim(board, "n2", free=0)
    assert (again.jobs, again.for_thread) == ([], True)
    assert board.tokens() > 0, "another process may have a thread"
    assert numbers(claim(board, "n3", free=1)) == [1]
    assert rates(board) == {RATE: 100}


def test_threads_are_given_in_the_order_of_the_jobs(board):
    board.put(1, NOW - 9)
    put(board, 2, NOW - 8, rate="bank:2")
    put(board, 3, NOW - 7, rate="bank:3")
    board.put(4, NOW - 6)
    answer = claim(board, "n1", free=2)
    assert (numbers(answer), answer.for_thread) == ([1, 2, 4], True)
    assert opens(board) == {"\2bank:3": 0}


def test_jobs_that_returned_for_a_thread_and_are_not_claimed_wait_again(board):
    for number in (1, 2):
        put(board, number, NOW - 10 + number, pace=Quota(10, 1000, 5))
    claim(board, "n1", free=0)
    for number in range(11, 14):
        board.put(number, NOW - 60)
    before = board.dump()["waiters"]
    assert numbers(claim(board, "n2", want=2)) == [11, 12]
    found = board.dump()
    assert (found["waiters"], sorted(found["normal"]), opens(board)) == (before, [13], {LINE: -400})
    assert numbers(claim(board, "n3")) == [13, 1, 2]


def test_a_name_and_a_rate_are_taken_only_together(board):
    put(board, 1, NOW - 9, name="order:1")
    put(board, 2, NOW - 8, name="order:1", rate="bank:8")
    put(board, 3, NOW - 7, name="order:2")
    assert numbers(claim(board, "n1")) == [1]
    found = board.dump()
    assert found["holders"] == [("order:1", 1)]
    assert found["waiters"] == [(LINE, 3), ("order:1", 2)]
    assert rates(board) == {RATE: 100}, "the job that waits for its name has taken no token"
    board.settle(1, "ack")
    assert numbers(claim(board, "n2")) == [2]
    assert board.dump()["names"][2].endswith(f"order:1\2{PACE.told()}:bank:8")
    assert numbers(claim(board, "n3", NOW + 100)) == [3]
    assert board.dump()["holders"] == [("order:1", 2), ("order:2", 3)]


def test_a_job_that_waits_for_a_token_stays_the_next_of_its_name(board):
    put(board, 1, NOW - 9, rate=RATE)
    put(board, 2, NOW - 8, name="order:1")
    put(board, 3, NOW - 7, name="order:1")
    assert numbers(claim(board, "n1")) == [1]
    assert board.dump()["waiters"] == [(LINE, 2), (LINE, 3)]
    board.store.cancel(job_id(2), now_ms=NOW)
    assert board.dump()["waiters"] == [(LINE, 3)]
    assert numbers(claim(board, "n2", NOW + 100)) == [3]


def test_a_lost_run_takes_a_token_before_it_runs_again(board):
    put(board, 1)
    put(board, 2, rate="bank:8", pace=Quota(1, 86_400_000, 1))
    assert numbers(claim(board, "n1")) == [1, 2]
    end = board.pass_lease()
    assert numbers(claim(board, "n2", end)) == [1]
    found = board.dump()
    assert (found["waiters"], found["runs"][2]) == ([("\2bank:8", 2)], "0:1:n:")
    assert rates(board)[RATE] == end + 100 - NOW
    assert board.happened()[-3:] == ["crashed 1", "crashed 2", "claimed 1"]
    [job] = claim(board, "n3", NOW + 86_400_000).jobs
    assert (job.attempt, job.crashes) == (1, 1)


def test_a_returned_run_takes_another_token(board):
    put(board, 1)
    claim(board, "n1")
    board.settle(1, "snooze")
    assert claim(board, "n2", NOW + 1).jobs == []
    assert numbers(claim(board, "n3", NOW + 100)) == [1]


def test_a_claim_that_is_sent_again_takes_no_token(board):
    put(board, 1)
    assert numbers(claim(board, "n1")) == [1]
    assert numbers(claim(board, "n1", NOW + 50)) == [1]
    assert rates(board) == {RATE: 100}


def test_a_person_sets_the_rate_of_a_name_and_it_counts_at_once(board):
    pace = Quota(1, 3_600_000, 1)
    for number in range(1, 5):
        put(board, number, NOW - 10 + number, pace=pace)
    assert numbers(claim(board, "n1")) == [1]
    claim(board, "idle", worker="w2")
    assert set_rate(board, Quota(10, 1000, 2), NOW + 10) == [True]
    assert set_rate(board, Quota(10, 1000, 2), NOW + 10) == [False]
    assert fields(board, "limits") == {RATE: "10:1000:2"}
    assert (opens(board), board.tokens()) == ({LINE: 10}, 1)
    assert claim(board, "n2", NOW + 10).jobs == [], "a rate that was slower leaves no debt, and no burst"
    assert numbers(claim(board, "n3", NOW + 110)) == [2]
    assert set_rate(board, None, NOW + 200) == [True]
    assert claim(board, "n4", NOW + 250).jobs == []
    assert fields(board, "limits") == {}


def test_a_clock_that_is_set_back_neither_stops_a_rate_nor_gives_a_burst(board):
    put(board, 1)
    claim(board, "n1", NOW + 3_600_000)
    put(board, 2, NOW - 9)
    put(board, 3, NOW - 8)
    assert claim(board, "n2", NOW).jobs == []
    assert [numbers(claim(board, f"m{step}", NOW + step)) for step in (99, 100, 199, 200)] == [[], [2], [], [3]]


def test_a_pause_counts_more_than_a_rate(board):
    put(board, 1)
    pause(board, "task:shop.close")
    assert claim(board, "n1").jobs == []
    assert (board.dump()["waiters"], rates(board), named(board)) == ([("\1task:shop.close", 1)], {}, b"3")
    resume(board, "task:shop.close")
    assert numbers(claim(board, "n2")) == [1]
    assert named(board) == b"3"


def test_a_waiting_job_is_paused_when_its_token_comes(board):
    put(board, 1, NOW - 2)
    put(board, 2, NOW - 1)
    claim(board, "n1")
    pause(board, "task:shop.close")
    assert claim(board, "n2", NOW + 100).jobs == []
    assert board.dump()["waiters"] == [("\1task:shop.close", 2)]
    assert rates(board) == {RATE: 100}


def test_a_waiting_job_is_found_cancelled_and_moved_like_any(board):
    for number in range(1, 6):
        put(board, number, NOW - 10 + number)
    claim(board, "n1")
    view = look(board, 2)
    assert (view.state, view.date_ms, view.blocked, view.paused) == ("scheduled", NOW - 8, False, "")
    assert (view.rate, view.token_ms, view.name) == (RATE, NOW + 100, "")
    assert (look(board, 1).rate, look(board, 1).token_ms) == (RATE, 0)
    assert board.store.cancel(job_id(2), now_ms=NOW).change is Change.DONE
    moved = board.store.reschedule(job_id(3), delay_ms=5000, now_ms=NOW)
    assert (moved.change, board.dump()["normal"]) == (Change.DONE, {3: 5000})
    kept = board.store.reschedule(job_id(4), due_ms=NOW, policy="earliest", now_ms=NOW)
    assert (kept.change, kept.due_ms) == (Change.DONE, NOW - 6)
    found = board.dump()
    assert (sorted(found["blocked"]), found["waiters"]) == ([4, 5], [(LINE, 4), (LINE, 5)])
    assert board.store.purge(now_ms=NOW) == (3, 0)
    assert not {"blocked", "waiters", "normal"} & board.dump().keys()


@pytest.mark.parametrize("policy", ["replace", "latest", "keep"])
def test_a_waiting_job_is_the_holder_of_its_key(board, policy):
    put(board, 1, NOW - 1)
    put(board, 2, key="k")
    claim(board, "n1")
    status = put(board, 3, NOW + 90, key="k", on_conflict=policy)
    assert status == {"replace": "replaced", "latest": "moved", "keep": "kept"}[policy]
    found = board.dump()
    assert ("waiters" in found) == (policy == "keep")
    assert found["keys"] == {"k": 3 if policy == "replace" else 2}


def test_a_waiting_job_that_expires_ends_when_its_token_comes(board):
    put(board, 1, NOW - 1)
    put(board, 2, expires_ms=NOW + 50)
    claim(board, "n1")
    assert claim(board, "n2", NOW + 100).jobs == []
    assert board.happened()[-1] == "expired 2"
    assert rates(board) == {RATE: 100}


def test_lateness_leaves_out_the_wait_for_a_token(board):
    put(board, 1, NOW - 2)
    put(board, 2, NOW - 1)
    claim(board, "n1")
    [job] = claim(board, "n2", NOW + 100).jobs
    assert job.held


def declare(board: Board, told: str, now: int = NOW, task: str = "shop.close") -> list[bool]:
    """What the newest code of a task declares."""
    return LimitStore(board.store).limit([LimitChange("rate", f"\1{task}", told)], now_ms=now)


def test_jobs_that_wait_follow_the_newest_code_of_their_task(board):
    for number in (1, 2, 3, 4):
        put(board, number)
    assert numbers(claim(board, "n1")) == [1]  # the next token of the old rate comes after 100 ms
    assert declare(board, Quota(1, 1000, 1).told()) == [True]
    assert numbers(claim(board, "n2", NOW + 100)) == [2]  # its token was already promised
    assert numbers(claim(board, "n3", NOW + 1099)) == []
    assert numbers(claim(board, "n4", NOW + 1100)) == [3]
    assert declare(board, Quota(100, 1000, 1).told(), NOW + 1101) == [True]
    assert numbers(claim(board, "n5", NOW + 1101)) == []  # a faster one counts from the next look, which it causes
    assert numbers(claim(board, "n6", NOW + 1111)) == [4]


def test_the_rate_of_a_person_counts_more_than_newer_code(board):
    for number in (1, 2, 3):
        put(board, number)
    set_rate(board, Quota(1, 1000, 1))
    declare(board, Quota(100, 1000, 1).told())
    assert numbers(claim(board, "n1")) == [1]
    assert numbers(claim(board, "n2", NOW + 999)) == []
    assert numbers(claim(board, "n3", NOW + 1000)) == [2]
    set_rate(board, None, NOW + 1000)
    assert numbers(claim(board, "n4", NOW + 1000)) == []
    assert numbers(claim(board, "n5", NOW + 1010)) == [3]


def test_newer_code_without_a_rate_lets_the_jobs_of_its_task_go(board):
    for number in (1, 2, 3):
        put(board, number)
    put(board, 4, task="shop.pay")
    assert numbers(claim(board, "n1")) == [1]
    assert declare(board, "none") == [True]
    assert numbers(claim(board, "n2")) == [2, 3]  # the other task of this rate keeps it
    assert numbers(claim(board, "n3", NOW + 100)) == [4]


def test_the_rates_for_which_jobs_wait_are_counted_with_the_oldest_of_them(board, monkeypatch):
    for number, band, due, rate in ((1, "high", -1, RATE), (2, "low", -9, RATE), (3, "normal", -5, RATE), (4, "high", -7, "bank:8")):
        put(board, number, NOW + due, band=band, rate=rate)
    put(board, 5, rate="bank:8")
    claim(board, "n1")
    pause(board, "task:other")

    def seen(*wanted: str) -> list[tuple[str, int, int]]:
        found = queue_depth.rates(board.link, [board.keys], wanted)
        return [(one.name, one.waiting, one.oldest_ms - NOW) for one in found.figures]

    assert seen() == seen(RATE, "bank:9") == [(RATE, 2, -9), ("bank:8", 1, 0)]
    monkeypatch.setattr(queue_depth, "MOST_RATES", 1)
    assert queue_depth.rates(board.link, [board.keys]).cut
    assert seen("bank:8", RATE) == [(RATE, 2, -9), ("bank:8", 1, 0)]
