"""Pauses by task and concurrency name: the jobs that they hold, and how these return."""

from __future__ import annotations

import pytest

from django_delayq.states import Change
from django_delayq.store.reads.inspector import Inspector
from django_delayq.store.scripts.limits import LimitChange, LimitStore, WordPause
from django_delayq.store.scripts.record import JobRecord, ScheduleItem
from django_delayq.store.scripts.recovery import EpochStore
from tests.depths import queue_depth
from tests.store.board import LEASE, NOW, Board, job_id, numbers, record
from tests.store.test_names import look, put

TASK = "task:shop.close"
OTHER = "shop.open"  # the task of the jobs that run on
NAME = "name:order:1"


def pause(board: Board, *words: str, until: int = 0, now: int = NOW) -> list[bool]:
    return LimitStore(board.store).limit([LimitChange("pause", word, until) for word in words], now_ms=now)


def resume(board: Board, *words: str, pace: int = 0, now: int = NOW) -> list[bool]:
    return LimitStore(board.store).limit([LimitChange("resume", word, pace) for word in words], now_ms=now)


def hold(board: Board, *held: int, word: str = TASK) -> None:
    """Jobs that a pause holds, one due after the other."""
    for number in held:
        put(board, number, NOW - 100 + number, name=f"order:{number}")
    pause(board, word)
    assert board.claim("hold").jobs == []
    assert sorted(board.dump()["blocked"]) == sorted(held)


def named(board: Board) -> bytes | None:
    return board.link.execute("HGET", board.keys["meta"], "named")


def fields(board: Board, key: str) -> dict[str, str]:
    flat = board.link.execute("HGETALL", board.keys[key])
    return {name.decode(): value.decode() for name, value in zip(flat[::2], flat[1::2], strict=True)}


def opens(board: Board) -> dict[str, int]:
    flat = board.link.execute("ZRANGE", board.keys["opens"], 0, -1, "WITHSCORES")
    return {line.decode(): int(score) - NOW for line, score in zip(flat[::2], flat[1::2], strict=True)}


def test_a_paused_job_is_not_claimed_and_waits_in_the_line_of_its_word(board):
    board.put(1, NOW - 3)
    board.put(2, NOW - 2, task=OTHER)
    board.put(3, NOW + 5)
    assert pause(board, TASK) == [True]
    claim = board.claim()
    assert (numbers(claim), claim.more) == ([2], False)
    found = board.dump()
    assert (found["blocked"], found["waiters"], found["normal"]) == ({1: 3 - 2 * NOW}, [(f"\1{TASK}", 1)], {3: 5})
    assert LimitStore(board.store).paused() == {TASK: WordPause(0, False)}
    assert "names" not in found


def test_held_jobs_return_in_their_order_after_the_pause(board):
    for number, band in ((1, "low"), (2, "normal"), (3, "normal"), (4, "high")):
        board.put(number, NOW - 10 - number, band=band)
    pause(board, TASK)
    assert board.claim("n1").jobs == []
    assert resume(board, TASK) == [True]
    assert numbers(board.claim("n2", want=2)) == [4, 3]
    assert LimitStore(board.store).paused() == {TASK: WordPause(0, True)}
    assert numbers(board.claim("n3", want=5)) == [2, 1]
    assert LimitStore(board.store).paused() == {}
    assert opens(board) == {}
    assert not {"blocked", "waiters"} & board.dump().keys()


def test_each_word_holds_the_jobs_that_have_it(board):
    put(board, 1, name="order:1")
    put(board, 2, name="order:2")
    board.put(3)
    pause(board, NAME)
    assert numbers(board.claim("n1")) == [2, 3]
    assert board.dump()["waiters"] == [(f"\1{NAME}", 1)]
    resume(board, NAME)
    assert numbers(board.claim("n2")) == [1]
    assert board.dump()["holders"] == [("order:1", 1), ("order:2", 2)]


def test_a_job_with_two_paused_words_waits_for_the_end_of_both(board):
    put(board, 1)
    pause(board, TASK, NAME)
    assert board.claim("n1").jobs == []
    for number, word in enumerate((TASK, NAME)):
        assert board.dump()["waiters"] == [(f"\1{word}", 1)]
        resume(board, word)
        assert numbers(board.claim(f"m{number}")) == ([] if word == TASK else [1])


def test_a_pause_ends_at_its_date_and_a_worker_is_told_to_come_then(board):
    hold(board, 1)
    assert pause(board, TASK, until=NOW + 700) == [True]
    assert board.claim("n1").wait_ms == 700
    claim = board.claim("n2", now=NOW + 699)
    assert (claim.jobs, claim.wait_ms) == ([], 1)
    assert numbers(board.claim("n3", now=NOW + 700)) == [1]
    assert LimitStore(board.store).paused() == {}


