"""The assertions about the schedule, and their messages when they fail."""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID

import pytest

import django_delayq
from django_delayq.models import Attempt, Job
from tests.testing.shop import SEEN, fail_twice, settle_cart, ship_alone

schedule = django_delayq.schedule
pytestmark = pytest.mark.usefixtures("stopped_clock")


def refused(call) -> str:
    with pytest.raises(AssertionError) as caught:
        call()
    return str(caught.value)


def test_what_is_given_must_hold_and_the_rest_does_not_matter(delayq):
    at = schedule(settle_cart, 1, note="x", key="order:1", delay="30m").run_at
    found = delayq.assert_scheduled(settle_cart, args=(1,), kwargs={"note": "x"}, key="order:1", queue="orders", delay="30m")
    assert isinstance(found.id, UUID)
    delayq.assert_scheduled(settle_cart)
    delayq.assert_scheduled(settle_cart.name, run_at=at)
    delayq.assert_scheduled(settle_cart, within="31m")
    delayq.assert_scheduled(settle_cart, delay="25m", within="6m")
    for wrong in (
        {"args": [2]},
        {"kwargs": {}},
        {"key": "order:2"},
        {"queue": "default"},
        {"delay": "31m"},
        {"run_at": at + timedelta(minutes=1)},
        {"within": "29m"},
        {"delay": "25m", "within": "4m"},
        {"count": 2},
    ):
        refused(lambda wrong=wrong: delayq.assert_scheduled(settle_cart, **wrong))
    refused(lambda: delayq.assert_scheduled(fail_twice))


def test_a_delay_may_be_shorter_by_the_time_that_the_test_has_taken(delayq):
    schedule(settle_cart, 1, delay="30m")
    delayq.travel(delayq.now + timedelta(seconds=20))
    refused(lambda: delayq.assert_scheduled(settle_cart, delay="30m"))
    delayq._began -= 20
    delayq.assert_scheduled(settle_cart, delay="30m")
    for wrong in ({"delay": "31m"}, {"delay": "29m"}, {"delay": "30m", "within": "1s"}):
        refused(lambda wrong=wrong: delayq.assert_scheduled(settle_cart, **wrong))


def test_an_assertion_that_fails_shows_what_is_scheduled_instead(delayq):
    schedule(settle_cart, 41, key="order:41", delay="30m")
    schedule(fail_twice, 2, delay="2h")
    told = refused(lambda: delayq.assert_scheduled(settle_cart, args=[42], delay="30m"))
    head, *table = told.splitlines()
    assert head == "No job is scheduled: tests.testing.shop.settle_cart (42) in 30m."
    assert [line.split() for line in table] == [
        ["Scheduled:"],
        ["task", "arguments", "key", "queue", "when"],
        ["tests.testing.shop.settle_cart", "(41)", "order:41", "orders", "in", "30m"],
        ["tests.testing.shop.fail_twice", "(2)", "-", "orders", "in", "2h"],
    ]


def test_one_that_differs_by_its_date_only_is_said_first(delayq):
    schedule(settle_cart, 42, delay="20m")
    told = refused(lambda: delayq.assert_scheduled(settle_cart, args=[42], delay="30m"))
    assert "With another date: in 20m." in told


def test_nothing_is_said_to_be_scheduled_where_nothing_is(delayq):
    assert refused(lambda: delayq.assert_scheduled(settle_cart)).endswith("Nothing is scheduled.")


def test_a_job_that_is_late_or_was_tried_is_shown_so(delayq):
    schedule(fail_twice, 1)
    delayq.run_due()
    delayq.travel(delayq.now + timedelta(minutes=1))
    told = refused(lambda: delayq.assert_not_scheduled(fail_twice))
    assert "A job is scheduled: tests.testing.shop.fail_twice." in told
    assert "45s late" in told
    assert "after 1 attempt" in told


def test_scheduled_gives_the_jobs_by_date_task_and_key(delayq):
    schedule(settle_cart, 2, delay="20m", key="b")
    schedule(settle_cart, 1, delay="10m", key="a", priority=-1)
    schedule(fail_twice, 3, delay="5m")
    assert [job.args for job in delayq.scheduled()] == [[3], [1], [2]]
    assert [job.args for job in delayq.scheduled(settle_cart)] == [[1], [2]]
    assert [job.args for job in delayq.scheduled(key="b")] == [[2]]
    assert delayq.scheduled(queue="default") == []


def test_what_can_be_no_answer_is_refused(delayq):
    with pytest.raises(django_delayq.ConfigError, match="is not a task"):
        delayq.assert_scheduled(print)
    with pytest.raises(django_delayq.UnknownTask):
        delayq.assert_scheduled("shop.close_ordre")
    with pytest.raises(ValueError, match="either delay or run_at"):
        delayq.assert_scheduled(settle_cart, delay="1m", run_at=delayq.now)


def test_a_task_that_is_none_is_not_any(delayq):
    schedule(settle_cart, 1)
    with pytest.raises(django_delayq.ConfigError, match="None for the task"):
        delayq.assert_scheduled(None)


