from __future__ import annotations

from typing import Any

import pytest

from django_delayq import ids
from django_delayq.exceptions import StoreUnavailable
from django_delayq.store.connection.error_replies import StoreError
from django_delayq.store.scripts.recovery import ADOPTION_MS, EpochStore, RestoreItem
from tests.store.board import LEASE, NOW, job_id, record

ELSEWHERE = "old:server"  # the epoch of a claim before Redis lost what it held


@pytest.fixture
def epoch(board) -> EpochStore:
    return EpochStore(board.store)


def row(number: int, *, attempt: int = 0, crashes: int = 0, due: int = NOW, delay: int = 0, **fields: Any) -> RestoreItem:
    return RestoreItem(
        id=ids.short(job_id(number)),
        record=record(number, **fields).encode(),
        attempt=attempt,
        crashes=crashes,
        due_ms=due,
        delay_ms=delay,
    )


def run(number: int, *, attempt: int = 1, crashes: int = 0, fence: str = "n1", **fields: Any) -> RestoreItem:
    return RestoreItem(
        id=ids.short(job_id(number)),
        record=record(number, **fields).encode(),
        attempt=attempt,
        crashes=crashes,
        fence=fence,
        delay_ms=LEASE,
    )


def restore(epoch: EpochStore, *items: RestoreItem, known: str = "") -> list[str]:
    return list(epoch.restore(items, epoch=known or epoch._store.epoch(), now_ms=NOW))


def adopt(epoch: EpochStore, *items: RestoreItem, since: str = ELSEWHERE) -> list[str]:
    return list(epoch.adopt(items, worker="w1", epoch=since, now_ms=NOW)[1])


def test_rows_come_back_with_date_attempts_band_and_key(board, epoch):
    answers = restore(epoch, row(1, due=NOW + 5000, key="k"), row(2, attempt=2, crashes=1, band="high"), row(3, delay=LEASE))
    assert answers == ["restored"] * 3
    assert board.dump() == {
        "jobs": [1, 2, 3],
        "normal": {1: 5000, 3: LEASE},
        "high": {2: 0},
        "runs": {2: "2:1:h:"},
        "keys": {"k": 1},
    }
    assert board.happened() == ["restored 1", "restored 2", "restored 3"]
    assert board.claim().jobs[0].attempt == 3


def test_a_row_that_ran_comes_back_under_a_lease_and_begins_again_without_a_crash(board, epoch):
    items = [row(number, attempt=1, crashes=1, delay=LEASE)._replace(begun=begun) for number, begun in ((1, "run"), (2, "cancel"))]
    assert restore(epoch, *items) == ["restored"] * 2
    assert board.dump()["leases"] == {1: LEASE, 2: LEASE}
    assert board.dump()["runs"] == {1: "1:1:n:", 2: "1:1:n:"}
    [job] = board.claim("n2", "w2", now=board.pass_lease()).jobs
    assert (job.attempt, job.crashes) == (2, 1)
    assert board.happened()[-2:] == ["claimed 1", "cancelled 2"]


@pytest.mark.parametrize(("asked", "begun"), [(False, "run"), (True, "cancel")])
@pytest.mark.parametrize(("attempts", "attempt"), [(3, 2), (1, 0), (0, 0)])
def test_a_row_that_runs_comes_back_with_the_attempts_before_this_one(epoch, asked, begun, attempts, attempt):
    given = record(1)
    item = epoch.row(given, runs=True, attempts=attempts, crashes=1, asks=0, due_ms=NOW, cancel=asked, lease_ms=LEASE)
    assert item == RestoreItem(ids.short(given.id), given.encode(), attempt, 1, delay_ms=LEASE, begun=begun)


def test_a_row_that_waits_comes_back_with_its_date_and_a_moment_in_which_its_run_can_be_adopted(epoch):
    given = record(1)
    item = epoch.row(given, runs=False, attempts=3, crashes=1, asks=2, due_ms=NOW, cancel=True, lease_ms=LEASE)
    assert item == RestoreItem(ids.short(given.id), given.encode(), 3, 1, due_ms=NOW, delay_ms=ADOPTION_MS, unsure_ms=LEASE, asks=2)