def test_a_job_that_comes_due_after_the_date_of_a_pause_is_not_held(board):
    pause(board, TASK, until=NOW + 700)
    board.put(1, NOW + 701)
    assert numbers(board.claim(now=NOW + 701)) == [1]


def test_a_clock_that_is_set_back_lengthens_a_pause_by_date_and_ends_none(board):
    hold(board, 1)
    pause(board, TASK, until=NOW + 700)
    board.link.execute("ZADD", board.keys["opens"], NOW - 5000, f"\1{TASK}")
    assert board.claim("n1").jobs == []
    assert opens(board) == {f"\1{TASK}": 700}
    assert numbers(board.claim("n2", now=NOW + 700)) == [1]


def test_an_entry_of_an_endless_pause_in_opens_ends_nothing(board):
    hold(board, 1)
    board.link.execute("ZADD", board.keys["opens"], NOW, f"\1{TASK}")
    assert board.claim("n1").jobs == []
    assert opens(board) == {}
    assert LimitStore(board.store).paused() == {TASK: WordPause(0, False)}


def test_held_jobs_return_at_a_pace_and_a_time_without_claims_is_no_flood(board):
    hold(board, *range(1, 9))
    resume(board, TASK, pace=400)
    assert numbers(board.claim("n1")) == [1]
    claim = board.claim("n2", now=NOW + 399)
    assert (claim.jobs, claim.wait_ms) == ([], 1)
    assert numbers(board.claim("n3", now=NOW + 400)) == [2]
    assert numbers(board.claim("n4", now=NOW + 1200)) == [3, 4]
    assert numbers(board.claim("n5", now=NOW + 10_000)) == [5, 6, 7]
    assert numbers(board.claim("n6", now=NOW + 10_400)) == [8]
    assert LimitStore(board.store).paused() == {TASK: WordPause(0, True)}, "nobody has seen yet that it was the last one"
    assert board.claim("n7", now=NOW + 10_800).jobs == []
    assert (LimitStore(board.store).paused(), opens(board)) == ({}, {})


def test_no_more_return_than_are_claimed(board):
    hold(board, *range(1, 6))
    resume(board, TASK)
    assert numbers(board.claim("n1", want=2)) == [1, 2]
    assert sorted(board.dump()["blocked"]) == [3, 4, 5]
    assert "normal" not in board.dump()
    assert board.claim("n2", want=0).more


def test_new_jobs_of_a_resumed_word_do_not_wait_for_the_held_ones(board):
    hold(board, 1, 2, 3)
    resume(board, TASK, pace=60_000)
    board.put(4)
    assert numbers(board.claim("n1")) == [1, 4]


def test_jobs_that_have_not_returned_are_held_by_the_next_pause(board):
    hold(board, 1, 2)
    resume(board, TASK, pace=500)
    assert numbers(board.claim("n1")) == [1]
    assert pause(board, TASK) == [True]
    assert board.claim("n2", now=NOW + 60_000).jobs == []
    assert opens(board) == {}
    resume(board, TASK, now=NOW + 60_000)
    assert numbers(board.claim("n3", now=NOW + 60_000)) == [2]


def test_a_repeated_change_changes_nothing(board):
    hold(board, 1, 2)
    assert pause(board, TASK) == [False]
    assert resume(board, "task:shop.never") == [False]
    assert resume(board, TASK, pace=500) == [True]
    claim = board.claim("n1")
    assert resume(board, TASK, pace=500) == [False]
    assert (numbers(claim), board.claim("n2").jobs) == ([1], [])
    assert resume(board, TASK, pace=100) == [True]
    assert numbers(board.claim("n3")) == [2]


def test_many_changes_go_in_one_call(board):
    changes = [LimitChange("pause", TASK), LimitChange("pause", NAME, NOW + 5), LimitChange("resume", TASK, 7)]
    assert LimitStore(board.store).limit(changes, now_ms=NOW) == [True, True, True]
    assert fields(board, "pauses") == {TASK: "r7", NAME: str(NOW + 5)}
    assert opens(board) == {f"\1{TASK}": 0, f"\1{NAME}": 5}
    assert board.happened() == []


@pytest.mark.parametrize("changes", ["resume", "until"])
def test_a_sleeping_worker_is_woken_for_jobs_that_return(board, changes):
    hold(board, 1)
    board.claim("idle", "w2")
    assert board.tokens() == 0
    if changes == "resume":
        resume(board, TASK)
    else:
        pause(board, TASK, until=NOW + 5)
    assert board.tokens() == 1


