"""Messages are pushed, pulled and settled. Messages that no consumer settled are pulled again."""

from __future__ import annotations

import os
import threading
import time

import pytest
from django.db import connections, transaction

import django_delayq as delayq
from django_delayq.models import Attempt, Job
from django_delayq.producer.stores import stores
from django_delayq.states import MESSAGE, Change
from django_delayq.store.connection.wake import WakeLine
from django_delayq.store.scripts import site
from django_delayq.store.scripts.site import Facts, SiteRefused
from tests.depths import queue_depth
from tests.stage import many_open_files
from tests.tasks_for_tests import close_order

pytestmark = pytest.mark.django_db(transaction=True)


def test_a_message_is_pulled_as_it_was_pushed():
    body = {"to": "a@example.org", "parts": [1, 2.5, None, "ü"]}
    job = delayq.push("quick", body, key="m:1", meta={"from": "shop"})
    (message,) = delayq.pull("quick", 5)
    assert (message.id, message.body, message.key, message.meta) == (job.id, body, "m:1", {"from": "shop"})
    assert (message.attempt, message.queue, message.max_attempts) == (1, "quick", 3)
    assert message.fence.endswith(message.short_id)


def test_what_is_acked_does_not_come_again():
    job = delayq.push("quick", 1)
    delayq.pull("quick")[0].ack()
    assert len(delayq.pull("quick", lease="1s")) == 0
    assert stores.inspector().job("quick", job.id).state == "finished"


def test_a_message_that_no_key_here_has_signed_waits_and_one_without_a_signature_fails(settings):
    unsigned = delayq.push("quick", 0)
    settings.DELAYQ = {**settings.DELAYQ, "SIGNING": True}
    settings.SECRET_KEY = "new"
    job = delayq.push("quick", 1)
    settings.SECRET_KEY = "old"
    assert len(delayq.pull("quick")) == 0
    assert stores.inspector().job("quick", unsigned.id).state == "failed"
    assert stores.inspector().job("quick", job.id).state == "scheduled"
    delayq.run_now(job)
    settings.SECRET_KEY = "new"
    assert [message.body for message in delayq.pull("quick")] == [1]


def test_what_is_not_due_waits():
    delayq.push("quick", 1, delay="1h")
    assert len(delayq.pull("quick")) == 0


def test_a_retry_comes_again_as_its_next_attempt():
    delayq.push("quick", 1)
    delayq.pull("quick")[0].retry(0, "not yet")
    (message,) = delayq.pull("quick")
    assert message.attempt == 2


def test_without_a_delay_a_retry_goes_by_the_ladder_of_the_message():
    delayq.push("quick", 1, backoff="1h")
    delayq.pull("quick")[0].retry()
    assert len(delayq.pull("quick")) == 0
    assert queue_depth("quick").scheduled == 1


def test_after_the_last_attempt_a_retry_is_a_failure():
    job = delayq.push("quick", 1, max_attempts=1)
    delayq.pull("quick")[0].retry(0)
    assert stores.inspector().job("quick", job.id).state == "failed"


def test_a_message_without_a_limit_says_0_and_has_no_last_attempt():
    delayq.push("quick", 1, max_attempts=0, expires="1h", backoff="1ms")
    (message,) = delayq.pull("quick")
    assert (message.max_attempts, message.is_last_attempt) == (0, False)
    message.retry()
    (again,) = delayq.pull("quick", wait="60s")
    assert again.attempt == 2


def test_a_snoozed_message_comes_again_in_the_same_attempt():
    delayq.push("quick", 1)
    delayq.pull("quick")[0].snooze(0)
    assert delayq.pull("quick")[0].attempt == 1


def test_a_failed_message_can_be_requeued():
    job = delayq.push("quick", "x")
    delayq.pull("quick")[0].fail("no such address")
    assert stores.inspector().job("quick", job.id).state == "failed"
    assert job.requeue() is Change.DONE
    assert delayq.pull("quick")[0].body == "x"


def test_what_is_not_settled_comes_again_as_the_next_attempt_behind_its_ladder():
    delayq.push("quick", 1)
    (first,) = delayq.pull("quick", lease="100ms")
    (second,) = delayq.pull("quick", wait="60s")
    assert (second.attempt, second.id) == (2, first.id)
    assert second.fence != first.fence
    with pytest.raises(delayq.LeaseLost):
        first.ack()
    second.ack()


def test_an_end_that_comes_behind_a_lost_lease_is_refused_also_before_anybody_pulls_again():
    delayq.push("quick", 1, backoff="1h")
    (first,) = delayq.pull("quick", lease="100ms")
    time.sleep(0.15)
    assert len(delayq.pull("quick")) == 0  # settles the lost lease as an attempt
    with pytest.raises(delayq.LeaseLost):
        first.ack()
    assert stores.inspector().job("quick", first.id).state == "scheduled"


def test_leases_that_end_fail_a_message_when_no_attempt_is_left_and_however_often_before():
    job = delayq.push("quick", 1, max_attempts=5, backoff="1ms")
    for attempt in range(1, 6):
        (message,) = delayq.pull("quick", wait="60s", lease="50ms")
        assert message.attempt == attempt
    assert len(delayq.pull("quick", wait="200ms")) == 0
    view = stores.inspector().job("quick", job.id)
    assert (view.state, view.crashes) == ("failed", 0)