def test_the_holders_of_keys_are_told_and_garbage_is_not(board, epoch):
    board.put(1, key="k")
    board.link.execute("HSET", board.store.keys["keys"], "odd", "no id of ours")
    assert epoch.holders(["k", "odd", "free"]) == [job_id(1)]
    assert epoch.holders([]) == []


def test_more_than_two_hundred_are_refused_before_redis_is_asked(board, epoch):
    with pytest.raises(StoreError, match="at most 200"):
        restore(epoch, *[row(number) for number in range(201)])
    with pytest.raises(StoreError, match="at most 200"):
        epoch.drop([ids.short(job_id(number)) for number in range(201)])
    assert board.log.length() == 0


def told(board) -> list[tuple[tuple[str, ...], bytes]]:
    """The last answer about each restored job."""
    return [
        ((str(ids.full(item.fields[0]).int & 0xFFFF), *item.fields[1:]), item.body) for item in board.log.read("0-0", 100)[-1].items
    ]


def test_what_comes_back_is_told_with_its_place_and_without_a_row_with_its_record(board, epoch):
    rows = [row(1, attempt=2, crashes=1, delay=7), row(2, durable=True), row(3, durable=True)._replace(begun="run")]
    assert restore(epoch, *rows) == ["restored"] * 3
    assert told(board) == [
        (("1", str(NOW + 7), "2", "1", "-"), rows[0].record),
        (("2", str(NOW), "0", "0", "-"), b""),
        (("3", str(NOW), "0", "0", "-", "running"), b""),
    ]
    runs = [run(1, attempt=3, crashes=1), run(4), run(5, durable=True)]
    assert adopt(epoch, *runs) == ["adopted"] * 3
    assert told(board) == [
        (("1", str(NOW + LEASE), "3", "1", "n1"), b""),
        (("4", str(NOW + LEASE), "1", "0", "n1"), runs[1].record),
        (("5", str(NOW + LEASE), "1", "0", "n1"), b""),
    ]
    assert board.link.execute("HGET", board.keys["stats"], f"{NOW // 60_000}:restored") == b"6"


def test_the_earliest_row_that_comes_back_wakes_a_worker(board, epoch):
    assert board.claim().wait_ms == 1000
    assert restore(epoch, row(1, due=NOW + 600), row(2, due=NOW + 200), row(3, due=NOW + 400)) == ["restored"] * 3
    assert board.tokens() == 1
    assert board.link.execute("HGET", board.keys["meta"], "armed") == str(NOW + 200).encode()


def test_how_far_a_restore_is_is_noted_in_the_epoch_that_it_knows(board, epoch):
    assert epoch.restore([row(1)], epoch="another:server", progress="me 1 2", now_ms=NOW) == ["epoch"]
    assert board.link.execute("HGET", board.keys["meta"], "restoring") is None
    assert epoch.restore([row(1)], epoch=board.store.epoch(), progress="me 1 2", now_ms=NOW) == ["restored"]
    assert board.link.execute("HGET", board.keys["meta"], "restoring") == f"{NOW} me 1 2".encode()


def test_a_row_sent_again_changes_nothing(board, epoch):
    restore(epoch, row(1, attempt=1))
    before, events = board.dump(), board.happened()
    assert restore(epoch, row(1, attempt=1, due=NOW + 9)) == ["there"]
    assert (board.dump(), board.happened()) == (before, events)


def test_what_has_ended_does_not_rise(board, epoch):
    board.put(1)
    board.put(2)
    board.claim()
    board.settle(1, "ack")
    board.settle(2, "fail")
    before = board.dump()
    assert restore(epoch, row(1), row(2)) == ["finished", "finished"]
    assert adopt(epoch, run(1), run(2)) == ["finished", "finished"]
    assert board.dump() == before


def test_of_two_rows_with_one_key_the_second_is_merged(board, epoch):
    assert restore(epoch, row(1, key="k"), row(2, key="k")) == ["restored", "merged"]
    assert board.dump() == {"jobs": [1], "normal": {1: 0}, "keys": {"k": 1}, "finished": {2: 0}}
    assert board.happened() == ["restored 1", "merged 2"]
    assert board.link.execute("HGET", board.keys["stats"], f"{NOW // 60_000}:restored") == b"1"


