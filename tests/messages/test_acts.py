"""People can use the actions for jobs with messages too."""

from __future__ import annotations

import time

import pytest

import django_delayq as delayq
from django_delayq.models import Job
from django_delayq.producer.stores import stores
from django_delayq.states import Change
from tests.depths import queue_depth
from tests.tasks_for_tests import ping

pytestmark = pytest.mark.django_db(transaction=True)


def test_a_message_that_waits_is_cancelled_moved_and_made_due():
    job = delayq.push("mail", 1, delay="1h", key="k")
    assert job.reschedule(delay="2h") is Change.DONE
    assert delayq.run_now(key="k", queue="mail") is Change.DONE
    assert delayq.get(key="k", queue="mail").id == job.id
    other = delayq.push("mail", 2, delay="1h")
    assert other.cancel() is Change.DONE
    assert [message.body for message in delayq.pull("mail", 10)] == [1]


def test_a_key_is_held_by_one_message_at_a_time():
    first = delayq.push("mail", 1, key="k")
    assert delayq.push("mail", 2, key="k").id == first.id
    replaced = delayq.push("mail", 3, key="k", on_conflict="replace")
    (message,) = delayq.pull("mail", 10)
    assert (message.id, message.body) == (replaced.id, 3)


def test_a_cancel_of_a_message_that_is_held_is_heard_by_extend_and_ends_a_retry(mirrored):
    job = delayq.push("mail", 1)
    (message,) = delayq.pull("mail")
    assert job.cancel() is Change.RUNNING
    message.extend()
    assert message.cancel_requested
    message.retry(0)
    assert len(delayq.pull("mail")) == 0
    mirrored("mail")
    assert Job.objects.get(pk=job.id).state == "cancelled"


def test_a_cancel_of_a_message_whose_lease_ended_is_carried_out_by_the_next_pull(mirrored):
    job = delayq.push("mail", 1)
    delayq.pull("mail", lease="50ms")
    job.cancel()
    assert len(delayq.pull("mail", wait="300ms")) == 0
    mirrored("mail")
    assert Job.objects.get(pk=job.id).state == "cancelled"


def test_what_has_expired_is_not_pulled():
    delayq.push("mail", 1, expires="50ms")
    time.sleep(0.1)
    assert len(delayq.pull("mail")) == 0
    assert queue_depth("mail").scheduled == 0


def test_a_higher_priority_is_pulled_first():
    delayq.push("mail", "low", priority=-1)
    delayq.push("mail", "high", priority=1)
    assert delayq.pull("mail")[0].body == "high"


def test_only_what_has_been_due_for_long_is_pulled_where_that_is_asked_for():
    delayq.push("mail", 1)
    assert len(delayq.pull("mail", older_than="1h")) == 0
    assert [message.body for message in delayq.pull("mail", older_than="100ms", wait="60s")] == [1]


def test_a_paused_queue_gives_nothing():
    delayq.push("mail", 1)
    delayq.pause("mail")
    assert len(delayq.pull("mail")) == 0
    delayq.resume("mail")
    assert len(delayq.pull("mail")) == 1


def test_a_job_of_a_task_that_has_come_into_the_queue_is_left_alone(settings):
    as_jobs = {**settings.DELAYQ["QUEUES"], "mail": {}}
    messages = settings.DELAYQ
    settings.DELAYQ = {**messages, "QUEUES": as_jobs}
    job = delayq.schedule(ping, queue="mail")
    settings.DELAYQ = messages
    assert len(delayq.pull("mail")) == 0
    view = stores.inspector().job("mail", job.id)
    assert (view.state, view.attempt) == ("scheduled", 0)
    assert view.date_ms > view.now_ms


def test_with_inline_on_a_message_still_waits_to_be_pulled(settings):
    settings.DELAYQ = {**settings.DELAYQ, "INLINE": True}
    delayq.push("mail", 1)
    assert len(delayq.pull("mail")) == 1


def test_a_message_whose_signature_is_wrong_is_parked(settings):
    settings.DELAYQ = {**settings.DELAYQ, "SIGNING": True}
    good, bad = delayq.push("mail", "good"), delayq.push("mail", "bad")
    key = stores.queue("mail", 0).keys["jobs"]
    raw = stores.link.execute("HGET", key, bad.short_id)
    stores.link.execute("HSET", key, bad.short_id, raw.replace(b"bad", b"mad"))
    assert [message.id for message in delayq.pull("mail", 10)] == [good.id]
    assert stores.inspector().job("mail", bad.id).state == "scheduled"  # a newer key may have signed it


def test_messages_of_fair_words_are_pulled_in_turns():
    for body in range(3):
        delayq.push("mail", body, fair="tenant:a")
    delayq.push("mail", 10, fair="tenant:b")
    assert [delayq.pull("mail", 1)[0].body for _ in range(4)] == [0, 10, 1, 2]
