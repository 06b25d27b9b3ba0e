"""The shapes of bodies, as JSON Schema: what the OpenAPI document shows is what a body is checked against. And the check, of the few
words of JSON Schema that are used here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from django_delayq.contrib.gateway.problems import GatewayProblem, pointer
from django_delayq.producer.options import MOST_PRIORITY, POLICIES
from django_delayq.record import MAX_KEY, MAX_TASK

Schema = Mapping[str, Any]
LONGEST_REASON: Final = 500
MOST_ATTEMPTS: Final = 10_000
TYPES: Final[Mapping[str, tuple[type, ...]]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
}

DURATION: Final[Schema] = {
    "type": ["number", "string"],
    "minimum": 0,
    "minLength": 1,
    "maxLength": 100,
    "description": 'Seconds, or text such as "90s", "1h30m", "2d".',
}
DATE: Final[Schema] = {
    "type": "string",
    "maxLength": 100,
    "format": "date-time",
    "description": "A date of ISO 8601 with its time zone.",
}
KEY: Final[Schema] = {"type": "string", "minLength": 1, "maxLength": MAX_KEY, "description": "Printable characters."}
QUEUE: Final[Schema] = {"type": "string", "minLength": 1, "maxLength": 100}
REASON: Final[Schema] = {"type": "string", "maxLength": LONGEST_REASON, "description": "Why; kept with the event."}


def record(properties: Mapping[str, Schema], *required: str) -> Schema:
    """An object with these properties and no others."""
    return {"type": "object", "properties": dict(properties), "required": list(required), "additionalProperties": False}


JOB_ID: Final[Schema] = {"type": "string", "minLength": 22, "maxLength": 22, "description": "The id of a job: 22 letters and digits."}
SCHEDULE: Final = record(
    {
        "task": {"type": "string", "minLength": 1, "maxLength": MAX_TASK, "description": "The name of a registered task."},
        "args": {"type": "array", "description": "Arguments by place."},
        "kwargs": {"type": "object", "description": "Arguments by name."},
        "delay": {**DURATION, "description": f"From now. {DURATION['description']}"},
        "run_at": DATE,
        "key": {**KEY, "description": "Unique among the unfinished jobs of the queue."},
        "on_conflict": {
            "type": "string",
            "enum": [*POLICIES],
            "default": "error",
            "description": "What happens when an unfinished job holds the key; error is 409 with its id.",
        },
        "queue": QUEUE,
        "priority": {"type": "integer", "minimum": -MOST_PRIORITY, "maximum": MOST_PRIORITY, "description": "Its sign counts."},
        "max_attempts": {
            "type": "integer",
            "minimum": 0,
            "maximum": MOST_ATTEMPTS,
            "description": "0: no limit, until it expires.",
        },
        "expires": {
            **DURATION,
            "description": f"When a job that has not run is cancelled: a date, or {DURATION['description'].lower()}",
        },
        "meta": {"type": "object", "description": "Travels with the job."},
    },
    "task",
)
# What the body of a change holds, by its verb.
CHANGES: Final[Mapping[str, Mapping[str, Schema]]] = {
    "cancel": {"reason": REASON, "abort": {"type": "boolean", "description": "End a run, instead of only asking it to stop."}},
    "reschedule": {"reason": REASON, "delay": DURATION, "run_at": DATE},
    "run_now": {"reason": REASON},
    "requeue": {"reason": REASON},
}


def check(schema: Schema, value: Any, *place: object) -> None:
    """Does nothing for a value that the schema lets through.

    Raises:
        GatewayProblem: field_missing, field_unknown, field_type or field_value, with the place.
    """
    problem = next(faults(schema, value, *place), None)
    if problem is not None:
        raise problem


def faults(schema: Schema, value: Any, *place: object) -> Iterator[GatewayProblem]:
    """What the schema does not let through, in the order of the schema."""
    if "$ref" in schema:
        raise ValueError("references are followed by whoever reads the OpenAPI document")
    named = schema.get("type")
    kinds = [named] if isinstance(named, str) else list(named or TYPES)
    if not any(_is(kind, value) for kind in kinds):
        yield GatewayProblem("field_type", pointer(*place), expected=" or ".join(kinds))
        return
    if "enum" in schema and value not in schema["enum"]:
        yield _wrong(place, f"It must be one of {', '.join(map(str, schema['enum']))}.")
    if isinstance(value, str):
        if len(value) < schema.get("minLength", 0):
            yield _wrong(place, f"It must have {schema['minLength']} characters at least.")
        if len(value) > schema.get("maxLength", len(value)):
            yield _wrong(place, f"It must have {schema['maxLength']} characters at most.")
    elif isinstance(value, int | float) and not isinstance(value, bool):
        if value < schema.get("minimum", value) or value > schema.get("maximum", value):
            bounds = [f"{word} {schema[name]}" for name, word in (("minimum", "at least"), ("maximum", "at most")) if name in schema]
            yield _wrong(place, f"It must be {' and '.join(bounds)}.")
    elif isinstance(value, list):
        for number, item in enumerate(value if "items" in schema else ()):
            yield from faults(schema["items"], item, *place, number)
    elif isinstance(value, dict):
        yield from _faults_of_object(schema, value, place)


def _faults_of_object(schema: Schema, value: dict[str, Any], place: tuple[object, ...]) -> Iterator[GatewayProblem]:
    known = schema.get("properties", {})
    for name in schema.get("required", ()):
        if name not in value:
            yield GatewayProblem("field_missing", pointer(*place, name))
    for name, item in value.items():
        if name in known:
            yield from faults(known[name], item, *place, name)
        elif schema.get("additionalProperties", True) is False:
            yield GatewayProblem("field_unknown", pointer(*place, name))


def _is(kind: str, value: Any) -> bool:
    if isinstance(value, bool):
        return kind == "boolean"
    return isinstance(value, TYPES[kind])


def _wrong(place: tuple[object, ...], cause: str) -> GatewayProblem:
    return GatewayProblem("field_value", pointer(*place), cause=cause)
