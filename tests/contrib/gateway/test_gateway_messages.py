"""Messages over HTTP: pushed, pulled, and settled one by one or many at once."""

from __future__ import annotations

from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.core.cache import cache
from django.db import OperationalError, connections
from django.test import AsyncClient

import django_delayq as delayq
from django_delayq import conf, setting_readers
from django_delayq.contrib.gateway import enqueue
from django_delayq.contrib.gateway.models import ALL
from django_delayq.mirror.mirror_loop import MirrorLoop
from django_delayq.models import Attempt, Job
from django_delayq.producer.stores import stores
from django_delayq.store.scripts.queue import QueueStore
from tests.contrib.gateway.conftest import BASE, Caller, refused
from tests.depths import queue_depth
from tests.management.conftest import lose_redis

MAIL = "queues/mail"
VERBS = ("ack", "retry", "snooze", "fail", "extend")


@pytest.fixture(autouse=True)
def messages(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Queues of messages that accept short leases."""
    monkeypatch.setattr(setting_readers, "SHORTEST_LEASE", 0.05)
    own = {"CONSUMER": "pull", "BACKOFF": "300ms", "MAX_ATTEMPTS": 3}
    queues = {**settings.DELAYQ["QUEUES"], "mail": own, "quick": {**own, "DURABILITY": "redis"}}
    settings.DELAYQ = {**settings.DELAYQ, "QUEUES": queues}


def pulled(caller: Caller, n: int = 1, queue: str = "mail", **more: Any) -> list[dict[str, Any]]:
    answer = caller.post(f"queues/{queue}/pull", {"n": n, **more})
    assert answer.status_code == 200, answer.content
    found: list[dict[str, Any]] = answer.json()["messages"]
    return found


def claim(message: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"id": message["id"], "fence": message["fence"], **more}


def settled(caller: Caller, verb: str, *claims: dict[str, Any], **more: Any) -> list[str]:
    answer = caller.post(f"{MAIL}/{verb}", {"messages": list(claims), **more})
    assert answer.status_code == 200, answer.content
    told = answer.json()["messages"]
    assert [one["id"] for one in told] == [one["id"] for one in claims]
    return [one["answer"] for one in told]


def state(id: str) -> str:
    view = stores.inspector().job("mail", delayq.get(id).id)
    return "gone" if view is None else view.state


def mirrored() -> None:
    MirrorLoop(stores.link, conf.get().queue("mail"), prefix="delayq").drain()


def test_what_was_pushed_is_pulled_and_acked(caller):
    id = caller.post(f"{MAIL}/messages", {"body": {"order": 7}, "key": "o:7", "meta": {"shop": 1}}).json()["id"]
    answer = caller.post(f"{MAIL}/pull", {"n": 10, "lease": "1m"}).json()
    (message,) = answer["messages"]
    assert (message["id"], message["body"], message["key"], message["attempt"]) == (id, {"order": 7}, "o:7", 1)
    assert (message["max_attempts"], message["meta"]["shop"], answer["lease"]) == (3, 1, 60)
    assert message["lease_end"] > message["run_at"]
    assert settled(caller, "ack", claim(message)) == ["done"]
    assert state(id) == "finished"
    assert pulled(caller) == []


def test_any_json_is_a_body(caller):
    for body in (None, 0, False, "", [], {}, [1, {"a": None}], "\x00é"):
        id = caller.post(f"{MAIL}/messages", {"body": body}).json()["id"]
        (message,) = pulled(caller)
        assert (message["id"], message["body"]) == (id, body)
        assert settled(caller, "ack", claim(message)) == ["done"]


def test_a_push_is_a_schedule_by_key_policy_and_idempotency_key(caller):
    first = caller.post(f"{MAIL}/messages", {"body": 1, "key": "k", "delay": "1h"}, key="one")
    assert first.status_code == 201
    assert caller.post(f"{MAIL}/messages", {"body": 1, "key": "k", "delay": "1h"}, key="one").json() == first.json()
    assert refused(caller.post(f"{MAIL}/messages", {"body": 2, "key": "k"}), 409, "key_held", "/key")["holder"] == first.json()["id"]
    assert caller.post(f"{MAIL}/messages", {"body": 2, "key": "k", "on_conflict": "keep"}).status_code == 200
    assert caller.post("keys/run-now", {"queue": "mail", "key": "k"}).json()["change"] == "done"
    assert [message["body"] for message in pulled(caller, 9)] == [1]


def test_a_push_whose_database_goes_away_names_the_message_that_may_be_there(caller, monkeypatch):
    real = enqueue.put_in

    def committed(*args: Any, **options: Any) -> Any:
        real(*args, **options)
        raise OperationalError("gone away")

    with monkeypatch.context() as patch:
        patch.setattr(enqueue, "put_in", committed)
        told = refused(caller.post(f"{MAIL}/messages", {"body": 1}), 503, "database_away")
    assert [message["id"] for message in pulled(caller, 9)] == [told["job"]]


def test_many_are_settled_in_one_call_and_each_has_its_answer(caller):
    for number in range(6):
        delayq.push("mail", number)
    first, second, third, *others = pulled(caller, 6)
    nobodys = {**claim(third), "fence": "1/abc"}
    assert settled(caller, "ack", claim(first), nobodys, claim(second)) == ["done", "lost", "done"]
    assert settled(caller, "retry", claim(third, reason="busy", delay="1h")) == ["done"]
    assert settled(caller, "snooze", claim(others[0], delay=3600)) == ["done"]
    assert settled(caller, "fail", claim(others[1], reason="no such order")) == ["done"]
    assert settled(caller, "extend", claim(others[2]), lease="1h") == ["done"]
    mirrored()
    rows = {job.short_id: job for job in Job.objects.all()}
    assert [rows[message["id"]].state for message in (first, second)] == ["succeeded"] * 2
    assert (rows[third["id"]].state, rows[third["id"]].attempts) == ("scheduled", 1)
    assert (rows[others[0]["id"]].state, rows[others[0]["id"]].attempts) == ("scheduled", 0)
    assert (rows[others[1]["id"]].state, rows[others[1]["id"]].error) == ("failed", "no such order")
    assert rows[others[2]["id"]].state == "running"


def test_one_is_settled_by_its_address(caller):
    for verb in VERBS:
        delayq.push("mail", verb)
        (message,) = pulled(caller)
        place, more = f"{MAIL}/messages/{message['id']}/{verb}", {"delay": "1h"} if verb == "snooze" else {}
        refused(caller.post(place, {"fence": "1/abc", **more}), 409, "lease_lost")
        told = caller.post(place, {"fence": message["fence"], **more}).json()
        assert (told["id"], told["answer"]) == (message["id"], "done")


def test_a_retry_follows_the_ladder_of_the_message_and_fails_it_after_the_last_attempt(caller):
    job = delayq.push("mail", 1, backoff="50ms", max_attempts=2)
    (message,) = pulled(caller)
    assert settled(caller, "retry", claim(message)) == ["done"]
    (message,) = pulled(caller, wait="20s")
    assert message["attempt"] == message["max_attempts"] == 2
    assert settled(caller, "retry", claim(message)) == ["done"]
    assert state(job.short_id) == "failed"


def test_extend_tells_that_somebody_wants_it_cancelled(caller):
    job = delayq.push("mail", 1)
    (message,) = pulled(caller)
    answer = caller.post(f"{MAIL}/extend", {"messages": [claim(message)], "lease": "5m"}).json()["messages"]
    assert answer == [{"id": message["id"], "answer": "done", "lease": 300, "cancel_requested": False}]
    assert caller.post(f"jobs/{job.short_id}/cancel").json()["change"] == "running"
    assert caller.post(f"{MAIL}/extend", {"messages": [claim(message)]}).json()["messages"][0]["cancel_requested"]


@pytest.mark.parametrize("verb", VERBS)
def test_the_same_settle_twice_answers_the_same(caller, verb):
    delayq.push("mail", 1)
    (message,) = pulled(caller)
    more = {"delay": "50ms"} if verb in ("retry", "snooze") else {}
    first = [settled(caller, verb, claim(message, **more)) for _ in range(2)]
    if more:
        pulled(caller, wait="20s")  # another consumer has it now
    assert [*first, settled(caller, verb, claim(message, **more))] == [["done"]] * 3


def test_who_has_lost_the_lease_is_told_so_each_time_whatever_the_next_holder_does(caller, make):
    other = make("other")
    delayq.push("mail", 1, backoff="1ms")
    (late,) = pulled(caller, lease="50ms")
    (held,) = pulled(other, wait="20s")
    assert settled(caller, "ack", claim(late)) == ["lost"]
    assert settled(caller, "extend", claim(late)) == ["lost"]
    assert settled(other, "ack", claim(held)) == ["done"]
    assert [settled(caller, "ack", claim(late)) for _ in range(2)] == [["lost"]] * 2
    assert settled(other, "ack", claim(held)) == ["done"]


def test_who_comes_behind_the_end_by_another_is_told_that_it_was_lost(caller, make):
    other = make("other")
    for verb in ("ack", "fail"):
        delayq.push("mail", 1, backoff="1ms")
        (late,) = pulled(caller, lease="50ms")
        (held,) = pulled(other, wait="20s")
        assert settled(other, verb, claim(held)) == ["done"]
        assert [settled(caller, "ack", claim(late)) for _ in range(2)] == [["lost"]] * 2


def test_what_was_settled_is_not_settled_otherwise(caller):
    job = delayq.push("mail", 1)
    (message,) = pulled(caller)
    assert settled(caller, "ack", claim(message)) == ["done"]
    assert settled(caller, "retry", claim(message)) == ["lost"]
    assert settled(caller, "extend", claim(message)) == ["lost"]
    assert settled(caller, "ack", claim(message)) == ["done"]
    assert state(job.short_id) == "finished"


@pytest.mark.parametrize("verb", ["ack", "retry", "snooze", "fail"])
def test_an_end_whose_reply_from_redis_was_lost_is_503_and_the_next_time_done(caller, monkeypatch, verb):
    delayq.push("mail", 1)
    (message,) = pulled(caller)
    sent = {"messages": [claim(message, **({"delay": "1h"} if verb == "snooze" else {}))]}
    real = QueueStore.settle

    def lossy(*args, **kwargs):
        real(*args, **kwargs)
        raise delayq.StoreUnavailable("the line broke")

    with monkeypatch.context() as patch:
        patch.setattr(QueueStore, "settle", lossy)
        answer = caller.post(f"{MAIL}/{verb}", sent)
        refused(answer, 503, "store_away")
        assert answer["Retry-After"]
    assert [caller.post(f"{MAIL}/{verb}", sent).json()["messages"][0]["answer"] for _ in range(2)] == ["done"] * 2


def test_without_the_cache_nothing_is_settled(caller, monkeypatch):
    job = delayq.push("mail", 1)
    (message,) = pulled(caller)

    def failing(*_, **__):
        raise ConnectionError("no cache")

    for name in ("get_many", "set_many"):
        with monkeypatch.context() as patch:
            patch.setattr(type(cache._connections["default"]), name, failing)
            refused(caller.post(f"{MAIL}/ack", {"messages": [claim(message)]}), 503, "limit_away")
        assert state(job.short_id) == "running"
    assert settled(caller, "ack", claim(message)) == ["done"]


def test_a_cache_that_fails_behind_the_end_loses_no_answer(caller, monkeypatch):
    delayq.push("mail", 1)
    (message,) = pulled(caller)
    real, calls = type(cache._connections["default"]).set_many, []

    def once(*args, **kwargs):
        calls.append(args)
        if len(calls) > 1:
            raise ConnectionError("no cache")
        return real(*args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(type(cache._connections["default"]), "set_many", once)
        assert settled(caller, "ack", claim(message)) == ["done"]
    assert settled(caller, "ack", claim(message)) == ["done"]


def test_with_an_idempotency_key_the_answer_stands_in_the_database(caller):
    delayq.push("mail", 1)
    (message,) = pulled(caller)
    sent = {"messages": [claim(message)]}
    first = caller.post(f"{MAIL}/ack", sent, key="one").json()
    cache.clear()
    assert caller.post(f"{MAIL}/ack", sent, key="one").json() == first


def test_the_rows_say_which_token_held_it_and_why_it_failed(caller):
    caller.post(f"{MAIL}/messages", {"body": 1})
    (message,) = pulled(caller)
    settled(caller, "fail", claim(message))
    mirrored()
    run = Attempt.objects.get()
    assert run.worker.startswith("token:partner@")
    assert run.message == "failed by its consumer, token:partner"
    assert Job.objects.get().meta["scheduled_by"] == "token:partner"


@pytest.mark.parametrize(
    ("path", "body", "place"),
    [
        ("pull", {"n": 0}, "/n"),
        ("pull", {"n": 201}, "/n"),
        ("pull", {"wait": 61}, "/wait"),
        ("pull", {"wait": "61s"}, "/wait"),
        ("pull", {"wait": "soon"}, "/wait"),
        ("pull", {"lease": "1ms"}, "/lease"),
        ("pull", {"lease": "13h"}, "/lease"),
        ("pull", {"older_than": "x"}, "/older_than"),
        ("ack", {"messages": []}, "/messages"),
        ("ack", {"messages": [{"id": "0" * 22, "fence": "1/a"}] * 201}, "/messages"),
        ("ack", {"messages": [{"id": "0" * 22, "fence": "1/a"}] * 2}, "/messages/1/id"),
        ("ack", {"messages": [{"id": "!" * 22, "fence": "1/a"}]}, "/messages/0/id"),
        ("ack", {"messages": [{"id": "0" * 22, "fence": "a"}]}, "/messages/0/fence"),
        ("ack", {"messages": [{"id": "0" * 22, "fence": "0/a"}]}, "/messages/0/fence"),
        ("retry", {"messages": [{"id": "0" * 22, "fence": "1/a", "delay": "x"}]}, "/messages/0/delay"),
        ("extend", {"messages": [{"id": "0" * 22, "fence": "1/a"}], "lease": "1ms"}, "/lease"),
        ("messages", {"body": 1, "delay": "x"}, "/delay"),
    ],
    ids=str,
)
def test_a_wrong_field_is_422_with_its_place(caller, path, body, place):
    refused(caller.post(f"{MAIL}/{path}", body), 422, "field_value", place)


def test_what_is_missing_or_unknown_is_422_with_its_place(caller):
    one = {"id": "0" * 22, "fence": "1/a"}
    refused(caller.post(f"{MAIL}/messages", {}), 422, "field_missing", "/body")
    refused(caller.post(f"{MAIL}/ack", {}), 422, "field_missing", "/messages")
    refused(caller.post(f"{MAIL}/snooze", {"messages": [one]}), 422, "field_missing", "/messages/0/delay")
    refused(caller.post(f"{MAIL}/ack", {"messages": [{**one, "delay": 1}]}), 422, "field_unknown", "/messages/0/delay")
    refused(caller.post(f"{MAIL}/messages/x/ack", {"fence": "1/a"}), 404, "job_unknown")


def test_of_a_request_with_one_wrong_part_nothing_is_settled(caller):
    job = delayq.push("mail", 1)
    (message,) = pulled(caller)
    refused(caller.post(f"{MAIL}/ack", {"messages": [claim(message), claim(message)]}), 422, "field_value", "/messages/1/id")
    assert state(job.short_id) == "running"


def test_a_message_that_is_too_large_is_413(caller):
    refused(caller.post(f"{MAIL}/messages", {"body": "x" * 70_000}), 413, "payload_size", "/body")
    refused(caller.post(f"{MAIL}/ack", b" " * 1_000_000), 413, "body_size")


def test_a_queue_of_workers_is_409_and_one_that_is_not_there_or_of_others_404(caller, make):
    outsider = make("outsider", queues=["quick"])
    delayq.push("mail", 1)
    for verb in ("pull", "ack", "retry", "snooze", "fail", "extend", "messages"):
        body = {} if verb == "pull" else {"body": 1} if verb == "messages" else {"messages": [{"id": "0" * 22, "fence": "1/a"}]}
        if verb == "snooze":
            body["messages"][0]["delay"] = 1
        refused(caller.post(f"queues/orders/{verb}", body), 409, "queue_of_workers")
        refused(caller.post(f"queues/nowhere/{verb}", body), 404, "queue_unknown")
        refused(outsider.post(f"queues/mail/{verb}", body), 404, "queue_unknown")
    assert queue_depth("mail").due == 1


def test_a_token_for_one_queue_settles_nothing_of_another(caller, make):
    job = delayq.push("mail", 1)
    (message,) = pulled(caller)
    outsider = make("outsider", queues=["quick"])
    answer = outsider.post("queues/quick/ack", {"messages": [claim(message)]}).json()
    assert answer["messages"][0]["answer"] == "lost"
    assert state(job.short_id) == "running"


def test_without_redis_a_pull_is_503_with_the_seconds_until_the_next_try(caller, settings):
    lose_redis(settings)
    answer = caller.post(f"{MAIL}/pull", {"wait": "1s"})
    refused(answer, 503, "store_away")
    assert answer["Retry-After"]


def test_a_pull_under_wsgi_says_that_it_waits_no_longer_than_a_thread_may(caller, make):
    delayq.push("mail", 1)
    told = make("any", queues=[ALL]).post(f"{MAIL}/pull", {"wait": "1m"}).json()
    assert (len(told["messages"]), told["wait"]) == (1, 2.0)


def test_it_works_where_requests_run_in_transactions(caller):
    connections.settings["default"]["ATOMIC_REQUESTS"] = True
    try:
        caller.post(f"{MAIL}/messages", {"body": 1})
        (message,) = pulled(caller)
        assert settled(caller, "ack", claim(message)) == ["done"]
    finally:
        connections.settings["default"]["ATOMIC_REQUESTS"] = False


def test_under_asgi_a_pull_may_wait_for_as_long_as_it_asks(caller):
    delayq.push("mail", 1)
    post = async_to_sync(AsyncClient().post)
    headers = {"Authorization": f"Bearer {caller.text}"}
    answer = post(f"{BASE}{MAIL}/pull", '{"wait": "1m"}', content_type="application/json", headers=headers)
    assert (len(answer.json()["messages"]), answer.json()["wait"]) == (1, 60)


@pytest.mark.parametrize("path", ["messages", "pull", "ack", f"messages/{'0' * 22}/ack"])
def test_without_a_token_and_by_get_nothing_is_told(caller, path):
    refused(Caller("").post(f"{MAIL}/{path}"), 401, "token_missing")
    refused(Caller("dqg_x").post(f"{MAIL}/{path}"), 401, "token_invalid")
    refused(caller.get(f"{MAIL}/{path}"), 405, "method")


def test_too_many_pulls_in_a_minute_are_429(caller, make, long_minute):
    eager = make("eager", per_minute=1)
    assert pulled(eager) == []
    answer = eager.post(f"{MAIL}/pull")
    refused(answer, 429, "rate")
    assert answer["Retry-After"]


def test_a_pull_with_an_idempotency_key_is_refused_and_takes_nothing(caller):
    id = caller.post(f"{MAIL}/messages", {"body": 1}).json()["id"]
    refused(caller.post(f"{MAIL}/pull", {"n": 1}, key="one"), 400, "idempotency_unkept")
    assert state(id) == "scheduled"
    assert [message["id"] for message in pulled(caller)] == [id]