def test_paused_jobs_use_up_no_place_of_a_claim_and_those_behind_them_are_claimed(board):
    items = [ScheduleItem.of(record(number), due_ms=NOW - 1000 + number) for number in range(1, 191)]
    board.store.schedule(items, now_ms=NOW)
    for number in (500, 501, 502):
        board.put(number, task=OTHER)
    pause(board, TASK)
    assert numbers(board.claim(want=2)) == [500, 501]
    assert len(board.dump()["blocked"]) == 190


def test_a_claim_holds_at_most_200_jobs_and_another_goes_on_at_once(board):
    for start in (0, 200, 400):
        items = [ScheduleItem.of(record(number), due_ms=NOW - 1000 + number) for number in range(start + 1, start + 201)]
        board.store.schedule(items, now_ms=NOW)
    board.put(700, task=OTHER)
    pause(board, TASK)
    sizes, got = [], []
    for number in range(4):
        claim = board.claim(f"n{number}", want=10)
        sizes.append(len(board.dump()["blocked"]))
        got.append(numbers(claim))
        assert claim.wait_ms == 0 or not claim.more
    assert (sizes, got) == ([200, 400, 600, 600], [[], [], [], [700]])


def test_bands_stay_in_their_order_while_jobs_are_held(board):
    for number in range(1, 6):
        board.put(number, NOW - 10, band="high")
    board.put(6, NOW - 5, band="high", task=OTHER)
    board.put(7, NOW - 90, task=OTHER)
    pause(board, TASK)
    assert numbers(board.claim("n1", want=1)) == [6]
    assert numbers(board.claim("n2", want=1)) == [7]


def test_a_held_job_holds_no_name_and_the_next_one_of_the_name_runs(board):
    put(board, 1, NOW - 9)
    put(board, 2, NOW - 8)
    board.claim("n1")
    put(board, 3, NOW - 7, task=OTHER)
    board.claim("n2")
    assert board.dump()["waiters"] == [("order:1", 2), ("order:1", 3)]
    pause(board, TASK)
    board.settle(1, "ack")
    assert numbers(board.claim("n3")) == [3]
    found = board.dump()
    assert (found["holders"], found["waiters"]) == ([("order:1", 3)], [(f"\1{TASK}", 2)])
    resume(board, TASK)
    assert board.claim("n4").jobs == []
    assert board.dump()["waiters"] == [("order:1", 2)]
    board.settle(3, "ack", fence="n3")
    assert numbers(board.claim("n5")) == [2]


def test_all_that_wait_for_a_paused_name_are_held_in_one_claim(board):
    for number in range(1, 6):
        put(board, number, NOW - 10 + number)
    board.claim("n1")
    pause(board, NAME)
    board.settle(1, "ack")
    claim = board.claim("n2")
    assert (claim.jobs, claim.more) == ([], False)
    assert board.dump()["waiters"] == [(f"\1{NAME}", number) for number in (2, 3, 4, 5)]


def test_places_of_a_name_are_counted_once_over_several_looks_at_the_bands(board):
    for number, task in ((1, "shop.close"), (2, OTHER), (3, OTHER), (4, OTHER)):
        put(board, number, NOW - 10 + number, name="few", most=2, task=task)
    pause(board, TASK)
    assert numbers(board.claim("n1")) == [2, 3]
    assert board.dump()["waiters"] == [(f"\1{TASK}", 1), ("few", 4)]


def test_a_held_job_is_found_cancelled_and_moved_like_any(board):
    hold(board, 1, 2, 3, 4)
    view = look(board, 1)
    assert (view.state, view.date_ms, view.paused, view.blocked, view.name) == ("scheduled", NOW - 99, TASK, False, "order:1")
    assert board.store.cancel(job_id(1), now_ms=NOW).change is Change.DONE
    moved = board.store.reschedule(job_id(2), delay_ms=5000, now_ms=NOW)
    assert (moved.change, board.dump()["normal"]) == (Change.DONE, {2: 5000})
    kept = board.store.reschedule(job_id(3), due_ms=NOW, policy="earliest", now_ms=NOW)
    assert (kept.change, kept.due_ms) == (Change.DONE, NOW - 97)
    found = board.dump()
    assert (sorted(found["blocked"]), found["waiters"]) == ([3, 4], [(f"\1{TASK}", 3), (f"\1{TASK}", 4)])


