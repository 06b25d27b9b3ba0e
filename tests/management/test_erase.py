"""`delayq erase`: nothing about a person is left in the rows and in Redis, and the record of the erasure does not say who it was."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.apps import apps

import django_delayq as delayq
from django_delayq import clock, ids
from django_delayq.contrib.gateway.models import KeptAnswer
from django_delayq.management import erase_command
from django_delayq.models import Event, Job, PeriodKey, SetAside, database
from django_delayq.producer.stores import stores
from django_delayq.store.connection.link import Link
from django_delayq.store.scripts.queue import Outcome
from tests.management.conftest import Shop, lose_redis
from tests.partitioned import claim, divide, fold
from tests.tasks_for_tests import close_order

__all__ = ("divide",)
PERSON = "ann@example.com"
OTHER = "bob@example.com"


def traces(redis: Link, person: str = PERSON) -> list[str]:
    """The tables of the package, and the keys of Redis, that contain this text."""
    found = []
    for model in apps.get_models():
        if model._meta.db_table.startswith("delayq_") and not model._meta.proxy:
            values = [[bytes(one) if isinstance(one, memoryview) else one for one in row] for row in model._base_manager.values_list()]
            found += [model.__name__] * (person in repr(values))
    for key in redis.execute("KEYS", "*"):
        found += [key.decode()] * (person in str(contents(redis, key)))
    return found


def contents(redis: Link, key: bytes) -> Any:
    read = {
        b"hash": ("HGETALL", key),
        b"zset": ("ZRANGE", key, 0, -1),
        b"list": ("LRANGE", key, 0, -1),
        b"stream": ("XRANGE", key, "-", "+"),
        b"string": ("GET", key),
    }
    return redis.execute(*read[redis.execute("TYPE", key)])


@pytest.fixture
def mirrored(orders: Shop, monkeypatch) -> Shop:
    """The mirror works while the command waits."""
    monkeypatch.setattr(clock, "sleep", lambda seconds: orders.fold())
    return orders


def of_person(orders: Shop, person: str = PERSON) -> list[delayq.Job]:
    """A job in each state, with the person's address wherever a job can have it."""

    def put(name: str, **options: Any) -> delayq.Job:
        task = close_order.using(key=f"{person}:{name}", meta={"customer": person}, **options)
        return task.schedule(7, note=person)

    def claimed(name: str, **options: Any) -> tuple[delayq.Job, Any]:
        job = put(name, **options)
        [one] = orders.claim()
        return job, one

    failed, one = claimed("failed", serial=f"mails:{person}")
    orders.settle(one, "fail", detail=json.dumps({"c": "ValueError", "m": person, "t": person}).encode())
    succeeded, one = claimed("succeeded")
    orders.settle(one, "ack", detail=json.dumps({"r": person}).encode())
    orders.fold()
    scheduled, cancelled = put("scheduled", delay="1h"), put("cancelled", delay="1h")
    cancelled.cancel(reason=person)
    orders.fold()
    SetAside.objects.create(
        queue="orders",
        stream_id=person,
        item=0,
        kind="x",
        job_id=failed.id,
        at=database.now(),
        raw=person.encode(),
        length=9,
        code="x",
        noticed_at=database.now(),
    )
    now = database.now()
    PeriodKey.objects.create(digest=f"{person}".ljust(64, "0"), job=succeeded.id, at=now, queue="orders", task=close_order.name)
    KeptAnswer.objects.create(
        digest=person.ljust(64, "0"), request="r", job=succeeded.id, status=200, body={"to": person}, created_at=now, held_until=now
    )
    return [failed, succeeded, scheduled, cancelled]


def test_it_erases_every_trace_of_a_person_and_nothing_of_others(mirrored: Shop, run, redis_server):
    redis = redis_server.link
    jobs, others = of_person(mirrored), of_person(mirrored, OTHER)
    before = traces(redis, OTHER)
    assert {"Job", "Attempt", "Event", "SetAside", "PeriodKey", "KeptAnswer", mirrored.store.keys["jobs"]} <= set(traces(redis))
    answer = run("erase", "--search", f"meta:customer={PERSON}", "--reason", "request 2030-17", "--yes", "--json")
    assert (answer.code, answer.json) == (0, {"erased": 4, "left": 0})
    assert traces(redis) == []
    assert not Job.objects.filter(pk__in=[job.id for job in jobs]).exists()
    assert traces(redis, OTHER) == before
    assert Job.objects.filter(pk__in=[job.id for job in others]).count() == 4
    mirrored.fold()
    assert traces(redis) == []