def test_an_unreadable_record_is_refused_before_anything_is_written(board, epoch):
    broken = RestoreItem(id=ids.short(job_id(2)), record=b"?")
    with pytest.raises(StoreError, match="BADRECORD 2"):
        restore(epoch, row(1), broken)
    assert board.dump() == {}


def test_a_run_that_redis_has_lost_is_adopted_under_its_fence(board, epoch):
    assert adopt(epoch, run(1, attempt=2, crashes=1, key="k")) == ["adopted"]
    assert board.dump() == {"jobs": [1], "leases": {1: LEASE}, "runs": {1: "2:1:N:n1"}, "keys": {"k": 1}}
    assert board.link.execute("HGET", board.keys["meta"], "generation").isalnum(), "it is another store now"
    assert adopt(epoch, run(1, attempt=2, crashes=1, key="k")) == ["adopted"]
    assert board.happened() == ["restored 1"]
    assert epoch.adopt([run(1)], worker="w1", epoch=ELSEWHERE, now_ms=NOW + 5)[1] == ["adopted"]
    assert board.dump()["leases"] == {1: LEASE + 5}, "it lasts longer each time"
    assert board.settle(1, "ack", attempt=2) == "done"
    assert board.dump() == {"finished": {1: 0}}


def test_a_run_whose_row_is_back_is_adopted(board, epoch):
    restore(epoch, row(1, attempt=0, delay=LEASE))
    assert adopt(epoch, run(1)) == ["adopted"]
    assert board.dump() == {"jobs": [1], "leases": {1: LEASE}, "runs": {1: "1:0:n:n1"}}


def test_a_run_that_another_worker_has_begun_is_lost(board, epoch):
    restore(epoch, row(1))
    board.claim("n2", "w2")
    before = board.dump()
    assert adopt(epoch, run(1)) == ["lost"]
    assert board.dump() == before


@pytest.mark.parametrize(("attempt", "crashes"), [(1, 0), (2, 0), (0, 1)])
def test_a_job_that_went_on_without_this_run_is_lost(board, epoch, attempt, crashes):
    restore(epoch, row(1, attempt=attempt, crashes=crashes))
    assert adopt(epoch, run(1)) == ["lost"]
    assert board.dump().get("leases") is None


@pytest.mark.parametrize(("attempt", "crashes"), [(2, 0), (1, 1)])
def test_an_older_run_of_a_rolled_back_redis_gives_way_to_a_later_one(board, epoch, attempt, crashes):
    board.put(1)
    board.claim("n1")
    assert adopt(epoch, run(1, attempt=attempt, crashes=crashes, fence="n2")) == ["adopted"]
    assert board.dump() == {"jobs": [1], "leases": {1: LEASE}, "runs": {1: f"{attempt}:{crashes}:n:n2"}}
    assert board.settle(1, "ack", fence="n1") == "lost"


def test_who_stands_or_adopts_is_told_the_epoch_as_claims_tell_it(board, epoch):
    stands = epoch.stand()
    assert stands == board.claim().epoch
    assert epoch.adopt([run(1)], worker="w1", epoch=ELSEWHERE, now_ms=NOW) == (stands, ["adopted"])


def test_at_maxmemory_runs_are_adopted_and_rows_refused(board, epoch):
    here = board.store.epoch()
    board.link.execute("CONFIG", "SET", "maxmemory", "1")
    try:
        assert adopt(epoch, run(1)) == ["adopted"]
        with pytest.raises(StoreUnavailable):
            restore(epoch, row(2), known=here)
    finally:
        board.link.execute("CONFIG", "SET", "maxmemory", "0")
    assert board.dump()["jobs"] == [1]


def test_nothing_is_adopted_where_nothing_was_lost(board, epoch):
    here = board.claim().epoch
    assert adopt(epoch, run(1), since=here) == ["lost"]
    assert board.dump() == {}


