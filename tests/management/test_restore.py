"""`delayq restore`, and `delayq doctor --deep`."""

from __future__ import annotations

from itertools import repeat

import pytest

import django_delayq as delayq
from django_delayq import clock, conf, ids
from django_delayq.management import doctor
from django_delayq.mirror.mirror_loop import MirrorLoop
from django_delayq.mirror.restore import RestoreLoop
from django_delayq.models import Job
from django_delayq.producer.outbox import rows
from django_delayq.producer.stores import stores
from tests.depths import queue_depth
from tests.partitioned import divide, fold
from tests.tasks_for_tests import close_order

__all__ = ["divide"]  # a fixture


@pytest.fixture
def wiped(orders, redis_server) -> list[delayq.Job]:
    """Three jobs that Redis no longer has."""
    jobs = [delayq.schedule(close_order, number, delay="1h") for number in range(3)]
    orders.fold()
    redis_server.link.execute("FLUSHALL")
    return jobs


def orphans(run, *words: str) -> dict[str, str]:
    """Returns code -> message of the findings of `doctor --deep` on both sides."""
    found = run("doctor", "--deep", "--json", *words).json["findings"]
    codes = ("D008", "D009", "D010", "D013", "D034", "D037")
    return {finding["code"]: finding["message"] for finding in found if finding["code"] in codes}


def test_restore_brings_back_what_redis_has_lost(run, wiped, orders):
    answer = run("restore", "--yes")
    assert (answer.code, answer.out) == (0, "Restored jobs: 3 of 3. The others were still in Redis.\n")
    assert [orders.in_redis(job) for job in wiped] == ["scheduled"] * 3
    assert run("restore").out == "Redis has lost no data. There is nothing to restore.\n"


def test_restore_asks_first(run, wiped, orders):
    assert "needs confirmation" in run("restore").error
    assert "Nothing was changed" in run("restore", typed="n").error
    assert [orders.in_redis(job) for job in wiped] == [None] * 3
    assert run("restore", typed="y").code == 0
    assert [orders.in_redis(job) for job in wiped] == ["scheduled"] * 3


def test_a_dry_run_only_counts(run, wiped, orders):
    assert run("restore", "--dry-run", "--json").json == {"queues": ["orders"], "rows": 3, "missing": {}}
    assert orders.in_redis(wiped[0]) is None


def test_restore_takes_one_queue_and_no_strange_one(run, wiped, orders):
    assert run("restore", "--queue", "redis", "--json").json["queues"] == []
    assert run("restore", "--queue", "order").code == 2
    assert run("restore", "--queue", "orders", "--yes", "--json").json == {
        "queues": ["orders"],
        "rows": 3,
        "back": 3,
        "resumed": [],
        "missing": {},
    }


def test_a_queue_that_was_paused_for_it_goes_on(run, wiped, orders):
    RestoreLoop(stores.link, orders.config, prefix="delayq", auto=False).poll()
    assert "by restore: run manage.py delayq restore" in run("status").out
    assert run("restore", "--yes", "--json").json["resumed"] == ["orders"]
    assert not queue_depth("orders").paused


def test_a_queue_that_a_person_has_paused_stays_paused(run, wiped, orders):
    delayq.pause("orders", reason="bank holiday")
    assert run("restore", "--yes", "--json").json["resumed"] == []
    assert queue_depth("orders").paused


def test_status_shows_how_far_restore_is(run, orders):
    orders.scheduled()
    stores.link.execute("HSET", orders.store.keys["meta"], "restoring", "1800000000000 host:1:x 400 1500")
    assert "restoring, 400 of 1500 rows" in run("status").out


def test_deep_finds_nothing_where_both_sides_agree(run, orders):
    orders.scheduled(3)
    orders.ended("ack")
    orders.ended("fail")
    orders.running()
    assert orphans(run) == {}


def test_deep_finds_a_row_that_redis_lacks_and_fix_brings_it_back(run, orders):
    job, *_ = orders.scheduled(3)
    forget(orders, job)
    assert orphans(run).keys() == {"D008"}
    assert run("doctor", "--deep").code == 1
    assert ids.short(job.id) in orphans(run, "--fix", "--yes")["D008"]
    assert orders.in_redis(job) == "scheduled"
    assert orphans(run) == {}


