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
from django_delayq import clock, conf, ids
from django_delayq.exceptions import ConfigError, KeyTaken
from django_delayq.mirror.relay import RelayLoop
from django_delayq.models import Job
from django_delayq.producer import homes, lookup
from django_delayq.producer.options import NONE
from django_delayq.producer.queues import purge
from django_delayq.producer.schedule import put_in
from django_delayq.producer.stores import stores
from django_delayq.store.scripts.queue import Outcome
from django_delayq.worker.line import lines_of
from tests.depths import queue_depth
from tests.partitioned import claim, divide, fold, succeed
from tests.tasks_for_tests import bill, close_order, pay_out

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
    assert queue_depth("orders").scheduled == 0


def test_batches_of_one_call_are_dealt_round_the_partitions(divide):
    divide(3)
    jobs = delayq.schedule_many(close_order.using(delay="1h").bind(n) for n in range(1_300))
    counts = partitions(jobs)
    assert sorted(counts.values()) == [400, 400, 500]
    assert queue_depth("orders").scheduled == 1_300
    assert dict(Job.objects.values_list("id", "partition")) == {job.id: ids.partition(job.id) for job in jobs}


def test_jobs_of_one_transaction_go_into_their_partitions_at_its_commit(divide):
    divide(3)
    with transaction.atomic():
        jobs = [delayq.schedule(close_order, n, delay="1h") for n in range(30)]
        assert jobs[0].cancel() == "done"
        assert queue_depth("orders").scheduled == 0
    assert queue_depth("orders").scheduled == 29
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
    assert queue_depth("orders").scheduled == 1
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
    with pytest.raises(ConfigError, match="belong to different partitions"):
        delayq.schedule(close_order, 1, key="o:7", serial="tenant:1")
    job = delayq.schedule(close_order, 1, key="o:7", serial="o:7")
    assert ids.partition(job.id) == conf.get().queue("orders").homes("o:7")[0]
    divide(1)
    assert delayq.schedule(close_order, 1, key="o:8", serial="tenant:1").created


def test_a_rate_lives_in_one_partition_and_a_key_or_a_name_with_another_home_is_refused(divide):
    divide(16)
    jobs = [delayq.schedule(pay_out, 7, number) for number in range(8)]
    assert {ids.partition(job.id) for job in jobs} == {conf.get().queue("orders").homes("bank:7")[0]}
    with pytest.raises(ConfigError, match="use a queue with PARTITIONS 1 for limited work"):
        delayq.schedule(pay_out, 7, key="o:7")
    with pytest.raises(ConfigError, match="use a queue with PARTITIONS 1 for limited work"):
        delayq.schedule(pay_out, 7, serial="o:7")
    assert delayq.schedule(pay_out, 7, key="bank:7", serial="bank:7").created


def test_a_fair_word_chooses_no_partition_and_words_take_turns_in_each(divide):
    divide(3)
    jobs = delayq.schedule_many(bill.bind("a", number) for number in range(1200))
    others = delayq.schedule_many(bill.bind("b", number) for number in range(600))
    assert set(partitions(jobs)) == set(partitions(others)) == {0, 1, 2}
    assert bill.using(key="o:7").schedule("a", 7).created
    found = [ids.partition(ids.full(job.id)) for job in claim(want=1)]
    assert sorted(found) == [0, 1, 2]
    assert {job.id for job in claim(want=1)} <= {job.short_id for job in others}


@pytest.mark.parametrize("options", [{}, {"key": "o:7"}, {"serial": "tenant:1"}], ids=["alone", "key", "name"])
def test_what_is_told_of_a_cancelled_await_is_the_id_that_the_job_gets(divide, options, monkeypatch):
    divide(16)
    seen = []
    monkeypatch.setattr("django_delayq.producer.schedule.put_one", lambda plan, *_: seen.append(plan.id) or plan.job)
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
    assert queue_depth("orders").scheduled == 1
    assert delayq.get(key=key, queue="orders").id == second.id
    assert delayq.cancel(key=key, queue="orders") == "done"
    third = delayq.schedule(close_order, 3, delay="1h", key=key, durability=durability)
    assert third.created
    assert ids.partition(third.id) == conf.get().queue("orders").homes(key)[0] != ids.partition(first.id)


