"""A client that knows only the OpenAPI document. It calls every operation, and validates every answer against its schema."""

from __future__ import annotations

import json
import re
from typing import Any
from urllib.parse import urlencode

import pytest

from django_delayq.contrib.gateway import dispatch, parsing, tokens
from django_delayq.contrib.gateway.responses import REFUSALS, GatewayProblem
from django_delayq.contrib.gateway.urls import ROUTES
from tests.contrib.gateway.conftest import PING, TASK, Caller
from tests.management.conftest import lose_redis
from tests.targets.conftest import TASK as DELIVERIES  # noqa: F401  # not in the registry then, as other tests have it
from tests.targets.offers.conftest import TARGETS

try:
    import jsonschema
except ImportError:
    jsonschema = None


class BlackBox:
    """A client written only from the document."""

    def __init__(self, caller: Caller) -> None:
        self.caller = caller
        self.document = caller.client.get("/queue/v1/openapi.json").json()
        self.seen: set[tuple[str, str]] = set()
        self.operations = {
            one["operationId"]: (method, path, one)
            for path, methods in self.document["paths"].items()
            for method, one in methods.items()
        }

    def call(
        self, operation: str, /, body: Any = None, *, kind: str = "application/json", text: str | None = None, **given: str
    ) -> Any:
        method, path, one = self.operations[operation]
        assert (body is None) == ("requestBody" not in one)
        query = {}
        headers = {"Authorization": f"Bearer {self.caller.text if text is None else text}"}
        for parameter in one["parameters"]:
            name = parameter["name"]
            if parameter["in"] == "path":
                path = path.replace(f"{{{name}}}", given.pop(name))
            elif name in given:
                (query if parameter["in"] == "query" else headers)[name] = given.pop(name)
        assert not given
        address = self.document["servers"][0]["url"] + path + (f"?{urlencode(query)}" if query else "")
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        more = {} if body is None else {"data": raw, "content_type": kind}
        answer = getattr(self.caller.client, method)(address, headers=headers, **more)
        self.judge(operation, one, answer)
        return answer

    def judge(self, operation: str, one: dict[str, Any], answer: Any) -> None:
        status = str(answer.status_code)
        assert status in one["responses"], f"{operation} answers {status}, which the document does not know: {answer.content}"
        (kind,) = one["responses"][status]["content"]
        assert answer["Content-Type"] == kind
        schema = one["responses"][status]["content"][kind]["schema"]
        if "$ref" in schema:
            schema = self.document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
        parsing.check(schema, answer.json())
        if jsonschema is not None:
            jsonschema.validate(answer.json(), schema, jsonschema.Draft202012Validator)
        if "code" in answer.json() and kind.startswith("application/problem"):
            assert answer.json()["code"] in one["responses"][status]["description"]
        self.seen.add((operation, status))


@pytest.fixture
def box(caller) -> BlackBox:
    return BlackBox(caller)


ALL_JOBS = {"verb": "cancel", "queue": "orders", "search": "state:scheduled", "reason": "test"}
SETTLING = {"ack": {}, "retry": {"delay": "1s", "reason": "busy"}, "snooze": {"delay": 1}, "fail": {"reason": "bad"}, "extend": {}}