def test_a_lease_that_is_extended_holds():
    delayq.push("quick", 1)
    (message,) = delayq.pull("quick", lease="100ms")
    message.extend("10s")
    time.sleep(0.15)
    assert len(delayq.pull("quick")) == 0
    message.ack()


def test_a_batch_is_settled_in_one_call_at_the_end_of_the_block(monkeypatch):
    for number in range(5):
        delayq.push("quick", number)
    calls = []
    real = type(stores.queue("quick", 0)).settle
    monkeypatch.setattr(type(stores.queue("quick", 0)), "settle", lambda *a, **k: calls.append(1) or real(*a, **k))
    with delayq.pull("quick", 5, lease="2s") as batch:
        for message in batch[:3]:
            message.ack()
        batch[3].fail("bad")
        assert calls == []
    assert calls == [1]
    assert queue_depth("quick").running == 1  # an undecided message is held until its lease ends
    (left,) = delayq.pull("quick", 5, wait="60s")
    assert (left.body, left.attempt) == (4, 2)


def test_a_push_ends_the_wait(monkeypatch):
    called = []
    real = WakeLine.drain
    monkeypatch.setattr(WakeLine, "drain", lambda line: called.append(1) or real(line))

    def push() -> None:
        delayq.push("quick", "woken")
        connections.close_all()

    thread = threading.Timer(0.2, push)
    thread.start()
    (message,) = delayq.pull("quick", wait="30s")
    thread.join()
    assert message.body == "woken"
    assert called == [1]


def test_a_process_with_many_open_files_waits_as_others_do():
    with many_open_files():
        assert len(delayq.pull("quick", wait="20ms")) == 0


def test_a_task_is_refused_on_a_queue_of_messages_and_a_message_on_one_of_workers():
    with pytest.raises(delayq.ConfigError, match=r"delayq\.push\('mail', …\)"):
        delayq.schedule(close_order, 1, queue="mail")
    with pytest.raises(delayq.ConfigError, match="CONSUMER"):
        delayq.push("orders", {})
    with pytest.raises(delayq.ConfigError, match="CONSUMER"):
        delayq.pull("orders")
    with pytest.raises(delayq.QueueUnknown):
        delayq.push("orderz", {})


def test_no_task_may_bear_the_name_that_stands_for_messages():
    with pytest.raises(delayq.ConfigError, match="is reserved for messages"):
        delayq.task(name=MESSAGE)(lambda: None)


@pytest.mark.parametrize(
    "wrong", [{"n": 0}, {"n": 201}, {"n": True}, {"lease": "1ms"}, {"lease": "13h"}, {"wait": -1}, {"older_than": "x"}]
)
def test_what_cannot_be_asked_for_is_refused(wrong):
    with pytest.raises(delayq.ConfigError):
        delayq.pull("mail", **wrong)


def test_a_body_that_json_cannot_hold_is_refused_by_its_place():
    with pytest.raises(delayq.PayloadError, match=r"body\['at'\]"):
        delayq.push("mail", {"at": object()})


def test_a_durable_message_is_a_row_at_the_commit_and_ends_there(mirrored):
    with transaction.atomic():
        job = delayq.push("mail", {"a": 1}, key="k")
        assert len(delayq.pull("mail")) == 0
    assert Job.objects.get(pk=job.id).task == MESSAGE
    (message,) = delayq.pull("mail")
    mirrored("mail")
    assert job.state == "running"
    message.ack()
    mirrored("mail")
    assert job.wait(0) == "succeeded"
    (attempt,) = Attempt.objects.filter(job_id=job.id)
    assert (attempt.number, attempt.outcome, attempt.worker.split(":")[1]) == (1, "succeeded", str(os.getpid()))


def test_a_lease_that_ended_is_shown_as_an_attempt_that_failed(mirrored):
    job = delayq.push("mail", 1)
    delayq.pull("mail", lease="50ms")
    delayq.pull("mail", wait="60s")[0].ack()
    mirrored("mail")
    first, second = Attempt.objects.filter(job_id=job.id).order_by("number")
    assert (first.outcome, first.message) == ("retried", "the lease of its consumer ran out")
    assert (second.number, second.outcome) == (2, "succeeded")
    row = Job.objects.get(pk=job.id)
    assert (row.state, row.attempts, row.crashes) == ("succeeded", 2, 0)


def test_nothing_is_pulled_from_a_queue_that_another_database_records(monkeypatch):
    delayq.push("quick", 1)
    stores.forget()
    store = stores.queue("quick", 0)
    store.link.execute("HSET", store.keys["meta"], "mirror_token", "2-00000000000000bb")
    monkeypatch.setattr(site, "partition_facts", lambda _queue, _partition, **_: Facts("", "0-0", "2-00000000000000aa"))
    monkeypatch.setattr(site, "LAG", 0.0)
    monkeypatch.setattr(site, "_refused", {})
    with pytest.raises(SiteRefused, match="another database"):
        delayq.pull("quick")
    monkeypatch.setattr(site, "partition_facts", lambda _queue, _partition, **_: None)
    assert [message.body for message in delayq.pull("quick")] == [1]
