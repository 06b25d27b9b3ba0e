"""The OpenAPI document, and the JSON schemas of request bodies, which also validate the requests."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from django.http import HttpRequest, HttpResponse

from django_delayq.console.operations import LIMIT
from django_delayq.contrib.gateway import idempotency
from django_delayq.contrib.gateway.dispatch import Route
from django_delayq.contrib.gateway.parsing import Schema
from django_delayq.contrib.gateway.responses import REFUSALS, GatewayAnswer
from django_delayq.producer.options import OPTIONS as JOB_OPTIONS
from django_delayq.producer.options import OptionRow
from django_delayq.store.scripts.queue import MOST
from django_delayq.store.scripts.record import MAX_KEY, MAX_TASK

LONGEST_REASON: Final = 500
LONGEST_WAIT: Final = 60.0  # seconds of a pull
DURATION: Final[Schema] = {
    "type": ["number", "string"],
    "minimum": 0,
    "minLength": 1,
    "maxLength": 100,
    "description": 'A number of seconds, or text such as "90s", "1h30m" or "2d".',
}
DATE: Final[Schema] = {"type": "string", "maxLength": 100, "format": "date-time", "description": "An ISO 8601 date with a time zone."}
KEY: Final[Schema] = {"type": "string", "minLength": 1, "maxLength": MAX_KEY, "description": "Printable characters."}
QUEUE: Final[Schema] = {"type": "string", "minLength": 1, "maxLength": 100}
LEASE: Final[Schema] = {
    **DURATION,
    "description": f"How long the lease lasts from now, from 5 s to 12 h. The default is the queue's LEASE. {DURATION['description']}",
}
REASON: Final[Schema] = {"type": "string", "maxLength": LONGEST_REASON, "description": "The reason, which is stored with the event."}


def record(properties: Mapping[str, Schema], *required: str) -> Schema:
    """An object with only these properties."""
    return {"type": "object", "properties": dict(properties), "required": list(required), "additionalProperties": False}


JOB_ID: Final[Schema] = {
    "type": "string",
    "minLength": 22,
    "maxLength": 22,
    "description": "The id of a job, which has 22 letters and digits.",
}


def _schema_of(option: OptionRow) -> Schema:
    text = f"{option.help[0].upper()}{option.help[1:]}."
    match option.kind:
        case "duration" | "expiry":
            return {**DURATION, "description": f"{text} {DURATION['description']}"}
        case "date":
            return DATE
        case "choice":
            return {"type": "string", "enum": [*option.choices], "description": text}
        case "integer":
            return {"type": "integer", "minimum": option.limits[0], "maximum": option.limits[1], "description": text}
        case "object":
            return {"type": "object", "description": text}
        case _:
            return {**KEY, "description": text}


# The options of schedule, push, deliver and offer. Each operation has its own `queue`.
OPTIONS: Final[Mapping[str, Schema]] = {
    name: _schema_of(option) for name, option in JOB_OPTIONS.items() if option.kind and option.gateway and name != "queue"
} | {
    "on_conflict": {
        **_schema_of(JOB_OPTIONS["on_conflict"]),
        "default": "error",
        "description": "What happens if an unfinished job has the key. With error, the response is 409 with the id of that job.",
    }
}
SCHEDULE: Final = record(
    {
        "task": {"type": "string", "minLength": 1, "maxLength": MAX_TASK, "description": "The name of a registered task."},
        "args": {"type": "array", "description": "Positional arguments."},
        "kwargs": {"type": "object", "description": "Keyword arguments."},
        "queue": QUEUE,
        **OPTIONS,
    },
    "task",
)
PUSH: Final = record({"body": {"description": "The body, which can be any JSON value."}, **OPTIONS}, "body")
PULL: Final = record(
    {
        "n": {"type": "integer", "minimum": 1, "maximum": MOST, "default": 1, "description": "The maximum number of messages."},
        "wait": {
            **DURATION,
            "maximum": LONGEST_WAIT,
            "description": f"How long to wait for the first message, up to {LONGEST_WAIT:g} seconds. {DURATION['description']}",
        },
        "lease": LEASE,
        "older_than": {
            **DURATION,
            "description": f"Only claim messages that have been due for at least this long. {DURATION['description']}",
        },
    }
)
METHODS: Final = ("POST", "PUT", "PATCH", "DELETE", "GET", "HEAD")
MOST_REDIRECTS: Final = 10
LONGEST_NAME: Final = 200
NAME: Final[Schema] = {"type": "string", "minLength": 1, "maxLength": LONGEST_NAME}
HEADER: Final[Schema] = {
    "type": ["string", "object"],
    "properties": {"secret": NAME, "prefix": {"type": "string", "maxLength": LONGEST_NAME}},
    "required": ["secret"],
    "additionalProperties": False,
    "description": "Text, or the name of a secret with an optional prefix.",
}
DELIVER: Final = record(
    {
        "url": {"type": "string", "minLength": 1, "maxLength": 4000, "description": "An http or https URL."},
        "method": {"type": "string", "enum": [*METHODS], "default": "POST"},
        "json": {"description": "The body as JSON. Alternatively, use text or base64."},
        "text": {"type": "string", "description": "The body, as text."},
        "base64": {"type": "string", "description": "The body, as bytes."},
        "headers": {"type": "object", "additionalProperties": HEADER},
        "secret": {**NAME, "description": "The name of a secret that signs each attempt, as defined by Standard Webhooks."},
        "timeout": {**DURATION, "description": f"The time limit for a whole attempt. {DURATION['description']}"},
        "redirects": {"type": "integer", "minimum": 0, "maximum": MOST_REDIRECTS, "default": 0},
        "queue": QUEUE,
        **OPTIONS,
    },
    "url",
)
OFFER: Final = record(
    {"to": NAME, "message": {"description": "The message, which can be any JSON value."}, "queue": QUEUE, **OPTIONS}, "to", "message"
)
FENCE: Final[Schema] = {
    "type": "string",
    "minLength": 1,
    "maxLength": 100,
    "description": "The fence that you received with the message. It proves that you hold the message.",
}
# By verb: the summary, and the fields for each message besides its id and fence.
SETTLING: Final[Mapping[str, tuple[str, Mapping[str, Schema]]]] = {
    "ack": ("Acknowledge messages", {}),
    "retry": (
        "Report a failed attempt, so that the messages are delivered again after their backoff or a delay",
        {"delay": {**DURATION, "description": "Delay from now. If omitted, the ladder decides."}, "reason": REASON},
    ),
    "snooze": ("Postpone messages without counting the attempt", {"delay": DURATION, "reason": REASON}),
    "fail": ("Mark messages as failed", {"reason": REASON}),
    "extend": ("Extend the leases of messages", {}),
}
# By verb: the summary, and the fields of a change.
CHANGES: Final[Mapping[str, tuple[str, Mapping[str, Schema]]]] = {
    "cancel": (
        "Cancel a job, or ask a running job to stop",
        {"reason": REASON, "abort": {"type": "boolean", "description": "End a run, instead of only asking it to stop."}},
    ),
    "reschedule": ("Change the date of a scheduled job", {"reason": REASON, "delay": DURATION, "run_at": DATE}),
    "run_now": ("Make a scheduled job due now", {"reason": REASON}),
    "requeue": ("Run a failed or cancelled job again, with all its attempts", {"reason": REASON}),
}
OPERATE: Final = record(
    {
        "verb": {"type": "string", "enum": [*CHANGES], "description": "The change. The token also needs this verb."},
        "queue": QUEUE,
        "search": {"type": "string", "minLength": 1, "description": "A search as in the admin, but without plain text."},
        "reason": REASON,
        "limit": {"type": "integer", "minimum": 1, "default": LIMIT, "description": "If more jobs match, none is changed."},
        "over": {**DURATION, "description": f"The changes are spread over this time, up to 30 days. {DURATION['description']}"},
        "delay": DURATION,
        "run_at": DATE,
        "dry_run": {"type": "boolean", "description": "Only count the jobs."},
    },
    *("verb", "queue", "search", "reason"),
)
VERSION: Final = "1"  # of the paths and schemas; new members do not change it
PROBLEM: Final[Schema] = {
    "type": "object",
    "properties": {
        **{name: {"type": "string"} for name in ("type", "title", "detail", "remedy", "change", "queue", "key")},
        **{name: {"type": "integer"} for name in ("status", "line", "column")},
        **dict.fromkeys(("holder", "job", "id"), JOB_ID),
        "code": {"type": "string", "enum": [*REFUSALS]},
        "place": {"type": "string", "description": "A JSON pointer into the body."},
    },
    "required": ["type", "title", "status", "code", "detail", "remedy"],
}
IN_PATH: Final = {
    # The response for an invalid id is the same as for an unknown job.
    "id": {"type": "string", "minLength": 1, "description": "The id of a job: 22 letters and digits, or the UUID."},
    "operation": {"type": "string", "minLength": 1, "description": "The id of an operation."},
    "queue": QUEUE,
}
KEY_PARAMETER: Final = {
    "name": idempotency.HEADER,
    "in": "header",
    "required": False,
    "description": "For 24 hours, the same request with this key gets the same response and changes nothing.",
    "schema": {"type": "string", "minLength": 1, "maxLength": 255},
}


def view(routes: Iterable[Route]) -> Callable[[HttpRequest], HttpResponse]:
    """A view that returns the document. It needs no token: the document contains nothing about the project."""

    def openapi(request: HttpRequest) -> HttpResponse:
        if request.method not in ("GET", "HEAD"):
            return HttpResponse(status=405, headers={"Allow": "GET"})
        base = request.path.rpartition("/")[0]
        return GatewayAnswer(status=200, body=document(routes, base or "/")).response()

    return openapi


def document(routes: Iterable[Route], base: str) -> dict[str, Any]:
    """OpenAPI 3.1. `base`: the path of the gateway."""
    paths: dict[str, Any] = {}
    for route in routes:
        paths.setdefault(f"/{route.path}", {})[route.method.lower()] = _operation(route)
    return {
        "openapi": "3.1.0",
        "info": {"title": "django-delayq gateway", "version": VERSION, "summary": "Jobs of a delay queue, over HTTP."},
        "servers": [{"url": base}],
        "security": [{"token": []}],
        "paths": paths,
        "components": {"securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}, "schemas": {"Problem": PROBLEM}},
    }


def _operation(route: Route) -> dict[str, Any]:
    named = [
        {"name": name, "in": "path", "required": True, "schema": IN_PATH[name]} for name in re.findall(r"\{(\w+)\}", route.path)
    ] + [{"name": name, "in": "query", "required": True, "schema": schema} for name, schema in route.query.items()]
    found: dict[str, Any] = {
        "operationId": route.name,
        "summary": route.summary,
        "parameters": [*named, *([KEY_PARAMETER] if route.accepts_key else [])],
        "responses": {**{str(status): _json(*answer) for status, answer in route.answers.items()}, **_problems(route.codes)},
    }
    if route.body is not None:
        found["requestBody"] = {"required": bool(route.body.get("required")), "content": {"application/json": {"schema": route.body}}}
    return found


def _json(description: str, schema: Schema) -> dict[str, Any]:
    return {"description": description, "content": {"application/json": {"schema": schema}}}


def _problems(codes: Iterable[str]) -> dict[str, Any]:
    by_status: dict[int, list[str]] = {}
    for code in codes:
        by_status.setdefault(REFUSALS[code].status, []).append(code)
    return {
        str(status): {
            "description": " / ".join(f"{code}: {REFUSALS[code].detail}" for code in found),
            "content": {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}},
        }
        for status, found in sorted(by_status.items())
    }