def test_every_operation_of_the_document_is_driven_and_answers_as_it_says(box, settings):
    queues = {**settings.DELAYQ["QUEUES"], "mail": {"CONSUMER": "pull"}}
    settings.DELAYQ = {**settings.DELAYQ, "QUEUES": queues, "HTTP": {}, "TARGETS": TARGETS}
    tokens.Token.objects.update(targets=["*"])
    scheduled = box.call("schedule", {"task": TASK, "args": [7], "delay": "1h", "key": "a"}, **{"Idempotency-Key": "1"}).json()
    id, named = scheduled["id"], {"queue": "orders", "key": "a"}
    box.call("schedule", {"task": TASK, "args": [7], "key": "a", "on_conflict": "keep"})
    box.call("get", id=id)
    box.call("find", **named)
    box.call("reschedule", {"delay": "2h"}, id=id)
    box.call("reschedule_by_key", {**named, "run_at": "2030-01-31T18:00:00+01:00"})
    box.call("run_now", {}, id=id)
    box.call("run_now_by_key", named)
    box.call("cancel", {"reason": "paid"}, id=id)
    box.call("requeue", {}, id=id)
    box.call("cancel_by_key", {**named, "abort": True})
    box.call("requeue_by_key", named)
    box.call("operate", {**ALL_JOBS, "dry_run": True})
    started = box.call("operate", ALL_JOBS).json()["id"]
    box.call("operation", operation=started)
    box.call("queues")
    box.call("queue", queue="orders")
    box.call("tasks")
    box.call("push", {"body": 1, "key": "m"}, queue="mail")
    box.call("push", {"body": 1, "key": "m", "on_conflict": "keep"}, queue="mail")
    for number in range(2 * len(SETTLING)):
        box.call("push", {"body": {"number": number}}, queue="mail")
    pulled = box.call("pull", {"n": 100, "wait": "1s", "lease": "1m", "older_than": 0}, queue="mail").json()["messages"]
    claims = [{"id": message["id"], "fence": message["fence"]} for message in pulled]
    for verb, more in SETTLING.items():
        box.call(verb, {"messages": [{**claims.pop(), **more}]}, queue="mail")
        one = claims.pop()
        box.call(f"{verb}_one", {"fence": one["fence"], **more}, queue="mail", id=one["id"])
    sent = {"deliver": {"url": "https://partner.example/", "json": 1}, "offer": {"to": "shipping", "message": 1}}
    for operation, body in sent.items():
        box.call(operation, {**body, "key": operation})
        box.call(operation, {**body, "key": operation, "on_conflict": "keep"})
    good = {(route.name, str(status)) for route in ROUTES for status in route.answers}
    assert good - box.seen == {(operation, "202") for operation in ("schedule", "push", *sent)}
    lose_redis(settings)
    box.call("schedule", {"task": TASK, "args": [7]})
    box.call("push", {"body": 1}, queue="mail")
    for operation, body in sent.items():
        box.call(operation, body)
    assert good <= box.seen
    for operation, (_, _, one) in box.operations.items():
        if operation in ("tasks", "schedule", "get", "push", "operate", "operation", *sent):
            continue
        given = {parameter["name"]: parameter["name"] for parameter in one["parameters"] if parameter["in"] != "header"}
        given |= {name: value for name, value in {"id": id, **named}.items() if name in given}
        body = {"delay": 1} if "reschedule" in operation else {}
        verb = operation.removesuffix("_one")
        if verb in SETTLING:
            given["queue"], said = "mail", {"fence": "1/abc", **SETTLING[verb]}
            body = said if verb != operation else {"messages": [{"id": id, **said}]}
        elif operation == "pull":
            given["queue"] = "mail"
        body |= named if "by_key" in operation else {}
        answer = box.call(operation, body if "requestBody" in one else None, **given)
        assert answer.status_code == 503, operation
        assert answer["Retry-After"]


