"""SIGNING: records that our own keys have not signed are kept and never run."""

from __future__ import annotations

import dataclasses
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

import django_delayq as delayq
from django_delayq import clock, codec, conf, ids, signing
from django_delayq.exceptions import PayloadError
from django_delayq.mirror.restore import RestoreLoop
from django_delayq.models import Job
from django_delayq.producer.stores import stores
from django_delayq.signing import Signer
from django_delayq.store.scripts.record import JobRecord
from django_delayq.worker.process.executor import ParkedJobs
from tests.mirror.conftest import Orders
from tests.tasks_for_tests import close_order, ping
from tests.worker.bench import Bench, task

KEYS = Signer((b"new", b"old"))


def record(**fields) -> JobRecord:
    return JobRecord(**{"id": ids.new(), "task": "shop.close", "payload": b"[[1],{}]", **fields})


@pytest.fixture
def signed(settings, delayq_redis, transactional_db) -> Orders:
    """The queue "orders" of a project that signs."""
    settings.DELAYQ = {**settings.DELAYQ, "SIGNING": True}
    return Orders()


def lying_in_redis(job: delayq.Job) -> bytes:
    return stores.link.execute("HGET", f"delayq:{{{job.queue}}}:jobs", ids.short(job.id))


def put_raw(job: delayq.Job, raw: bytes) -> None:
    stores.link.execute("HSET", f"delayq:{{{job.queue}}}:jobs", ids.short(job.id), raw)


# the signature


@given(st.binary(max_size=200), st.text("abc-", min_size=1), st.uuids())
def test_a_signed_record_verifies_and_splits_into_what_it_was(raw, queue, id):
    signed = KEYS.sign(raw, queue=queue, id=ids.short(id))
    assert KEYS.standing(signed, queue=queue, id=ids.short(id)) == "newest"
    assert signing.split(signed)[0] == signing.split(raw)[0]
    assert KEYS.sign(signed, queue=queue, id=ids.short(id)) == signed


@given(st.data())
def test_any_other_byte_breaks_the_signature(data):
    id = ids.short(uuid4())
    signed = KEYS.sign(record().encode(), queue="orders", id=id)
    place = data.draw(st.integers(0, len(signed) - 1))
    byte = data.draw(st.integers(0, 255).filter(lambda byte: byte != signed[place]))
    assert not KEYS.verifies(signed[:place] + bytes([byte]) + signed[place + 1 :], queue="orders", id=id)


def test_another_queue_or_another_id_breaks_the_signature():
    one, other = ids.short(uuid4()), ids.short(uuid4())
    signed = KEYS.sign(record().encode(), queue="orders", id=one)
    assert KEYS.standing(signed, queue="order", id=one) == "wrong"
    assert KEYS.standing(signed, queue="orders", id=other) == "wrong"


@pytest.mark.parametrize(
    "change",
    [
        {"task": "shop.pay"},
        {"payload": b"[[2],{}]"},
        {"max_attempts": 99},
        {"expires_ms": 5},
        {"key": "other"},
        {"band": "high"},
        {"durable": False},
        {"payload": b'[[1],{},{"timeout":9}]'},
    ],
)
def test_every_field_of_a_record_is_covered(change):
    ours = record()
    signature = signing.split(KEYS.sign(ours.encode(), queue="q", id=ids.short(ours.id)))[1]
    forged = dataclasses.replace(ours, **change).encode() + signing.MARK + signature
    assert KEYS.standing(forged, queue="q", id=ids.short(ours.id)) == "wrong"


def test_an_older_key_verifies_and_an_unknown_one_does_not():
    raw, id = record().encode(), ids.short(uuid4())
    assert KEYS.standing(Signer((b"old",)).sign(raw, queue="q", id=id), queue="q", id=id) == "older"
    assert KEYS.standing(Signer((b"lost",)).sign(raw, queue="q", id=id), queue="q", id=id) == "wrong"
    assert KEYS.standing(raw, queue="q", id=id) == "unsigned"


def test_a_signed_record_is_read_also_by_those_who_do_not_sign():
    ours = record(key="a key")
    assert JobRecord.decode(ours.id, KEYS.sign(ours.encode(), queue="q", id=ids.short(ours.id))) == ours


def test_a_signature_does_not_hide_a_record_that_is_none():
    with pytest.raises(PayloadError):
        JobRecord.decode(ids.new(), KEYS.sign(b"nonsense", queue="q", id="x"))


def test_keys_are_not_shown():
    assert "old" not in repr(KEYS)


# the setting


def test_keys_come_from_the_secret_key_and_its_fallbacks(settings):
    settings.DELAYQ = {**settings.DELAYQ, "SIGNING": True}
    settings.SECRET_KEY, settings.SECRET_KEY_FALLBACKS = "new", ["old"]
    both = conf.get().signer
    settings.SECRET_KEY, settings.SECRET_KEY_FALLBACKS = "old", []
    old = conf.get().signer
    assert both is not None
    assert old is not None
    assert both.keys[1:] == old.keys
    assert both.keys[0] != old.keys[0]


def test_signing_is_off_by_default(settings):
    assert conf.get().signer is None


def test_without_signing_nothing_is_added(orders):
    job = delayq.schedule(close_order, 1)
    assert signing.split(lying_in_redis(job))[1] == b""


# everything that writes a record signs it


def verifies(job: delayq.Job) -> bool:
    return conf.get().signer.verifies(lying_in_redis(job), queue=job.queue, id=ids.short(job.id))


