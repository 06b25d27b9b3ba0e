"""The shapes of bodies, as JSON Schema: what the OpenAPI document shows is what a body is checked against. And the check, of the few
words of JSON Schema that are used here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from django_delayq.contrib.gateway.problems import GatewayProblem, pointer
from django_delayq.producer.options import MOST_PRIORITY, POLICIES
from django_delayq.store.queue import MOST
from django_delayq.store.record import MAX_KEY, MAX_TASK

Schema = Mapping[str, Any]
LONGEST_REASON: Final = 500
MOST_ATTEMPTS: Final = 10_000
LONGEST_WAIT: Final = 60.0  # seconds of a pull
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
    "description": "An ISO 8601 date with a time zone.",
}
KEY: Final[Schema] = {"type": "string", "minLength": 1, "maxLength": MAX_KEY, "description": "Printable characters."}
QUEUE: Final[Schema] = {"type": "string", "minLength": 1, "maxLength": 100}
LEASE: Final[Schema] = {
    **DURATION,
    "description": f"How long it is held from now on, 5 seconds to 12 hours; LEASE of the queue by default. {DURATION['description']}",
}
REASON: Final[Schema] = {"type": "string", "maxLength": LONGEST_REASON, "description": "The reason. It is kept with the event."}


def record(properties: Mapping[str, Schema], *required: str) -> Schema:
    """An object with these properties and no others."""
    return {"type": "object", "properties": dict(properties), "required": list(required), "additionalProperties": False}


JOB_ID: Final[Schema] = {"type": "string", "minLength": 22, "maxLength": 22, "description": "The id of a job: 22 letters and digits."}
# What schedule, push, deliver and offer have in common.
OPTIONS: Final[Mapping[str, Schema]] = {
    "delay": {**DURATION, "description": f"From now. {DURATION['description']}"},
    "run_at": DATE,
    "key": {**KEY, "description": "Unique among the unfinished jobs of the queue."},
    "on_conflict": {
        "type": "string",
        "enum": [*POLICIES],
        "default": "error",
        "description": "What to do if an unfinished job has the key. error: the response is 409 with the id of that job.",
    },
    "priority": {"type": "integer", "minimum": -MOST_PRIORITY, "maximum": MOST_PRIORITY, "description": "Only the sign matters."},
    "max_attempts": {
        "type": "integer",
        "minimum": 0,
        "maximum": MOST_ATTEMPTS,
        "description": "0: no limit until the job expires.",
    },
    "expires": {
        **DURATION,
        "description": f"When a job that has not run is cancelled: a date, or {DURATION['description'].lower()}",
    },
    "meta": {"type": "object", "description": "Data that is kept with the job."},
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
PUSH: Final = record({"body": {"description": "The body for the consumer: any JSON value."}, **OPTIONS}, "body")
PULL: Final = record(
    {
        "n": {"type": "integer", "minimum": 1, "maximum": MOST, "default": 1, "description": "Maximum number of messages."},
        "wait": {
            **DURATION,
            "maximum": LONGEST_WAIT,
            "description": f"For the first one, {LONGEST_WAIT:g} seconds at most. {DURATION['description']}",
        },
        "lease": LEASE,
        "older_than": {**DURATION, "description": f"Only what has been due for so long. {DURATION['description']}"},
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
        "secret": {**NAME, "description": "The secret that signs each attempt (Standard Webhooks)."},
        "timeout": {**DURATION, "description": f"For a whole attempt. {DURATION['description']}"},
        "redirects": {"type": "integer", "minimum": 0, "maximum": MOST_REDIRECTS, "default": 0},
        "queue": QUEUE,
        **OPTIONS,
    },
    "url",
)
OFFER: Final = record(
    {"to": NAME, "message": {"description": "The message for the reader: any JSON value."}, "queue": QUEUE, **OPTIONS},
    "to",
    "message",
)
FENCE: Final[Schema] = {
    "type": "string",
    "minLength": 1,
    "maxLength": 100,
    "description": "The fence that was sent with the message. It proves that the caller holds this attempt.",
}
# What may be said of a message, by the verb, beside its id and its fence; and of all that are told of together.
SETTLING: Final[Mapping[str, Mapping[str, Schema]]] = {
    "ack": {},
    "retry": {"delay": {**DURATION, "description": "Delay from now. If omitted, the ladder decides."}, "reason": REASON},
    "snooze": {"delay": DURATION, "reason": REASON},
    "fail": {"reason": REASON},
    "extend": {},
}
SETTLING_ALL: Final[Mapping[str, Mapping[str, Schema]]] = {"extend": {"lease": LEASE}}
NEEDED: Final[Mapping[str, tuple[str, ...]]] = {"snooze": ("delay",)}


def settle_one(verb: str) -> Schema:
    """The body of a verb for one message."""
    return record({"fence": FENCE, **SETTLING[verb], **SETTLING_ALL.get(verb, {})}, "fence", *NEEDED.get(verb, ()))


def settle(verb: str) -> Schema:
    """The body of a verb for many."""
    one = record({"id": JOB_ID, "fence": FENCE, **SETTLING[verb]}, "id", "fence", *NEEDED.get(verb, ()))
    many = {"type": "array", "items": one, "minItems": 1, "maxItems": MOST}
    return record({"messages": many, **SETTLING_ALL.get(verb, {})}, "messages")


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
        if not schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", len(value)):
            yield _wrong(place, f"It must have {schema.get('minItems', 0)} to {schema.get('maxItems', 'any number of')} items.")
            return
        for number, item in enumerate(value if "items" in schema else ()):
            yield from faults(schema["items"], item, *place, number)
    elif isinstance(value, dict):
        yield from _faults_of_object(schema, value, place)


def _faults_of_object(schema: Schema, value: dict[str, Any], place: tuple[object, ...]) -> Iterator[GatewayProblem]:
    known, others = schema.get("properties", {}), schema.get("additionalProperties", True)
    for name in schema.get("required", ()):
        if name not in value:
            yield GatewayProblem("field_missing", pointer(*place, name))
    for name, item in value.items():
        if name in known:
            yield from faults(known[name], item, *place, name)
        elif others is False:
            yield GatewayProblem("field_unknown", pointer(*place, name))
        elif isinstance(others, Mapping):
            yield from faults(others, item, *place, name)


def _is(kind: str, value: Any) -> bool:
    if isinstance(value, bool):
        return kind == "boolean"
    return isinstance(value, TYPES[kind])


def _wrong(place: tuple[object, ...], cause: str) -> GatewayProblem:
    return GatewayProblem("field_value", pointer(*place), cause=cause)