def test_a_run_whose_key_was_taken_goes_on_without_it(board, epoch):
    board.put(2, key="k")
    assert adopt(epoch, run(1, key="k")) == ["adopted"]
    assert board.dump()["runs"] == {1: "1:0:n:n1"}
    assert board.settle(1, "ack") == "done"
    assert board.dump()["keys"] == {"k": 2}


def test_rows_that_were_read_in_another_epoch_change_nothing(board, epoch):
    assert restore(epoch, row(1)) == ["restored"]
    known, dump = epoch._store.epoch(), board.dump()
    assert restore(epoch, row(2), row(1), known=":") == ["epoch", "epoch"]
    assert board.dump() == dump
    board.link.execute("DEL", *(board.keys[name] for name in ("jobs", "normal", "meta")))
    board.put(3)  # in the epoch that this makes anew
    assert restore(epoch, row(2), known=known) == ["epoch"]
    assert board.dump() == {"jobs": [3], "normal": {3: 0}}


def swept(epoch: EpochStore, renew: str = "r1") -> str:
    """A sweep has started, in a new generation."""
    before = epoch.stand().partition(":")[0]
    assert epoch.confirm(before, phase="sweep", renew=renew, progress="me 0 0", now_ms=NOW) == "ok"
    return renew


def test_a_sweep_takes_durable_jobs_of_all_states_and_leaves_nothing_of_them(board, epoch):
    for number in (1, 2, 3, 4):
        board.put(number, durable=True, key=f"k{number}")
    board.put(5, key="k5")
    board.put(6, NOW + 1000)
    board.claim("n1", want=4)
    board.settle(1, "ack")
    board.settle(2, "fail")
    board.settle(3, "retry", delay=500)
    told = board.happened()
    generation = swept(epoch)
    assert epoch.sweep(generation, now_ms=NOW) == ("0", 3)
    assert board.dump() == {"jobs": [5, 6], "normal": {5: 0, 6: 1000}, "keys": {"k5": 5}}
    assert board.happened() == told


def test_nothing_is_swept_but_the_generation_for_which_it_was_begun(board, epoch):
    board.put(1, durable=True)
    generation = epoch.stand().partition(":")[0]
    assert epoch.sweep(generation, now_ms=NOW) == ("", 0)
    swept(epoch)
    assert epoch.sweep(generation, now_ms=NOW) == ("", 0)
    assert epoch.confirm("r1", phase="adopt", progress="me 0 0", now_ms=NOW) == "ok"
    assert epoch.sweep("r1", now_ms=NOW) == ("", 0)
    assert board.dump()["jobs"] == [1]


def test_what_ends_after_a_sweep_has_begun_keeps_its_tombstone(board, epoch):
    board.put(1)
    board.put(2)
    board.claim("n1")
    board.settle(1, "ack")
    swept(epoch)
    assert board.dump().get("finished") is None
    assert board.settle(2, "ack") == "done"
    assert restore(epoch, row(2)) == ["finished"]


def test_nothing_is_adopted_or_taken_for_lost_while_all_is_swept(board, epoch):
    board.put(1, durable=True)
    board.claim("n1")
    generation = swept(epoch)
    epoch.sweep(generation, now_ms=NOW)
    assert adopt(epoch, run(1)) == ["wait"]
    assert board.extend(1) == "wait"
    assert epoch.confirm(generation, phase="adopt", progress="me 0 0", now_ms=NOW) == "ok"
    assert board.extend(1) == "gone"
    assert adopt(epoch, run(1)) == ["adopted"]
    assert board.extend(1) == "ok"


def test_a_dropped_job_leaves_with_an_event(board, epoch):
    board.put(1, key="k")
    board.put(2)
    assert epoch.drop([ids.short(job_id(1)), ids.short(job_id(9))], actor="doctor", now_ms=NOW) == 1
    assert board.dump() == {"jobs": [2], "normal": {2: 0}}
    assert board.happened()[-1] == "dropped 1"