@pytest.mark.parametrize(
    "meanwhile",
    [
        {"state": "succeeded"},
        {"state": "cancelled"},
        {"settled": "n1"},
        {"durable": False},
        {"published": None},
        {"queue": "default"},
        {"partition": 1},
    ],
    ids=lambda change: next(iter(change)),
)
def test_fix_brings_back_no_row_that_is_not_the_queues_unfinished_one_any_more(orders, meanwhile):
    lost, other = orders.scheduled(2)
    forget(orders, lost)
    forget(orders, other)
    side = doctor.Comparison(stores.places, orders.config, prefix=conf.get().prefix)
    found = side.find(repeat(None))
    assert set(found.missing) == {lost.id, other.id}
    Job.objects.filter(pk=lost.id).update(**meanwhile)
    list(side.fix(found))
    assert (orders.in_redis(lost), orders.in_redis(other)) == (None, "scheduled")


def test_fix_brings_the_jobs_of_each_partition_into_their_own(run, orders, divide, redis_server):
    divide(2)
    jobs = [delayq.schedule(close_order, number, delay="1h") for number in range(8)]
    assert {ids.partition(job.id) for job in jobs} == {0, 1}
    fold()
    parts = stores.parts("orders")
    redis_server.link.execute("DEL", *(store.keys[name] for store in parts for name in ("jobs", "normal")))
    found = run("doctor", "--deep", "--fix", "--yes", "--json").json["findings"]
    assert [finding["code"] for finding in found if finding["code"] == "D008"] == ["D008"] * 2
    for partition, store in enumerate(parts):
        there = {id.decode() for id in redis_server.link.execute("HKEYS", store.keys["jobs"])}
        assert there == {job.short_id for job in jobs if ids.partition(job.id) == partition}


def test_fix_brings_back_all_that_the_rows_say(orders, redis_server):
    options = {"key": "o:7", "priority": 5, "max_attempts": 4, "expires": "2h", "meta": {"ä": [None, {}, 0.5]}}
    waits = delayq.schedule(close_order, 7, delay="1h", **options)
    retried, runs = orders.running(), orders.running()
    Job.objects.filter(pk=retried.id).update(state="scheduled", attempts=2, crashes=1, asked=3)
    before = {job.id: stores.inspector().job("orders", job.id).record for job in (waits, retried, runs)}
    names = ("jobs", "high", "normal", "leases", "runs", "keys")
    redis_server.link.execute("DEL", *(orders.store.keys[name] for name in names))
    side = doctor.Comparison(stores.places, orders.config, prefix=conf.get().prefix)
    found = side.find(repeat(None))
    assert set(found.missing) == set(before)
    list(side.fix(found))
    after = {id: stores.inspector().job("orders", id) for id in before}
    assert {id: view.record for id, view in after.items()} == before
    assert (after[waits.id].state, after[waits.id].date_ms) == ("scheduled", clock.to_ms(Job.objects.get(pk=waits.id).run_at))
    assert (after[retried.id].state, after[retried.id].attempt, after[retried.id].crashes) == ("scheduled", 2, 1)
    assert (after[runs.id].state, after[runs.id].attempt) == ("running", 0)  # who runs it may adopt it; else the next one is the first
    assert int(redis_server.link.execute("HGET", orders.store.keys["asks"], retried.short_id)) == 3
    assert delayq.get(key="o:7", queue="orders").id == waits.id


def stray(orders, *jobs: delayq.Job) -> None:
    """Keeps only the records of these jobs."""
    stores.link.execute("ZREM", orders.store.keys["normal"], *(job.short_id for job in jobs))


def test_deep_finds_a_record_without_a_place_and_fix_puts_it_where_its_row_says(run, orders):
    [job], [kept] = orders.scheduled(durability="redis"), orders.scheduled()
    ended = orders.ended("ack")
    stores.link.execute("HSET", orders.store.keys["jobs"], ended.short_id, stores.inspector().job("orders", kept.id).raw)
    stores.link.execute("ZREM", orders.store.keys["finished"], ended.short_id)
    stray(orders, job, kept)
    assert orphans(run).keys() == {"D037"}
    said = orphans(run, "--fix", "--yes")["D037"]
    assert said.startswith("Jobs of 'orders' in Redis without a date, which no worker runs: 3")
    for one in (job, kept):
        view = stores.inspector().job("orders", one.id)
        assert (view.state, view.date_ms) == ("scheduled", clock.to_ms(Job.objects.get(pk=one.id).run_at))
    assert orders.in_redis(ended) is None
    assert orphans(run) == {}


def test_a_record_without_a_place_and_without_a_row_is_left_to_a_person(run, orders):
    ran, ended = orders.scheduled(2, durability="redis")
    stray(orders, ran, ended)
    Job.objects.filter(pk__in=[ran.id, ended.id]).delete()
    for words in ((), ("--fix", "--yes")):
        answer = run("doctor", "--deep", "--json", *words)
    [found] = [finding for finding in answer.json["findings"] if finding["code"] == "D037"]
    assert found["level"] == "error"
    assert "without a row that has it" in found["message"]
    assert run("requeue", ran.id).code == 0
    assert orders.in_redis(ran) == "scheduled"
    assert run("cancel", ended.id).code == 0
    assert "D037" not in orphans(run)