@pytest.mark.parametrize("durability", ["outbox", "redis"])
def test_a_debounce_ends_while_the_number_of_partitions_changes(divide, durability):
    divide(4)
    key = next(text for n in range(1_000) if (text := f"o:{n}") and _moves(text, 4, 16))
    one = close_order.using(key=key, on_conflict="latest", delay="4m", at_most="10m", durability=durability)
    first = one.using(delay="1m").schedule(1)
    store = stores.queue("orders", ids.partition(first.id))
    store.link.execute("HSET", store.keys["firsts"], first.short_id, clock.wall_ms() - 8 * 60_000)
    divide(16, 4)
    assert one.schedule(1).id == first.id
    assert round((stores.inspector().job("orders", first.id).date_ms - clock.wall_ms()) / 60_000) == 2


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
    """FORMER_PARTITIONS has the former numbers while jobs are in their partitions."""
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
        assert queue_depth("orders").scheduled == len(held)
        assert {number: delayq.get(key=f"k{number}", queue="orders").id for number in held} == held


def test_pause_resume_and_purge_reach_all_partitions(divide):
    divide(3)
    jobs = [delayq.schedule(close_order, n) for n in range(30)]
    assert delayq.pause("orders", reason="x")
    assert not delayq.pause("orders")
    assert claim() == []
    assert queue_depth("orders").paused
    stores.queue("orders", 1).resume()
    assert not queue_depth("orders").paused  # a queue is paused when all of it is
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
        relay = RelayLoop(stores.places, config.queue("orders"), prefix=config.prefix, partition=partition, young=0)
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
    found = lookup.row_in_any(drawn, range(3))
    assert found is not None
    assert found.record.id == job.id
    assert lookup.row_in_any(ids.new(), range(3)) is None


def test_the_mirror_of_a_queue_may_be_behind_by_one_number_however_many_partitions_it_has(divide, settings):
    settings.DELAYQ = {**settings.DELAYQ, "MIRROR_MAX_EVENTS": 100_000}
    for many, each in ((1, 100_000), (16, 6_250), (512, 1_000)):
        divide(many)
        assert conf.get().most_events_in("orders") == each
        assert {line.max_events for line in lines_of(conf.get(), {"orders": 1})} == {each}
    divide(4, 16)
    assert conf.get().most_events_in("orders") == 6_250
    settings.DELAYQ = {**settings.DELAYQ, "MIRROR_FULL": "grow"}
    assert conf.get().most_events_in("orders") == 0


def moved_key(before: int = 4, after: int = 16) -> str:
    """A key whose home is another one afterwards."""
    return next(text for n in range(1_000) if (text := f"o:{n}") and _moves(text, before, after))


def run_of(one, kind="ack"):
    end = Outcome(id=one.id, attempt=one.attempt, fence=one.fence, kind=kind, delay_ms=0, detail=b"{}")
    return stores.with_job("orders", ids.full(one.id)).settle([end], worker="host:1:w", max_crashes=3)[0]


@pytest.mark.parametrize(("first", "second"), [((4, ()), (16, (4,))), ((16, (4,)), (4, (16,)))])
def test_two_producers_with_settings_that_know_each_other_share_a_key(divide, first, second):
    """In each order: both deploys of a change list what the other has."""
    key = moved_key()
    divide(first[0], *first[1])
    one = delayq.schedule(close_order, 1, delay="1h", key=key)
    divide(second[0], *second[1])
    other = delayq.schedule(close_order, 2, delay="1h", key=key)
    assert (other.id, other.created) == (one.id, False)
    divide(first[0], *first[1], *([second[0]] if not first[1] else []))
    assert delayq.schedule(close_order, 3, delay="1h", key=key).id == one.id
    assert queue_depth("orders").scheduled == 1


