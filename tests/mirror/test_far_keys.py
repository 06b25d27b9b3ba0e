"""A key has one unfinished job, be it far or near."""

from __future__ import annotations

import contextlib
import threading
from datetime import timedelta

import pytest
from django.db import OperationalError, connection, transaction

import django_delayq as delayq
from django_delayq import clock
from django_delayq.exceptions import KeyTaken, StoreUnavailable
from django_delayq.models import Event, Job, UncheckedKey
from django_delayq.producer.outbox import far_rows, jobs
from django_delayq.producer.stores import stores
from tests.mirror.horizons import near
from tests.tasks_for_tests import close_order

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("horizon")]  # before "orders", which reads the settings

KEY = "order:7"
POLICIES = ("keep", "earliest", "latest", "replace", "after", "error")


def put(number: int, delay: str, policy: str = "keep", *, within: bool = False) -> delayq.Job:
    def schedule() -> delayq.Job:
        return delayq.schedule(close_order, number, delay=delay, key=KEY, on_conflict=policy)

    if not within:
        return schedule()
    with transaction.atomic():
        return schedule()


def unfinished() -> dict[int, float]:
    """The number of each job that is not finished, and in how many hours it is due."""
    rows = Job.objects.filter(state="scheduled")
    return {row.args[0]: round((row.run_at - clock.now()).total_seconds() / 3600, 1) for row in rows}


def settled(orders, horizon) -> dict[int, float]:
    """The same, when relay and mirror have done what they have to do."""
    orders.relay._young = -3600
    for _ in range(4):
        orders.fold()
        horizon.loop.poll()
        orders.relay.poll()
    orders.fold()
    return unfinished()


FAR_FAR = {  # policy -> the outcome of a job in 3 h, and of a later one in 2 h
    "keep": {1: 3.0},
    "earliest": {1: 2.0},
    "latest": {1: 3.0},
    "replace": {2: 2.0},
    "after": {2: 2.0},
}


@pytest.mark.parametrize("within", [False, True], ids=["alone", "in a transaction"])
@pytest.mark.parametrize(("policy", "left"), [("keep", {1: 2.0}), ("earliest", {1: 0.5}), ("replace", {2: 0.5})])
def test_a_job_of_redis_durability_meets_the_far_one_of_its_key(horizon, orders, policy, left, within):
    put(1, "2h")
    options = {"delay": "30m", "key": KEY, "on_conflict": policy, "durability": "redis"}
    with transaction.atomic() if within else contextlib.nullcontext():
        job = delayq.schedule(close_order, 2, **options)
    assert job.created is (policy == "replace")
    assert settled(orders, horizon) == left


@pytest.mark.parametrize("away", [False, True], ids=["there", "away"])
@pytest.mark.parametrize("within", [False, True], ids=["alone", "in a transaction"])
@pytest.mark.parametrize("policy", FAR_FAR)
def test_far_against_far_the_row_decides(horizon, orders, redis_away, policy, within, away):
    first = put(1, "3h")
    redis_away(away)
    second = put(2, "2h", policy, within=within)
    assert unfinished() == FAR_FAR[policy]
    if policy in ("replace", "after"):
        assert second.created is (None if away else True)
        assert Job.objects.get(pk=first.id).ending == "replaced"
        assert Job.objects.get(pk=first.id).merged_into == second.id
    else:
        assert (second.created, second.id) == (False, first.id)
    redis_away(False)
    assert settled(orders, horizon) == FAR_FAR[policy]
    assert not near(first)
    assert not near(second)
    assert not UncheckedKey.objects.exists()


@pytest.mark.parametrize("within", [False, True], ids=["alone", "in a transaction"])
def test_error_raises_and_leaves_the_callers_transaction_as_it_was(horizon, within):
    first = put(1, "3h")
    if not within:
        with pytest.raises(KeyTaken) as raised:
            put(2, "2h", "error")
    else:
        with transaction.atomic():
            with pytest.raises(KeyTaken) as raised:
                put(2, "2h", "error")
            delayq.schedule(close_order, 3, delay="5h")
    assert raised.value.holder == first.id
    assert unfinished() == ({1: 3.0, 3: 5.0} if within else {1: 3.0})


def test_a_holder_that_is_moved_into_the_horizon_comes_in(horizon, orders):
    first = put(1, "3h")
    assert put(2, "30m", "earliest").id == first.id
    assert near(first)
    assert settled(orders, horizon) == {1: 0.5}


def test_after_keeps_the_earlier_date(horizon):
    put(1, "2h")
    put(2, "3h", "after")
    assert unfinished() == {2: 2.0}


