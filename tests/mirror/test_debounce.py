"""A debounce: calls that move the holder of a key leave no trail that grows with every call, and with `at_most` they end."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext, suppress
from datetime import timedelta
from typing import Any

import pytest
from django.db import transaction

import django_delayq as delayq
from django_delayq import clock, ids
from django_delayq.exceptions import ConfigError, StoreUnavailable
from django_delayq.models import Event, Job
from django_delayq.producer.stores import stores
from tests.mirror.restoring import in_redis, settle_down
from tests.tasks_for_tests import close_order

pytestmark = pytest.mark.django_db(transaction=True)

KINDS = ("outbox-full", "outbox-failures", "redis-full", "redis-failures")  # durability, and what the rows keep
MINUTE = 60_000
WITHIN = pytest.mark.parametrize("inside", [False, True], ids=["alone", "in a transaction"])
DEBOUNCE = close_order.using(key="o:7", on_conflict="latest", delay="4m", at_most="10m")


@pytest.mark.parametrize("policy", ["latest", "earliest"])
@WITHIN
def test_a_debounce_leaves_one_event_row_at_most(orders, policy, inside):
    sign = 1 if policy == "latest" else -1
    for number in range(5):
        with transaction.atomic() if inside else nullcontext():
            delayq.schedule(close_order, number, key="o:7", delay=f"{100 + sign * number}m", on_conflict=policy)
        orders.fold()
    assert len(in_redis(orders)) == 1
    assert [event.actor for event in Event.objects.all()] == ([] if inside else ["schedule"])


@pytest.fixture(params=KINDS)
def durability(request, settings) -> str:
    """For each durability and each level of AUDIT."""
    durability, audit = request.param.split("-")
    settings.DELAYQ = {**settings.DELAYQ, "QUEUES": {"orders": {"DURABILITY": durability, "AUDIT": audit}, "default": {}}}
    return str(durability)


def block(inside: bool) -> AbstractContextManager[Any]:
    return transaction.atomic() if inside else nullcontext()


def call(minutes_ago: float = 0, *, inside: bool = False, **options: Any) -> delayq.Job:
    """A call of the debounce, after which the first date is so many minutes ago."""
    with block(inside):
        job = DEBOUNCE.using(**options).schedule(1)
    if minutes_ago:
        store = stores.queue("orders", ids.partition(job.id))
        store.link.execute("HSET", store.keys["firsts"], job.short_id, clock.wall_ms() - int(minutes_ago * MINUTE))
    return job


def minutes(job: delayq.Job) -> int:
    """In how many minutes Redis has the job due."""
    view = stores.inspector().job("orders", job.id)
    assert view is not None
    return round((view.date_ms - clock.wall_ms()) / MINUTE)


@WITHIN
def test_calls_move_a_job_until_at_most_after_the_first_one(durability, orders, inside):
    first = call(8, inside=inside, delay="1m")
    assert minutes(first) == 1
    for _ in range(3):
        again = call(inside=inside)
        orders.fold()
        assert (again.id, again.created, minutes(first)) == (first.id, False, 2)
    if durability == "outbox":
        assert abs(Job.objects.get(pk=first.id).run_at - clock.now() - timedelta(minutes=2)) < timedelta(seconds=60)


@WITHIN
def test_a_call_after_the_last_date_moves_nothing_and_the_job_runs(durability, orders, inside):
    first = call(15, inside=inside, delay=0)
    assert call(inside=inside).id == first.id
    assert [job.id for job in orders.claim()] == [first.short_id]
    orders.fold()


def test_after_its_run_the_next_call_begins_a_new_debounce(durability, orders):
    first = call(15, delay=0)
    for job in orders.claim():
        orders.settle(job, "ack")
    orders.fold()
    second = call()
    assert (second.created, second.id != first.id, minutes(second)) == (True, True, 4)
    orders.store.tidy()
    noted = orders.store.link.execute("HMGET", orders.store.keys["firsts"], first.short_id, second.short_id)
    assert [date is None for date in noted] == [True, False]


def test_jobs_of_one_call_and_of_one_transaction_have_one_first_date(orders):
    jobs = delayq.schedule_many(DEBOUNCE.using(delay=f"{n}m").bind(n) for n in (4, 9))
    with transaction.atomic():
        call(delay="10m")
        call(delay="10m")
    assert {job.created for job in jobs} == {True, False}
    assert in_redis(orders) == {jobs[0].short_id: "scheduled"}
    assert minutes(jobs[0]) == 10


def test_a_wipe_gives_the_job_the_date_of_its_row(orders, loop, wipe):
    first = call(delay="1m")
    orders.fold()
    Job.objects.filter(pk=first.id).update(created_at=clock.now() - timedelta(minutes=8))
    wipe()
    settle_down(orders, loop)
    assert minutes(first) == 1
    assert call().id == first.id
    assert minutes(first) == 2


def test_a_call_between_a_wipe_and_the_restore_has_the_same_limit(orders, wipe):
    first = call(delay="1m")
    orders.fold()
    Job.objects.filter(pk=first.id).update(created_at=clock.now() - timedelta(minutes=8))
    wipe()
    assert call().id == first.id
    orders.fold()
    assert minutes(first) == 2
    assert call().id == first.id
    assert minutes(first) == 2


def test_a_row_that_the_relay_publishes_counts_from_its_date(orders, unpublished):
    first = unpublished(1, key="o:7", on_conflict="latest", delay="1m", at_most="10m")
    Job.objects.filter(pk=first.id).update(created_at=clock.now() - timedelta(minutes=8))
    orders.relay._young = -3600
    orders.relay.poll()
    orders.fold()
    assert call().id == first.id
    assert minutes(first) == 2


@pytest.mark.parametrize("times", [1, 2, 3])
def test_lost_replies_and_repeats_move_a_job_no_further(durability, orders, lost_reply, times):
    first = call(8, delay="1m")
    lost_reply(times)
    for _ in range(times + 1):
        with suppress(StoreUnavailable):
            call()
        stores.reset()
    orders.relay._young = -3600
    for _ in range(3):
        orders.fold()
        orders.relay.poll()
    assert call().id == first.id
    assert in_redis(orders) == {first.short_id: "scheduled"}
    assert minutes(first) == 2


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"on_conflict": "keep"}, "at_most requires on_conflict='latest'"),
        ({"on_conflict": "earliest"}, "at_most requires on_conflict='latest'"),
        ({"key": ""}, "on_conflict='latest' requires a key"),
        ({"at_most": "0s"}, "at_most='0s' must be from one second to 366 days"),
        ({"at_most": "367d"}, "at_most='367d' must be from one second to 366 days"),
        ({"at_most": "soon"}, "at_most="),
        ({"delay": "11m"}, "delay='11m' is longer than at_most='10m'"),
    ],
)
def test_what_it_cannot_mean_is_refused(orders, options, says):
    with pytest.raises(ConfigError) as refused:
        DEBOUNCE.using(**options).schedule(1)
    assert says in str(refused.value)
    assert not Job.objects.exists()


def test_a_date_beyond_the_limit_is_brought_forward(orders):
    first = close_order.using(key="o:7", on_conflict="latest", at_most="10m", run_at=clock.now() + timedelta(days=1)).schedule(1)
    assert minutes(first) == 10


# --- far jobs ---


@pytest.fixture
def far(horizon, orders):
    """Calls in hours, in a queue whose far jobs wait in the database."""
    return DEBOUNCE.using(delay="4h", at_most="10h")


def hours(job: delayq.Job) -> float:
    row = Job.objects.get(pk=job.id)
    return round((row.run_at - clock.now()).total_seconds() / 3600, 1)


def age(job: delayq.Job, hours: float) -> None:
    Job.objects.filter(pk=job.id).update(created_at=clock.now() - timedelta(hours=hours))


@WITHIN
def test_a_far_job_is_not_moved_beyond_the_limit(far, inside):
    first = far.using(delay="1h30m").schedule(1)
    for made, date in ((3, 4.0), (7, 4.0), (7, 4.0), (20, 4.0)):
        age(first, made)
        with block(inside):
            assert far.schedule(1).id == first.id
        assert hours(first) == date
    Job.objects.filter(pk=first.id).update(run_at=clock.now() + timedelta(hours=1.5))
    age(first, 8)
    with block(inside):
        assert far.schedule(1).id == first.id
    assert hours(first) == 2.0


def test_a_far_job_that_replaces_one_which_would_expire_has_its_first_date(far):
    first = far.using(expires="6h").schedule(1)
    age(first, 3)
    second = far.using(expires="9h", delay="6h30m").schedule(1)
    assert (second.created, hours(second)) == (True, 6.5)
    third = far.using(expires="12h", delay="9h30m").schedule(1)
    assert (third.created, hours(third)) == (False, 7.0)


def test_a_far_job_that_is_brought_in_has_the_date_of_its_row(far, horizon, orders):
    first = far.schedule(1)
    age(first, 8)
    assert horizon.later(hours=4) == [first.id]
    orders.relay._young = -3600
    orders.relay.poll()
    orders.fold()
    date = stores.queue("orders", 0).link.execute("HGET", stores.queue("orders", 0).keys["firsts"], first.short_id)
    assert abs(int(date) - clock.wall_ms() + 8 * 60 * MINUTE) < MINUTE
