"""Parses and validates requests: body, query parameters and fields. It never reads more of a body than the limit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from typing import Any, Final

from django.http import HttpRequest

from django_delayq import clock, codec, conf, durations
from django_delayq.contrib.gateway.responses import GatewayProblem, pointer
from django_delayq.exceptions import PayloadError
from django_delayq.store.scripts.record import validate_key
from django_delayq.text import visible

Schema = Mapping[str, Any]
LEAST_LIMIT: Final = 262_144  # bytes of a body that are always accepted
ESCAPED: Final = 6  # bytes of JSON for one byte of a payload: \u0041
LONGEST_DETAIL: Final = 1_000
TYPES: Final[Mapping[str, tuple[type, ...]]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
}


def body_limit() -> int:
    """The maximum size of a body: the largest payload of a queue in any JSON encoding, and some room for the other fields."""
    largest = max(queue.max_payload for queue in conf.get().queues.values())
    return max(LEAST_LIMIT, ESCAPED * largest + 65_536)


def raw_body(request: HttpRequest) -> bytes:
    """The bytes of the body. If Content-Length is above the limit, it reads nothing.

    Raises:
        GatewayProblem: length_unknown, body_size, body_type, body_lost.
    """
    limit = body_limit()
    length = request.META.get("CONTENT_LENGTH") or "0"
    if not (length.isascii() and length.isdigit() and len(length) < 19):
        raise GatewayProblem("length_unknown")
    if int(length) > limit:
        raise GatewayProblem("body_size", limit=limit)
    try:
        raw = request.read(limit + 1)
    except OSError as error:  # the client has disconnected
        raise GatewayProblem("body_lost") from error
    if len(raw) > limit:
        raise GatewayProblem("body_size", limit=limit)
    if not raw and "Transfer-Encoding" in request.headers:
        raise GatewayProblem("length_unknown")  # under WSGI, Django reads no body without a length, so its fields would be ignored
    charset = request.content_params.get("charset", "utf-8") if request.content_params else "utf-8"
    if request.content_type != "application/json" or charset.lower() not in ("utf-8", "utf8", "us-ascii"):
        raise GatewayProblem("body_type", headers={"Accept": "application/json"})
    return raw


def json_body(raw: bytes) -> dict[str, Any]:
    """The JSON object in a body. An empty body is an empty object.

    Raises:
        GatewayProblem: json, field_type.
    """
    try:
        found = codec.loads(raw) if raw.strip() else {}
    except PayloadError as error:
        at = {name: error.fields[name] for name in ("line", "column") if name in error.fields}
        raise GatewayProblem("json", more=at, cause=str(error.fields.get("cause", ""))[:200]) from None
    if not isinstance(found, dict):
        raise GatewayProblem("field_type", "", expected="object")
    return found


def query(request: HttpRequest, names: Iterable[str]) -> dict[str, str]:
    """The query parameters with these names. Each must be given once.

    Raises:
        GatewayProblem: query.
    """
    found = {}
    for name in names:
        given = request.GET.getlist(name)
        if len(given) != 1 or not given[0]:
            raise GatewayProblem("query", name=name)
        found[name] = given[0]
    return found


def check(schema: Schema, value: Any, *place: object) -> None:
    """Checks a value against a JSON Schema, of which it supports the keywords that the gateway uses.

    Raises:
        GatewayProblem: field_missing, field_unknown, field_type or field_value, with the place.
    """
    if "$ref" in schema:
        raise ValueError("check() does not support $ref; only the OpenAPI document contains references")
    named = schema.get("type")
    kinds = [named] if isinstance(named, str) else list(named or TYPES)
    if not any(type(value) in TYPES[kind] for kind in kinds):
        raise GatewayProblem("field_type", pointer(*place), expected=" or ".join(kinds))
    if "enum" in schema and value not in schema["enum"]:
        raise _wrong_value(place, f"It must be one of {', '.join(map(str, schema['enum']))}.")
    if isinstance(value, str):
        if len(value) < schema.get("minLength", 0):
            raise _wrong_value(place, f"It must have at least {schema['minLength']} characters.")
        if len(value) > schema.get("maxLength", len(value)):
            raise _wrong_value(place, f"It must have at most {schema['maxLength']} characters.")
    elif type(value) in TYPES["number"]:
        if value < schema.get("minimum", value) or value > schema.get("maximum", value):
            bounds = [f"{word} {schema[name]}" for name, word in (("minimum", "at least"), ("maximum", "at most")) if name in schema]
            raise _wrong_value(place, f"It must be {' and '.join(bounds)}.")
    elif isinstance(value, list):
        if not schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", len(value)):
            raise _wrong_value(place, f"It must have {schema.get('minItems', 0)} to {schema.get('maxItems', 'any number of')} items.")
        for number, item in enumerate(value if "items" in schema else ()):
            check(schema["items"], item, *place, number)
    elif isinstance(value, dict):
        known, others = schema.get("properties", {}), schema.get("additionalProperties", True)
        for name in schema.get("required", ()):
            if name not in value:
                raise GatewayProblem("field_missing", pointer(*place, name))
        for name, item in value.items():
            if name in known:
                check(known[name], item, *place, name)
            elif others is False:
                raise GatewayProblem("field_unknown", pointer(*place, name))
            elif isinstance(others, Mapping):
                check(others, item, *place, name)


def _wrong_value(place: tuple[object, ...], cause: str) -> GatewayProblem:
    return GatewayProblem("field_value", pointer(*place), cause=cause)


def date(body: dict[str, Any]) -> dict[str, Any]:
    """Its delay or its run_at, as an option of `schedule`."""
    if ("delay" in body) == ("run_at" in body):
        raise GatewayProblem("field_value", "/run_at" if "run_at" in body else "/delay", cause="Give either delay or run_at.")
    if "delay" in body:
        return {"delay": duration(body["delay"], "/delay")}
    return {"run_at": moment(body["run_at"], "/run_at")}


def duration(given: Any, place: str) -> durations.Delay:
    """A duration, unchanged: seconds, or text as `durations.Delay` accepts it.

    Raises:
        GatewayProblem: field_value: it is not a duration.
    """
    with problem_of(ValueError, TypeError, code="field_value", place=place):
        durations.milliseconds(given)
    return given  # type: ignore[no-any-return]  # the schema allows only numbers and text


def moment(given: str, place: str) -> datetime:
    """A date with a time zone.

    Raises:
        GatewayProblem: field_value: it is not a date.
    """
    try:
        found = datetime.fromisoformat(given)
        ms = clock.to_ms(found)
    except (ValueError, OverflowError):
        ms = -1
    if not 0 <= ms <= clock.LAST_MS:
        cause = "It must be an ISO 8601 date with a time zone, from 1970 to 9999, such as 2030-01-31T18:00:00+01:00."
        raise GatewayProblem("field_value", place, cause=cause)
    return found


def key(given: str, place: str) -> str:
    """A business key.

    Raises:
        GatewayProblem: field_value: it is not a valid key.
    """
    with problem_of(PayloadError, code="field_value", place=place):
        return validate_key(given)


@contextmanager
def problem_of(*errors: type[Exception], code: str, place: str) -> Iterator[None]:
    """Rejects the request, with this code and place, if one of these errors is raised in the block."""
    try:
        yield
    except errors as error:
        raise GatewayProblem(code, place, cause=error_text(error)) from None


def error_text(error: Exception) -> str:
    """The message of an error, safe to show to API clients."""
    return visible(str(error))[:LONGEST_DETAIL]