@pytest.mark.parametrize("args", [1, "ab", b"ab", {"number": 1}, iter([1])])
def test_arguments_are_a_list(delayq, args):
    schedule(settle_cart, 1)
    for asked in (delayq.assert_scheduled, delayq.assert_not_scheduled):
        with pytest.raises(ValueError, match="must be a list or tuple of arguments"):
            asked(settle_cart, args=args)
        with pytest.raises(ValueError, match="must be a dict of arguments"):
            asked(settle_cart, kwargs=[args])


def test_arguments_that_no_job_can_have_are_named_with_the_way_out(delayq):
    circle: list = []
    circle.append(circle)
    with pytest.raises(django_delayq.PayloadError, match=r"^args\[1\] is of type object.*pass an id"):
        delayq.assert_scheduled(settle_cart, args=[(1, 2), object()])
    with pytest.raises(django_delayq.PayloadError, match=r"^kwargs\['note'\] is of type set.*pass a list"):
        delayq.assert_scheduled(settle_cart, kwargs={"note": {1}})
    with pytest.raises(django_delayq.PayloadError, match="pass plain text, numbers, lists and dicts"):
        delayq.assert_scheduled(settle_cart, args=circle)


@pytest.fixture
def mail(settings) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "QUEUES": {**settings.DELAYQ["QUEUES"], "mail": {"CONSUMER": "pull", "BACKOFF": "10m"}}}


def test_what_falls_due_is_pulled_by_the_test_and_run_by_nobody(mail, delayq):
    job = django_delayq.push("mail", {"to": "anna"}, delay="30m")
    assert len(django_delayq.pull("mail", wait="10s")) == 0
    assert delayq.advance("30m") == []
    (message,) = django_delayq.pull("mail")
    assert message.body == {"to": "anna"}
    message.ack()
    delayq.advance(0)
    assert Job.objects.get(pk=job.id).state == "succeeded"


def test_a_lease_ends_in_the_time_of_the_test(mail, delayq):
    job = django_delayq.push("mail", 1)
    django_delayq.pull("mail", lease="1m")
    delayq.advance("1m1s")
    assert len(django_delayq.pull("mail")) == 0  # the lost lease counts as an attempt; the next one is ten minutes after its end
    delayq.advance("10m")
    (message,) = django_delayq.pull("mail")
    assert (message.id, message.attempt) == (job.id, 2)
    delayq.advance(0)
    assert [run.outcome for run in Attempt.objects.filter(job_id=job.id).order_by("number")] == ["retried", "running"]


def test_what_the_test_holds_it_holds_whatever_time_passes_and_a_task_waits_for_it_without_an_attempt(delayq):
    job = django_delayq.schedule(ship_alone, 42, delay="10m")
    with django_delayq.lock("order:42", lease="30s") as lock:
        runs = delayq.advance("10m")
        assert [run.outcome for run in runs] == ["snooze"]
        assert (SEEN, lock.held) == ([], True)
        assert [run.outcome for run in delayq.advance("30s")] == ["snooze"] * 6, "1, 2, 4, 8, 16 and 26 seconds later"
        lock.check()
    assert [run.outcome for run in delayq.advance("10s")] == ["ack"]
    row = Job.objects.get(pk=job.id)
    assert (row.state, row.attempts) == ("succeeded", 1)
    runs = [(one.outcome, one.message) for one in Attempt.objects.filter(job_id=job.id).order_by("pk")]
    assert runs == [("snoozed", "waits for lock order:42")] * 7 + [("succeeded", "")]


def test_a_wait_is_over_at_once_since_no_time_passes(delayq):
    with django_delayq.lock("a"), pytest.raises(django_delayq.LockTaken), django_delayq.lock("a", wait="1h"):
        raise AssertionError


def test_the_number_rises_in_the_time_of_the_test(delayq):
    with django_delayq.lock("a") as lock:
        first = lock.fence
    delayq.advance("1h")
    with lock:
        assert lock.fence - first >= timedelta(hours=1) / timedelta(microseconds=1)


def test_a_lock_is_lost_where_redis_is_away_for_longer_than_its_lease(delayq):
    with pytest.raises(django_delayq.LeaseLost), django_delayq.lock("a", lease="30s") as lock:
        with delayq.redis_down():
            delayq.advance("29s")
            lock.check()
            delayq.advance("1s")
            assert not lock.held
            with pytest.raises(django_delayq.StoreUnavailable):
                django_delayq.lock("b").__enter__()
        assert not lock.held, "what was lost stays lost"


def test_a_lock_that_a_test_has_left_open_is_no_lock_of_the_next_one(delayq):
    lock = django_delayq.lock("a")
    lock.__enter__()
    delayq.stop()
    delayq.start()
    with django_delayq.lock("a"):
        assert not lock.held


def test_a_task_holds_its_lock_under_its_own_name(delayq):
    with django_delayq.lock("order:7"), pytest.raises(django_delayq.LockTaken) as told:
        delayq.perform(ship_alone, 7)
    assert told.value.reason == "waits for lock order:7"
    assert delayq.perform(ship_alone, 8) > 0
    assert SEEN == [("ship_alone", 8)]