def test_refusals_are_as_the_document_says(box, make, settings, long_minute):
    queues = {**settings.DELAYQ["QUEUES"], "mail": {"CONSUMER": "pull"}}
    settings.DELAYQ = {**settings.DELAYQ, "QUEUES": queues}
    id = box.call("schedule", {"task": TASK, "args": [7], "delay": "1h", "key": "a"}, **{"Idempotency-Key": "1"}).json()["id"]
    box.call("schedule", {"task": TASK, "args": [8], "delay": "1h"})
    eager = make("eager", per_minute=1)
    assert eager.get("tasks").status_code == 200
    expected = [
        (400, box.call("schedule", b"{")),
        (400, box.call("find", queue="orders")),
        (401, box.call("get", id=id, text="dqg_x")),
        (403, box.call("get", id=id, text=make("other", verbs=["tasks"]).text)),
        (404, box.call("get", id="x")),
        (404, box.call("cancel", {}, id="x")),
        (404, box.call("queue", queue="x")),
        (404, box.call("operation", operation="x")),
        (409, box.call("operate", {**ALL_JOBS, "limit": 1})),
        (422, box.call("operate", {**ALL_JOBS, "search": "text"})),
        (409, box.call("schedule", {"task": TASK, "args": [7], "key": "a"})),
        (409, box.call("requeue", {}, id=id)),
        (409, box.call("requeue_by_key", {"queue": "orders", "key": "a"})),
        (413, box.call("schedule", b" " * 1_000_000)),
        (413, box.call("schedule", {"task": TASK, "args": [7], "kwargs": {"note": "x" * 70_000}})),
        (415, box.call("schedule", b"{}", kind="text/plain")),
        (422, box.call("schedule", {"task": PING}, **{"Idempotency-Key": "1"})),
        (422, box.call("cancel", {"reason": 5}, id=id)),
        (422, box.call("cancel_by_key", {"queue": "orders"})),
        (403, box.call("offer", {"to": "shipping", "message": 1})),
        (404, box.call("pull", {}, queue="x")),
        (409, box.call("pull", {}, queue="orders")),
        (409, box.call("deliver", {"url": "https://partner.example/"})),
        (422, box.call("push", {}, queue="mail")),
        (409, box.call("ack_one", {"fence": "1/a"}, queue="mail", id="0" * 22)),
        (429, box.call("tasks", text=eager.text)),
    ]
    assert [answer.status_code for _, answer in expected] == [status for status, _ in expected]


def test_the_document_is_for_everybody_and_tells_nothing_of_the_project(client):
    answer = client.get("/queue/v1/openapi.json")
    assert answer.status_code == 200
    text = answer.content.decode()
    assert answer.json()["openapi"] == "3.1.0"
    assert "orders" not in text
    assert "close_order" not in text
    assert client.post("/queue/v1/openapi.json").status_code == 405


def test_the_document_names_every_route_once_and_every_code(client):
    document = client.get("/queue/v1/openapi.json").json()
    found = [one["operationId"] for methods in document["paths"].values() for one in methods.values()]
    assert sorted(found) == sorted({route.name for route in ROUTES})
    assert len(found) == len(ROUTES)
    assert {code for route in ROUTES for code in route.codes} == set(REFUSALS)
    for path, methods in document["paths"].items():
        for one in methods.values():
            inside = {parameter["name"] for parameter in one["parameters"] if parameter["in"] == "path"}
            assert inside == set(re.findall(r"\{(\w+)\}", path))


def test_every_schema_of_the_document_is_one(client):
    if jsonschema is None:
        pytest.skip("the package jsonschema is not installed")
    document = client.get("/queue/v1/openapi.json").json()

    def walk(value: Any) -> None:
        if isinstance(value, dict):
            if isinstance(value.get("schema"), dict):
                jsonschema.Draft202012Validator.check_schema(value["schema"])
            for inner in value.values():
                walk(inner)

    walk(document["paths"])


@pytest.mark.parametrize(
    ("schema", "value", "place"),
    [
        ({"type": "integer"}, True, ""),
        ({"type": "number"}, False, ""),
        ({"type": ["string", "null"]}, 5, ""),
        ({"type": "array", "items": {"type": "string"}}, ["a", 5], "/1"),
        ({"enum": ["a"]}, "b", ""),
        ({"type": "integer", "minimum": 1}, 0, ""),
        ({"type": "string", "minLength": 1}, "", ""),
        ({"type": "array", "minItems": 1}, [], ""),
        ({"type": "array", "maxItems": 1}, [1, 2], ""),
        ({"type": "object", "additionalProperties": {"type": "string"}}, {"a": 5}, "/a"),
        ({"type": "object", "properties": {"a": {"type": "object", "required": ["b"]}}}, {"a": {}}, "/a/b"),
    ],
)
def test_the_check_finds_what_jsonschema_finds(schema, value, place):
    with pytest.raises(GatewayProblem) as refusal:
        parsing.check(schema, value)
    assert refusal.value.place == place
    if jsonschema is not None:
        assert not jsonschema.Draft202012Validator(schema).is_valid(value)


def test_all_addresses_let_programs_in_and_open_no_transaction():
    def view(request, **path):
        raise AssertionError

    found = dispatch.without_session(view)
    assert found.csrf_exempt
    assert found.login_required is False
    assert "default" in found._non_atomic_requests
