"""The table of what the gateway can do. Addresses, views, permissions of tokens and the OpenAPI document are made of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from django_delayq.console.verbs import VERBS
from django_delayq.contrib.gateway import job_routes, json_schemas, queue_routes
from django_delayq.contrib.gateway.exchange import GatewayAnswer, GatewayCall
from django_delayq.contrib.gateway.json_schemas import JOB_ID, KEY, QUEUE, Schema, record
from django_delayq.contrib.gateway.queue_routes import FIGURES
from django_delayq.states import State

EVERYWHERE: Final = ("token_missing", "token_invalid", "verb_denied", "method", "rate", "limit_away", "store_away", "database_away")
WITH_BODY: Final = (
    "length_unknown",
    "body_lost",
    "json",
    "idempotency_key",
    "in_progress",
    "body_size",
    "body_type",
    "field_unknown",
    "field_type",
    "field_value",
    "idempotency_reused",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """One verb at one address. `name`: of the operation; `verb`: which a token must have; `path`: below the gateway, with `{names}`;
    `body`: None where none is read; `answers`: by status, a sentence and a schema; `problems`: the codes that are its own.
    """

    name: str
    verb: str
    method: str
    path: str
    summary: str
    handle: Callable[[GatewayCall], GatewayAnswer]
    answers: Mapping[int, tuple[str, Schema]]
    body: Schema | None = None
    problems: tuple[str, ...] = ()
    query: Mapping[str, Schema] = field(default_factory=dict)

    @property
    def codes(self) -> tuple[str, ...]:
        """Every code with which it refuses."""
        return (*EVERYWHERE, *(WITH_BODY if self.body is not None else ()), *(("query",) if self.query else ()), *self.problems)


def _open(*names: str, **others: Schema) -> Schema:
    """An object that has these members, of which others may come to be."""
    properties: dict[str, Any] = {**{name: {} for name in names}, **others}
    return {"type": "object", "properties": properties, "required": [*properties]}


_COUNT: Final[Schema] = {"type": "integer", "minimum": 0}
_MOMENT: Final[Schema] = {"type": ["string", "null"], "format": "date-time"}
_FIGURES: Final = _open(**{**dict.fromkeys(FIGURES, _COUNT), "queue": {"type": "string"}})
_SCHEDULED: Final = record(
    {
        "id": JOB_ID,
        "queue": {"type": "string"},
        "key": {"type": "string"},
        "created": {"type": ["boolean", "null"]},
        "run_at": _MOMENT,
    },
    "id",
    "queue",
    "key",
    "created",
    "run_at",
)
_CHANGED: Final[Schema] = {"type": "string", "enum": [*job_routes.CHANGES]}
_JOB: Final = record(
    {
        "id": JOB_ID,
        "queue": {"type": "string"},
        "state": {"type": ["string", "null"], "enum": [*(state.value for state in State), None]},
        "job": {**_open("uuid", "task", "args", "kwargs", "run_at"), "type": ["object", "null"]},
        "redis": {**_open("state", "date", "attempt"), "type": ["object", "null"]},
        "redis_answers": {"type": "boolean"},
    },
    "id",
    "queue",
    "state",
    "job",
    "redis",
    "redis_answers",
)
_PARAMETER: Final = record(
    {"name": {"type": "string"}, "kind": {"type": "string"}, "required": {"type": "boolean"}}, "name", "kind", "required"
)
_TASK: Final = record(
    {"task": {"type": "string"}, "queue": {"type": "string"}, "parameters": {"type": "array", "items": _PARAMETER}},
    "task",
    "queue",
    "parameters",
)


def _changes(verb: str, summary: str) -> Iterator[Route]:
    """A verb for people: of one job, and by key."""
    act, fields = VERBS[verb], json_schemas.CHANGES[verb]
    yield Route(
        name=verb,
        verb=verb,
        method="POST",
        path=f"jobs/{{id}}/{act.command}",
        summary=summary,
        handle=partial(job_routes.change, act),
        body=record(fields),
        answers={200: ("It was done, or asked for.", record({"id": JOB_ID, "change": _CHANGED}, "id", "change"))},
        problems=("queue_unlisted", "job_unknown", "not_changed"),
    )
    named: dict[str, Schema] = {"queue": QUEUE, "key": KEY}
    yield Route(
        name=f"{verb}_by_key",
        verb=verb,
        method="POST",
        path=f"keys/{act.command}",
        summary=f"{summary}; by its key",
        handle=partial(job_routes.change_of_key, act),
        body=record({**named, **fields}, "queue", "key"),
        answers={200: ("It was done, or asked for.", record({**named, "change": _CHANGED}, "queue", "key", "change"))},
        problems=("field_missing", "queue_denied", "queue_unlisted", "job_unknown", "not_changed"),
    )


ROUTES: Final = (
    Route(
        name="schedule",
        verb="schedule",
        method="POST",
        path="jobs",
        summary="Schedule a registered task",
        handle=job_routes.schedule,
        body=json_schemas.SCHEDULE,
        answers={
            201: ("The job is scheduled.", _SCHEDULED),
            200: ("An unfinished job holds the key, and stands for this one.", _SCHEDULED),
            202: ("The job is committed; Redis has not confirmed it yet.", _SCHEDULED),
        },
        problems=(
            "queue_denied",
            "task_denied",
            "key_held",
            "payload_size",
            "field_missing",
            "task_unknown",
            "queue_unlisted",
            "arguments",
            "options",
        ),
    ),
    Route(
        name="get",
        verb="get",
        method="GET",
        path="jobs/{id}",
        summary="A job: its row, and what Redis knows of it now",
        handle=job_routes.get,
        answers={200: ("The job.", _JOB)},
        problems=("job_unknown",),
    ),
    Route(
        name="find",
        verb="get",
        method="GET",
        path="jobs",
        summary="The unfinished job that holds a key",
        handle=job_routes.find,
        query={"queue": QUEUE, "key": KEY},
        answers={200: ("The job.", _JOB)},
        problems=("job_unknown",),
    ),
    *_changes("cancel", "Cancel a job; one that runs is asked to stop"),
    *_changes("reschedule", "Give a waiting job another date"),
    *_changes("run_now", "Make a waiting job due at once"),
    *_changes("requeue", "Put a failed or cancelled job back, with a fresh ladder"),
    Route(
        name="queues",
        verb="queues",
        method="GET",
        path="queues",
        summary="How full the queues of the token are",
        handle=queue_routes.queues,
        answers={200: ("Every queue.", record({"queues": {"type": "array", "items": _FIGURES}}, "queues"))},
    ),
    Route(
        name="queue",
        verb="queues",
        method="GET",
        path="queues/{queue}",
        summary="How full one queue is",
        handle=queue_routes.queue,
        answers={200: ("The queue.", _FIGURES)},
        problems=("queue_unknown",),
    ),
    Route(
        name="tasks",
        verb="tasks",
        method="GET",
        path="tasks",
        summary="The tasks that the token may schedule",
        handle=queue_routes.tasks,
        answers={200: ("Every task.", record({"tasks": {"type": "array", "items": _TASK}}, "tasks"))},
    ),
)
