"""A job that a token limits to some tasks neither displaces nor names a holder of another task, in Redis and in rows."""

from __future__ import annotations

from itertools import product

import pytest
from django.db import connection, transaction

import django_delayq as delayq
from django_delayq import job_meta
from django_delayq.exceptions import KeyTaken, PayloadError
from django_delayq.models import Event, Job
from django_delayq.producer.options import NONE, POLICIES
from django_delayq.producer.schedule import put_in
from django_delayq.producer.stores import stores
from tests.mirror.restoring import settle_down
from tests.mirror.test_road import ran, relayed
from tests.mirror.test_unresolved import unresolved
from tests.tasks_for_tests import close_order, risky

pytestmark = pytest.mark.django_db(transaction=True)

__all__ = ["unresolved"]  # its fixture
KEY = "payout:7"
# The outcome for a holder that the sender may see.
OWN = {"keep": "scheduled", "earliest": "scheduled", "latest": "scheduled", "replace": "cancelled", "after": "cancelled"}


def limited(number: int, policy: str = "error", *, delay: str = "50m", **options) -> delayq.Job:
    """A job whose sender may know of jobs of this task only."""
    given = {"key": KEY, "on_conflict": policy, "delay": delay, **options}
    return put_in(risky, NONE.but(given, risky.name), (number,), {}, only=[risky.name])


def refused(number: int, policy: str, **options) -> None:
    with pytest.raises(KeyTaken) as raised:
        limited(number, policy, **options)
    assert raised.value.code == "key_denied"
    assert raised.value.holder.int == 0


def in_transaction(number: int, policy: str, **options) -> None:
    with transaction.atomic():
        limited(number, policy, **options)


def picture(job: delayq.Job) -> tuple:
    """The state and the date of a job, in its row and in Redis."""
    row, view = Job.objects.get(pk=job.id), stores.inspector().job("orders", job.id)
    return row.state, row.ending, row.run_at, view and (view.state, view.date_ms)


def told_nothing(holder: delayq.Job) -> None:
    """No row or event of another job has the holder's id."""
    for row in Job.objects.exclude(pk=holder.id):
        assert (row.state, row.ending, row.merged_into) == ("cancelled", "merged", None)
        assert holder.short_id not in row.error
    assert not Event.objects.exclude(job=holder.id).filter(detail__icontains=holder.short_id).exists()


@pytest.mark.parametrize("ask", [refused, in_transaction], ids=["alone", "in a transaction"])
@pytest.mark.parametrize(("policy", "durability"), [*product(POLICIES, ["outbox"]), *product(list(OWN)[:-1], ["redis"])])
def test_in_redis_a_holder_of_another_task_stays_as_it_is(orders, policy, durability, ask):
    holder = delayq.schedule(close_order, 7, delay="1h", key=KEY)
    orders.fold()
    before = picture(holder)
    ask(1, policy, durability=durability)
    relayed(orders)
    assert picture(holder) == before
    told_nothing(holder)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_row_that_was_committed_before_anybody_asked_is_refused_by_the_relay(orders, policy):
    holder = delayq.schedule(close_order, 7, delay="1h", key=KEY)
    orders.fold()
    before = picture(holder)
    with transaction.atomic():
        limited(1, policy)
        connection.run_on_commit.clear()  # the web process dies
    relayed(orders)
    assert picture(holder) == before
    told_nothing(holder)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_running_holder_of_another_task_is_not_waited_for(orders, policy):
    holder = delayq.schedule(close_order, 7, key=KEY)
    orders.claim()
    orders.fold()
    refused(1, policy)
    relayed(orders)
    assert picture(holder)[0] == "running"
    told_nothing(holder)


@pytest.mark.parametrize("policy", POLICIES)
def test_behind_a_wipe_the_row_of_the_holder_decides_the_same(orders, loop, wipe, policy):
    holder, running = delayq.schedule(close_order, 7, delay="1h", key=KEY), delayq.schedule(close_order, 8, key="other")
    orders.claim()
    orders.fold()
    wipe()
    refused(1, policy)
    refused(2, policy, key="other")
    settle_down(orders, loop)
    relayed(orders)
    assert (picture(holder)[0], picture(running)[0]) == ("scheduled", "running")
    for row in Job.objects.exclude(pk__in=[holder.id, running.id]):
        assert (row.state, row.ending, row.merged_into) == ("cancelled", "merged", None)


@pytest.mark.parametrize("policy", POLICIES)
def test_while_redis_is_away_the_row_that_waits_keeps_its_key(orders, redis_away, policy):
    redis_away()
    holder = delayq.schedule(close_order, 7, delay="1h", key=KEY)
    if policy in ("keep", "error"):
        refused(1, policy)
    else:
        assert limited(1, policy).created is None
    redis_away(False)
    relayed(orders)
    assert picture(holder)[:2] == ("scheduled", None)
    told_nothing(holder)


