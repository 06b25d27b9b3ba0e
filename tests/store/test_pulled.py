"""Claims of consumers of the project's own: what differs of them in the scripts."""

from __future__ import annotations

import pytest

from django_delayq import ids
from django_delayq.states import MESSAGE
from django_delayq.store.scripts.queue import Claim, Outcome, QueueStore, ScheduleItem
from django_delayq.store.scripts.record import JobRecord
from tests.links import package_link

T0 = 1_800_000_000_000
LEASE = 10_000  # ms; of the queue
RESPITE = 5_000


@pytest.fixture
def store(link) -> QueueStore:
    return QueueStore(package_link(link), prefix="t", queue="mail")


def put(store: QueueStore, count: int = 1, due: int = T0, **fields) -> list[str]:
    records = [JobRecord(id=ids.new(), task=MESSAGE, payload=b"[[1]]", durable=False, **fields) for _ in range(count)]
    store.schedule([ScheduleItem.of(record, due_ms=due) for record in records], now_ms=due)
    return [ids.short(record.id) for record in records]


def claim(store: QueueStore, nonce: str, at: int, *, want: int = 10, lease: int = LEASE, **more) -> Claim:
    told = {"worker": "c", "max_crashes": 0, "pulled_ms": LEASE, **more}
    return store.claim(told.pop("worker"), nonce, want=want, lease_ms=lease, now_ms=at, **told)


def retry(store: QueueStore, claimed: Claim, at: int, delay: int = 1000) -> list[str]:
    ends = [Outcome(job.id, job.attempt, job.fence, "retry", delay) for job in claimed.jobs]
    return list(store.settle(ends, worker="c", max_crashes=0, now_ms=at))


def test_a_lost_lease_is_handed_over_under_its_old_fence_and_nothing_is_counted_or_told(store):
    [id] = put(store)
    claim(store, "n1", T0)
    before = store.link.execute("XLEN", store.keys["events"])
    [job] = claim(store, "n2", T0 + LEASE + 1).jobs
    assert (job.id, job.attempt, job.crashes, job.fence, job.lost, job.due_ms) == (id, 1, 0, "n1", True, T0 + LEASE)
    assert store.link.execute("XLEN", store.keys["events"]) == before
    assert store.link.execute("HGET", store.keys["runs"], id) == b"1:0:n:n1"


def test_who_settles_a_lost_lease_ends_the_attempt(store):
    [id] = put(store)
    first = claim(store, "n1", T0)
    lost = claim(store, "n2", T0 + LEASE + 1)
    assert retry(store, lost, T0 + LEASE + 2) == ["done"]
    assert retry(store, first, T0 + LEASE + 3) == ["already"]
    [again] = claim(store, "n3", T0 + LEASE + 2000).jobs
    assert (again.id, again.attempt, again.crashes, again.lost) == (id, 2, 0, False)


def test_one_who_lives_may_still_settle_until_somebody_has(store):
    put(store)
    first = claim(store, "n1", T0)
    lost = claim(store, "n2", T0 + LEASE + 1)
    assert retry(store, first, T0 + LEASE + 2) == ["done"]
    assert retry(store, lost, T0 + LEASE + 3) == ["already"]


def test_a_lost_lease_that_is_being_settled_is_extended_no_more(store):
    [id] = put(store)
    claim(store, "n1", T0 + 1)
    assert store.extend([(id, "n1")], worker="c", lease_ms=LEASE, pulled_ms=LEASE, now_ms=T0 + LEASE) == {id: "ok"}
    lost = claim(store, "n2", T0 + 2 * LEASE + 1)
    assert store.extend([(id, "n1")], worker="c", lease_ms=LEASE, pulled_ms=LEASE, now_ms=T0 + 2 * LEASE + 2) == {id: "lost"}
    assert retry(store, lost, T0 + 2 * LEASE + 3) == ["done"]


def test_a_lost_lease_that_nobody_settled_is_handed_to_the_next_after_a_while(store):
    put(store)
    claim(store, "n1", T0)
    assert len(claim(store, "n2", T0 + LEASE + 1).jobs) == 1
    assert claim(store, "n3", T0 + LEASE + RESPITE).jobs == []
    [job] = claim(store, "n4", T0 + LEASE + RESPITE + 2).jobs
    assert (job.fence, job.attempt, job.lost, job.due_ms) == ("n1", 1, True, T0 + LEASE + RESPITE + 1)


def test_silence_of_consumers_is_no_proof_of_an_outage(store):
    put(store)
    claim(store, "n1", T0)
    assert [job.lost for job in claim(store, "n2", T0 + 100 * LEASE).jobs] == [True]
    assert store.link.execute("HGET", store.keys["meta"], "guard_until") is None


def test_where_calls_have_failed_those_that_were_cut_off_have_a_lease_to_come_back(store):
    put(store)
    claim(store, "n1", T0)
    later = T0 + 3 * LEASE
    assert claim(store, "n2", later, away_ms=3 * LEASE - 100).jobs == []
    assert [job.lost for job in claim(store, "n3", later + LEASE + 1).jobs] == [True]


def test_the_lease_of_a_pull_moves_no_guard(store):
    put(store)
    claim(store, "n1", T0, lease=12 * 3_600_000)
    claim(store, "n2", T0 + 3 * LEASE, lease=12 * 3_600_000, away_ms=3 * LEASE)
    assert int(store.link.execute("HGET", store.keys["meta"], "guard_until")) == T0 + 4 * LEASE


def test_neither_does_that_of_an_extend(store):
    [id] = put(store)
    claim(store, "n1", T0)
    answer = store.extend([(id, "n1")], worker="c", lease_ms=12 * 3_600_000, pulled_ms=LEASE, now_ms=T0 + 9000)
    assert answer == {id: "ok"}
    assert store.link.execute("HGET", store.keys["meta"], "guard_until") is None
    assert float(store.link.execute("ZSCORE", store.keys["leases"], id)) == T0 + 9000 + 12 * 3_600_000


def test_what_ran_when_redis_forgot_it_begins_again_as_the_next_attempt(store):
    [id] = put(store)
    claim(store, "n1", T0)
    store.link.execute("HSET", store.keys["runs"], id, "1:0:n:")  # as restore writes it
    [job] = claim(store, "n2", T0 + LEASE + 1).jobs
    assert (job.attempt, job.fence, job.lost) == (2, "n2", False)


def test_a_job_is_taken_only_when_it_has_been_due_for_long_and_the_wait_says_when(store):
    put(store)
    early = claim(store, "n1", T0 + 100, older_ms=700)
    assert early.jobs == []
    assert early.wait_ms == 600
    assert len(claim(store, "n2", T0 + 700, older_ms=700).jobs) == 1


def test_a_worker_that_asks_counts_a_crash_as_ever(store):
    put(store)
    claim(store, "n1", T0)
    claim(store, "n2", T0 + LEASE // 3, pulled_ms=0, max_crashes=3)
    claim(store, "n3", T0 + 2 * LEASE // 3, pulled_ms=0, max_crashes=3)
    [job] = claim(store, "n4", T0 + LEASE + 1, pulled_ms=0, max_crashes=3).jobs
    assert (job.attempt, job.crashes, job.fence, job.lost) == (1, 1, "n4", False)
