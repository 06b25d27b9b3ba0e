"""An offer from `offer` to the target, with the time under the test's control."""

from __future__ import annotations

from datetime import timedelta

import pytest
from asgiref.sync import async_to_sync

import django_delayq
from django_delayq.exceptions import TargetRefused
from django_delayq.models import Attempt, Job
from django_delayq.producer.stores import stores
from django_delayq.targets.offering import OfferFailed, offers

pytestmark = pytest.mark.django_db

offer, aoffer = django_delayq.offer, django_delayq.aoffer
BOTH = pytest.mark.parametrize("to", ["shipping", "invoices"])


def short(job) -> str:
    return Job.objects.get(pk=job.id).short_id


def attempts(job) -> list[Attempt]:
    return list(Attempt.objects.filter(job_id=job.id).order_by("number"))


@BOTH
def test_an_offer_is_in_its_target_at_its_date_beside_the_id_of_its_job(delayq, taken, to):
    job = offer({"order": 7, "name": "Zoë"}, to=to, delay="10m", key="order:7")
    assert delayq.advance("9m") == []
    assert taken(to) == []
    [ran] = delayq.advance("1m")
    assert (ran.outcome, job.state) == ("ack", "succeeded")
    assert taken(to) == [{"id": short(job), "body": {"order": 7, "name": "Zoë"}}]
    assert Job.objects.get(pk=job.id).result["to"] == to


@pytest.mark.parametrize("message", [None, 7, 1.5, True, "text", [1, [2]], {}, {"a": {"b": None}}, {"to": "x", "delay": 1}])
def test_it_may_be_any_json(delayq, taken, message):
    offer(message, to="invoices")
    delayq.run_due()
    assert [one["body"] for one in taken("invoices")] == [message]


def test_what_json_does_not_hold_is_refused_at_the_call(delayq):
    with pytest.raises(django_delayq.PayloadError):
        offer({"at": object()}, to="shipping")


def test_a_target_that_is_not_listed_is_refused_at_the_call_with_the_nearest_name(delayq):
    with pytest.raises(TargetRefused, match=r"did you mean 'shipping'\?") as error:
        offer(1, to="shiping")
    assert (error.value.code, error.value.fields) == ("target_misspelt", {"target": "shiping", "near": "shipping"})
    with pytest.raises(TargetRefused, match="the targets listed are: invoices, shipping"):
        offer(1, to="sessions")
    with pytest.raises(TargetRefused, match="None is not listed"):
        offer(1, to=None)
    with pytest.raises(TargetRefused, match="is not listed"):
        offer(1, to=["shipping"])
    assert not Job.objects.exists()


def test_where_none_are_listed_none_is_meant(delayq, settings):
    settings.DELAYQ = {**settings.DELAYQ, "TARGETS": {}}
    with pytest.raises(TargetRefused, match="Add it there"):
        offer(1, to="shipping")


def test_one_that_is_missing_in_the_worker_waits_and_that_is_no_attempt(delayq, settings, taken):
    job = offer(1, to="shipping")
    targets = settings.DELAYQ["TARGETS"]
    settings.DELAYQ = {**settings.DELAYQ, "TARGETS": {"invoices": targets["invoices"]}}
    assert [ran.outcome for ran in delayq.run_due()] == ["snooze"]
    assert "'shipping' is not listed" in attempts(job)[0].message
    settings.DELAYQ = {**settings.DELAYQ, "TARGETS": targets}
    delayq.advance("2m")
    assert (job.state, Job.objects.get(pk=job.id).attempts) == ("succeeded", 1)
    assert len(taken("shipping")) == 1


def test_cancel_reschedule_and_run_now_are_those_of_any_job(delayq, taken):
    gone, moved, hurried = (offer(number, to="shipping", delay="1h") for number in range(3))
    assert gone.cancel() == "done"
    assert moved.reschedule(delay="2h") == "done"
    assert hurried.run_now() == "done"
    delayq.run_due()
    assert [one["body"] for one in taken("shipping")] == [2]
    delayq.advance("3h")
    assert [one["body"] for one in taken("shipping")] == [2, 1]
    assert (gone.state, moved.state) == ("cancelled", "succeeded")