def test_one_restore_is_at_work_until_it_has_not_shown_itself_for_five_seconds(board, epoch):
    board.put(1)
    generation = epoch.stand().partition(":")[0]

    def would(who: str, at: int) -> str:
        return epoch.confirm(generation, phase="adopt", progress=f"{who} 0 0", now_ms=at)

    assert [would("me", NOW), would("you", NOW + 4999), would("me", NOW + 4999)] == ["ok", "busy", "ok"]
    assert [would("you", NOW + 9998), would("you", NOW + 9999)] == ["busy", "ok"]


def test_settle_and_extend_say_of_an_unknown_run_that_it_is_gone(board):
    assert board.settle(1, "ack") == "gone"
    assert board.extend(1) == "gone"


def test_settle_says_of_a_claim_that_was_rolled_back_that_it_is_gone(board):
    board.put(1)
    assert board.settle(1, "ack") == "gone"
    assert [board.settle(1, outcome) for outcome in ("snooze", "evict", "park", "crash")] == ["already"] * 4


def test_another_server_claims_nothing_until_it_is_confirmed(board, epoch):
    board.put(1)
    claim = board.claim("n0", want=0)
    board.link.execute("HSET", board.keys["meta"], "server", "another")
    first = board.claim("n1")
    assert (first.jobs, first.epoch) == ([], claim.epoch)
    waits = [board.claim(f"n{ms}", now=NOW + ms).wait_ms for ms in (0, 500, 510, 600, 9990, 20_000)]
    assert waits == [50, 50, 51, 60, 999, 1000], "seldom, once it has taken long"
    assert epoch.confirm(claim.generation, mirrored="2-0", now_ms=NOW) == "ok"
    assert len(board.claim("n2").jobs) == 1


def test_without_anybody_to_confirm_it_claims_go_on_after_a_minute(board):
    board.put(1)
    board.claim("n0", want=0)
    board.link.execute("HSET", board.keys["meta"], "server", "another")
    assert board.claim("n1").jobs == []
    assert board.claim("n2", now=NOW + 60_000).jobs == []
    assert board.claim("n2", now=NOW + 60_000).more, "so that no burst takes it for empty"
    assert len(board.claim("n3", now=NOW + 60_001).jobs) == 1
    assert board.link.execute("HGET", board.keys["meta"], "server") == b"another", "it is for the mirror to confirm"


def test_a_store_that_no_mirror_has_seen_waits_for_nobody(board):
    board.put(1)
    assert len(board.claim("n1").jobs) == 1
    assert board.link.execute("HGET", board.keys["meta"], "server") is None


def test_where_a_mirror_is_at_work_a_store_that_none_has_confirmed_waits_for_it(board, epoch):
    """It was wiped, or it is new: a claim cannot know."""
    board.put(1)
    assert board.claim("n1", wary=True).jobs == []
    generation = epoch.stand().partition(":")[0]
    assert epoch.confirm(generation, mirrored="2-0", now_ms=NOW) == "ok"
    assert len(board.claim("n2", wary=True).jobs) == 1


def test_claims_wait_until_what_ran_and_what_was_due_is_in_and_not_for_the_rest(board, epoch):
    board.put(1)
    claim = board.claim("n0", want=0)
    assert epoch.confirm(claim.generation, phase="sweep", renew="r1", progress="me 0 0", now_ms=NOW) == "ok"
    assert epoch.confirm(claim.generation, now_ms=NOW) == "changed"
    assert board.claim("n1", now=NOW + 2000).generation == "r1"
    for number, phase in enumerate(("found", "sweep", "adopt")):
        assert epoch.confirm("r1", phase=phase, progress="me 1 2", now_ms=NOW + 2000) == "ok"
        assert board.claim(f"m{number}", now=NOW + 4000).jobs == []
    assert epoch.confirm("r1", phase="rest", progress="me 1 2", now_ms=NOW + 4000) == "ok"
    assert len(board.claim("n3", now=NOW + 4000).jobs) == 1


def test_another_server_that_takes_over_meanwhile_waits_again(board, epoch):
    board.put(1)
    generation = epoch.stand().partition(":")[0]
    assert epoch.confirm(generation, phase="rest", progress="me 1 2", now_ms=NOW) == "ok"
    board.link.execute("HSET", board.keys["meta"], "server", "another")
    assert board.claim("n1").jobs == []
