"""`delayq resign` signs records again after a change of SECRET_KEY."""

from __future__ import annotations

import pytest

import django_delayq as delayq
from django_delayq import ids, signing
from django_delayq.producer.stores import stores
from django_delayq.store.scripts.queue import Outcome, QueueStore
from tests.tasks_for_tests import close_order, ping


@pytest.fixture
def signing_on(settings, delayq_redis, transactional_db):
    settings.DELAYQ = {**settings.DELAYQ, "SIGNING": True}
    return settings


def raw(job: delayq.Job) -> bytes:
    return stores.link.execute("HGET", f"delayq:{{{job.queue}}}:jobs", ids.short(job.id))


def standing(job: delayq.Job) -> str:
    return stores.queue(job.queue, 0).signer.standing(raw(job), queue=job.queue, id=ids.short(job.id))


def rotate(settings, *, keep: bool = True) -> None:
    settings.SECRET_KEY_FALLBACKS = [settings.SECRET_KEY] if keep else []
    settings.SECRET_KEY = f"{settings.SECRET_KEY}, and the next one"


def test_records_of_an_older_key_are_signed_with_the_newest(signing_on, run):
    jobs = [delayq.schedule(close_order, n, delay="1h") for n in range(450)]
    rotate(signing_on)
    assert {standing(job) for job in jobs} == {"older"}
    answer = run("resign", "--yes", "--json")
    assert answer.code == 0
    assert answer.json == {"newest": 0, "older": 450, "unsigned": 0, "wrong": 0, "signed": 450}
    assert {standing(job) for job in jobs} == {"newest"}
    signing_on.SECRET_KEY_FALLBACKS = []
    assert {standing(job) for job in jobs} == {"newest"}


def test_only_the_signature_changes(signing_on, run):
    job = delayq.schedule(close_order, 1, note="x", key="k", delay="1h")
    before = signing.split(raw(job))
    rotate(signing_on)
    run("resign", "--yes")
    after = signing.split(raw(job))
    assert after[0] == before[0]
    assert after[1] != before[1]


def test_a_dry_run_says_it_and_does_nothing(signing_on, run):
    job = delayq.schedule(close_order, 1, delay="1h")
    rotate(signing_on)
    assert run("resign", "--dry-run", "--json").json["would_sign"] == 1
    assert standing(job) == "older"


def test_it_asks_and_a_no_changes_nothing(signing_on, run):
    job = delayq.schedule(close_order, 1, delay="1h")
    rotate(signing_on)
    assert run("resign").code == 2
    assert "Nothing was changed" in run("resign", typed="n").error
    assert standing(job) == "older"
    assert run("resign", typed="y").code == 0
    assert standing(job) == "newest"


def test_one_queue_only(signing_on, run):
    one, other = delayq.schedule(close_order, 1, delay="1h"), delayq.schedule(ping, delay="1h")
    rotate(signing_on)
    run("resign", "--queue", "redis", "--yes")
    assert (standing(one), standing(other)) == ("older", "newest")
    assert run("resign", "--queue", "nowhere", "--yes").code == 2


def test_what_does_not_verify_is_never_signed(signing_on, run):
    job = delayq.schedule(close_order, 1, delay="1h")
    rotate(signing_on, keep=False)
    answer = run("resign", "--unsigned", "--yes")
    assert answer.code == 1
    assert "with an invalid signature: 1" in answer.out
    assert standing(job) == "wrong"


def test_the_unsigned_are_signed_only_when_told_so(settings, delayq_redis, transactional_db, run):
    job = delayq.schedule(close_order, 1, delay="1h")
    settings.DELAYQ = {**settings.DELAYQ, "SIGNING": True}
    answer = run("resign", "--yes")
    assert answer.code == 1
    assert "--unsigned" in answer.out
    assert standing(job) == "unsigned"
    assert run("resign", "--unsigned", "--yes").code == 0
    assert standing(job) == "newest"


def test_failed_jobs_are_signed_too_and_can_be_requeued(signing_on, run):
    job = delayq.schedule(ping)
    store = stores.queue("redis", 0)
    [claimed] = store.claim("w", "n1", want=1, lease_ms=9999, max_crashes=3).jobs
    item = Outcome(id=claimed.id, attempt=1, fence=claimed.fence, kind="fail")
    store.settle([item], worker="w", max_crashes=3)
    rotate(signing_on)
    run("resign", "--yes")
    assert standing(job) == "newest"
    assert store.requeue(job.id)[0] is delayq.Change.DONE
    assert standing(job) == "newest"


def test_without_signing_there_is_nothing_to_sign(delayq_redis, transactional_db, run):
    answer = run("resign", "--yes")
    assert answer.code == 2
    assert "SIGNING is off" in answer.error


# the script


def test_a_record_that_has_changed_since_it_was_read_is_left_alone(signing_on):
    job = delayq.schedule(close_order, 1, delay="1h")
    read, id = raw(job), ids.short(job.id)
    store: QueueStore = stores.queue("orders", 0)
    stores.link.execute("HSET", "delayq:{orders}:jobs", id, b"another one")
    assert store.resign([(id, read), (ids.short(ids.new()), read)]) == ["changed", "gone"]
    assert raw(job) == b"another one"


def test_what_is_no_id_is_passed_over(signing_on, run):
    stores.link.execute("HSET", "delayq:{orders}:jobs", b"\xff\n", b"garbage", "", "")
    assert run("resign", "--unsigned", "--yes", "--json").json["unsigned"] == 0


def test_sending_it_again_changes_nothing_more(signing_on):
    job = delayq.schedule(close_order, 1, delay="1h")
    read, id = raw(job), ids.short(job.id)
    rotate(signing_on)
    store = stores.queue("orders", 0)
    assert store.resign([(id, read)]) == ["done"]
    after = raw(job)
    assert store.resign([(id, read)]) == ["changed"]
    assert raw(job) == after