def test_a_job_that_is_moved_while_it_is_held_is_held_again_when_it_is_due(board):
    hold(board, 1)
    board.store.reschedule(job_id(1), delay_ms=50, now_ms=NOW)
    assert board.claim("n1", now=NOW + 50).jobs == []
    assert board.dump()["blocked"] == {1: -50 - 2 * NOW}


@pytest.mark.parametrize("policy", ["replace", "latest", "keep"])
def test_a_held_job_is_the_holder_of_its_key(board, policy):
    board.put(1, key="k")
    pause(board, TASK)
    board.claim("n1")
    status = board.put(2, NOW + 90, key="k", on_conflict=policy)
    assert status == {"replace": "replaced", "latest": "moved", "keep": "kept"}[policy]
    found = board.dump()
    assert found["keys"] == {"k": 2 if policy == "replace" else 1}
    assert ("waiters" in found) == (policy == "keep")
    assert found.get("normal") == {"replace": {2: 90}, "latest": {1: 90}, "keep": None}[policy]


def test_a_held_job_expires_when_it_returns(board):
    board.put(1, expires_ms=NOW + 50)
    pause(board, TASK)
    board.claim("n1")
    resume(board, TASK, now=NOW + 60)
    assert board.claim("n2", now=NOW + 60).jobs == []
    assert board.happened() == ["scheduled 1", "expired 1"]


def test_held_jobs_are_purged(board):
    hold(board, 1, 2, 3)
    board.put(4)
    assert board.store.purge(limit=2, now_ms=NOW) == (2, 2)
    assert board.dump()["waiters"] == [(f"\1{TASK}", 1)]
    assert board.store.purge(now_ms=NOW) == (2, 0)
    assert not {"jobs", "blocked", "waiters", "normal"} & board.dump().keys()


def test_held_jobs_are_swept(board):
    board.put(1, durable=True)
    board.put(2)
    pause(board, TASK)
    board.claim("n1")
    generation = board.link.execute("HGET", board.keys["meta"], "generation").decode()
    board.link.execute("HSET", board.keys["meta"], "rolled", "sweep")
    assert EpochStore(board.store).sweep(generation, now_ms=NOW) == ("0", 1)
    assert board.dump()["waiters"] == [(f"\1{TASK}", 2)]
    assert sorted(board.dump()["blocked"]) == [2]


def test_figures_count_held_jobs_apart_and_not_as_late(board):
    hold(board, 1, 2)
    board.put(3, NOW + 60_000)
    inspector = Inspector(board.link, prefix="t")
    depth = queue_depth("q", inspector)
    assert (depth.scheduled, depth.due, depth.blocked, depth.held, depth.oldest_late_ms) == (3, 0, 0, 2, 0)
    assert depth.next_due_ms == NOW + 60_000
    assert inspector.blocked(["q"], 10) == []


@pytest.mark.parametrize("held", [True, False])
def test_jobs_that_return_are_marked_because_a_pause_made_them_late(board, held):
    board.put(1, NOW - 60_000)
    if held:
        pause(board, TASK)
        board.claim("n1")
        resume(board, TASK)
    [job] = board.claim("n2").jobs
    assert job.held == held


def test_a_lost_lease_of_a_paused_job_ends_and_the_job_is_held(board):
    put(board, 1)
    put(board, 2, task=OTHER)
    board.claim("n1")
    pause(board, TASK)
    now = board.pass_lease()
    assert numbers(board.claim("n2", now=now)) == [2]
    found = board.dump()
    assert (found["blocked"], found["waiters"], found["runs"][1]) == ({1: -2 * NOW}, [(f"\1{TASK}", 1)], "0:1:n:")
    assert board.happened()[-2:] == ["crashed 1", "claimed 2"]
    resume(board, TASK, now=now)
    board.settle(2, "ack", fence="n2", now=now)
    [job] = board.claim("n3", now=now).jobs
    assert (job.attempt, job.crashes) == (1, 1)


def test_a_run_that_was_restored_and_never_found_is_held_without_a_crash(board):
    store = EpochStore(board.store)
    item = store.row(record(1), runs=True, attempts=1, crashes=0, asks=0, due_ms=NOW, cancel=False, lease_ms=LEASE)
    assert store.restore([item], epoch=board.store.epoch(), now_ms=NOW) == ["restored"]
    pause(board, TASK)
    now = board.pass_lease()
    assert board.claim("n1", now=now).jobs == []
    found = board.dump()
    assert ("leases" in found, "runs" in found, sorted(found["blocked"])) == (False, False, [1])
    assert board.happened() == ["restored 1", "snoozed 1"]
    resume(board, TASK, now=now)
    [job] = board.claim("n2", now=now).jobs
    assert (job.attempt, job.crashes) == (1, 0)