def test_keys_queues_and_expiry_are_those_of_any_job(delayq, taken):
    first = offer("old", to="shipping", delay="1h", key="order:7", queue="orders")
    second = offer("new", to="shipping", delay="1h", key="order:7", queue="orders", on_conflict="replace")
    kept = offer("other", to="shipping", delay="1h", key="order:7", queue="orders")
    delayq.advance("1h")
    assert [one["body"] for one in taken("shipping")] == ["new"]
    assert (first.state, second.state, kept.id) == ("cancelled", "succeeded", second.id)
    late = offer("late", to="shipping", delay="1h", expires="2h")
    delayq.travel(delayq.now + timedelta(hours=3))
    delayq.run_due()
    assert (late.state, len(taken("shipping"))) == ("cancelled", 1)


def test_it_goes_to_the_queue_default_or_to_the_first_one(delayq, settings):
    assert offer(1, to="shipping").queue == "default"
    settings.DELAYQ = {**settings.DELAYQ, "QUEUES": {"orders": {}, "redis": {}}}
    assert offers.queue == "orders"


@BOTH
def test_a_key_that_holds_something_else_is_a_failed_attempt_along_the_ladder(delayq, taken, to, target_key):
    stores.link.execute("SET", target_key(to), "theirs")
    job = offer(1, to=to, backoff="3m 10m", max_attempts=3)
    [ran] = delayq.run_due()
    assert isinstance(ran.error, OfferFailed)
    assert (ran.outcome, ran.error.code) == ("retry", "target_type")
    assert "nothing was pushed" in attempts(job)[0].message
    stores.link.execute("DEL", target_key(to))
    assert [ran.outcome for ran in delayq.advance("3m")] == ["ack"]
    assert len(taken(to)) == 1


def test_a_failed_one_is_requeued(delayq, taken, target_key):
    stores.link.execute("SET", target_key("shipping"), "theirs")
    job = offer(1, to="shipping", max_attempts=1)
    delayq.run_due()
    assert job.state == "failed"
    stores.link.execute("DEL", target_key("shipping"))
    assert job.requeue() == "done"
    delayq.run_due()
    assert (job.state, len(taken("shipping"))) == ("succeeded", 1)


def test_async_code_offers_by_aoffer(delayq, taken):
    job = async_to_sync(aoffer)({"order": 7}, to="shipping")
    delayq.run_due()
    assert (job.state, len(taken("shipping"))) == ("succeeded", 1)


def test_of_a_list_the_oldest_go(delayq, settings, taken):
    settings.DELAYQ = {**settings.DELAYQ, "TARGETS": {"invoices": {"KEY": "invoices-out", "KIND": "list", "MAXLEN": 2}}}
    for number in range(4):
        offer(number, to="invoices")
        delayq.run_due()
    assert [one["body"] for one in taken("invoices")] == [2, 3]


def test_in_tests_targets_are_others_than_those_of_the_project(delayq, target_key, settings):
    offer(1, to="shipping")
    delayq.run_due()
    assert target_key("shipping").startswith("delayq-test:")
    assert stores.link.execute("EXISTS", "shipping-out") == 0


def test_a_test_begins_with_empty_targets(delayq, taken):
    offer(1, to="shipping")
    delayq.run_due()
    delayq.stop()
    delayq.start()
    assert taken("shipping") == []


def test_a_test_that_asks_for_a_target_that_is_not_there_is_told(delayq):
    with pytest.raises(django_delayq.ConfigError, match="did you mean 'shipping'"):
        delayq.offered("shiping")


def test_with_inline_an_offer_is_checked_and_goes_nowhere(settings, delayq):
    settings.DELAYQ = {**settings.DELAYQ, "INLINE": True}
    with pytest.raises(TargetRefused):
        offer(1, to="shiping")
    offer(1, to="shipping")
    assert delayq.offered("shipping") == []


def test_while_redis_is_down_nothing_is_lost(delayq, taken):
    with delayq.redis_down():
        job = offer({"order": 7}, to="shipping")
        assert delayq.run_due() == []
    delayq.run_due()
    assert (job.state, len(taken("shipping"))) == ("succeeded", 1)


def test_a_worker_that_vanishes_behind_the_push_leaves_one(delayq, taken):
    job = offer({"order": 7}, to="shipping")
    delayq.crash_next(at="end")
    delayq.advance("5m")
    assert (job.state, len(taken("shipping")), Job.objects.get(pk=job.id).crashes) == ("succeeded", 1, 1)