def test_a_key_that_is_held_goes_with_its_holder_from_4_to_16_and_back(divide):
    key = moved_key()
    divide(4)
    one = delayq.schedule(close_order, 1, delay="1h", key=key)
    divide(16, 4)
    assert delayq.schedule(close_order, 2, delay="1h", key=key).id == one.id
    divide(4, 16)
    assert delayq.schedule(close_order, 3, delay="1h", key=key).id == one.id
    assert delayq.cancel(key=key, queue="orders") == "done"
    again = delayq.schedule(close_order, 4, delay="1h", key=key)
    assert ids.partition(again.id) == conf.get().queue("orders").homes(key)[0]


def test_behind_a_running_holder_in_the_former_home_the_next_one_waits_there(divide):
    key = moved_key()
    divide(4)
    first = delayq.schedule(close_order, 1, key=key)
    [running] = claim()
    divide(16, 4)
    after = delayq.schedule(close_order, 2, key=key, on_conflict="after")
    third = delayq.schedule(close_order, 3, key=key, on_conflict="after")
    assert {ids.partition(job.id) for job in (first, after, third)} == {ids.partition(first.id)}
    assert run_of(running) == "done"
    fold()
    publish_all()
    [one] = claim()
    assert one.id == third.short_id
    assert claim() == []


def publish_all() -> None:
    config = conf.get()
    for partition in config.queue("orders").served:
        relay = RelayLoop(stores.places, config.queue("orders"), prefix=config.prefix, partition=partition, young=0)
        for _ in range(3):
            relay.poll()
            fold()


def test_a_row_that_was_committed_and_not_published_holds_its_key_during_the_roll(divide, settings, tmp_path):
    key, url = moved_key(), settings.DELAYQ["REDIS"]
    divide(4)
    settings.DELAYQ = {**settings.DELAYQ, "REDIS": f"unix://{tmp_path}/nobody"}
    one = delayq.schedule(close_order, 1, delay="1h", key=key)
    settings.DELAYQ = {**settings.DELAYQ, "REDIS": url}
    divide(16, 4)
    other = delayq.schedule(close_order, 2, delay="1h", key=key)
    assert ids.partition(other.id) == ids.partition(one.id)
    fold()
    publish_all()
    assert queue_depth("orders").scheduled == 1
    assert {delayq.get(one.id).id, delayq.get(key=key, queue="orders").id} <= {one.id, other.id}


def test_a_name_that_was_taken_to_its_former_home_blindly_waits_for_its_jobs_in_the_new_one(divide, settings, tmp_path):
    url = settings.DELAYQ["REDIS"]
    divide(16, 4)
    name = next(text for n in range(1_000) if (text := f"t:{n}") and _moves(text, 4, 16))
    home, former = conf.get().queue("orders").homes(name)
    first = delayq.schedule(close_order, 1, serial=name)
    [running] = claim()
    settings.DELAYQ = {**settings.DELAYQ, "REDIS": f"unix://{tmp_path}/nobody"}
    blind = delayq.schedule(close_order, 2, serial=name)
    assert [ids.partition(job.id) for job in (first, blind)] == [home, former]
    settings.DELAYQ = {**settings.DELAYQ, "REDIS": url}
    publish_all()
    assert claim() == [], "as a row it waits until the first has ended"
    assert succeed([running]) == ["done"]
    publish_all()
    [running] = claim()
    assert running.id == blind.short_id


