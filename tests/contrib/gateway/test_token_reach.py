"""Tests that a token cannot reach or learn about jobs outside its permissions, and cannot raise its limits."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connection, transaction

import django_delayq as delayq
from django_delayq import ids
from django_delayq.messages.push import KIND
from django_delayq.models import Job
from django_delayq.producer import changes
from django_delayq.producer.options import POLICIES
from django_delayq.producer.task import Task, registry
from tests.contrib.gateway.conftest import PING, TASK, Caller, refused
from tests.mirror.conftest import Orders
from tests.mirror.test_road import relayed
from tests.targets import conftest as deliveries
from tests.targets.offers.conftest import TARGETS
from tests.targets.offers.conftest import TASK as OFFERS
from tests.tasks_for_tests import close_order, ping, risky

KEY = "payout:7"
host, http = deliveries.host, deliveries.http
EVERY_VERB = ["schedule", "push", "deliver", "offer", "get", "cancel", "reschedule"]
DELIVERY = "django_delayq.deliver"
# How a request enqueues a job, and the task of that job.
WAYS = {
    "schedule": ("jobs", {"task": risky.name, "args": [1]}, risky.name),
    "deliver": ("deliveries", {"url": "http://partner.example/", "json": 1, "queue": "orders"}, DELIVERY),
    "offer": ("offers", {"to": "shipping", "message": 1, "queue": "orders"}, OFFERS.name),
    "push": ("queues/mail/messages", {"body": 1}, KIND.name),
}


@pytest.fixture(autouse=True)
def ways(delayq_redis: Any, settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from django_delayq.targets import delivery

    for task in (OFFERS, delivery.delivery):
        monkeypatch.setitem(registry._tasks, task.name, task)
    queues = {"default": {}, "orders": {"MAX_ATTEMPTS": 4}, "redis": {"DURABILITY": "redis"}, "mail": {"CONSUMER": "pull"}}
    settings.DELAYQ = {**settings.DELAYQ, "QUEUES": queues, "TARGETS": TARGETS, "HTTP": {"ALLOW": [], "TIMEOUT": "10s"}}


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("way", ["schedule", "deliver", "offer"])
def test_no_policy_of_any_request_touches_or_names_a_holder_of_another_task(make, way, policy):
    path, body, task = WAYS[way]
    outsider = make(verbs=EVERY_VERB, tasks=[task], targets=["shipping"])
    holder = delayq.schedule(close_order, 7, delay="1h", key=KEY)
    before = holder.state, delayq.get(holder.id).run_at
    answer = outsider.post(path, {**body, "key": KEY, "on_conflict": policy, "delay": "50m"})
    refused(answer, 403, "key_denied", "/key")
    assert holder.short_id not in answer.content.decode()
    assert (holder.state, delayq.get(holder.id).run_at) == before
    assert Job.objects.count() == 1, "nothing was written"


@pytest.mark.parametrize("policy", POLICIES)
def test_a_token_that_lists_no_messages_reaches_none_by_a_push_of_their_key(make, policy):
    outsider = make(verbs=EVERY_VERB, tasks=[risky.name])
    holder = delayq.push("mail", 7, delay="1h", key=KEY)
    answer = outsider.post("queues/mail/messages", {"body": 1, "key": KEY, "on_conflict": policy})
    refused(answer, 403, "key_denied", "/key")
    assert holder.state == "scheduled"
    assert make("other", tasks=[KIND.name]).post("queues/mail/messages", {"body": 1, "key": KEY}).json()["holder"] == holder.short_id


def test_a_holder_of_a_task_of_the_token_is_met_as_before(make):
    caller = make(tasks=[risky.name])
    first = caller.post("jobs", {"task": risky.name, "key": KEY, "delay": "1h"}).json()["id"]
    assert refused(caller.post("jobs", {"task": risky.name, "key": KEY}), 409, "key_held", "/key")["holder"] == first
    for policy in ("keep", "earliest", "latest"):
        assert caller.post("jobs", {"task": risky.name, "key": KEY, "on_conflict": policy}).json()["id"] == first
    assert caller.post("jobs", {"task": risky.name, "key": KEY, "on_conflict": "replace", "delay": "1h"}).status_code == 201


def test_a_holder_that_comes_between_the_look_and_the_call_is_decided_about_by_the_script(make, monkeypatch):
    outsider = make(tasks=[risky.name])
    monkeypatch.setattr("django_delayq.producer.put._unmerged", lambda plans, keyed: plans)  # the first look found no holder
    holder = delayq.schedule(close_order, 7, delay="1h", key=KEY)
    answer = outsider.post("jobs", {"task": risky.name, "key": KEY, "on_conflict": "replace"}, key="one")
    refused(answer, 403, "key_denied", "/key")
    assert holder.state == "scheduled"
    row = Job.objects.get(task=risky.name)
    assert (row.state, row.ending, row.merged_into) == ("cancelled", "merged", None)
    told = outsider.get(f"jobs/{row.short_id}").content.decode()
    assert holder.short_id not in told


def test_a_cancel_of_a_merged_job_asks_before_it_goes_on_to_the_holder(make, monkeypatch):
    outsider, insider = make(tasks=[risky.name]), make("insider", tasks=[risky.name, TASK])
    holder = delayq.schedule(close_order, 7, delay="1h", key=KEY)
    with transaction.atomic():
        waits = delayq.schedule(risky, 1, delay="1h", key=KEY)
        connection.run_on_commit.clear()  # so that the relay merges it
    real = changes.one

    def late(*given: Any, **named: Any) -> Any:
        relayed(Orders())
        assert Job.objects.get(pk=waits.id).merged_into == holder.id
        return real(*given, **named)

    monkeypatch.setattr(changes, "one", late)
    refused(outsider.post(f"jobs/{waits.short_id}/cancel"), 409, "not_changed")
    assert holder.state == "scheduled"
    assert insider.post(f"jobs/{waits.short_id}/cancel").json()["change"] == "done"
    assert holder.state == "cancelled"


def test_a_job_that_another_task_s_has_displaced_or_holds_up_does_not_name_that(make):
    outsider, insider = make(tasks=[risky.name]), make("insider", tasks=[risky.name, TASK])
    mine = outsider.post("jobs", {"task": risky.name, "key": KEY, "delay": "1h"}).json()["id"]
    other = delayq.schedule(close_order, 7, delay="1h", key=KEY, on_conflict="replace")
    Orders().fold()
    told = outsider.get(f"jobs/{mine}").json()["job"]
    assert (told["state"], told["error"]) == ("cancelled", "displaced by a job that this token cannot access")
    assert other.short_id in insider.get(f"jobs/{mine}").json()["job"]["error"]


def test_a_job_that_waits_for_a_name_does_not_tell_who_holds_it(make):
    outsider, insider = make(tasks=[risky.name]), make("insider", tasks=[risky.name, TASK])
    holder = delayq.schedule(close_order.using(serial="bank"), 7)
    waits = delayq.schedule(risky.using(serial="bank"), 8)
    orders = Orders()
    assert [job.id for job in orders.claim()] == [holder.short_id]
    redis = outsider.get(f"jobs/{waits.short_id}").json()["redis"]
    assert (redis["waits_for_name"], redis["name_held_by"]) == (True, None)
    assert insider.get(f"jobs/{waits.short_id}").json()["redis"]["name_held_by"] == holder.short_id


def test_a_requeue_does_not_take_a_key_from_a_holder_of_another_task(make):
    outsider = make(tasks=[risky.name])
    mine = outsider.post("jobs", {"task": risky.name, "key": KEY, "delay": "1h"}).json()["id"]
    outsider.post(f"jobs/{mine}/cancel")
    holder = delayq.schedule(close_order, 7, delay="1h", key=KEY)
    answer = outsider.post(f"jobs/{mine}/requeue")
    assert refused(answer, 409, "not_changed")["change"] == "conflict"
    assert holder.short_id not in answer.content.decode()
    assert holder.state == "scheduled"


def test_a_token_reaches_the_jobs_of_all_names_of_a_task(make, monkeypatch):
    renamed = Task(close_order.fn, name="shop.close", queue="orders", aliases=[TASK])
    monkeypatch.setattr(registry, "_tasks", {**registry._tasks, renamed.name: renamed, TASK: renamed})
    by_old, by_new = make("old", tasks=[TASK]), make("new", tasks=[renamed.name])
    old = delayq.schedule(close_order, 7, delay="1h", key=KEY)
    for caller in (by_old, by_new):
        assert caller.get(f"jobs/{old.short_id}").status_code == 200
        for name in (TASK, renamed.name):
            again = caller.post("jobs", {"task": name, "args": [8], "key": KEY, "delay": "1h"}).json()
            assert (again["id"], again["created"]) == (old.short_id, False)
    assert make(tasks=[risky.name]).post("jobs", {"task": TASK, "args": [7]}).status_code == 403


def test_meta_of_a_request_cannot_hold_the_limit(caller):
    refused(caller.post("jobs", {"task": PING, "meta": {"delayq.version": 2}}), 422, "field_value", "/meta/delayq.version")
    refused(caller.post("jobs", {"task": PING, "meta": {"delayq.only": ["*"]}}), 422, "field_value", "/meta/delayq.only")


# --- limits ---


def most(caller: Caller, way: str, given: int) -> Any:
    path, body, _ = WAYS[way]
    return caller.post(path, {**body, "max_attempts": given, "expires": "1h"})


@pytest.mark.parametrize("way", ["schedule", "deliver", "offer"])
def test_a_program_has_no_more_attempts_than_task_or_queue_allow(make, way):
    caller = make(targets=["shipping"])
    _, _, task = WAYS[way]
    allowed = registry.get(task).max_attempts or 4
    for given in (allowed + 1, 10_000, 0):
        refused(most(caller, way, given), 422, "field_value", "/max_attempts")
    assert most(caller, way, allowed).status_code == 201
    assert most(caller, way, 1).status_code == 201


def test_where_the_task_has_no_limit_of_attempts_a_program_needs_none(make, monkeypatch):
    monkeypatch.setattr(risky, "max_attempts", 0)
    assert most(make(), "schedule", 0).status_code == 201


def test_a_delivery_has_no_longer_timeout_than_the_project_allows(caller):
    path, body, _ = WAYS["deliver"]
    refused(caller.post(path, {**body, "timeout": "11s"}), 422, "field_value", "/timeout")
    assert caller.post(path, {**body, "timeout": "10s"}).status_code == 201
    assert Job.objects.get().kwargs["within"] == 10


@pytest.mark.parametrize("verb", ["pull", "extend"])
def test_a_lease_has_an_upper_bound(caller, verb):
    body = {"lease": "13h"} if verb == "pull" else {"lease": "13h", "messages": [{"id": ids.short(ids.new()), "fence": "1/a"}]}
    refused(caller.post(f"queues/mail/{verb}", body), 422, "field_value", "/lease")


def test_a_wait_has_an_upper_bound(caller):
    refused(caller.post("queues/mail/pull", {"wait": 61}), 422, "field_value", "/wait")


def test_a_keyless_job_of_a_limited_token_is_like_any_other(make):
    assert make(tasks=[PING], queues=["redis"]).post("jobs", {"task": ping.name}).status_code == 201
