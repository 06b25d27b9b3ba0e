"""`then=`: the job that follows a success. And rows that Redis gets as soon as a job ends."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

import django_delayq as delayq
from django_delayq import conf, ids
from django_delayq.mirror.mirror_loop import MirrorLoop
from django_delayq.mirror.service import Service
from django_delayq.models import Job, Step, database
from django_delayq.producer import acts
from django_delayq.producer.outbox import jobs as rows_of_jobs
from django_delayq.producer.stores import stores
from tests.mirror.restoring import settle_down
from tests.tasks_for_tests import close_order, look_after, risky

THEN = close_order.using(delay="1m").bind(8)


def followers() -> list[tuple[list[Any], str]]:
    return [(row.args, row.derived) for row in Job.objects.exclude(args=[7]).order_by("id")]


def end(orders, outcome: str = "ack") -> None:
    (claimed,) = orders.claim()
    orders.settle(claimed, outcome)
    orders.fold()


def test_a_success_schedules_what_follows_once(orders):
    job = delayq.schedule(close_order, 7, then=THEN)
    (claimed,) = orders.claim()
    orders.settle(claimed, "ack")
    entries = orders.mirror.log.read("0-0", 100)
    orders.fold()
    (row,) = Job.objects.exclude(pk=job.id)
    assert (row.args, row.derived) == ([8], "unpublished")
    assert row.run_at - row.created_at == timedelta(minutes=1)
    assert Job.objects.get(pk=job.id).follow_up == str(row.pk)
    orders.mirror._write(entries)  # folded once more
    assert len(followers()) == 1


@pytest.mark.parametrize("outcome", ["fail", "cancel", "retry", "snooze"])
def test_nothing_follows_another_outcome(orders, outcome):
    delayq.schedule(close_order, 7, then=THEN)
    end(orders, outcome)
    assert followers() == []


def test_a_job_that_is_put_back_and_succeeds_has_its_follow_up(orders):
    job = delayq.schedule(risky, 7, then=THEN)
    end(orders, "fail")
    assert [args for args, _ in followers()] == [[str(job.id)]]  # on_failure
    job.requeue()
    end(orders)
    assert [args for args, _ in followers()] == [[str(job.id)], [8]]


def test_a_follow_up_has_its_own_follow_up(orders):
    delayq.schedule(close_order, 7, then=close_order.using(then=close_order.bind(9)).bind(8))
    end(orders)
    orders.relay.poll()
    end(orders)
    assert followers() == [([8], "succeeded"), ([9], "unpublished")]


def test_a_job_that_is_merged_has_no_follow_up(orders):
    delayq.schedule(close_order, 7, key="k")
    assert delayq.schedule(close_order, 7, key="k", then=THEN).created is False
    end(orders)
    assert followers() == []


def test_a_replaced_job_has_no_follow_up_but_the_other_has(orders):
    delayq.schedule(close_order, 7, key="k", delay="1h", then=close_order.bind(1))
    delayq.schedule(close_order, 7, key="k", on_conflict="replace", then=THEN)
    end(orders)
    assert [args for args, _ in followers()] == [[8]]


def test_a_follow_up_is_as_its_options_say(orders):
    at, expires = datetime(2030, 1, 1, tzinfo=UTC), datetime(2031, 1, 1, tzinfo=UTC)
    options = {"key": "k", "priority": 3, "max_attempts": 4, "meta": {"by": "form"}, "on_conflict": "earliest"}
    delayq.schedule(close_order, 7, then=close_order.using(run_at=at, expires=expires, **options).bind(8, note="é"))
    end(orders)
    row = Job.objects.get(key="k")
    assert (row.args, row.kwargs, row.options) == ([8], {"note": "é"}, {"meta": {"by": "form"}})
    assert (row.run_at, row.expires_at, row.priority, row.max_attempts, row.on_conflict) == (at, expires, 3, 4, "earliest")


def test_many_jobs_have_each_its_own_follow_up(orders):
    delayq.schedule_many(close_order.using(then=close_order.bind(100 + number)).bind(7) for number in range(250))
    for claimed in [*orders.claim(), *orders.claim()]:
        orders.settle(claimed, "ack")
    orders.fold()
    assert sorted(args for args, _ in followers()) == [[100 + number] for number in range(250)]


def test_a_job_with_a_follow_up_keeps_its_row_whatever_audit_says(orders, settings):
    settings.DELAYQ = {**settings.DELAYQ, "AUDIT": "failures"}
    mirror = MirrorLoop(stores.link, conf.get().queue("orders"), prefix="delayq")
    delayq.schedule(close_order, 7, then=THEN)
    delayq.schedule(close_order, 6)
    for claimed in orders.claim():
        orders.settle(claimed, "ack")
    mirror.drain()
    assert {row.args[0] for row in Job.objects.all()} == {7, 8}


def test_a_person_who_marks_a_job_as_succeeded_has_its_follow_up_scheduled(orders):
    job = delayq.schedule(close_order, 7, then=THEN)
    Job.objects.filter(pk=job.id).update(published=None, ending="unknown")
    acts.mark_succeeded(job)
    assert [args for args, _ in followers()] == [[8]]


def test_a_committed_run_that_redis_has_lost_has_its_follow_up(orders):
    job = delayq.schedule(close_order, 7, then=THEN)
    Step.objects.create(job_id=job.id, name="", fence="f", at=database.now())
    rows_of_jobs.end_committed(Job.objects.filter(pk=job.id))
    rows_of_jobs.end_committed(Job.objects.filter(pk=job.id))
    assert [args for args, _ in followers()] == [[8]]


def test_a_wipe_changes_nothing(loop, orders, wipe):
    delayq.schedule(close_order, 7, then=THEN)
    orders.fold()
    wipe()
    settle_down(orders, loop)
    end(orders)
    assert [args for args, _ in followers()] == [[8]]


def test_a_follow_up_goes_to_the_partition_of_its_key(delayq_redis, transactional_db, settings):
    settings.DELAYQ = {**settings.DELAYQ, "QUEUES": {"orders": {"PARTITIONS": 4}, "default": {}}}
    job = delayq.schedule(close_order, 7, then=close_order.using(key="k").bind(8))
    home = conf.get().queue("orders").homes("k")[0]
    Step.objects.create(job_id=job.id, name="", fence="f", at=database.now())
    rows_of_jobs.end_committed(Job.objects.filter(pk=job.id))
    row = Job.objects.get(key="k")
    assert (row.partition, ids.partition(row.pk)) == (home, home)


@pytest.mark.parametrize(
    ("options", "then", "why"),
    [
        ({}, close_order, "then=task.bind"),
        ({}, "close_order", "then=task.bind"),
        ({"durability": "redis"}, THEN, "then requires durability='outbox'"),
        ({}, close_order.using(durability="redis").bind(8), "the job requires durability='outbox'"),
        ({}, close_order.using(key="k", once_for="1h").bind(8), "cannot have once_for"),
        ({}, close_order.using(expires="1h").bind(8), "cannot have an expiry that is a duration"),
        ({}, close_order.bind(), "order_id"),
    ],
)
def test_what_cannot_follow_is_refused_at_the_call(orders, options, then, why):
    with pytest.raises(delayq.DelayqError, match=why):
        delayq.schedule(close_order, 7, then=then, **options)
    assert not Job.objects.exists()


@pytest.fixture
def service(orders, monkeypatch) -> Service:
    """The loops of a record keeper. Its relay leaves young rows alone, and has found none."""
    found = Service(stores.places, conf.get(), [conf.get().queue("orders")])
    for _ in range(3):
        found.poll()
    return found


def polled(service: Service, orders) -> list[UUID]:
    """The jobs that are due after one pass of the mirror and the passes that it calls for at once."""
    for runner in service._folders:
        runner.wake()
    for _ in range(3):
        service.poll()
    return [ids.full(job.id) for job in orders.claim()]


def test_the_relay_of_the_same_process_publishes_a_follow_up_at_once(orders, service):
    delayq.schedule(close_order, 7, then=close_order.bind(8))
    orders.settle(orders.claim()[0], "ack")
    assert polled(service, orders) == [Job.objects.get(args=[8]).pk]


def test_the_relay_of_the_same_process_publishes_what_follows_a_failure_at_once(orders, service):
    delayq.schedule(risky, 7)
    orders.settle(orders.claim()[0], "fail")
    assert polled(service, orders) == [Job.objects.get(task=look_after.name).pk]


def test_the_relay_of_the_same_process_publishes_a_job_that_waits_for_another_at_once(orders, service):
    delayq.schedule(close_order, 7, key="k")
    (claimed,) = orders.claim()
    after = delayq.schedule(close_order, 8, key="k", on_conflict="after")
    assert polled(service, orders) == []
    orders.settle(claimed, "ack")
    assert polled(service, orders) == [after.id]


def test_a_follow_up_for_another_queue_waits_for_its_relay(orders, service):
    delayq.schedule(close_order, 7, then=close_order.using(queue="default").bind(8))
    orders.settle(orders.claim()[0], "ack")
    assert polled(service, orders) == []
    assert Job.objects.get(args=[8]).derived == "unpublished"


def test_a_relay_that_fails_has_its_pause(orders, service):
    relay, runner = service._relays["orders", 0]
    runner.failures, runner.next = 1, float("inf")
    delayq.schedule(close_order, 7, then=close_order.bind(8))
    orders.settle(orders.claim()[0], "ack")
    assert polled(service, orders) == []
    relay.poll()  # after the pause
    assert [ids.full(job.id) for job in orders.claim()] == [Job.objects.get(args=[8]).pk]