def test_a_hot_key_leaves_one_event_of_its_moves(horizon):
    put(1, "2h")
    for hours in (3, 4, 5):
        put(2, f"{hours}h", "latest")
    assert unfinished() == {1: 5.0}
    assert Event.objects.filter(kind="rescheduled").count() == 1


NEAR_FAR = {  # policy -> the outcome of a job in 30 min, and of a later one in 2 h, and whether the latter is far
    "keep": {1: 0.5},
    "earliest": {1: 0.5},
    "latest": {1: 2.0},
    "replace": {2: 2.0},
    "after": {2: 0.5},
}


@pytest.mark.parametrize("within", [False, True], ids=["alone", "in a transaction"])
@pytest.mark.parametrize("policy", NEAR_FAR)
def test_far_behind_near_the_script_decides(horizon, orders, policy, within):
    first = put(1, "30m")
    second = put(2, "2h", policy, within=within)
    assert (second.id == first.id) is (policy not in ("replace", "after"))
    assert second.created is (second.id != first.id)
    assert settled(orders, horizon) == NEAR_FAR[policy]
    assert not Job.objects.filter(far=True).exists()


FAR_NEAR = {  # policy -> the outcome of a job in 2 h, and of a later one in 30 min
    "keep": {1: 2.0},
    "earliest": {1: 0.5},
    "latest": {1: 2.0},
    "replace": {2: 0.5},
    "after": {2: 0.5},
}


@pytest.mark.parametrize("within", [False, True], ids=["alone", "in a transaction"])
@pytest.mark.parametrize("policy", FAR_NEAR)
def test_near_behind_far_the_row_decides(horizon, orders, policy, within):
    first = put(1, "2h")
    second = put(2, "30m", policy, within=within)
    assert (second.id == first.id) is (policy not in ("replace", "after"))
    assert second.created is (second.id != first.id)
    assert settled(orders, horizon) == FAR_NEAR[policy]


@pytest.mark.parametrize("policy", NEAR_FAR)
def test_a_far_job_that_was_written_without_redis_is_asked_about_when_it_is_back(horizon, orders, redis_away, policy):
    put(1, "30m")
    orders.fold()
    redis_away()
    second = put(2, "2h", policy)
    assert second.created is None
    assert Job.objects.get(pk=second.id).derived == "far"
    redis_away(False)
    assert settled(orders, horizon) == NEAR_FAR[policy]


def test_a_far_job_that_was_dated_by_another_clock_is_asked_about_at_once(horizon, orders, redis_away):
    put(1, "30m")
    orders.fold()
    redis_away()
    second = put(2, "2h", "keep")
    redis_away(False)
    horizon.loop._young = timedelta(seconds=5)
    horizon.loop.poll()
    assert Job.objects.get(pk=second.id).derived == "far", "it is left to its own process"
    Job.objects.filter(pk=second.id).update(created_at=clock.now() + timedelta(minutes=10))
    horizon.loop.poll()
    assert Job.objects.get(pk=second.id).derived == "cancelled", "the other one holds the key"


@pytest.mark.parametrize("policy", ["keep", "replace"])
def test_a_near_job_that_is_written_while_a_far_one_has_not_asked_yet(horizon, orders, unpublished, policy):
    first = unpublished(1, delay="2h", key=KEY)  # committed; who wrote it stands still
    second = put(2, "30m", policy)
    for go_on in unpublished.later:
        go_on()
    assert settled(orders, horizon) == ({1: 2.0} if policy == "keep" else {2: 0.5})
    assert (second.id == first.id) is (policy == "keep")


@pytest.mark.parametrize("policy", ["keep", "replace"])
def test_a_far_job_that_is_written_while_a_near_one_is_not_published_yet(horizon, orders, unpublished, policy):
    unpublished(1, delay="30m", key=KEY)
    put(2, "2h", policy)
    for go_on in unpublished.later:
        go_on()
    assert settled(orders, horizon) == ({1: 0.5} if policy == "keep" else {2: 2.0})


def test_both_have_been_written_and_neither_has_asked(horizon, orders, unpublished):
    unpublished(1, delay="30m", key=KEY)
    unpublished(2, delay="2h", key=KEY)
    for go_on in reversed(unpublished.later):
        go_on()
    assert len(settled(orders, horizon)) == 1


