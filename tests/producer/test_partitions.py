"""In which partition jobs go, and that they are found there: by id, by key, by name."""

from __future__ import annotations

import asyncio
from collections import Counter
from zlib import crc32

import pytest
from asgiref.sync import sync_to_async
from django.db import transaction
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import django_delayq as delayq
from django_delayq import conf, ids
from django_delayq.exceptions import ConfigError, KeyTaken
from django_delayq.mirror.relay import RelayLoop
from django_delayq.models import Job
from django_delayq.producer import where
from django_delayq.producer.options import NONE
from django_delayq.producer.queues import purge
from django_delayq.producer.schedule import put_in
from django_delayq.producer.stores import stores
from django_delayq.store.queue import Outcome
from tests.partitioned import claim, divide, fold, succeed
from tests.tasks_for_tests import close_order

__all__ = ["divide"]
pytestmark = pytest.mark.django_db(transaction=True)


def partitions(jobs) -> Counter[int]:
    return Counter(ids.partition(job.id) for job in jobs)


def test_one_partition_makes_ids_of_version_7(divide):
    divide(1)
    assert {delayq.schedule(close_order, n).id.version for n in range(3)} == {7}


def test_jobs_without_a_key_go_anywhere_and_each_is_found_by_its_id(divide):
    divide(3)
    jobs = [delayq.schedule(close_order, n, delay="1h") for n in range(60)]
    assert set(partitions(jobs)) == {0, 1, 2}
    for job in jobs:
        assert stores.with_job("orders", job.id).link.execute("HEXISTS", stores.with_job("orders", job.id).keys["jobs"], job.short_id)
        assert delayq.get(job.id).id == job.id
    assert [job.reschedule(delay="2h") for job in jobs[:9]] == ["done"] * 9
    assert [job.cancel() for job in jobs] == ["done"] * 60
    assert stores.inspector().depth("orders").scheduled == 0


def test_batches_of_one_call_are_dealt_round_the_partitions(divide):
    divide(3)
    jobs = delayq.schedule_many(close_order.using(delay="1h").bind(n) for n in range(1_300))
    counts = partitions(jobs)
    assert sorted(counts.values()) == [400, 400, 500]
    assert stores.inspector().depth("orders").scheduled == 1_300
    assert dict(Job.objects.values_list("id", "partition")) == {job.id: ids.partition(job.id) for job in jobs}


def test_jobs_of_one_transaction_go_into_their_partitions_at_its_commit(divide):
    divide(3)
    with transaction.atomic():
        jobs = [delayq.schedule(close_order, n, delay="1h") for n in range(30)]
        assert jobs[0].cancel() == "done"
        assert stores.inspector().depth("orders").scheduled == 0
    assert stores.inspector().depth("orders").scheduled == 29
    assert all(job.created for job in jobs[1:])


@pytest.mark.parametrize("on_conflict", ["keep", "error", "replace", "earliest", "latest", "after"])
def test_a_key_is_unique_in_its_home(divide, on_conflict):
    divide(16)
    first = delayq.schedule(close_order, 1, delay="2h", key="o:7")
    assert ids.partition(first.id) == conf.get().queue("orders").homes("o:7")[0]
    if on_conflict == "error":
        with pytest.raises(KeyTaken):
            delayq.schedule(close_order, 2, delay="1h", key="o:7", on_conflict=on_conflict)
    else:
        delayq.schedule(close_order, 2, delay="1h", key="o:7", on_conflict=on_conflict)
    assert stores.inspector().depth("orders").scheduled == 1
    assert delayq.cancel(key="o:7", queue="orders") == "done"
    assert delayq.get(key="o:7", queue="orders") is None


def test_jobs_of_one_name_go_into_one_partition_and_one_runs_at_a_time(divide):
    divide(16)
    jobs = [delayq.schedule(close_order, n, serial="tenant:1") for n in range(8)]
    assert len(partitions(jobs)) == 1
    ran = []
    for _ in range(8):
        [one] = claim()
        assert succeed([one]) == ["done"]
        ran.append(one.id)
    assert ran == [job.short_id for job in jobs]  # in the order of their dates


