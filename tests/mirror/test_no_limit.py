"""`max_attempts=0`: a job that no number of attempts ends, but its expiry."""

from __future__ import annotations

from datetime import timedelta

import pytest

import django_delayq as delayq
from django_delayq import clock
from django_delayq.models import Job
from django_delayq.producer.task import Task, make_task
from django_delayq.states import NO_LIMIT
from django_delayq.store.scripts.record import JobRecord
from tests.tasks_for_tests import close_order

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.mark.parametrize("durability", ["outbox", "redis"])
def test_no_limit_wants_an_expiry(orders, durability):
    with pytest.raises(delayq.ConfigError, match="Pass expires= as well"):
        delayq.schedule(close_order, 1, max_attempts=0, durability=durability)
    job = delayq.schedule(close_order, 1, max_attempts=0, expires="1h", durability=durability)
    assert orders.store.link.execute("HGET", orders.store.keys["jobs"], job.short_id).split(b":")[0].endswith(b"%d" % NO_LIMIT)


@pytest.mark.parametrize("most", [-1, "0", 0.0, False])
def test_what_is_no_number_of_attempts_is_refused(orders, most):
    with pytest.raises(delayq.ConfigError, match=r"max_attempts must be (at least 1, or 0|a whole number such as 10, not)"):
        delayq.schedule(close_order, 1, max_attempts=most, expires="1h")


def test_a_task_may_say_it_of_all_its_jobs():
    free = make_task(Task, lambda id: None, where="here", name="free", max_attempts=0)
    assert free.max_attempts == 0
    with pytest.raises(delayq.ConfigError, match="at least 1, or 0"):
        make_task(Task, lambda: None, where="here", name="less", max_attempts=-1)
    with pytest.raises(delayq.ConfigError, match="must have a maximum number of attempts"):
        make_task(Task, lambda: None, where="here", name="followed", on_failure=free)


def test_of_a_limit_of_the_task_a_job_may_be_free(orders):
    limited = close_order.using(max_attempts=3)
    delayq.schedule(limited, 1, max_attempts=0, expires="1h")
    assert Job.objects.get().max_attempts == NO_LIMIT


def test_it_is_tried_until_it_expires_and_then_it_has_failed(orders):
    job = delayq.schedule(close_order, 1, max_attempts=0, expires=timedelta(hours=1))
    for attempt in range(1, 30):
        [run] = orders.claim()
        assert run.attempt == attempt
        orders.settle(run, "retry", delay=0)
    orders.fold()
    Job.objects.filter(pk=job.id).update(error="the bank is closed")
    raw = orders.store.link.execute("HGET", orders.store.keys["jobs"], job.short_id)
    expires = Job.objects.get(pk=job.id).expires_at
    over = raw.replace(b":%d " % clock.to_ms(expires), b":%d " % (clock.wall_ms() - 1))
    orders.store.link.execute("HSET", orders.store.keys["jobs"], job.short_id, over)
    assert orders.claim() == []
    orders.fold()
    row = Job.objects.get(pk=job.id)
    assert (row.state, row.attempts) == ("failed", 29)
    assert row.error == "Expired: it expired before it could run again. Its last error: the bank is closed"


def test_who_is_put_back_behind_its_expiry_has_the_usual_attempts(orders):
    job = delayq.schedule(close_order, 1, max_attempts=0, expires="1h")
    orders.fold()
    [run] = orders.claim()
    orders.settle(run, "fail")
    orders.fold()
    Job.objects.filter(pk=job.id).update(expires_at=clock.from_ms(clock.wall_ms() - 1))
    assert delayq.requeue(job) == "done"
    kept = JobRecord.decode(job.id, orders.store.link.execute("HGET", orders.store.keys["jobs"], job.short_id))
    assert (kept.max_attempts, kept.expires_ms) == (10, 0)