@pytest.mark.parametrize("change", ["cancel", "reschedule"])
def test_the_holder_of_a_key_is_found_and_changed_while_redis_is_away(horizon, redis_away, change):
    job = put(1, "2h")
    redis_away()
    found = delayq.get(key=KEY, queue="orders")
    assert found is not None
    assert found.id == job.id
    if change == "cancel":
        assert delayq.cancel(key=KEY, queue="orders") is delayq.Change.DONE
        assert unfinished() == {}
    else:
        assert delayq.reschedule(key=KEY, queue="orders", delay="4h") is delayq.Change.DONE
        assert unfinished() == {1: 4.0}


def test_of_a_key_that_redis_was_not_asked_about_the_row_alone_does_not_answer(horizon, redis_away):
    redis_away()
    put(1, "2h")
    with pytest.raises(StoreUnavailable):
        delayq.get(key=KEY, queue="orders")


def test_a_key_is_free_again_when_its_far_job_was_cancelled(horizon):
    put(1, "2h").cancel()
    assert put(2, "3h").created is True
    assert unfinished() == {2: 3.0}


def test_many_of_one_call(horizon, orders):
    jobs = delayq.schedule_many(
        close_order.using(delay=delay, key=f"k{number % 3}", on_conflict="replace").bind(number)
        for number, delay in enumerate(["2h", "30m", "3h", "4h", "2h", "30m"])
    )
    assert len(jobs) == 6
    assert settled(orders, horizon) == {3: 4.0, 4: 2.0, 5: 0.5}


@pytest.mark.skipif(connection.vendor == "sqlite", reason="has one lock for all writers")
@pytest.mark.parametrize("held", ["inserted", "changed"])
def test_who_waits_too_long_for_another_transaction_is_told_and_has_changed_nothing(horizon, held):
    if held == "changed":
        put(1, "2h")
    begun, over = threading.Event(), threading.Event()

    def another() -> None:
        with transaction.atomic():
            if held == "inserted":
                put(1, "2h")
            else:
                delayq.reschedule(key=KEY, queue="orders", delay="3h")
            begun.set()
            over.wait(30)
        connection.close()

    thread = threading.Thread(target=another)
    thread.start()
    assert begun.wait(30)
    try:
        with transaction.atomic():
            with pytest.raises(StoreUnavailable) as refused:
                put(2, "4h", "replace")
            other = delayq.schedule(close_order, 3, delay="5h")  # the transaction goes on
    finally:
        over.set()
        thread.join(30)
    assert refused.value.code == "far_locked"
    assert unfinished() == {1: 2.0 if held == "inserted" else 3.0, 3: 5.0}
    assert other.created is True
    assert stores.inspector().find("orders", KEY) is None


@pytest.mark.skipif(connection.vendor == "sqlite", reason="has one lock for all writers")
def test_of_two_transactions_that_wait_for_each_other_one_is_told_to_repeat_all_of_it(horizon, monkeypatch):
    monkeypatch.setattr(far_rows, "WAIT", 60)
    both, committed, refused, created = threading.Barrier(2), threading.Event(), [], []

    def schedule(*keys: str, wait: bool = True) -> None:
        with transaction.atomic():
            made = []
            for key in keys:
                made.append(delayq.schedule(close_order, 1, delay="2h", key=key))
                if wait:
                    both.wait(30)
                    wait = False
        created.extend(job.created for job in made)
        committed.set()

    def play(*keys: str) -> None:
        try:
            schedule(*keys)
        except StoreUnavailable as error:
            refused.append(error)
            committed.wait(30)  # a repeat before that can take the lock that the other transaction waits for, and refuse that one
            schedule(*sorted(keys), wait=False)
        finally:
            connection.close()

    threads = [threading.Thread(target=play, args=keys) for keys in (("first", "second"), ("second", "first"))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    [error] = refused
    assert error.code == "deadlock"
    assert error.fields["what"] in str(error)
    assert error.fields["what"] in ("first", "second")
    assert isinstance(error.__cause__, OperationalError)
    assert sorted(created) == [False, False, True, True]
    assert sorted(Job.objects.filter(state="scheduled").values_list("key", flat=True)) == ["first", "second"]


def test_a_batch_asks_the_database_for_the_time_once_while_redis_is_away(horizon, redis_away, monkeypatch):
    read, asked = jobs.now_ms, []
    monkeypatch.setattr(jobs, "now_ms", lambda: asked.append(1) or read())
    redis_away()
    due = clock.now() + timedelta(hours=2)
    delayq.schedule_many(close_order.using(run_at=due).bind(number) for number in range(3))
    assert len(asked) == 1
    assert Job.objects.filter(far=True).count() == 3
