"""Access to the gateway: which clients, to which resources, how often, and with how much data."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from io import StringIO

import pytest
from asgiref.sync import async_to_sync
from django.core.cache import cache
from django.core.management import call_command
from django.db import connection
from django.test import AsyncClient, Client
from django.test.utils import CaptureQueriesContext

import django_delayq as delayq
from django_delayq import clock, conf
from django_delayq.contrib.gateway import parsing, tokens
from django_delayq.contrib.gateway.models import VERBS, Token
from django_delayq.contrib.gateway.responses import REFUSALS
from django_delayq.contrib.gateway.urls import ROUTES
from django_delayq.exceptions import ConfigError
from django_delayq.models import Job, database
from django_delayq.producer.task import registry
from tests.contrib.gateway.conftest import BASE, PING, TASK, Caller, refused
from tests.management.conftest import without_database
from tests.tasks_for_tests import close_order, ping, risky

MINUTE_MS = 60_000


def test_without_a_token_nothing_is_told(caller):
    stranger = Caller("")
    answer = stranger.get("queues")
    refused(answer, 401, "token_missing")
    assert answer["WWW-Authenticate"] == "Bearer"
    refused(stranger.post("jobs", {"task": TASK}), 401, "token_missing")
    refused(Client().get(f"{BASE}queues", headers={"Authorization": "Basic eDp5"}), 401, "token_missing")


@pytest.mark.parametrize("text", ["dqg_x", "x" * 5000, "\u00e9", "' OR 1=1", "\\x00"])
def test_a_token_that_nobody_made_is_refused(caller, text):
    answer = Caller(text).get("queues")
    refused(answer, 401, "token_invalid")
    assert "invalid_token" in answer["WWW-Authenticate"]


def test_a_token_stands_in_no_row(caller):
    row = Token.objects.get()
    assert caller.text not in json.dumps({field.attname: str(getattr(row, field.attname)) for field in Token._meta.fields})
    assert caller.text.startswith(row.shown)
    assert len(caller.text) > 40


def test_a_revoked_token_and_one_that_has_expired_open_nothing(caller):
    tokens.Token.objects.update(expires_at=clock.now() - timedelta(seconds=1))
    refused(caller.get("queues"), 401, "token_invalid")
    tokens.Token.objects.update(expires_at=clock.now() + timedelta(hours=1))
    assert caller.get("queues").status_code == 200
    assert tokens.revoke(tokens.live("partner")) == 1
    refused(caller.get("queues"), 401, "token_invalid")


def test_a_rotated_token_lives_beside_the_new_one_until_the_overlap_has_passed(caller):
    fresh, text = tokens.rotate("partner", overlap="1h", by="ops")
    assert Caller(text).get("queues").status_code == caller.get("queues").status_code == 200
    assert (fresh.queues, fresh.verbs, fresh.tasks, fresh.expires_at) == (["*"], ["*"], ["*"], None)
    with pytest.raises(ConfigError, match="two live tokens"):
        tokens.rotate("partner")
    former = tokens.Token.objects.exclude(pk=fresh.pk).get()
    assert former.expires_at is not None
    assert former.expires_at - clock.now() < timedelta(hours=1, seconds=1)
    tokens.Token.objects.filter(pk=former.pk).update(expires_at=clock.now())
    refused(caller.get("queues"), 401, "token_invalid")
    assert tokens.rotate("partner")[1] != text


def test_a_rotation_prolongs_no_token(make):
    make(expires="10m")
    fresh, _ = tokens.rotate("partner", overlap="1h")
    ends = set(tokens.Token.objects.values_list("expires_at", flat=True))
    assert ends == {fresh.expires_at}


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": "a b"},
        {"name": ""},
        {"queues": ["nowhere"]},
        {"queues": []},
        {"verbs": ["steal"]},
        {"verbs": []},
        {"tasks": []},
        {"per_minute": 0},
        {"expires": "soon"},
        {"expires": -1},
    ],
    ids=str,
)
def test_a_token_that_cannot_be_is_not_made(make, wrong):
    with pytest.raises(ConfigError):
        make(**{"name": "other", **wrong})
    assert not Token.objects.exists()


def test_two_live_tokens_of_one_name_are_made_by_rotation_only(make):
    make()
    with pytest.raises(ConfigError, match="Rotate it"):
        make()
    tokens.revoke(tokens.live("partner"))
    assert make().token is not None


def test_the_last_use_is_noted_once_a_minute(caller):
    caller.get("tasks")
    first = Token.objects.get().last_used_at
    assert first is not None
    with CaptureQueriesContext(connection) as queries:
        caller.get("tasks")
    assert [query["sql"] for query in queries if "UPDATE" in query["sql"]] == []
    tokens.Token.objects.update(last_used_at=clock.now() - timedelta(seconds=61))
    caller.get("tasks")
    assert Token.objects.get().last_used_at > first


def test_a_wrong_clock_of_the_host_ends_no_token_and_notes_no_use_anew(caller, monkeypatch):
    if connection.vendor == "sqlite":
        shown = clock.now()
        monkeypatch.setattr(database, "now", lambda: shown)
    caller.get("tasks")
    Token.objects.update(expires_at=database.now() + timedelta(hours=1))
    monkeypatch.setattr(clock, "now", lambda: datetime(2040, 1, 1, tzinfo=UTC))
    with CaptureQueriesContext(connection) as queries:
        assert caller.get("tasks").status_code == 200
    assert [query["sql"] for query in queries if "UPDATE" in query["sql"]] == []
    out = StringIO()
    call_command("delayq_gateway", "list", "--json", stdout=out)
    assert [row["live"] for row in json.loads(out.getvalue())] == [True]


def test_a_verb_that_the_token_lacks_is_403(delayq_redis, make):
    id = make("other").schedule().json()["id"]
    for route in ROUTES:
        lacking = make(f"no-{route.name.replace('_', '-')}", verbs=[verb for verb in VERBS if verb != route.verb])
        path = route.path.replace("{id}", id).replace("{queue}", "orders")
        answer = lacking.get(path) if route.method == "GET" else lacking.post(path, {"task": TASK})
        assert route.verb in refused(answer, 403, "verb_denied")["detail"]
    assert Job.objects.get().state == "scheduled"


def test_every_verb_of_a_token_is_one_of_the_table_and_the_other_way_round():
    assert {route.verb for route in ROUTES} == set(VERBS)


def test_jobs_of_other_queues_are_as_if_they_were_not_there(delayq_redis, make):
    everyone, outsider = make("everyone"), make("outsider", queues=["redis"])
    id = everyone.schedule(key="o:7").json()["id"]
    refused(outsider.get(f"jobs/{id}"), 404, "job_unknown")
    for verb in ("cancel", "run-now", "requeue"):
        refused(outsider.post(f"jobs/{id}/{verb}"), 404, "job_unknown")
    refused(outsider.get("jobs?queue=orders&key=o:7"), 404, "job_unknown")
    refused(outsider.post("keys/cancel", {"queue": "orders", "key": "o:7"}), 403, "queue_denied", "/queue")
    refused(outsider.schedule(), 403, "task_denied", "/task")
    refused(outsider.post("jobs", {"task": PING, "queue": "orders"}), 403, "queue_denied", "/queue")
    refused(outsider.get("queues/orders"), 404, "queue_unknown")
    assert [queue["queue"] for queue in outsider.get("queues").json()["queues"]] == ["redis"]
    assert outsider.post("jobs", {"task": PING}).status_code == 201
    assert everyone.get(f"jobs/{id}").json()["state"] == "scheduled"


def test_a_token_for_some_tasks_sees_and_changes_no_others(delayq_redis, make):
    everyone, outsider = make("everyone"), make("outsider", tasks=[ping.name])
    id = everyone.schedule(key="o:7").json()["id"]
    refused(outsider.schedule(), 403, "task_denied", "/task")
    refused(outsider.get(f"jobs/{id}"), 404, "job_unknown")
    refused(outsider.post("keys/cancel", {"queue": "orders", "key": "o:7"}), 404, "job_unknown")
    refused(outsider.post("keys/requeue", {"queue": "orders", "key": "o:7"}), 404, "job_unknown")
    assert [task["task"] for task in outsider.get("tasks").json()["tasks"]] == [ping.name]
    assert everyone.get(f"jobs/{id}").json()["state"] == "scheduled"


def test_a_task_of_another_queue_is_not_brought_into_ones_own_unless_the_token_names_it(delayq_redis, make):
    body = {"task": TASK, "args": [7], "queue": "redis"}
    refused(make(queues=["redis"]).post("jobs", body), 403, "task_denied", "/task")
    named = make("named", queues=["redis"], tasks=[TASK])
    assert named.post("jobs", body).status_code == 201
    assert [task["task"] for task in named.get("tasks").json()["tasks"]] == [TASK]
    assert not Job.objects.filter(queue="orders").exists()


def test_a_merged_job_leads_to_no_holder_of_a_task_that_the_token_lacks(delayq_redis, make):
    from django.db import transaction

    outsider = make("outsider", tasks=[risky.name])
    holder = delayq.schedule(close_order, 7, delay="1h", key="shared")
    with transaction.atomic():
        merged = delayq.schedule(risky, 1, delay="1h", key="shared")
    row = Job.objects.get(pk=row_of_merged(holder.id))
    assert merged.created is False
    told = outsider.get(f"jobs/{row.short_id}")
    assert told.status_code == 200
    assert holder.short_id not in told.content.decode()
    refused(outsider.post(f"jobs/{row.short_id}/cancel"), 409, "not_changed")
    assert holder.state == "scheduled"


def row_of_merged(holder):
    return Job.objects.get(merged_into=holder).pk


def test_a_policy_that_displaces_the_holder_needs_the_verb_for_that(delayq_redis, make):
    caller = make(verbs=["schedule", "get"])
    caller.schedule(key="o:7")
    for policy in ("replace", "after", "earliest", "latest"):
        refused(caller.schedule(key="o:7", on_conflict=policy), 403, "verb_denied", "/on_conflict")
    assert caller.schedule(key="o:7", on_conflict="keep").status_code == 200


def test_too_many_requests_in_a_minute_are_429_until_the_next(delayq_redis, make, monkeypatch):
    now = [1_000 * MINUTE_MS]
    monkeypatch.setattr(tokens.clock, "wall_ms", lambda: now[0])
    caller, other = make(per_minute=3), make("other", per_minute=3)
    assert [caller.get("tasks").status_code for _ in range(3)] == [200] * 3
    now[0] += 20_500
    answer = caller.get("tasks")
    refused(answer, 429, "rate")
    assert answer["Retry-After"] == "40"
    assert other.get("tasks").status_code == 200
    now[0] += 39_500
    assert caller.get("tasks").status_code == 200


def test_a_rotation_brings_no_more_requests(delayq_redis, make, monkeypatch):
    monkeypatch.setattr(tokens.clock, "wall_ms", lambda: 1_000 * MINUTE_MS)
    caller = make(per_minute=2)
    assert [caller.get("tasks").status_code for _ in range(2)] == [200] * 2
    refused(Caller(tokens.rotate("partner")[1]).get("tasks"), 429, "rate")


def test_a_cache_that_does_not_count_lets_nobody_in(caller, settings, monkeypatch):
    settings.CACHES = {"default": {"BACKEND": "django.core.cache.backends.dummy.DummyCache"}}
    answer = caller.get("tasks")
    refused(answer, 503, "limit_away")
    assert answer["Retry-After"]
    settings.CACHES = {"default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}}
    monkeypatch.setattr(type(cache._connections["default"]), "incr", lambda *_, **__: None)
    refused(caller.get("tasks"), 503, "limit_away")


def test_a_method_that_an_address_lacks_is_405_with_those_it_has(caller):
    for path, allowed in (("jobs", "GET, POST"), ("queues", "GET"), ("keys/cancel", "POST")):
        answer = caller.client.delete(BASE + path)
        refused(answer, 405, "method")
        assert answer["Allow"] == allowed
    assert caller.client.options(f"{BASE}jobs").status_code == 405


def test_head_is_get_without_a_body(caller):
    answer = caller.client.head(f"{BASE}queues", headers={"Authorization": f"Bearer {caller.text}"})
    assert (answer.status_code, answer.content) == (200, b"")


class Unread:
    """A body that must not be read."""

    def read(self, *_: object) -> bytes:
        raise AssertionError("it was read")

    readline = read


def test_a_body_that_says_it_is_too_large_is_not_read(caller):
    limit = parsing.body_limit()
    answer = caller.client.generic(
        "POST",
        f"{BASE}jobs",
        b"",
        "application/json",
        headers=caller._headers({}),
        CONTENT_LENGTH=str(limit + 1),
        **{"wsgi.input": Unread()},
    )
    refused(answer, 413, "body_size")
    refused(caller.post("jobs", b" " * (limit + 1)), 413, "body_size")


def test_a_body_of_unknown_length_is_cut_off_at_the_limit(caller, rf):
    from io import BytesIO

    from django_delayq.contrib.gateway.responses import GatewayProblem

    request = rf.post("/", b"{}", content_type="application/json", CONTENT_LENGTH="")
    request._stream = BytesIO(b" " * 10_000_000)
    with pytest.raises(GatewayProblem) as refusal:
        parsing.raw_body(request)
    assert refusal.value.code == "body_size"
    assert request._stream.tell() == parsing.body_limit() + 1


@pytest.mark.parametrize("length", ["-1", "x", "1e3", "9" * 30, "\u0663"])
def test_a_length_that_is_none_is_400(caller, length):
    answer = caller.client.generic("POST", f"{BASE}jobs", b"{}", "application/json", headers=caller._headers({}), CONTENT_LENGTH=length)
    refused(answer, 400, "length_unknown")


def test_a_body_in_pieces_that_django_does_not_read_is_no_empty_one(caller):
    id = caller.schedule().json()["id"]
    answer = caller.post(f"jobs/{id}/cancel", b"", **{"Transfer-Encoding": "chunked"})
    refused(answer, 400, "length_unknown")
    assert caller.get(f"jobs/{id}").json()["state"] == "scheduled"


@pytest.mark.parametrize(
    "kind",
    ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "", "application/json; charset=latin-1"],
)
def test_what_is_not_said_to_be_json_is_415(caller, kind):
    refused(caller.post("jobs", b"{}", kind=kind), 415, "body_type")


def test_json_may_say_its_charset(caller):
    assert caller.post("jobs", {"task": PING}, kind="application/json; charset=UTF-8").status_code == 201


@pytest.mark.parametrize(
    "raw",
    [
        b"{",
        b"nothing",
        b"{'a': 1}",
        b"\xff\xfe",
        b'{"a": NaN}',
        b'{"a": 1e999}',
        b'{"a": "\\ud800"}',
        b"[" * 100_000,
        b"9" * 10_000,
        b"{}{}",
    ],
    ids=lambda raw: raw[:12].decode("latin-1"),
)
def test_what_is_no_json_is_400(caller, raw):
    refused(caller.post("jobs", raw), 400, "json")


def test_a_body_that_is_no_object_is_422(caller):
    for raw in (b"[]", b"null", b'"x"', b"5"):
        refused(caller.post("jobs", raw), 422, "field_type", "")


def test_a_client_that_hangs_up_is_400(caller, rf):
    from django_delayq.contrib.gateway.responses import GatewayProblem

    class Gone:
        def read(self, *_: object) -> bytes:
            raise ConnectionResetError

    request = rf.post("/", b"{}", content_type="application/json")
    request._stream = Gone()
    with pytest.raises(GatewayProblem) as refusal:
        parsing.raw_body(request)
    assert refusal.value.code == "body_lost"


def test_without_the_database_all_is_503(caller, settings, monkeypatch):
    without_database(settings, monkeypatch)
    answer = caller.get("queues")
    refused(answer, 503, "database_away")
    assert answer["Retry-After"]


def test_nobody_keeps_a_copy_of_an_answer_and_no_cookie_is_set(caller):
    answer = caller.get("queues")
    assert answer["Cache-Control"] == "no-store"
    assert not answer.cookies


def test_the_figures_of_a_queue_are_those_of_the_command(caller, run):
    caller.schedule(1, delay=0)
    caller.schedule(2)
    delayq.pause("orders", actor="admin:eve", reason="secret")
    told = caller.get("queues/orders").json()
    status = next(queue for queue in run("status", "--json").json["queues"] if queue["queue"] == "orders")
    assert {name: value for name, value in told.items() if name != "oldest_late_ms"} == {
        name: status[name] for name in told if name != "oldest_late_ms"
    }
    assert (told["scheduled"], told["due"], told["paused_ms"] > 0) == (2, 1, True)
    assert "eve" not in json.dumps(told)
    refused(caller.get("queues/nowhere"), 404, "queue_unknown")


def test_tasks_are_told_with_their_parameters(caller):
    told = {task["task"]: task for task in caller.get("tasks").json()["tasks"]}
    assert told[TASK] == {
        "task": TASK,
        "queue": "orders",
        "parameters": [
            {"name": "order_id", "kind": "positional_or_keyword", "required": True},
            {"name": "note", "kind": "keyword_only", "required": False},
        ],
    }


def test_a_job_is_found_and_changed_by_its_key(caller):
    id = caller.schedule(key="o:7").json()["id"]
    named = {"queue": "orders", "key": "o:7"}
    assert caller.get("jobs?queue=orders&key=o:7").json()["id"] == id
    assert caller.post("keys/reschedule", {**named, "delay": "3h"}).json() == {**named, "change": "done"}
    assert caller.post("keys/run-now", named).json()["change"] == "done"
    assert caller.post("keys/cancel", {**named, "reason": "paid"}).json()["change"] == "done"
    refused(caller.get("jobs?queue=orders&key=o:7"), 404, "job_unknown")
    assert caller.post("keys/requeue", named).json()["change"] == "done"
    assert caller.get("jobs?queue=orders&key=o:7").json()["id"] == id
    refused(caller.post("keys/cancel", {**named, "key": "none"}), 404, "job_unknown")
    refused(caller.post("keys/cancel", {"queue": "orders"}), 422, "field_missing", "/key")
    refused(caller.post("keys/cancel", {**named, "queue": "nowhere"}), 422, "queue_unlisted", "/queue")


def test_a_token_for_some_tasks_changes_its_own_by_key(delayq_redis, make):
    caller = make(tasks=[close_order.name])
    caller.schedule(key="o:7")
    named = {"queue": "orders", "key": "o:7"}
    assert caller.post("keys/cancel", named).json()["change"] == "done"
    assert caller.post("keys/requeue", named).json()["change"] == "done"


@pytest.mark.parametrize("query", ["", "?queue=orders", "?queue=orders&key=", "?queue=orders&key=a&key=b"])
def test_a_query_that_names_no_key_is_400(caller, query):
    refused(caller.get(f"jobs{query}"), 400, "query")


@pytest.mark.parametrize("key", ["a%00b", "k" * 300, "%ff"])
def test_a_key_that_cannot_be_is_not_found(caller, key):
    refused(caller.get(f"jobs?queue=orders&key={key}"), 404, "job_unknown")


def test_it_answers_under_asgi(caller):
    post = async_to_sync(AsyncClient().post)
    body = json.dumps({"task": PING})
    answer = post(f"{BASE}jobs", body, content_type="application/json", headers={"Authorization": f"Bearer {caller.text}"})
    assert answer.status_code == 201, answer.content


def test_every_refusal_has_its_words():
    for code, kind in REFUSALS.items():
        assert all((kind.detail, kind.remedy)), code
        assert 400 <= kind.status < 600


def test_the_limit_of_a_body_holds_the_largest_payload_of_a_queue(settings):
    settings.DELAYQ = {**settings.DELAYQ, "QUEUES": {"default": {}, "orders": {"MAX_PAYLOAD": 1_000_000}}}
    assert parsing.body_limit() > 6 * conf.get().queue("orders").max_payload


def test_tasks_of_the_package_whose_arguments_name_secrets_are_for_no_token(caller, make, monkeypatch):
    from django_delayq.targets import delivery, offering

    for task in (offering.offers, delivery.delivery):  # as where the settings have TARGETS and HTTP
        monkeypatch.setitem(registry._tasks, task.name, task)
    named = make("named", tasks=[offering.NAME, delivery.NAME])
    url = "https://thief.example/"
    leak = {"url": url, "headers": {"X-Key": {"secret": "partner", "prefix": ""}}}
    for who in (caller, named):
        refused(who.post("jobs", {"task": delivery.NAME, "kwargs": leak}), 403, "task_denied", "/task")
        refused(who.post("jobs", {"task": offering.NAME, "args": ["shipping", {}]}), 403, "task_denied", "/task")
        assert not [one for one in who.get("tasks").json()["tasks"] if one["task"].startswith("django_delayq.")]