def test_a_key_and_a_name_are_refused_together_unless_they_are_one(divide):
    divide(3)
    with pytest.raises(ConfigError, match="has several"):
        delayq.schedule(close_order, 1, key="o:7", serial="tenant:1")
    job = delayq.schedule(close_order, 1, key="o:7", serial="o:7")
    assert ids.partition(job.id) == conf.get().queue("orders").homes("o:7")[0]
    divide(1)
    assert delayq.schedule(close_order, 1, key="o:8", serial="tenant:1").created


@pytest.mark.parametrize("options", [{}, {"key": "o:7"}, {"serial": "tenant:1"}], ids=["alone", "key", "name"])
def test_what_is_told_of_a_cancelled_await_is_the_id_that_the_job_gets(divide, options, monkeypatch):
    divide(16)
    seen = []
    monkeypatch.setattr("django_delayq.producer.schedule.put_one", lambda plan: seen.append(plan.id) or plan.job)
    monkeypatch.setattr("django_delayq.producer.schedule.scheduled", _told(told := []))
    asyncio.run(delayq.aschedule(close_order, 1, **options))
    assert told == seen


def _told(told):
    async def scheduled(drawn, put, *args):
        told.extend(drawn)
        return await sync_to_async(put)(*args)

    return scheduled


@pytest.mark.parametrize("on_conflict", ["keep", "replace", "earliest", "latest", "after"])
@pytest.mark.parametrize("durability", ["outbox", "redis"])
def test_a_key_stays_where_it_is_while_the_number_of_partitions_changes(divide, on_conflict, durability):
    if on_conflict == "after" and durability == "redis":
        return
    divide(4)
    key = next(text for n in range(1_000) if (text := f"o:{n}") and _moves(text, 4, 16))
    first = delayq.schedule(close_order, 1, delay="2h", key=key, durability=durability)
    divide(16, 4)
    second = delayq.schedule(close_order, 2, delay="1h", key=key, on_conflict=on_conflict, durability=durability)
    assert ids.partition(second.id) == ids.partition(first.id)
    assert stores.inspector().depth("orders").scheduled == 1
    assert delayq.get(key=key, queue="orders").id == second.id
    assert delayq.cancel(key=key, queue="orders") == "done"
    third = delayq.schedule(close_order, 3, delay="1h", key=key, durability=durability)
    assert third.created
    assert ids.partition(third.id) == conf.get().queue("orders").homes(key)[0] != ids.partition(first.id)


def _moves(text: str, before: int, after: int) -> bool:
    return crc32(text.encode()) % before != crc32(text.encode()) % after


def test_a_key_stays_where_a_row_has_it_while_redis_is_away(divide, settings, tmp_path):
    divide(4)
    key = next(text for n in range(1_000) if (text := f"o:{n}") and _moves(text, 4, 16))
    first = delayq.schedule(close_order, 1, delay="2h", key=key)
    divide(16, 4)
    settings.DELAYQ = {**settings.DELAYQ, "REDIS": f"unix://{tmp_path}/nobody"}
    second = delayq.schedule(close_order, 2, delay="1h", key=key, on_conflict="replace")
    assert ids.partition(second.id) == ids.partition(first.id)


