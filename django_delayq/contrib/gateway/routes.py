"""The table of what the gateway can do. Addresses, views, permissions of tokens and the OpenAPI document are made of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Any, Final

from django_delayq.console.verbs import VERBS
from django_delayq.contrib.gateway import job_routes, json_schemas, message_routes, queue_routes, target_routes
from django_delayq.contrib.gateway.exchange import GatewayCall
from django_delayq.contrib.gateway.json_schemas import JOB_ID, KEY, QUEUE, Schema, record
from django_delayq.contrib.gateway.queue_routes import FIGURES
from django_delayq.states import Change, State

EVERYWHERE: Final = (
    "token_missing",
    "token_invalid",
    "verb_denied",
    "method",
    "rate",
    "limit_away",
    "store_away",
    "store_refused",
    "database_away",
)
WITH_BODY: Final = (
    "length_unknown",
    "body_lost",
    "json",
    "body_size",
    "body_type",
    "field_unknown",
    "field_type",
    "field_value",
)
KEYED: Final = ("idempotency_key", "in_progress", "idempotency_reused")
UNKEPT: Final = ("idempotency_unkept",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """One verb at one address. `name`: of the operation; `verb`: which a token must have; `path`: below the gateway, with `{names}`;
    `body`: None where none is read; `permit`: refuses what the token may not do, before an answer is repeated; `answers`: by status, a
    sentence and a schema; `problems`: the codes that are its own; `waits`: `handle` is a coroutine, which may take its time, and no
    answer is kept.
    """

    name: str
    verb: str
    path: str
    summary: str
    handle: Callable[[GatewayCall], Any]  # an answer, or what is awaited for one
    answers: Mapping[int, tuple[str, Schema]]
    body: Schema | None = None
    permit: Callable[[GatewayCall], object] = lambda call: None
    problems: tuple[str, ...] = ()
    query: Mapping[str, Schema] = field(default_factory=dict)
    waits: bool = False

    @property
    def method(self) -> str:
        """What has a body is posted; without one it only tells."""
        return "GET" if self.body is None else "POST"

    @property
    def codes(self) -> tuple[str, ...]:
        """Every code with which it refuses."""
        body = WITH_BODY if self.body is not None else ()
        keys = KEYED if self.keeps else UNKEPT if self.waits else ()
        return (*EVERYWHERE, *body, *keys, *(("query",) if self.query else ()), *self.problems)

    @property
    def puts_in(self) -> bool:
        """Whether it puts a job in, with the id that its call brings."""
        return 201 in self.answers

    @property
    def keeps(self) -> bool:
        """Whether it takes an `Idempotency-Key`."""
        return self.body is not None and not self.waits


def _open(*names: str, **others: Schema) -> Schema:
    """An object that has these members, of which others may come to be."""
    properties: dict[str, Any] = {**{name: {} for name in names}, **others}
    return {"type": "object", "properties": properties, "required": [*properties]}


def _all(**members: Schema) -> Schema:
    """An object that has exactly these members."""
    return record(members, *members)


_COUNT: Final[Schema] = {"type": "integer", "minimum": 0}
_MOMENT: Final[Schema] = {"type": ["string", "null"], "format": "date-time"}
_FIGURES: Final = _open(**{**dict.fromkeys(FIGURES, _COUNT), "queue": {"type": "string"}})
_SCHEDULED: Final = _all(
    id=JOB_ID,
    queue={"type": "string"},
    key={"type": "string"},
    created={"type": ["boolean", "null"]},
    run_at=_MOMENT,
)


def _put_in(noun: str) -> Mapping[int, tuple[str, Schema]]:
    return {
        201: (f"The {noun} is scheduled.", _SCHEDULED),
        200: (f"An unfinished {noun} has the key. The answer has its id.", _SCHEDULED),
        202: (f"The {noun} is committed, and Redis has not confirmed it yet.", _SCHEDULED),
    }


_PUT_IN: Final = ("key_held", "key_denied", "payload_size", "field_missing", "arguments", "options")
_CHANGED: Final[Schema] = {"type": "string", "enum": [change.value for change in Change if change is not Change.PENDING]}
_JOB: Final = _all(
    id=JOB_ID,
    queue={"type": "string"},
    state={"type": ["string", "null"], "enum": [*(state.value for state in State), None]},
    job={**_open("uuid", "task", "args", "kwargs", "run_at"), "type": ["object", "null"]},
    redis={**_open("state", "date", "attempt"), "type": ["object", "null"]},
    redis_answers={"type": "boolean"},
)
_PARAMETER: Final = _all(name={"type": "string"}, kind={"type": "string"}, required={"type": "boolean"})
_TASK: Final = _all(task={"type": "string"}, queue={"type": "string"}, parameters={"type": "array", "items": _PARAMETER})


def _changes(verb: str, summary: str) -> Iterator[Route]:
    """A verb for people: of one job, and by key."""
    act, fields = VERBS[verb], json_schemas.CHANGES[verb]
    yield Route(
        name=verb,
        verb=verb,
        path=f"jobs/{{id}}/{act.command}",
        summary=summary,
        handle=partial(job_routes.change, act),
        permit=job_routes.permit_change,
        body=record(fields),
        answers={200: ("The change was made, or requested from the running job.", _all(id=JOB_ID, change=_CHANGED))},
        problems=("queue_unlisted", "job_unknown", "not_changed"),
    )
    named: dict[str, Schema] = {"queue": QUEUE, "key": KEY}
    yield Route(
        name=f"{verb}_by_key",
        verb=verb,
        path=f"keys/{act.command}",
        summary=f"{summary}, by its key",
        handle=partial(job_routes.change_of_key, act),
        permit=job_routes.permit_key,
        body=record({**named, **fields}, "queue", "key"),
        answers={200: ("The change was made, or requested from the running job.", _all(**named, change=_CHANGED))},
        problems=("field_missing", "queue_denied", "queue_unlisted", "job_unknown", "not_changed"),
    )


_MESSAGE: Final = _all(
    id=JOB_ID,
    fence={"type": "string"},
    body={},
    key={"type": "string"},
    meta={"type": "object"},
    attempt={"type": "integer", "minimum": 1},
    max_attempts={"type": ["integer", "null"]},
    run_at=_MOMENT,
    lease_end=_MOMENT,
)
_SECONDS: Final[Schema] = {"type": "number", "minimum": 0}
_PULLED: Final = _all(messages={"type": "array", "items": _MESSAGE}, lease=_SECONDS, wait=_SECONDS)
_HELD: Final[Mapping[str, Schema]] = {"lease": _SECONDS, "cancel_requested": {"type": "boolean"}}
SETTLED: Final = {
    "ack": "Acknowledge messages",
    "retry": "Report a failed attempt; the messages come again by their backoff, or after a delay",
    "snooze": "Return messages for a delay; the attempt does not count",
    "fail": "Fail messages for good",
    "extend": "Extend the leases of messages",
}


def _settling(verb: str, summary: str) -> Iterator[Route]:
    """A verb of a consumer: for many messages, and for one."""
    more = _HELD if verb == "extend" else {}
    answer: Schema = {"type": "string", "enum": [*message_routes.ANSWERS]}
    one = record({"id": JOB_ID, "answer": answer, **more}, "id", "answer")
    yield Route(
        name=verb,
        verb=verb,
        path=f"queues/{{queue}}/{verb}",
        summary=summary,
        handle=partial(message_routes.settle, verb),
        permit=message_routes.permit,
        body=json_schemas.settle(verb),
        answers={200: ("The answer for each message.", _all(messages={"type": "array", "items": one}))},
        problems=("queue_unknown", "queue_of_workers", "field_missing"),
    )
    yield Route(
        name=f"{verb}_one",
        verb=verb,
        path=f"queues/{{queue}}/messages/{{id}}/{verb}",
        summary=f"{summary} (one message)",
        handle=partial(message_routes.settle_one, verb),
        permit=message_routes.permit,
        body=json_schemas.settle_one(verb),
        answers={200: ("The change was made.", one)},
        problems=("queue_unknown", "queue_of_workers", "job_unknown", "lease_lost", "field_missing"),
    )


ROUTES: Final = (
    Route(
        name="schedule",
        verb="schedule",
        path="jobs",
        summary="Schedule a registered task",
        handle=job_routes.schedule,
        permit=job_routes.permit,
        body=json_schemas.SCHEDULE,
        answers=_put_in("job"),
        problems=(*_PUT_IN, "queue_denied", "task_denied", "task_unknown", "queue_unlisted"),
    ),
    Route(
        name="get",
        verb="get",
        path="jobs/{id}",
        summary="Get a job: its row, and its state in Redis",
        handle=job_routes.get,
        answers={200: ("The job.", _JOB)},
        problems=("job_unknown",),
    ),
    Route(
        name="find",
        verb="get",
        path="jobs",
        summary="Find the unfinished job with a key",
        handle=job_routes.find,
        query={"queue": QUEUE, "key": KEY},
        answers={200: ("The job.", _JOB)},
        problems=("job_unknown",),
    ),
    *_changes("cancel", "Cancel a job, or ask a running job to stop"),
    *_changes("reschedule", "Change the date of a scheduled job"),
    *_changes("run_now", "Make a scheduled job due now"),
    *_changes("requeue", "Run a failed or cancelled job again, with new attempts"),
    Route(
        name="queues",
        verb="queues",
        path="queues",
        summary="Get the figures of all queues of the token",
        handle=queue_routes.queues,
        answers={200: ("Every queue.", _all(queues={"type": "array", "items": _FIGURES}))},
    ),
    Route(
        name="queue",
        verb="queues",
        path="queues/{queue}",
        summary="Get the figures of a queue",
        handle=queue_routes.queue,
        answers={200: ("The queue.", _FIGURES)},
        problems=("queue_unknown",),
    ),
    Route(
        name="tasks",
        verb="tasks",
        path="tasks",
        summary="List the tasks that the token may schedule",
        handle=queue_routes.tasks,
        answers={200: ("Every task.", _all(tasks={"type": "array", "items": _TASK}))},
    ),
    Route(
        name="push",
        verb="push",
        path="queues/{queue}/messages",
        summary="Put a message into a queue",
        handle=message_routes.push,
        permit=message_routes.permit,
        body=json_schemas.PUSH,
        answers=_put_in("message"),
        problems=(*_PUT_IN, "queue_unknown", "queue_of_workers"),
    ),
    Route(
        name="pull",
        verb="pull",
        path="queues/{queue}/pull",
        summary="Take due messages under a lease",
        handle=message_routes.pull,
        body=json_schemas.PULL,
        answers={200: ("The messages, or none if none was due in time.", _PULLED)},
        problems=("queue_unknown", "queue_of_workers"),
        waits=True,
    ),
    *chain.from_iterable(_settling(verb, summary) for verb, summary in SETTLED.items()),
    Route(
        name="deliver",
        verb="deliver",
        path="deliveries",
        summary="Schedule an HTTP request, which workers retry until the host answers 2xx",
        handle=target_routes.deliver,
        permit=target_routes.permit_delivery,
        body=json_schemas.DELIVER,
        answers=_put_in("delivery"),
        problems=(*_PUT_IN, "no_deliveries", "queue_denied", "queue_unlisted", "secret_denied", "url_refused"),
    ),
    Route(
        name="offer",
        verb="offer",
        path="offers",
        summary="Schedule a message for a list or a stream in Redis",
        handle=target_routes.offer,
        permit=target_routes.permit_offer,
        body=json_schemas.OFFER,
        answers=_put_in("offer"),
        problems=(*_PUT_IN, "queue_denied", "queue_unlisted", "target_denied", "target_unlisted"),
    ),
)
