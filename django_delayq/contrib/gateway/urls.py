"""The URLs of the gateway, for `include()`. URLs, views, permissions and the OpenAPI document come from the table `ROUTES`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import chain
from typing import Any, Final

from django.urls import path

from django_delayq.console.verbs import VERBS
from django_delayq.contrib.gateway import dispatch, openapi, permissions, views
from django_delayq.contrib.gateway.dispatch import GatewayCall, Route
from django_delayq.contrib.gateway.idempotency import DONE, LOST
from django_delayq.contrib.gateway.openapi import FENCE, JOB_ID, KEY, LEASE, QUEUE, record
from django_delayq.contrib.gateway.parsing import Schema
from django_delayq.models import Operation
from django_delayq.states import Change, State
from django_delayq.store.scripts.queue import MOST
from django_delayq.text import documented

app_name = "delayq_gateway"


def _open(*names: str, **others: Schema) -> Schema:
    """An object with these members, and possibly others."""
    properties: dict[str, Any] = {**{name: {} for name in names}, **others}
    return {"type": "object", "properties": properties, "required": [*properties]}


def _all(**members: Schema) -> Schema:
    """An object with exactly these members."""
    return record(members, *members)


_COUNT: Final[Schema] = {"type": "integer", "minimum": 0}
_MOMENT: Final[Schema] = {"type": ["string", "null"], "format": "date-time"}
_FIGURES: Final = _open(**{**dict.fromkeys(views.FIGURES, _COUNT), "queue": {"type": "string"}})
_SCHEDULED: Final = _all(
    id=JOB_ID, queue={"type": "string"}, key={"type": "string"}, created={"type": ["boolean", "null"]}, run_at=_MOMENT
)


def _created(noun: str) -> Mapping[int, tuple[str, Schema]]:
    return {
        201: (f"The {noun} is scheduled.", _SCHEDULED),
        200: (f"An unfinished {noun} has the key. The response has its id.", _SCHEDULED),
        202: (f"The {noun} is committed, but Redis has not confirmed it yet.", _SCHEDULED),
    }


_CREATE_CODES: Final = ("key_held", "key_denied", "payload_size", "field_missing", "arguments", "options")
_MESSAGE_CODES: Final = ("queue_unknown", "queue_of_workers")
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


def _changes(verb: str) -> Iterator[Route]:
    """The routes of a verb for jobs: by id, and by key."""
    act, (summary, fields) = VERBS[verb], openapi.CHANGES[verb]
    yield Route(
        name=verb,
        path=f"jobs/{{id}}/{act.command}",
        summary=summary,
        view=partial(views.change, act),
        check=permissions.check_change,
        body=record(fields),
        answers={200: ("The change was made, or the running job was asked to stop.", _all(id=JOB_ID, change=_CHANGED))},
        problems=("queue_unlisted", "job_unknown", "not_changed"),
    )
    named: dict[str, Schema] = {"queue": QUEUE, "key": KEY}
    yield Route(
        name=f"{verb}_by_key",
        needs=verb,
        path=f"keys/{act.command}",
        summary=f"{summary}, by its key",
        view=partial(views.change_by_key, act),
        check=permissions.key_and_queue,
        body=record({**named, **fields}, "queue", "key"),
        answers={200: ("The change was made, or the running job was asked to stop.", _all(**named, change=_CHANGED))},
        problems=("field_missing", "queue_denied", "queue_unlisted", "job_unknown", "not_changed"),
    )


_OPERATION: Final = {
    "id": {**JOB_ID, "type": ["string", "null"], "description": "The id of the operation."},
    "stage": {"type": ["string", "null"], "enum": [*Operation.Stage.values, None]},
    "jobs": {"type": ["integer", "null"], "minimum": 0},
}
_PROGRESS: Final = "The operation.", _all(**_OPERATION, seen=_COUNT, counts={"type": "object", "additionalProperties": _COUNT})
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


def _settling(verb: str) -> Iterator[Route]:
    """The routes of a verb for messages: for several messages, and for one."""
    summary, fields = openapi.SETTLING[verb]
    given, needed = {"fence": FENCE, **fields}, ("fence", "delay") if verb == "snooze" else ("fence",)
    lease, held = ({"lease": LEASE}, _HELD) if verb == "extend" else ({}, {})
    messages = {"type": "array", "items": record({"id": JOB_ID, **given}, "id", *needed), "minItems": 1, "maxItems": MOST}
    answer: Schema = {"type": "string", "enum": [DONE, LOST]}
    one = record({"id": JOB_ID, "answer": answer, **held}, "id", "answer")
    yield Route(
        name=verb,
        path=f"queues/{{queue}}/{verb}",
        summary=summary,
        view=partial(views.settle, verb),
        check=permissions.message_queue,
        body=record({"messages": messages, **lease}, "messages"),
        answers={200: ("The result for each message.", _all(messages={"type": "array", "items": one}))},
        problems=(*_MESSAGE_CODES, "field_missing"),
    )
    yield Route(
        name=f"{verb}_one",
        needs=verb,
        path=f"queues/{{queue}}/messages/{{id}}/{verb}",
        summary=f"{summary} (one message)",
        view=partial(views.settle_one, verb),
        check=permissions.message_queue,
        body=record({**given, **lease}, *needed),
        answers={200: ("The change was made.", one)},
        problems=(*_MESSAGE_CODES, "job_unknown", "lease_lost", "field_missing"),
    )


def _route(view: Callable[[GatewayCall], Any], path: str, **more: Any) -> Route:
    """The route of a view, with its name. The summary is the first sentence of its docstring."""
    return Route(name=view.__name__, path=path, summary=documented(view)[1], view=view, **more)


ROUTES: Final = (
    _route(
        views.schedule,
        "jobs",
        check=permissions.task_and_queue,
        body=openapi.SCHEDULE,
        answers=_created("job"),
        problems=(*_CREATE_CODES, "queue_denied", "task_denied", "task_unknown", "queue_unlisted"),
    ),
    _route(views.get, "jobs/{id}", answers={200: ("The job.", _JOB)}, problems=("job_unknown",)),
    _route(
        views.find,
        "jobs",
        needs="get",
        query={"queue": QUEUE, "key": KEY},
        answers={200: ("The job.", _JOB)},
        problems=("job_unknown",),
    ),
    *chain.from_iterable(map(_changes, openapi.CHANGES)),
    _route(
        views.operate,
        "operations",
        check=permissions.operated_queue,
        body=openapi.OPERATE,
        answers={202: _PROGRESS, 200: ("The number of matching jobs, for a dry run.", _PROGRESS[1])},
        problems=("field_missing", "options", "queue_denied", "queue_unlisted", "too_many_jobs"),
    ),
    _route(views.operation, "operations/{operation}", needs="operate", answers={200: _PROGRESS}, problems=("operation_unknown",)),
    _route(views.queues, "queues", answers={200: ("Every queue.", _all(queues={"type": "array", "items": _FIGURES}))}),
    _route(views.queue, "queues/{queue}", needs="queues", answers={200: ("The queue.", _FIGURES)}, problems=("queue_unknown",)),
    _route(views.tasks, "tasks", answers={200: ("Every task.", _all(tasks={"type": "array", "items": _TASK}))}),
    _route(
        views.push,
        "queues/{queue}/messages",
        check=permissions.message_queue,
        body=openapi.PUSH,
        answers=_created("message"),
        problems=(*_CREATE_CODES, *_MESSAGE_CODES),
    ),
    _route(
        views.pull,
        "queues/{queue}/pull",
        body=openapi.PULL,
        answers={200: ("The messages. The list is empty if no message became due in time.", _PULLED)},
        problems=_MESSAGE_CODES,
        waits=True,
    ),
    *chain.from_iterable(map(_settling, openapi.SETTLING)),
    _route(
        views.deliver,
        "deliveries",
        check=permissions.delivery_settings,
        body=openapi.DELIVER,
        answers=_created("delivery"),
        problems=(*_CREATE_CODES, "no_deliveries", "queue_denied", "queue_unlisted", "secret_denied", "url_refused"),
    ),
    _route(
        views.offer,
        "offers",
        check=permissions.offer_queue,
        body=openapi.OFFER,
        answers=_created("offer"),
        problems=(*_CREATE_CODES, "queue_denied", "queue_unlisted", "target_denied", "target_unlisted"),
    ),
)
_by_path: dict[str, dict[str, Route]] = {}
for _one in ROUTES:
    _by_path.setdefault(_one.path, {})[_one.method] = _one


urlpatterns = [
    path("openapi.json", dispatch.without_session(openapi.view(ROUTES)), name="openapi"),
    *(path(pattern.replace("{", "<str:").replace("}", ">"), dispatch.view(routes)) for pattern, routes in _by_path.items()),
]
