"""What a token does with jobs: schedule, get, change."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID

from django_delayq import conf, ids
from django_delayq.console.documents import job_document, plain, redis_document
from django_delayq.console.overview import DOWN
from django_delayq.console.verbs import VERBS, Verb
from django_delayq.contrib.gateway import placement
from django_delayq.contrib.gateway.exchange import GatewayAnswer, GatewayCall
from django_delayq.contrib.gateway.models import Token
from django_delayq.contrib.gateway.placement import Proposed
from django_delayq.contrib.gateway.problems import GatewayProblem, pointer
from django_delayq.exceptions import PayloadError
from django_delayq.models import Job
from django_delayq.producer import job as handles
from django_delayq.producer import where
from django_delayq.producer.stores import stores
from django_delayq.producer.task import Task, registry
from django_delayq.states import Change
from django_delayq.store.inspector import JobView
from django_delayq.store.record import validate_key


def schedule(call: GatewayCall) -> GatewayAnswer:
    """Puts a job of a registered task in."""
    task = _permitted(call.token, call.body["task"])
    options = placement.options(call, placement.allowed(call, task.queue), "args", "kwargs")
    asked = Proposed(task, options, tuple(call.body.get("args", ())), call.body.get("kwargs", {}), _place)
    return placement.put(call, asked)


def get(call: GatewayCall) -> GatewayAnswer:
    """A job, as its row and Redis know it."""
    return _told_of(_find(call.token, call.path["id"]))


def _told_of(found: handles.Job) -> GatewayAnswer:
    row = Job.objects.using(conf.get().database).filter(pk=found.id).first()
    away, view = False, None
    try:
        with stores.guarded(found.queue, ids.partition(found.id)):
            view = stores.inspector().job(found.queue, found.id)
    except DOWN:
        if row is None:
            raise
        away = True
    state = row.state if away and row is not None else found.state
    body = {
        "id": found.id,
        "queue": found.queue,
        "state": state,
        "job": None if row is None else job_document(row, view),
        "redis": None if view is None else _of_redis(view),
        "redis_answers": not away,
    }
    return GatewayAnswer(status=200, body=body)


def _of_redis(view: JobView) -> dict[str, Any]:
    """Whether somebody has asked to cancel it is told; who, is not: these are people of the project."""
    told = redis_document(view)
    told["cancel_requested"] = bool(told.pop("cancel_by"))
    return told


def find(call: GatewayCall) -> GatewayAnswer:
    """The unfinished job that holds a key, as `get` tells it."""
    key, queue = call.query["key"], call.query["queue"]
    try:
        validate_key(key)
    except PayloadError:  # no job has it
        raise GatewayProblem("job_unknown") from None
    if not call.token.allows("queues", queue) or queue not in conf.get().queues:
        raise GatewayProblem("job_unknown")
    return _told_of(_visible(call.token, handles.get(key=key, queue=queue)))


def change(verb: Verb, call: GatewayCall) -> GatewayAnswer:
    """Does what a verb for people does to one job: what had an effect is 200, all else 409 with the answer of the verb."""
    found = _find(call.token, call.path["id"])
    if found.queue not in conf.get().queues:  # its row was written when the project had that queue
        raise GatewayProblem("queue_unlisted")
    _check_holder(call.token, found.id)
    return _answered(verb, _act(verb, call, found.id, queue=found.queue), {"id": found.id})


def change_of_key(verb: Verb, call: GatewayCall) -> GatewayAnswer:
    """The same to all jobs of a key that are not finished; a requeue, to the latest. Of a token that leads to some tasks only, to the
    one that holds the key, if its task is one of these.
    """
    key, queue = placement.key(call.body["key"], "/key"), call.body["queue"]
    if not call.token.allows("queues", queue):
        raise GatewayProblem("queue_denied", "/queue")
    if queue not in conf.get().queues:
        raise GatewayProblem("queue_unlisted", "/queue")
    if call.token.allows_all("tasks"):
        said = _act(verb, call, key=key, queue=queue)
    else:
        id = where.latest_of_key(queue, key) if verb is VERBS["requeue"] else None
        one = _visible(call.token, handles.get(id) if id else handles.get(key=key, queue=queue))
        said = _act(verb, call, one.id, queue=queue)
    if said is Change.UNKNOWN:
        raise GatewayProblem("job_unknown")
    return _answered(verb, said, {"queue": queue, "key": key})


def _act(verb: Verb, call: GatewayCall, *job: UUID, **named: str) -> Change:
    more: dict[str, Any] = {"abort": call.body.get("abort", False)} if verb.aborts else {}
    if verb.needs_date:
        more = placement.date(call.body)
    return verb.act(*job, **named, actor=call.token.actor, reason=call.body.get("reason", ""), **more)


def _answered(verb: Verb, said: Change, named: dict[str, Any]) -> GatewayAnswer:
    body = {**named, "change": said.value}
    if said not in verb.effects:
        raise GatewayProblem("not_changed", more=json.loads(json.dumps(body, default=plain)), change=said.value)
    return GatewayAnswer(status=200, body=body)


def _permitted(token: Token, name: str) -> Task[..., Any]:
    """The task that is to be scheduled."""
    if not token.allows("tasks", name):
        raise GatewayProblem("task_denied", "/task")
    task = registry.find(name)
    if task is None:
        raise GatewayProblem("task_unknown", "/task")
    if task.own or not token.may_schedule(name, task.queue):
        raise GatewayProblem("task_denied", "/task")
    return task


def _find(token: Token, given: str) -> handles.Job:
    """The job of that id, if the token may see it: of another nobody learns that it is there."""
    try:
        id = ids.parse(given)
    except ValueError:
        raise GatewayProblem("job_unknown") from None
    return _visible(token, handles.get(id))


def _visible(token: Token, found: handles.Job | None) -> handles.Job:
    if found is None or not (token.allows("queues", found.queue) and token.allows("tasks", found.task)):
        raise GatewayProblem("job_unknown")
    return found


def _check_holder(token: Token, id: UUID) -> None:
    """Of a job that was merged into another a change is one of that: which may be of a task that the token does not lead to."""
    if token.allows_all("tasks"):
        return
    seen: set[UUID] = set()
    row = where.row_of(id)
    while row is not None and row.holder is not None and row.holder not in seen:
        seen.add(row.holder)
        _visible(token, handles.get(row.holder))
        row = where.row_of(row.holder)


def _place(error: PayloadError, body: dict[str, Any]) -> str:
    """Of the argument that an error is about."""
    argument = error.fields.get("argument")
    return pointer("kwargs", argument) if argument in body.get("kwargs", {}) else "/args"