@pytest.mark.usefixtures("horizon")
@pytest.mark.parametrize("delay", ["2h", "10m"], ids=["far", "near"])
@pytest.mark.parametrize("policy", POLICIES)
def test_a_far_holder_of_another_task_stays_as_it_is(horizon, orders, policy, delay):
    holder = delayq.schedule(close_order, 7, delay="3h", key=KEY)
    before = picture(holder)
    refused(1, policy, delay=delay)
    relayed(orders)
    assert picture(holder) == before
    told_nothing(holder)


@pytest.mark.usefixtures("horizon")
@pytest.mark.parametrize("policy", POLICIES)
def test_a_far_job_does_not_displace_a_near_holder_of_another_task(horizon, orders, policy):
    holder = delayq.schedule(close_order, 7, delay="30m", key=KEY)
    orders.fold()
    before = picture(holder)
    refused(1, policy, delay="3h")
    relayed(orders)
    assert picture(holder) == before
    told_nothing(holder)


def test_of_those_that_wait_behind_a_holder_none_of_another_task_is_replaced(orders):
    holder = limited(1, delay="0s")
    (running,) = orders.claim()
    orders.fold()
    waits = delayq.schedule(close_order, 2, key=KEY, on_conflict="after")
    refused(3, "after", delay="0s")
    assert Job.objects.get(pk=waits.id).state == "scheduled"
    orders.settle(running, "ack")
    relayed(orders)
    assert ran(orders) == [2]
    assert Job.objects.get(pk=holder.id).state == "succeeded"


def test_a_project_s_job_still_replaces_one_of_a_token_that_waits(orders):
    limited(1, delay="0s")
    (running,) = orders.claim()
    orders.fold()
    limited(2, "after", delay="0s")
    delayq.schedule(close_order, 3, key=KEY, on_conflict="after")
    orders.settle(running, "ack")
    relayed(orders)
    assert ran(orders) == [3]


@pytest.mark.parametrize("policy", ["keep", "error", "replace"])
def test_when_the_reply_is_lost_the_second_one_names_nobody_either(orders, lost_reply, policy):
    holder = delayq.schedule(close_order, 7, delay="1h", key=KEY)
    orders.fold()
    with transaction.atomic():  # so that the first question is the script's own
        job = limited(1, policy, durability="redis")
        lost_reply()
    assert job.created is False
    assert job.id != holder.id
    told_nothing(holder)


@pytest.mark.parametrize("policy", OWN)
def test_a_holder_of_a_task_of_the_limit_is_met_as_by_any_job(orders, policy):
    holder = limited(1, delay="1h")
    job = limited(2, policy)
    assert (job.id == holder.id) is (OWN[policy] == "scheduled")
    orders.fold()
    assert Job.objects.get(pk=holder.id).state == OWN[policy]


def test_an_expired_holder_is_none(orders):
    holder = delayq.schedule(close_order, 7, key=KEY, expires="1ms")
    while stores.now_ms("orders") <= holder.due_ms + 2:
        pass
    assert limited(1).created is True


def test_the_limit_travels_in_meta_that_nobody_is_shown_and_only_with_a_key(orders):
    with_key, without = limited(1), limited(2, key="", on_conflict="keep")
    assert Job.objects.get(pk=with_key.id).options["meta"] == {job_meta.ONLY: [risky.name]}
    assert Job.objects.get(pk=without.id).options == {}
    assert Job.objects.get(pk=with_key.id).meta == {}
    with pytest.raises(PayloadError, match="limit of a token"):
        delayq.schedule(close_order, 1, meta={job_meta.ONLY: []})


@pytest.mark.parametrize(
    ("payload", "tasks"),
    [
        (b'[[], {}, {"meta": {"delayq.only": ["a", 5, "b"]}}]', ("a", "b")),
        (b'[[], {}, {"meta": {"delayq.only": []}}]', ()),
        (b'[[], {}, {"meta": {"delayq.only": "a"}}]', ()),
        (b'[["delayq.only"], {}, null]', None),
        (b'["delayq.only"', ()),
        (b"[[], {}, null]", None),
    ],
)
def test_a_limit_that_cannot_be_read_allows_no_task(payload, tasks):
    assert job_meta.allowed_tasks(payload) == tasks


@pytest.mark.parametrize("ask", [refused, in_transaction], ids=["alone", "in a transaction"])
@pytest.mark.parametrize("policy", POLICIES)
def test_an_unresolved_row_of_another_task_holds_its_key_and_is_not_named(orders, unresolved, policy, ask):
    holder = unresolved(key=KEY)
    ask(1, policy)
    relayed(orders)
    assert Job.objects.get(pk=holder.id).derived == "unresolved"
    told_nothing(holder)
