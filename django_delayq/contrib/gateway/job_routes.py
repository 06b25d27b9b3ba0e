"""What a token does with jobs: schedule, get, change."""

from __future__ import annotations

import json
from contextlib import suppress
from functools import partial
from typing import Any, Final
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
from django_delayq.producer import acts, changes, where
from django_delayq.producer import job as handles
from django_delayq.producer.changes import Cancel
from django_delayq.producer.stores import stores
from django_delayq.producer.task import Task, registry
from django_delayq.states import Change
from django_delayq.store.inspector import JobView
from django_delayq.store.record import validate_key

HIDDEN: Final = "displaced by a job to which this token does not lead"


def schedule(call: GatewayCall) -> GatewayAnswer:
    """Puts a job of a registered task in."""
    task, queue = permit(call)
    options = placement.options(call, queue, "args", "kwargs")
    asked = Proposed(task, options, tuple(call.body.get("args", ())), call.body.get("kwargs", {}), _place)
    return placement.put(call, asked)


def permit(call: GatewayCall) -> tuple[Task[..., Any], str]:
    """The task and the queue of a job that may be scheduled."""
    task = _permitted(call.token, call.body["task"])
    return task, placement.allowed(call, task.queue)


def get(call: GatewayCall) -> GatewayAnswer:
    """A job, as its row and Redis know it."""
    return _told_of(call.token, _find(call.token, call.path["id"]))


def _told_of(token: Token, found: handles.Job) -> GatewayAnswer:
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
        "job": None if row is None else _of_row(token, row, view),
        "redis": None if view is None else _of_redis(token, view),
        "redis_answers": not away,
    }
    return GatewayAnswer(status=200, body=body)


def _of_row(token: Token, row: Job, view: JobView | None) -> dict[str, Any]:
    """Without the id of a job that has displaced it, if the token does not lead there."""
    told = job_document(row, view)
    if row.merged_into is not None and not _leads_to(token, row.merged_into):
        told["error"] = HIDDEN
    return told


def _of_redis(token: Token, view: JobView) -> dict[str, Any]:
    """Whether somebody has asked to cancel it is told; who, is not: these are people of the project."""
    told = redis_document(view)
    told["cancel_requested"] = bool(told.pop("cancel_by"))
    holder = view.name_holder
    if holder is not None and not _leads_to(token, holder):
        told["name_held_by"] = None
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
    return _told_of(call.token, _visible(call.token, handles.get(key=key, queue=queue)))


def change(verb: Verb, call: GatewayCall) -> GatewayAnswer:
    """Does what a verb for people does to one job: what had an effect is 200, all else 409 with the answer of the verb."""
    found = _find(call.token, call.path["id"])
    if found.queue not in conf.get().queues:  # its row was written when the project had that queue
        raise GatewayProblem("queue_unlisted")
    return _answered(verb, _act(verb, call, found.queue, found.id), {"id": found.id})


def permit_change(call: GatewayCall) -> None:
    """Refuses a change of a job to which the token does not lead. A job that is gone may have been of any task."""
    with suppress(ValueError):  # such an id was refused before
        found = handles.get(ids.parse(call.path["id"]))
        if found is not None:
            _visible(call.token, found)


def permit_key(call: GatewayCall) -> tuple[str, str]:
    """The key and the queue of a change by key."""
    key, queue = placement.key(call.body["key"], "/key"), call.body["queue"]
    if not call.token.allows("queues", queue):
        raise GatewayProblem("queue_denied", "/queue")
    if queue not in conf.get().queues:
        raise GatewayProblem("queue_unlisted", "/queue")
    return key, queue


def change_of_key(verb: Verb, call: GatewayCall) -> GatewayAnswer:
    """The same to all jobs of a key that are not finished; a requeue, to the latest. Of a token that leads to some tasks only, to the
    one that holds the key, if its task is one of these.
    """
    key, queue = permit_key(call)
    if call.token.allows_all("tasks"):
        said = _act(verb, call, queue, key=key)
    else:
        id = where.latest_of_key(queue, key) if verb is VERBS["requeue"] else None
        one = _visible(call.token, handles.get(id) if id else handles.get(key=key, queue=queue))
        said = _act(verb, call, queue, one.id)
    if said is Change.UNKNOWN:
        raise GatewayProblem("job_unknown")
    return _answered(verb, said, {"queue": queue, "key": key})


def _act(verb: Verb, call: GatewayCall, queue: str, job: UUID | None = None, key: str | None = None) -> Change:
    more: dict[str, Any] = {"abort": call.body.get("abort", False)} if verb.aborts else {}
    if verb.needs_date:
        more = placement.date(call.body)
    actor, reason = call.token.actor, call.body.get("reason", "")
    if job is not None and verb is VERBS["cancel"]:  # a cancel of a merged job goes on to the holder, if the token leads there
        return changes.one(Cancel(actor, reason, follows=partial(_leads_to, call.token), **more), job, queue)
    act = acts.requeue if verb is VERBS["requeue"] else verb.act  # the act of the verb is one of a person
    return act(job, key=key, queue=queue, actor=actor, reason=reason, **more)


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
    if found is None or not _allows(token, found):
        raise GatewayProblem("job_unknown")
    return found


def _leads_to(token: Token, id: UUID) -> bool:
    """Whether the token leads to the job of that id, whose task never changes."""
    found = handles.get(id)
    return found is not None and _allows(token, found)


def _allows(token: Token, found: handles.Job) -> bool:
    return token.allows("queues", found.queue) and token.allows("tasks", found.task)


def _place(error: PayloadError, body: dict[str, Any]) -> str:
    """Of the argument that an error is about."""
    argument = error.fields.get("argument")
    return pointer("kwargs", argument) if argument in body.get("kwargs", {}) else "/args"
