"""What a token does with jobs: schedule, get, change."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from django.db import IntegrityError

from django_delayq import clock, codec, conf, ids
from django_delayq.console.documents import job_document, plain, redis_document
from django_delayq.console.overview import DOWN
from django_delayq.console.verbs import VERBS, Verb
from django_delayq.contrib.gateway.exchange import GatewayAnswer, GatewayCall
from django_delayq.contrib.gateway.models import Token
from django_delayq.contrib.gateway.problems import GatewayProblem, pointer
from django_delayq.exceptions import ConfigError, KeyTaken, PayloadError, PayloadTooLarge
from django_delayq.models import Job
from django_delayq.producer import job as handles
from django_delayq.producer import where
from django_delayq.producer.options import NONE
from django_delayq.producer.schedule import put_in
from django_delayq.producer.stores import stores
from django_delayq.producer.task import Task, registry
from django_delayq.record import validate_key
from django_delayq.states import CARRIED, PERIODIC, Change, EndingKind
from django_delayq.store.inspector import JobView
from django_delayq.text import visible

SCHEDULED_BY: Final = "scheduled_by"  # in `meta`: the token, for the record
LONGEST_DETAIL: Final = 1_000
DISPLACES: Final = {"replace": "cancel", "earliest": "reschedule", "latest": "reschedule"}  # what a policy may do to the holder
CHANGES: Final = tuple(change.value for change in Change)


def schedule(call: GatewayCall) -> GatewayAnswer:
    """Puts a job in: 201; 200, where another job holds the key and stands for it; 202, where its row is committed and Redis has not
    confirmed it, so that nobody knows yet whether another holds the key.
    """
    task, queue = _permitted(call.token, call.body)
    options = _options(call, queue)
    if call.again and (found := _before(call, queue, options["on_conflict"])) is not None:
        return found
    try:
        job = put_in(task, NONE.but(options, task.name), tuple(call.body.get("args", ())), call.body.get("kwargs", {}), call.job)
    except KeyTaken as error:
        raise _held(error.holder) from None
    except PayloadTooLarge as error:
        raise GatewayProblem("payload_size", "/args", size=error.fields["size"], limit=error.fields["limit"]) from None
    except PayloadError as error:
        raise GatewayProblem("arguments", _place(error, call.body), cause=_told(error)) from None
    except ConfigError as error:
        raise GatewayProblem("options", "", cause=_told(error)) from None
    except IntegrityError:  # another process has carried out the same request meanwhile
        if (found := _before(call, queue, options["on_conflict"])) is not None:
            return found
        raise
    return _scheduled(job.id, queue, job.key, job.created, job.due_ms)


def get(call: GatewayCall) -> GatewayAnswer:
    """A job, as its row and Redis know it."""
    return _told_of(_find(call.token, call.path["id"]))


def _told_of(found: handles.Job) -> GatewayAnswer:
    row = Job.objects.using(conf.get().database).filter(pk=found.id).first()
    away, view = False, None
    try:
        with stores.guarded():
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
        "redis": None if view is None else redis_document(view),
        "redis_answers": not away,
    }
    return GatewayAnswer(status=200, body=body)


def find(call: GatewayCall) -> GatewayAnswer:
    """The unfinished job that holds a key, as `get` tells it."""
    key, queue = _key(call.query["key"], "query"), call.query["queue"]
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
    key, queue = _key(call.body["key"], "/key"), call.body["queue"]
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
        more = _date(call.body)
    return verb.act(*job, **named, actor=call.token.actor, reason=call.body.get("reason", ""), **more)


def _answered(verb: Verb, said: Change, named: dict[str, Any]) -> GatewayAnswer:
    body = {**named, "change": said.value}
    if said not in verb.effects:
        raise GatewayProblem("not_changed", more=json.loads(json.dumps(body, default=plain)), change=said.value)
    return GatewayAnswer(status=200, body=body)


def _permitted(token: Token, body: dict[str, Any]) -> tuple[Task[..., Any], str]:
    """The task that is to be scheduled, and its queue."""
    name = body["task"]
    if not token.allows("tasks", name):
        raise GatewayProblem("task_denied", "/task")
    task = registry.find(name)
    if task is None:
        raise GatewayProblem("task_unknown", "/task")
    if task.own or not token.may_schedule(name, task.queue):
        raise GatewayProblem("task_denied", "/task")
    queue = body.get("queue", task.queue)
    if not token.allows("queues", queue):
        raise GatewayProblem("queue_denied", "/queue")
    if queue not in conf.get().queues:
        raise GatewayProblem("queue_unlisted", "/queue")
    return task, queue


def _options(call: GatewayCall, queue: str) -> dict[str, Any]:
    """The options of `schedule`, each looked at by itself, so that what is wrong has a place."""
    body = call.body
    found: dict[str, Any] = {name: body[name] for name in ("priority", "max_attempts") if name in body}
    found |= {"queue": queue, "on_conflict": body.get("on_conflict", "error" if "key" in body else "keep")}
    for name in ("args", "kwargs", "meta"):
        try:
            codec.check(body.get(name), name)
        except PayloadError as error:
            raise GatewayProblem("arguments", pointer(name), cause=_told(error)) from None
    if "key" in body:
        found["key"] = _key(body["key"], "/key")
        needed = DISPLACES.get(found["on_conflict"])
        if needed is not None and not call.token.allows("verbs", needed):
            raise GatewayProblem("verb_denied", "/on_conflict", verb=needed)
    elif "on_conflict" in body:
        raise GatewayProblem("field_missing", "/key")
    if "delay" in body or "run_at" in body:
        found |= _date(body)
    if "expires" in body:
        given = body["expires"]
        dated = isinstance(given, str) and "T" in given  # durations have small letters
        found["expires"] = _moment(given, "/expires") if dated else _duration(given, "/expires")
    meta = body.get("meta", {})
    for name in (SCHEDULED_BY, CARRIED, PERIODIC):
        if name in meta:
            raise GatewayProblem("field_value", pointer("meta", name), cause="This name is taken by the package.")
    return found | {"meta": {**meta, SCHEDULED_BY: call.token.actor}}


def _date(body: dict[str, Any]) -> dict[str, Any]:
    if ("delay" in body) == ("run_at" in body):
        raise GatewayProblem("field_value", "/run_at" if "run_at" in body else "/delay", cause="Give either delay or run_at.")
    if "delay" in body:
        return {"delay": _duration(body["delay"], "/delay")}
    return {"run_at": _moment(body["run_at"], "/run_at")}


def _duration(given: Any, place: str) -> clock.Delay:
    try:
        clock.milliseconds(given)
    except (ValueError, TypeError) as error:
        raise _wrong(place, error) from None
    return given  # type: ignore[no-any-return]  # the schema has let numbers and text through


def _moment(given: str, place: str) -> datetime:
    try:
        found = datetime.fromisoformat(given)
        ms = clock.to_ms(found)
    except (ValueError, OverflowError):
        ms = -1
    if not 0 <= ms <= clock.LAST_MS:
        cause = "It must be a date of ISO 8601 with its time zone, from 1970 to 9999, such as 2030-01-31T18:00:00+01:00."
        raise GatewayProblem("field_value", place, cause=cause)
    return found


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


def _key(given: str, place: str) -> str:
    try:
        return validate_key(given)
    except PayloadError as error:
        if place == "query":
            raise GatewayProblem("job_unknown") from None
        raise _wrong(place, error) from None


def _before(call: GatewayCall, queue: str, policy: str) -> GatewayAnswer | None:
    """What came of the same request when it was carried out before; None: no row tells of that. Of redis durability none does; the same
    job sent twice is one.
    """
    row = where.row_of(call.job)
    if row is None:
        return None
    if row.ending == EndingKind.MERGED and row.holder is not None:
        if policy in ("error", "replace"):  # the latter where the holder ran and could not be replaced
            raise _held(row.holder)
        return _scheduled(row.holder, queue, row.record.key, False, None)
    view = _seen(queue, call.job)
    due_ms = view.date_ms if view is not None and view.state == "scheduled" else row.run_at_ms
    return _scheduled(call.job, queue, row.record.key, True if row.published or view is not None else None, due_ms)


def _seen(queue: str, id: UUID) -> JobView | None:
    """As Redis knows it; None also where Redis does not answer."""
    try:
        with stores.guarded():
            return stores.inspector().job(queue, id)
    except DOWN:
        return None


def _scheduled(id: UUID, queue: str, key: str, created: bool | None, due_ms: int | None) -> GatewayAnswer:
    run_at = None if due_ms is None else clock.from_ms(due_ms)
    body = {"id": id, "queue": queue, "key": key, "created": created, "run_at": run_at}
    return GatewayAnswer(status={True: 201, False: 200, None: 202}[created], body=body)


def _held(holder: UUID) -> GatewayProblem:
    return GatewayProblem("key_held", "/key", more={"holder": ids.short(holder)})


def _place(error: PayloadError, body: dict[str, Any]) -> str:
    """Of the argument that an error is about."""
    argument = error.fields.get("argument")
    return pointer("kwargs", argument) if argument in body.get("kwargs", {}) else "/args"


def _wrong(place: str, error: Exception) -> GatewayProblem:
    return GatewayProblem("field_value", place, cause=_told(error))


def _told(error: Exception) -> str:
    return visible(str(error))[:LONGEST_DETAIL]