def test_the_record_of_the_erasure_has_the_actor_the_reason_and_the_number(mirrored: Shop, run):
    of_person(mirrored)
    assert run("erase", "--search", f"meta:customer={PERSON}", "--reason", "request 2030-17", "--yes").out == "Erased jobs: 4.\n"
    event = Event.objects.get(kind=erase_command.ERASED)
    assert (event.queue, event.job_id, event.reason, event.detail) == ("orders", None, "request 2030-17", {"jobs": 4})
    assert event.actor.startswith("cli:")


def test_after_an_erase_the_same_call_with_once_for_schedules_nothing(mirrored: Shop, run, redis_server):
    charge = close_order.using(key=f"payment:{PERSON}", once_for="7d")
    job = charge.schedule(7, note=PERSON)
    mirrored.settle(mirrored.claim()[0], "ack")
    mirrored.fold()
    assert run("erase", job.id, "--reason", "request 2030-17", "--yes").code == 0
    assert traces(redis_server.link) == []
    again = charge.schedule(7, note=PERSON)
    assert (again.id, again.created) == (job.id, False)
    assert delayq.forget(key=f"payment:{PERSON}", queue="orders") == "done"
    assert charge.schedule(7).created


def test_a_job_that_still_runs_stays_and_a_second_run_erases_it(orders: Shop, run, monkeypatch):
    job, one = orders._claimed({})
    monkeypatch.setattr(clock, "sleep", lambda seconds: orders.fold())
    answer = run("erase", job.id, "--wait", "0", "--yes")
    assert (answer.code, answer.out.startswith("Erased jobs: 0.")) == (1, True)
    assert "Not erased: 1. They have not ended" in answer.out
    assert Job.objects.get(pk=job.id).cancel_requested
    orders.settle(one, "retry")
    assert run("erase", job.id, "--yes").code == 0
    assert not Job.objects.exists()


def test_a_job_whose_end_is_not_recorded_stays_because_its_event_would_bring_it_back(orders: Shop, run):
    [job] = orders.scheduled()
    answer = run("erase", job.id, "--wait", "0", "--yes")
    assert answer.code == 1
    orders.fold()
    assert run("erase", job.id, "--wait", "0", "--yes").out == "Erased jobs: 1.\n"
    orders.fold()
    assert not Job.objects.exists()


def test_while_redis_is_away_nothing_is_erased(orders: Shop, run, settings):
    job = orders.ended()
    lose_redis(settings)
    assert "Redis" in run("erase", job.id, "--yes").error
    assert Job.objects.count() == 1


def test_it_asks_first_and_a_dry_run_only_counts(mirrored: Shop, run):
    job = mirrored.ended()
    assert run("erase", job.id, "--dry-run").out == "Jobs that would be erased: 1.\n"
    assert "Nothing was changed" in run("erase", job.id, typed="no").error
    assert Job.objects.count() == 1
    assert run("erase", ids.short(job.id), typed="y").out.endswith("Erased jobs: 1.\n")


def test_a_requeue_of_an_erased_job_finds_nothing(mirrored: Shop, run):
    job = mirrored.ended()
    run("erase", job.id, "--yes")
    assert job.requeue() == "unknown"
    assert mirrored.in_redis(job) == "finished"  # a tombstone, which has only the id


def test_without_a_choice_nothing_is_erased(orders: Shop, run):
    orders.ended()
    assert run("erase", "--yes").code == 2
    assert Job.objects.count() == 1


def test_jobs_in_all_partitions_of_a_queue_are_erased(orders: Shop, run, divide, monkeypatch, redis_server):
    divide(4)
    monkeypatch.setattr(clock, "sleep", lambda seconds: fold())
    for person in (PERSON, OTHER):
        named = [close_order.using(key=f"{person}:{n}", meta={"customer": person}) for n in range(24)]
        jobs = list(delayq.schedule_many(one.bind(n, note=person) for n, one in enumerate(named[:12])))
        assert {ids.partition(job.id) for job in jobs} == {0, 1, 2, 3}
        for one in claim():
            failed = Outcome(
                id=one.id, attempt=one.attempt, fence=one.fence, kind="fail", delay_ms=0, detail=json.dumps({"m": person}).encode()
            )
            stores.with_job("orders", ids.full(one.id)).settle([failed], worker="host:1:w", max_crashes=3)
        delayq.schedule_many(one.using(delay="1h").bind(n, note=person) for n, one in enumerate(named[12:]))
    fold()
    before = traces(redis_server.link, OTHER)
    assert run("erase", "--search", f"meta:customer={PERSON}", "--yes").out == "Erased jobs: 24.\n"
    assert traces(redis_server.link) == []
    assert traces(redis_server.link, OTHER) == before
    assert Job.objects.count() == 24
    assert sum(event.detail["jobs"] for event in Event.objects.filter(kind=erase_command.ERASED)) == 24