def test_poison_and_a_request_to_cancel_end_a_lost_run_also_where_it_is_paused(board):
    board.put(1)
    board.put(2)
    board.claim("n1")
    board.store.cancel(job_id(1), now_ms=NOW)
    pause(board, TASK)
    now = board.pass_lease()
    assert board.claim("n2", now=now, max_crashes=0).jobs == []
    assert board.dump()["failed"].keys() == {2}
    assert board.dump()["finished"].keys() == {1}


def test_a_run_that_its_worker_holds_goes_on_and_its_retry_is_held(board):
    board.put(1)
    board.claim("n1")
    pause(board, TASK)
    assert board.extend(1) == "ok"
    assert board.settle(1, "retry") == "done"
    assert board.claim("n2").jobs == []
    assert sorted(board.dump()["blocked"]) == [1]


def test_adoption_takes_a_held_job_out_of_its_line(board):
    board.put(1)
    [job] = board.claim("n1").jobs
    board.settle(1, "snooze")
    pause(board, TASK)
    board.claim("n2")
    board.link.execute("HSET", board.keys["meta"], "generation", "g2")
    store = EpochStore(board.store)
    run = store.row(record(1), runs=False, attempts=1, crashes=0, asks=0, due_ms=NOW, cancel=False, lease_ms=LEASE)
    run = run._replace(attempt=1, fence=job.fence, due_ms=NOW + LEASE)
    assert store.adopt([run], worker="w1", epoch=job.epoch, now_ms=NOW)[1] == ["adopted"]
    assert not {"blocked", "waiters", "normal"} & board.dump().keys()


def test_a_pause_that_redis_has_lost_holds_nothing_for_ever(board):
    hold(board, 1, 2)
    board.link.execute("DEL", board.keys["pauses"])
    assert board.store.tidy(cursor="e:b0", now_ms=NOW).cursor == "0"
    assert numbers(board.claim("n1")) == [1, 2]
    assert not {"blocked", "waiters"} & board.dump().keys()


def test_tidy_leaves_held_jobs_and_an_entry_without_a_job_goes(board):
    hold(board, 1, 2)
    board.link.execute("HDEL", board.keys["jobs"], "nothing")
    board.link.execute("ZADD", board.keys["blocked"], -NOW, "nothing")
    board.link.execute("ZADD", board.keys["waiters"], 0, f"\1{TASK}\0" + "2000000000000000\0nothing")
    board.store.tidy(cursor="e:b0", now_ms=NOW)
    assert board.link.execute("ZCARD", board.keys["blocked"]) == 2
    resume(board, TASK)
    assert numbers(board.claim("n1")) == [1, 2]
    assert "waiters" not in board.dump()


def test_a_queue_without_pauses_and_names_pays_for_neither_again(board):
    put(board, 1)
    pause(board, TASK)
    assert named(board) == b"2"
    put(board, 2)
    assert named(board) == b"2"
    board.store.tidy(cursor="e:b0", now_ms=NOW)
    assert named(board) == b"2"
    resume(board, TASK)
    board.claim("n1")
    board.store.tidy(cursor="e:b0", now_ms=NOW)
    assert named(board) == b"1"
    board.settle(1, "ack")
    board.claim("n2")
    board.settle(2, "ack", fence="n2")
    board.store.tidy(cursor="e:b0", now_ms=NOW)
    assert named(board) is None


def test_values_that_another_program_wrote_stop_no_claim(board):
    hold(board, 1)
    put(board, 2, task=OTHER)
    board.link.execute("HSET", board.keys["pauses"], TASK, "tomorrow", f"task:{OTHER}", "rx")
    board.link.execute("ZADD", board.keys["opens"], 0, "", 0, f"task:{OTHER}", 0, f"\1task:{OTHER}", 0, f"\1{TASK}")
    assert numbers(board.claim("n1")) == [2]
    assert sorted(board.dump()["blocked"]) == [1]


def test_a_job_on_its_last_chance_may_begin_only_if_nothing_of_it_is_paused(board):
    raw = JobRecord(id=job_id(1), task="shop.close", payload=b'[[],{},{"meta":{"delayq.name":["a",1]}}]').encode()
    store = LimitStore(board.store)
    assert store.allows(raw)
    for word in ("task:shop.close", "name:a"):
        store.limit([LimitChange("pause", word)])
        assert not store.allows(raw)
        store.limit([LimitChange("resume", word)])
    store.limit([LimitChange("pause", "name:b"), LimitChange("pause", "name:a", 1)])  # another name; one that is over
    assert store.allows(raw)
    board.store.pause()
    assert not store.allows(raw)