def test_a_relay_with_old_settings_leaves_what_is_in_partitions_that_it_does_not_know(divide, settings, tmp_path):
    url = settings.DELAYQ["REDIS"]
    divide(16, 4)
    settings.DELAYQ = {**settings.DELAYQ, "REDIS": f"unix://{tmp_path}/nobody"}
    jobs = [delayq.schedule(close_order, n, delay="1h") for n in range(40)]
    settings.DELAYQ = {**settings.DELAYQ, "REDIS": url}
    divide(4)
    publish_all()
    known = [job for job in jobs if ids.partition(job.id) < 4]
    assert queue_depth("orders").scheduled == len(known)
    divide(16, 4)
    publish_all()
    assert queue_depth("orders").scheduled == len(jobs)
    there = [stores.with_job("orders", job.id) for job in jobs]
    assert all(store.link.execute("HEXISTS", store.keys["jobs"], job.short_id) for store, job in zip(there, jobs, strict=True))


def test_during_the_roll_a_job_is_moved_found_and_cancelled_by_its_key(divide):
    key = moved_key()
    divide(4)
    one = delayq.schedule(close_order, 1, delay="1h", key=key)
    divide(16, 4)
    assert delayq.get(key=key, queue="orders").id == one.id
    assert delayq.reschedule(key=key, queue="orders", delay="2h") == "done"
    assert delayq.run_now(key=key, queue="orders") == "done"
    [running] = claim()
    assert delayq.cancel(key=key, queue="orders") == "running"
    assert run_of(running) == "done"
    assert delayq.get(key=key, queue="orders") is None


@pytest.mark.parametrize("change", ["get", "reschedule", "run_now", "cancel"])
@pytest.mark.parametrize("new", ["first", "later"])
def test_a_producer_with_the_old_settings_finds_by_key_what_one_with_the_new_ones_has_scheduled(divide, change, new):
    """While deploy 2 goes from 4 to 16. `new`: the first job of its key, or one after a job in the former partition."""
    key = moved_key()
    divide(4, 16)
    if new == "later":
        assert delayq.schedule(close_order, 0, delay="1h", key=key).cancel() == "done"
    divide(16, 4)
    one = delayq.schedule(close_order, 1, delay="1h", key=key)
    assert ids.partition(one.id) == conf.get().queue("orders").homes(key)[0]
    divide(4, 16)
    if change == "get":
        assert delayq.get(key=key, queue="orders").id == one.id
    elif change == "reschedule":
        assert delayq.reschedule(key=key, queue="orders", delay="2h") == "done"
        view = stores.inspector().job("orders", one.id)
        assert view is not None
        assert view.date_ms - view.now_ms > 90 * 60_000
    elif change == "run_now":
        assert delayq.run_now(key=key, queue="orders") == "done"
        assert [job.id for job in claim()] == [one.short_id]
    else:
        assert delayq.cancel(key=key, queue="orders") == "done"
        assert queue_depth("orders").scheduled == 0


@pytest.mark.parametrize("durability", ["outbox", "redis"])
def test_two_producers_of_a_roll_that_each_look_before_the_other_is_in_both_succeed(divide, monkeypatch, durability):
    """The window that the docs name: the second one schedules between the look of the first and its job."""
    key, jobs = moved_key(), []
    divide(4, 16)
    find, looks = homes._settled, []

    def overtaken(*given):
        found = find(*given)
        looks.append(found)
        if len(looks) == 1:
            divide(16, 4)
            jobs.append(delayq.schedule(close_order, 2, delay="1h", key=key, durability=durability))
            divide(4, 16)
        return found

    monkeypatch.setattr(homes, "_settled", overtaken)
    jobs.append(delayq.schedule(close_order, 1, delay="1h", key=key, durability=durability))
    assert (len(looks), [job.created for job in jobs]) == (2, [True, True])
    assert len(partitions(jobs)) == 2
    fold()
    assert sorted(Job.objects.filter(key=key, state="scheduled").values_list("id", flat=True)) == sorted(job.id for job in jobs)
    assert delayq.get(key=key, queue="orders").id in {job.id for job in jobs}
    assert delayq.cancel(key=key, queue="orders") == "done"
    assert queue_depth("orders").scheduled == 0, "both"