def test_a_name_stays_where_its_jobs_are_while_the_number_of_partitions_changes(divide):
    divide(4)
    name = next(text for n in range(1_000) if (text := f"t:{n}") and _moves(text, 4, 16))
    first = delayq.schedule(close_order, 1, serial=name)
    later = delayq.schedule(close_order, 2, serial=name, delay="1h")
    divide(16, 4)
    second = delayq.schedule(close_order, 3, serial=name)
    assert len(partitions([first, later, second])) == 1
    [running] = claim()
    assert claim() == []
    assert succeed([running]) == ["done"]
    [running] = claim()
    assert succeed([running]) == ["done"]
    assert later.cancel() == "done"
    assert ids.partition(delayq.schedule(close_order, 4, serial=name).id) == conf.get().queue("orders").homes(name)[0]


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    steps=st.lists(
        st.one_of(
            st.tuples(st.just("partitions"), st.sampled_from([(4, ()), (16, (4,)), (16, ()), (4, (16,)), (1, (4, 16))])),
            st.tuples(st.sampled_from(["keep", "replace", "earliest", "latest"]), st.integers(0, 3)),
            st.tuples(st.sampled_from(["cancel", "run"]), st.integers(0, 3)),
        ),
        max_size=25,
    )
)
def test_one_unfinished_job_per_key_however_the_number_of_partitions_changes(divide, delayq_redis, steps):
    """The former numbers stand in FORMER_PARTITIONS as long as jobs have their homes by them."""
    delayq_redis.link.execute("FLUSHALL")
    Job.objects.all().delete()
    stores.forget()
    seen: set[int] = {4}
    divide(4)
    held: dict[int, object] = {}
    for act, what in steps:
        if act == "partitions":
            seen |= {what[0]}
            divide(what[0], *(seen - {what[0]}))
        elif act == "cancel":
            assert delayq.cancel(key=f"k{what}", queue="orders") in (("done",) if what in held else ("unknown", "finished", "done"))
            held.pop(what, None)
        elif act == "run":
            assert (delayq.get(key=f"k{what}", queue="orders") is not None) == (what in held)
        else:
            job = delayq.schedule(close_order, what, delay="1h", key=f"k{what}", on_conflict=act)
            if what in held and act != "replace":
                assert job.id == held[what]
            held[what] = job.id
        assert stores.inspector().depth("orders").scheduled == len(held)
        assert {number: delayq.get(key=f"k{number}", queue="orders").id for number in held} == held


def test_pause_resume_and_purge_reach_all_partitions(divide):
    divide(3)
    jobs = [delayq.schedule(close_order, n) for n in range(30)]
    assert delayq.pause("orders", reason="x")
    assert not delayq.pause("orders")
    assert claim() == []
    assert stores.inspector().depth("orders").paused
    stores.queue("orders", 1).resume()
    assert not stores.inspector().depth("orders").paused  # a queue is paused when all of it is
    assert delayq.pause("orders")
    assert delayq.resume("orders")
    assert sum(purge("orders")) == len(jobs)
    assert claim() == []


def test_a_failed_job_is_requeued_where_it_was(divide):
    divide(3)
    job = delayq.schedule(close_order, 1, key="o:7")
    fold()
    [claimed] = claim()
    store = stores.with_job("orders", job.id)
    end = Outcome(id=claimed.id, attempt=claimed.attempt, fence=claimed.fence, kind="fail", delay_ms=0, detail=b'{"c":"E","m":"x"}')
    assert store.settle([end], worker="host:1:w", max_crashes=3) == ["done"]
    fold()
    assert delayq.requeue(key="o:7", queue="orders") == "done"
    assert [one.id for one in claim()] == [job.short_id]


def test_the_relays_publish_each_row_into_its_own_partition(divide, settings, tmp_path):
    divide(3)
    url = settings.DELAYQ["REDIS"]
    settings.DELAYQ = {**settings.DELAYQ, "REDIS": f"unix://{tmp_path}/nobody"}
    jobs = delayq.schedule_many([close_order.using(key=f"k{n}").bind(n) for n in range(30)])
    settings.DELAYQ = {**settings.DELAYQ, "REDIS": url}
    config = conf.get()
    for partition in config.queue("orders").served:
        relay = RelayLoop(stores.places, config.queue("orders"), prefix=config.prefix, using="default", partition=partition, young=0)
        relay.poll()
    assert [depth.scheduled for depth in stores.inspector().by_partition(["orders"])[0]] == [
        partitions(jobs)[partition] for partition in range(3)
    ]
    assert {one.id for one in claim()} == {job.short_id for job in jobs}


def test_the_row_of_a_job_is_found_under_the_id_that_was_drawn_for_it(divide):
    divide(3)
    home = conf.get().queue("orders").homes("order:1")[0]
    [drawn] = ids.several(1, (home + 1) % 3)
    job = put_in(close_order, NONE._replace(key="order:1"), (1,), {}, id=drawn)
    assert (ids.partition(job.id), job.id != drawn) == (home, True)
    found = where.row_in_any(drawn, range(3))
    assert found is not None
    assert found.record.id == job.id
    assert where.row_in_any(ids.new(), range(3)) is None