def test_what_the_relay_puts_in_is_no_finding(run, orders):
    job = orders.scheduled()[0]
    stray(orders, job)
    Job.objects.filter(pk=job.id).update(published=None)
    assert "D037" not in orphans(run)


def test_deep_finds_a_job_whose_row_is_finished_and_fix_drops_it(run, orders):
    job, *_ = orders.scheduled(3)
    Job.objects.filter(pk=job.id).update(state="succeeded")
    assert orphans(run).keys() == {"D009"}
    orphans(run, "--fix", "--yes")
    assert orders.in_redis(job) is None
    assert orphans(run) == {}


def test_deep_finds_a_job_without_a_row_and_fix_writes_it(run, orders):
    job, *_ = orders.scheduled(3)
    Job.objects.filter(pk=job.id).delete()
    assert orphans(run).keys() == {"D010"}
    orphans(run, "--fix", "--yes")
    row = Job.objects.get(pk=job.id)
    assert (row.state, row.task) == ("scheduled", "tests.tasks_for_tests.close_order")
    assert orphans(run) == {}


@pytest.mark.parametrize("audit", ["full", "failures"])
def test_deep_finds_a_failed_job_without_a_row_and_fix_writes_it(run, orders, settings, audit):
    settings.DELAYQ = {**settings.DELAYQ, "AUDIT": audit}
    job = orders.ended("fail")
    Job.objects.filter(pk=job.id).delete()
    assert ids.short(job.id) in orphans(run)["D010"]
    orphans(run, "--fix", "--yes")
    row, view = Job.objects.get(), stores.inspector().job("orders", job.id)
    assert (row.pk, row.state, row.error) == (job.id, "failed", "why it failed did not reach the database")
    assert view is not None
    assert row.finished_at == clock.from_ms(view.date_ms)
    assert orphans(run) == {}
    assert job.requeue() is delayq.Change.DONE


def test_deep_does_not_miss_a_row_that_was_pruned(run, orders, settings):
    settings.DELAYQ = {**settings.DELAYQ, "RETENTION": {"failed": 0.001}}
    job = orders.ended("fail")
    run("prune", "--yes")
    assert (Job.objects.count(), orders.in_redis(job)) == (0, "failed")
    assert orphans(run) == {}


def test_deep_waits_for_what_the_mirror_has_not_seen(run, orders):
    orders.scheduled(2)
    for job in orders.claim():
        orders.settle(job, "ack")
    assert orphans(run) == {}


def test_fix_goes_with_deep(run, orders):
    assert run("doctor", "--fix").code == 2


def test_fix_asks_first_and_says_what_it_would_do(run, orders, capsys):
    lost, risen, rowless = orders.scheduled(3)
    forget(orders, lost)
    Job.objects.filter(pk=risen.id).update(state="succeeded")
    Job.objects.filter(pk=rowless.id).delete()
    alone = run("doctor", "--deep", "--fix")
    assert (alone.code, alone.out) == (2, "")
    assert "needs confirmation" in alone.error
    refused = run("doctor", "--deep", "--fix", typed="n")
    assert (refused.code, refused.error) == (1, "Nothing was changed.")
    assert "Jobs to restore in Redis: 1, to remove there: 1, to mark as unresolved: 0. Rows to write: 1." in capsys.readouterr().err
    assert orphans(run, "--fix", "--dry-run").keys() == orphans(run).keys() == {"D008", "D009", "D010"}
    run("doctor", "--deep", "--fix", typed="y")
    assert orphans(run) == {}


def test_fix_does_not_say_that_it_has_put_right_what_it_could_not(run, orders):
    good, bad = orders.ended("fail"), orders.ended("fail")
    Job.objects.all().delete()
    stores.link.execute("HSET", orders.store.keys["jobs"], ids.short(bad.id), b"no header")
    findings = run("doctor", "--deep", "--fix", "--yes", "--json").json["findings"]
    written, left = (found for found in findings if found["code"] == "D010")
    assert list(Job.objects.values_list("id", flat=True)) == [good.id]
    assert (ids.short(good.id) in written["message"], written["hint"]) == (True, "These differences have been repaired.")
    assert (ids.short(bad.id) in left["message"], "inspect" in left["hint"]) == (True, True)


