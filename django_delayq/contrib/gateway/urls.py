"""The URLs of the gateway, for `include()`. URLs, views, permissions and the OpenAPI document come from the table `ROUTES`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from itertools import chain
from typing import Any, Final

from django.urls import path

from django_delayq.console.verbs import VERBS
from django_delayq.contrib.gateway import dispatch, openapi, permissions, views
from django_delayq.contrib.gateway.dispatch import Route
from django_delayq.contrib.gateway.openapi import JOB_ID, KEY, QUEUE, record
from django_delayq.contrib.gateway.parsing import Schema
from django_delayq.states import Change, State

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
    """The routes of a verb for jobs: by id, and by key."""
    act, fields = VERBS[verb], openapi.CHANGES[verb]
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
    "retry": "Report a failed attempt, so that the messages are delivered again after their backoff or a delay",
    "snooze": "Postpone messages without counting the attempt",
    "fail": "Mark messages as failed",
    "extend": "Extend the leases of messages",
}


def _settling(verb: str, summary: str) -> Iterator[Route]:
    """The routes of a verb for messages: for several messages, and for one."""
    more = _HELD if verb == "extend" else {}
    answer: Schema = {"type": "string", "enum": [*views.ANSWERS]}
    one = record({"id": JOB_ID, "answer": answer, **more}, "id", "answer")
    yield Route(
        name=verb,
        path=f"queues/{{queue}}/{verb}",
        summary=summary,
        view=partial(views.settle, verb),
        check=permissions.message_queue,
        body=openapi.settle(verb),
        answers={200: ("The result for each message.", _all(messages={"type": "array", "items": one}))},
        problems=("queue_unknown", "queue_of_workers", "field_missing"),
    )
    yield Route(
        name=f"{verb}_one",
        needs=verb,
        path=f"queues/{{queue}}/messages/{{id}}/{verb}",
        summary=f"{summary} (one message)",
        view=partial(views.settle_one, verb),
        check=permissions.message_queue,
        body=openapi.settle_one(verb),
        answers={200: ("The change was made.", one)},
        problems=("queue_unknown", "queue_of_workers", "job_unknown", "lease_lost", "field_missing"),
    )


ROUTES: Final = (
    Route(
        name="schedule",
        path="jobs",
        summary="Schedule a registered task",
        view=views.schedule,
        check=permissions.task_and_queue,
        body=openapi.SCHEDULE,
        answers=_created("job"),
        problems=(*_CREATE_CODES, "queue_denied", "task_denied", "task_unknown", "queue_unlisted"),
    ),
    Route(
        name="get",
        path="jobs/{id}",
        summary="Get a job, with its row and its state in Redis",
        view=views.get,
        answers={200: ("The job.", _JOB)},
        problems=("job_unknown",),
    ),
    Route(
        name="find",
        needs="get",
        path="jobs",
        summary="Find the unfinished job that has a given key",
        view=views.find,
        query={"queue": QUEUE, "key": KEY},
        answers={200: ("The job.", _JOB)},
        problems=("job_unknown",),
    ),
    *_changes("cancel", "Cancel a job, or ask a running job to stop"),
    *_changes("reschedule", "Change the date of a scheduled job"),
    *_changes("run_now", "Make a scheduled job due now"),
    *_changes("requeue", "Run a failed or cancelled job again, with all its attempts"),
    Route(
        name="queues",
        path="queues",
        summary="Get the figures of all queues that the token can access",
        view=views.queues,
        answers={200: ("Every queue.", _all(queues={"type": "array", "items": _FIGURES}))},
    ),
    Route(
        name="queue",
        needs="queues",
        path="queues/{queue}",
        summary="Get the figures of a queue",
        view=views.queue,
        answers={200: ("The queue.", _FIGURES)},
        problems=("queue_unknown",),
    ),
    Route(
        name="tasks",
        path="tasks",
        summary="List the tasks that the token can schedule",
        view=views.tasks,
        answers={200: ("Every task.", _all(tasks={"type": "array", "items": _TASK}))},
    ),
    Route(
        name="push",
        path="queues/{queue}/messages",
        summary="Add a message to a queue",
        view=views.push,
        check=permissions.message_queue,
        body=openapi.PUSH,
        answers=_created("message"),
        problems=(*_CREATE_CODES, "queue_unknown", "queue_of_workers"),
    ),
    Route(
        name="pull",
        path="queues/{queue}/pull",
        summary="Claim due messages",
        view=views.pull,
        body=openapi.PULL,
        answers={200: ("The messages. The list is empty if no message became due in time.", _PULLED)},
        problems=("queue_unknown", "queue_of_workers"),
        waits=True,
    ),
    *chain.from_iterable(_settling(verb, summary) for verb, summary in SETTLED.items()),
    Route(
        name="deliver",
        path="deliveries",
        summary="Schedule an HTTP request, which workers retry until the response is 2xx",
        view=views.deliver,
        check=permissions.delivery_settings,
        body=openapi.DELIVER,
        answers=_created("delivery"),
        problems=(*_CREATE_CODES, "no_deliveries", "queue_denied", "queue_unlisted", "secret_denied", "url_refused"),
    ),
    Route(
        name="offer",
        path="offers",
        summary="Schedule a message for a Redis list or stream",
        view=views.offer,
        check=permissions.offer_queue,
        body=openapi.OFFER,
        answers=_created("offer"),
        problems=(*_CREATE_CODES, "queue_denied", "queue_unlisted", "target_denied", "target_unlisted"),
    ),
)
_by_path: dict[str, dict[str, Route]] = {}


for _route in ROUTES:
    _by_path.setdefault(_route.path, {})[_route.method] = _route


urlpatterns = [
    path("openapi.json", dispatch.without_session(openapi.view(ROUTES)), name="openapi"),
    *(path(pattern.replace("{", "<str:").replace("}", ">"), dispatch.view(routes)) for pattern, routes in _by_path.items()),
]
