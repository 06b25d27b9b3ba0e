"""The OpenAPI document, made of the table of routes: there is no other place in which an address, a field or a status stands."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final

from django.http import HttpRequest, HttpResponse

from django_delayq.contrib.gateway import idempotency
from django_delayq.contrib.gateway.exchange import GatewayAnswer
from django_delayq.contrib.gateway.json_schemas import JOB_ID, QUEUE, Schema
from django_delayq.contrib.gateway.problems import REFUSALS
from django_delayq.contrib.gateway.routes import ROUTES, Route

VERSION: Final = "1"  # of the addresses and shapes; a member may come to be without another number
PROBLEM: Final[Schema] = {
    "type": "object",
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "code": {"type": "string", "enum": [*REFUSALS]},
        "detail": {"type": "string"},
        "remedy": {"type": "string"},
        "place": {"type": "string", "description": "A JSON pointer into the body."},
        "holder": JOB_ID,
        "job": JOB_ID,
        "id": JOB_ID,
        "change": {"type": "string"},
        "queue": {"type": "string"},
        "key": {"type": "string"},
        "line": {"type": "integer"},
        "column": {"type": "integer"},
    },
    "required": ["type", "title", "status", "code", "detail", "remedy"],
}
IN_PATH: Final = {
    # What is no id is answered as a job that is not there.
    "id": {"type": "string", "minLength": 1, "description": "The id of a job: 22 letters and digits, or the UUID."},
    "queue": QUEUE,
}
KEY_PARAMETER: Final = {
    "name": idempotency.HEADER,
    "in": "header",
    "required": False,
    "description": "Sent again with it, the same request gets the same answer for 24 hours, and does nothing.",
    "schema": {"type": "string", "minLength": 1, "maxLength": 255},
}


def openapi(request: HttpRequest) -> HttpResponse:
    """The document, for everybody: it tells nothing of the project."""
    if request.method not in ("GET", "HEAD"):
        return HttpResponse(status=405, headers={"Allow": "GET"})
    base = request.path.rpartition("/")[0]
    return GatewayAnswer(status=200, body=document(base or "/")).response()


def document(base: str) -> dict[str, Any]:
    """OpenAPI 3.1. `base`: where the addresses begin."""
    paths: dict[str, Any] = {}
    for route in ROUTES:
        paths.setdefault(f"/{route.path}", {})[route.method.lower()] = _operation(route)
    return {
        "openapi": "3.1.0",
        "info": {"title": "django-delayq gateway", "version": VERSION, "summary": "Jobs of a delay queue, over HTTP."},
        "servers": [{"url": base}],
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "schemas": {"Problem": PROBLEM},
        },
    }


def _operation(route: Route) -> dict[str, Any]:
    named = [
        {"name": name, "in": "path", "required": True, "schema": IN_PATH[name]} for name in re.findall(r"\{(\w+)\}", route.path)
    ] + [{"name": name, "in": "query", "required": True, "schema": schema} for name, schema in route.query.items()]
    found: dict[str, Any] = {
        "operationId": route.name,
        "summary": route.summary,
        "parameters": [*named, *([KEY_PARAMETER] if route.keeps else [])],
        "responses": {**{str(status): _json(*said) for status, said in route.answers.items()}, **_problems(route.codes)},
    }
    if route.body is not None:
        found["requestBody"] = {
            "required": bool(route.body.get("required")),
            "content": {"application/json": {"schema": route.body}},
        }
    return found


def _json(said: str, schema: Schema) -> dict[str, Any]:
    return {"description": said, "content": {"application/json": {"schema": schema}}}


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