def test_schedule_signs(signed):
    assert verifies(delayq.schedule(close_order, 1))
    assert verifies(delayq.schedule(ping))


def test_the_relay_signs(signed, delayq_redis):
    job = delayq.schedule(close_order, 1)
    delayq_redis.link.execute("FLUSHALL")
    signed.relay.poll()
    assert verifies(job)


def test_requeue_signs_what_the_row_says(signed):
    job = delayq.schedule(close_order, 1)
    [claimed] = signed.claim()
    signed.settle(claimed, "fail")
    signed.fold()
    put_raw(job, b"1no tests.tasks_for_tests.close_order\n[[666],{}]")
    assert job.requeue() is delayq.Change.DONE
    assert verifies(job)
    assert b"[666]" not in lying_in_redis(job)


# only signed records run


def forged(bench: Bench, raw: bytes) -> str:
    """A due job that an outsider wrote into Redis."""
    id = ids.short(ids.new())
    bench.board.link.execute("HSET", "t:{q}:jobs", id, raw)
    bench.board.link.execute("ZADD", "t:{q}:schedule:normal", 1, id)
    return id


def parked_for_a_day(bench: Bench, id: str) -> None:
    """Redis notes that the job was first parked a day ago, and it is due again."""
    past = f"0:0:n::u{clock.wall_ms() - 86_401_000}"
    bench.board.link.execute("HSET", bench.board.keys["runs"], id, past)
    bench.board.link.execute("ZADD", bench.board.keys["normal"], 1, id)
    bench.executor._parked = ParkedJobs()


@pytest.mark.parametrize("signer", [None, Signer((b"theirs",))])
def test_what_we_did_not_sign_is_kept_and_not_run(redis_server, signer):
    bench, ran = Bench(redis_server.link, signer=KEYS), []
    bench.board.link.execute("HSET", bench.board.keys["meta"], "format", 1)
    bench.tasks["note"] = task(ran.append)
    raw = JobRecord(id=ids.new(), task="note", durable=False, payload=b"[[1],{}]").encode()
    id = forged(bench, raw if signer is None else signer.sign(raw, queue="q", id="?"))
    bench.put("note", 2)
    bench.run()
    if signer is not None:  # a deploy may bring the key: it waits for a day
        assert bench.body("snoozed")["p"] == "parked-signature"
        assert "failed" not in bench.kinds()
        parked_for_a_day(bench, id)
        bench.run()
    bench.close()
    assert ran == [2]
    assert bench.body("failed")["p"] == "poison-signature"
    assert redis_server.link.execute("ZRANGE", "t:{q}:failed", 0, -1) == [id.encode()]
    assert redis_server.link.execute("HEXISTS", "t:{q}:jobs", id) == 1


def test_a_job_of_a_newer_key_waits_for_a_worker_that_has_it(redis_server):
    ran = []
    bench = Bench(redis_server.link, signer=Signer((b"new", b"old")))
    id = bench.put("note", 1)
    bench.close()
    for keys in ((b"old",), (b"new", b"old")):
        bench = Bench(redis_server.link, signer=Signer(keys))
        bench.tasks["note"] = task(ran.append)
        bench.board.link.execute("ZADD", bench.board.keys["normal"], 1, id)
        bench.run()
        bench.close()
    assert ran == [1]
    assert bench.kinds()[-3:] == ["snoozed", "claimed", "succeeded"]


def test_jobs_of_an_older_key_run(redis_server):
    ran = []
    bench = Bench(redis_server.link, signer=Signer((b"old",)))
    bench.put("note", 1)
    bench.close()
    bench = Bench(redis_server.link, signer=KEYS)
    bench.tasks["note"] = task(ran.append)
    bench.run()
    bench.close()
    assert ran == [1]


def test_a_forged_event_does_not_become_a_row_that_could_be_published(signed):
    raw = JobRecord(id=ids.new(), task="tests.tasks_for_tests.close_order", payload=b"[[666],{}]").encode()
    id = ids.new()
    scheduled = f"{ids.short(id)} 1 n\n".encode() + raw
    aside = f"{ids.short(id)} no_job\na date without a job"
    stores.link.execute("XADD", "delayq:{orders}:events", "*", "at", 1, "by", "", "scheduled", scheduled, "aside", aside)
    signed.fold()
    row = Job.objects.get(pk=id)
    assert (row.args, row.kwargs, row.durable) == ([], {}, False)
    assert row.error
    signed.relay.poll()
    assert stores.link.execute("HEXISTS", "delayq:{orders}:jobs", ids.short(id)) == 0


def test_a_signed_event_becomes_a_row(signed):
    job = delayq.schedule(ping, 7)
    redis_queue = Orders("redis")
    redis_queue.fold()
    assert Job.objects.get(pk=job.id).args == [7]


def test_arguments_of_a_record_are_what_was_signed(signed):
    job = delayq.schedule(close_order, 1, note="x")
    [claimed] = signed.claim()
    found = JobRecord.decode(job.id, claimed.record)
    assert codec.decode_payload(found.payload)[:2] == ([1], {"note": "x"})


def test_restore_signs_what_comes_back_from_the_rows(signed, delayq_redis):
    job = delayq.schedule(close_order, 1, delay="1h")
    signed.fold()
    delayq_redis.link.execute("FLUSHALL")
    restore = RestoreLoop(stores.link, signed.config, prefix=conf.get().prefix, signer=conf.get().signer)
    for _ in range(200):
        signed.mirror.poll()
        if restore.poll() and lying_in_redis(job):
            break
    assert verifies(job)
