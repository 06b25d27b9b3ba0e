"""A request that is sent again: after an answer, while the first is in progress, and after a crash at any point."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import threading
from datetime import timedelta
from functools import partial

import pytest
from django.db import OperationalError, connection

from django_delayq import clock, ids
from django_delayq.contrib.gateway import enqueue, idempotency, tokens
from django_delayq.contrib.gateway.models import KeptAnswer
from django_delayq.models import Job, PeriodKey
from django_delayq.producer.stores import stores
from tests.contrib.gateway.conftest import PING, TASK, Caller, refused
from tests.depths import queue_depth
from tests.management.conftest import lose_redis


class Killed(BaseException):
    """The process died here. It runs no more of its code."""


BODY = {"task": TASK, "args": [7], "delay": "1h"}


def scheduled() -> int:
    return queue_depth("orders").scheduled


def test_the_same_request_gets_the_same_answer_and_does_nothing(caller):
    first = caller.post("jobs", BODY, key="one")
    again = caller.post("jobs", BODY, key="one")
    assert (first.status_code, again.status_code) == (201, 201)
    assert first.content == again.content
    assert (first.get("Idempotency-Replayed"), again["Idempotency-Replayed"]) == (None, "true")
    assert Job.objects.count() == scheduled() == 1
    assert caller.post("jobs", BODY, key="ONE").json() != first.json()


def test_a_refusal_of_the_handler_is_kept_and_one_before_it_is_not(caller):
    caller.schedule(key="o:7")
    refused(caller.post("jobs", {**BODY, "key": "o:7"}, key="one"), 409, "key_held", "/key")
    caller.post("keys/cancel", {"queue": "orders", "key": "o:7"})
    again = caller.post("jobs", {**BODY, "key": "o:7"}, key="one")
    refused(again, 409, "key_held", "/key")
    assert again["Idempotency-Replayed"] == "true"
    refused(caller.post("jobs", {"task": 5}, key="two"), 422, "field_type", "/task")
    assert caller.post("jobs", BODY, key="two").status_code == 201


def test_another_body_address_or_method_of_the_same_key_is_422(caller):
    id = caller.post("jobs", BODY, key="one").json()["id"]
    refused(caller.post("jobs", {**BODY, "args": [8]}, key="one"), 422, "idempotency_reused")
    refused(caller.post(f"jobs/{id}/cancel", BODY, key="one"), 422, "field_unknown", "/task")
    refused(caller.post(f"jobs/{id}/cancel", {}, key="one"), 422, "idempotency_reused")
    assert Job.objects.get().state == "scheduled"


def test_keys_are_of_a_client_and_outlive_a_rotation(caller, make):
    first = caller.post("jobs", BODY, key="one").json()
    assert make("other").post("jobs", BODY, key="one").json() != first
    _, text = tokens.rotate("partner")
    assert Caller(text).post("jobs", BODY, key="one").json() == first


@pytest.mark.parametrize("key", ["x" * 256, "\u00e9", "a\tb"])
def test_a_key_that_is_none_is_400(caller, key):
    refused(caller.post("jobs", BODY, key=key), 400, "idempotency_key")


def test_a_change_is_answered_again_as_it_was(caller):
    id = caller.schedule().json()["id"]
    assert caller.post(f"jobs/{id}/cancel", key="c").json()["change"] == "done"
    assert caller.post(f"jobs/{id}/requeue", key="r").json()["change"] == "done"
    assert caller.post(f"jobs/{id}/requeue", key="r").json()["change"] == "done"
    assert caller.post(f"jobs/{id}/cancel", key="c").json()["change"] == "done"
    assert caller.get(f"jobs/{id}").json()["state"] == "scheduled"


def hold(key: str, body: bytes) -> None:
    """Another process handles that request."""
    (token,) = tokens.live()
    request = idempotency.fingerprint("POST", "/queue/v1/jobs", body)
    idempotency._hold(idempotency._digest(token, key), request)


def test_one_that_is_under_way_is_409_and_says_when_to_ask_again(caller):
    hold("one", b"{}")
    kept = KeptAnswer.objects.get()
    kept.request = idempotency.fingerprint("POST", "/queue/v1/jobs", b'{"task": "' + TASK.encode() + b'", "args": [7], "delay": "1h"}')
    kept.save()
    answer = caller.post("jobs", BODY, key="one")
    refused(answer, 409, "in_progress")
    assert 0 < int(answer["Retry-After"]) <= 61
    assert not Job.objects.exists()


@pytest.mark.parametrize("durable", [True, False])
@pytest.mark.parametrize("where", ["before", "after"])
def test_a_crash_half_way_makes_no_second_job_and_locks_no_key(caller, monkeypatch, where, durable):
    body = BODY if durable else {"task": PING, "delay": "1h"}
    real = enqueue.put_in

    def dying(*args, **options):
        if where == "after":
            real(*args, **options)
        raise Killed

    monkeypatch.setattr(enqueue, "put_in", dying)
    with pytest.raises(Killed):
        caller.post("jobs", body, key="one")
    monkeypatch.setattr(enqueue, "put_in", real)
    held = KeptAnswer.objects.get()
    # A killed process takes nothing back: as if it had held the key until now, and until a minute after.
    KeptAnswer.objects.update(held_until=clock.now() + idempotency.HOLD)
    refused(caller.post("jobs", body, key="one"), 409, "in_progress")
    KeptAnswer.objects.update(held_until=clock.now() - timedelta(seconds=1))
    answer = caller.post("jobs", body, key="one")
    assert answer.status_code == 201, answer.content
    assert ids.full(answer.json()["id"]) == held.job
    assert caller.post("jobs", body, key="one").content == answer.content
    assert queue_depth("orders" if durable else "redis").scheduled == 1
    assert Job.objects.count() == int(durable)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "point"),
    [
        *((TASK, f"producer.{point}") for point in ("ask1", "commit", "committed", "ask3", "asked3")),
        *((PING, f"producer.{point}") for point in ("ask1", "asked1")),  # it has no row: one call does it
    ],
)
def test_a_process_that_is_killed_makes_no_second_job(caller, task, point):
    body = {"task": task, "args": [7], "delay": "1h", "key": "o:7"}
    script = textwrap.dedent("""
        import os, sys, django
        django.setup()
        from django.db import connections
        connections.settings["default"]["NAME"] = os.environ["TEST_NAME"]
        from django.test import Client
        from django.conf import settings
        settings.ROOT_URLCONF = "tests.contrib.gateway.gateway_urls"
        from django_delayq import failpoints
        from tests import tasks_for_tests
        name = sys.argv[1].rstrip("123")
        failpoints.arm(name + "=kill@" + (sys.argv[1][len(name):] or "1"))
        headers = {"Authorization": "Bearer " + sys.argv[2], "Idempotency-Key": "one"}
        print(Client().post("/queue/v1/jobs", sys.argv[3], content_type="application/json", headers=headers).content)
    """)
    name = connection.settings_dict["NAME"]
    environment = {**os.environ, "DJANGO_SETTINGS_MODULE": "tests.settings", "TEST_NAME": str(name)}
    words = [sys.executable, "-c", script, point, caller.text, json.dumps(body)]
    done = subprocess.run(words, env=environment, check=False, capture_output=True)
    assert done.returncode == 137, done.stdout + done.stderr
    refused(caller.post("jobs", body, key="one"), 409, "in_progress")
    held = KeptAnswer.objects.get()
    KeptAnswer.objects.update(held_until=clock.now() - timedelta(seconds=1))
    answer = caller.post("jobs", body, key="one")
    assert answer.status_code in (201, 202), answer.content  # 202: its row was committed, and the relay brings it to Redis
    assert ids.full(answer.json()["id"]) == held.job
    again = caller.post("jobs", body, key="one")
    assert (again.content, again["Idempotency-Replayed"]) == (answer.content, "true")
    assert {job.pk for job in Job.objects.all()} <= {held.job}
    assert sum(queue_depth(queue).scheduled for queue in ("orders", "redis")) == (answer.status_code == 201)


def test_after_a_crash_a_job_that_was_merged_is_answered_with_its_holder(caller, monkeypatch):
    real = enqueue.put_in
    holder = caller.schedule(key="o:7").json()["id"]
    for policy, status in (("error", 409), ("keep", 200)):
        body = {**BODY, "key": "o:7", "on_conflict": policy}
        # The row was committed and merged while no process could ask Redis for the holder.
        monkeypatch.setattr("django_delayq.producer.put._held", lambda _: {})
        monkeypatch.setattr(enqueue, "put_in", lambda *args, **options: die(partial(real, **options), *args))
        with pytest.raises(Killed):
            caller.post("jobs", body, key=policy)
        monkeypatch.undo()
        answer = caller.post("jobs", body, key=policy)
        assert answer.status_code == status, answer.content
        assert answer.json().get("holder", answer.json().get("id")) == holder


def test_after_a_crash_the_job_is_the_answer_whoever_holds_its_key_since(caller, monkeypatch):
    real = enqueue.put_in
    body = {**BODY, "key": "o:7"}
    with monkeypatch.context() as patch:
        patch.setattr(enqueue, "put_in", lambda *args, **options: die(partial(real, **options), *args))
        with pytest.raises(Killed):
            caller.post("jobs", body, key="one")
    first = KeptAnswer.objects.get().job
    caller.post("keys/cancel", {"queue": "orders", "key": "o:7"})
    second = caller.post("jobs", body).json()["id"]
    answer = caller.post("jobs", body, key="one")
    assert (answer.status_code, answer.json()["id"]) == (201, ids.short(first))
    assert second != ids.short(first)
    assert scheduled() == 1


def die(real, *args):
    try:
        real(*args)
    except Exception:
        pass
    raise Killed


def test_a_503_leaves_no_answer_and_the_next_one_goes_on_with_the_same_job(caller, settings):
    here = settings.DELAYQ["REDIS"]
    lose_redis(settings)
    told = refused(caller.post("jobs", {"task": PING}, key="one"), 503, "store_away")
    settings.DELAYQ = {**settings.DELAYQ, "REDIS": here}
    stores.reset()
    answer = caller.post("jobs", {"task": PING}, key="one")
    assert (answer.status_code, answer.json()["id"]) == (201, told["job"])


def test_a_database_that_goes_away_leaves_no_lock(caller, monkeypatch):
    real = enqueue.put_in

    def failing(*_, **__):
        raise OperationalError("gone away")

    monkeypatch.setattr(enqueue, "put_in", failing)
    told = refused(caller.post("jobs", BODY, key="one"), 503, "database_away")
    monkeypatch.setattr(enqueue, "put_in", real)
    assert caller.post("jobs", BODY, key="one").json()["id"] == told["job"]


def test_an_answer_that_cannot_be_kept_is_given_all_the_same(caller, monkeypatch):
    def failing(*_, **__):
        raise OperationalError("gone away")

    caller.get("tasks")  # records the last use of the token
    with monkeypatch.context() as patch:
        patch.setattr(idempotency.QuerySet, "update", failing)
        first = caller.post("jobs", BODY, key="one")
    assert first.status_code == 201
    KeptAnswer.objects.update(held_until=clock.now())
    assert caller.post("jobs", BODY, key="one").json() == first.json()
    assert scheduled() == 1


def test_two_at_once_schedule_one_job(caller, monkeypatch):
    if connection.vendor == "sqlite" and connection.is_in_memory_db():
        pytest.skip("a database in memory has one connection")
    real, met, go, answers = enqueue.put_in, threading.Event(), threading.Event(), []

    def slow(*args, **options):
        met.set()
        assert go.wait(60)
        return real(*args, **options)

    monkeypatch.setattr(enqueue, "put_in", slow)

    def ask():
        try:
            answers.append(Caller(caller.text).post("jobs", BODY, key="one"))
        finally:
            connection.close()

    first = threading.Thread(target=ask)
    first.start()
    try:
        assert met.wait(60)
        refused(caller.post("jobs", BODY, key="one"), 409, "in_progress")
        # It takes longer than its hold: another one takes over, and both schedule the same job.
        KeptAnswer.objects.update(held_until=clock.now() - timedelta(seconds=1))
        monkeypatch.setattr(enqueue, "put_in", real)
        second = caller.post("jobs", BODY, key="one")
    finally:
        go.set()
        first.join(60)
    assert second.status_code == answers[0].status_code == 201
    assert second.json()["id"] == answers[0].json()["id"]
    assert Job.objects.count() == scheduled() == 1
    assert caller.post("jobs", BODY, key="one").content == second.content


def test_an_answer_is_kept_for_a_day_and_deleted_behind_it(caller):
    first = caller.post("jobs", BODY, key="one").json()["id"]
    caller.post("jobs", BODY, key="two")
    KeptAnswer.objects.update(created_at=clock.now() - timedelta(hours=23))
    assert caller.post("jobs", BODY, key="one").json()["id"] == first
    KeptAnswer.objects.update(created_at=clock.now() - timedelta(hours=25))
    PeriodKey.objects.update(until=clock.now() - timedelta(hours=1))
    assert caller.post("jobs", BODY, key="one").json()["id"] != first
    assert KeptAnswer.objects.count() == 1
    assert idempotency.prune() == 0