def test_fix_does_not_say_that_it_has_brought_back_what_cannot_be_a_job(run, orders):
    good, bad = orders.scheduled(2)
    forget(orders, good)
    forget(orders, bad)
    Job.objects.filter(pk=bad.id).update(task=rows.STUB)
    findings = run("doctor", "--deep", "--fix", "--yes", "--json").json["findings"]
    back, left = (found for found in findings if found["code"] == "D008")
    assert (orders.in_redis(good), orders.in_redis(bad)) == ("scheduled", None)
    assert (good.short_id in back["message"], back["level"], back["hint"]) == (True, "warning", "These differences have been repaired.")
    assert (bad.short_id in left["message"], left["level"], "inspect" in left["hint"]) == (True, "error", True)


def test_where_both_sides_agree_fix_asks_nothing(run, orders):
    orders.scheduled(2)
    assert orphans(run, "--fix") == {}


def test_fix_shows_its_progress_beside_the_output(run, orders, capsys):
    jobs = delayq.schedule_many(close_order.using(delay="1h").bind(number) for number in range(220))
    orders.fold()
    Job.objects.filter(pk__in=[job.id for job in jobs]).delete()
    assert "Jobs of 'orders' in Redis without a row in the database: 220" in run("doctor", "--deep", "--fix", "--yes").out
    assert "fixing" in capsys.readouterr().err
    assert Job.objects.count() == 220


def forget(orders, job: delayq.Job) -> None:
    """Redis loses one job."""
    id = ids.short(job.id)
    stores.link.execute("HDEL", orders.store.keys["jobs"], id)
    stores.link.execute("ZREM", orders.store.keys["normal"], id)


def test_jobs_of_redis_durability_that_redis_has_lost_are_found_and_left_to_a_person(run, orders, redis_server):
    lost = delayq.schedule(close_order, 1, delay="1h", durability="redis")
    durable = delayq.schedule(close_order, 2, delay="1h")
    orders.fold()
    keys = orders.store.keys
    redis_server.link.execute("HDEL", keys["jobs"], ids.short(lost.id))
    redis_server.link.execute("ZREM", keys["normal"], ids.short(lost.id))
    kept = delayq.schedule(close_order, 3, delay="1h", durability="redis")
    assert ids.short(lost.id) in orphans(run)["D013"]
    assert Job.objects.get(pk=lost.id).state == "scheduled"
    orphans(run, "--fix", "--yes")
    row = Job.objects.get(pk=lost.id)
    assert (row.state, row.derived) == ("scheduled", "unresolved")
    assert "Redis lost this job" in row.error
    assert {Job.objects.get(pk=job.id).state for job in (durable, kept)} == {"scheduled"}
    assert orphans(run) == {}
    assert delayq.requeue(lost.id) == "conflict"
    run("requeue", lost.short_id, "--yes")
    assert stores.inspector().job("orders", lost.id).state == "scheduled"


def test_before_what_was_wiped_is_back_nothing_is_called_lost(run, orders, redis_server):
    delayq.schedule(close_order, 1, delay="1h", durability="redis")
    delayq.schedule(close_order, 2, delay="1h")
    orders.fold()
    redis_server.link.execute("FLUSHALL")
    assert orphans(run).keys() == {"D008"}


def test_what_the_mirror_has_not_told_yet_is_not_called_lost(run, orders, monkeypatch):
    job = delayq.schedule(close_order, 1, durability="redis")
    orders.fold()
    orders.settle(orders.claim()[0], "ack")
    orders.store.tidy(tombstones_ms=-1, now_ms=clock.wall_ms() + 10)
    monkeypatch.setattr(doctor, "PATIENCE", 0.0)
    monkeypatch.setattr(MirrorLoop, "poll", lambda self: 1.0)
    assert orphans(run, "--fix", "--yes") == {}
    assert Job.objects.get(pk=job.id).state == "scheduled"


def test_a_row_whose_job_ended_without_an_event_is_left_to_a_person_and_does_not_run_again(run, orders):
    job = delayq.schedule(close_order, 1)
    orders.fold()
    orders.settle(orders.claim()[0], "ack")
    stores.link.execute("UNLINK", orders.store.keys["events"])
    assert ids.short(job.id) in orphans(run)["D034"]
    orphans(run, "--fix", "--yes")
    assert Job.objects.get(pk=job.id).derived == "unresolved"
    assert orphans(run) == {}
    stores.link.execute("UNLINK", orders.store.keys["finished"])
    assert orphans(run) == {}, "it does not count as missing when its tombstone is gone"
    orphans(run, "--fix", "--yes")
    assert orders.claim() == []
