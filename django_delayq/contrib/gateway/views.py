"""The views: jobs, tasks and queues, deliveries and offers, messages. `ROUTES` in `urls.py` maps requests to them."""

from __future__ import annotations

import base64
import binascii
import inspect
import json
import re
from functools import partial
from typing import Any, Final, NamedTuple, cast
from uuid import UUID

from django_delayq import clock, codec, conf, durations, ids
from django_delayq.conf import QueueConfig
from django_delayq.console import operations
from django_delayq.console.export import job_document, plain, redis_document
from django_delayq.console.overview import DOWN
from django_delayq.console.selection import Selection
from django_delayq.console.verbs import VERBS, Verb
from django_delayq.contrib.gateway import enqueue, openapi, parsing, permissions
from django_delayq.contrib.gateway.dispatch import GatewayCall
from django_delayq.contrib.gateway.enqueue import NewJob
from django_delayq.contrib.gateway.idempotency import DONE, LOST, settle_once
from django_delayq.contrib.gateway.models import Token
from django_delayq.contrib.gateway.responses import GatewayAnswer, GatewayProblem, pointer
from django_delayq.exceptions import ConfigError, PayloadError, TooManyJobs
from django_delayq.messages.message import Holder, Message, MessageBatch, lease_of, next_delay_ms, put_off_outcome
from django_delayq.messages.pull import Ask, taken
from django_delayq.messages.push import KIND
from django_delayq.models import Job, Operation
from django_delayq.producer import acts, changes, lookup
from django_delayq.producer import job as handles
from django_delayq.producer.changes import Cancel
from django_delayq.producer.stores import stores
from django_delayq.producer.task import Task, registry
from django_delayq.states import NO_LIMIT, Change
from django_delayq.store.reads.inspector import JobView
from django_delayq.store.reads.queue_depth import QueueDepth, summed
from django_delayq.store.scripts.queue import Kind, Outcome
from django_delayq.store.scripts.record import JobRecord, validate_key

HIDDEN: Final = "displaced by a job that this token cannot access"
# The names of `delayq status --json`, without who paused the queue and why: clients must not see people of the project.
FIGURES: Final = ("queue", "scheduled", "due", "running", "retrying", "failed", "oldest_late_ms", "next_due_ms", "paused_ms")
_REST: Final = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
BODIES: Final = ("json", "text", "base64")
FENCE: Final = re.compile(r"([1-9][0-9]{0,8})/([A-Za-z0-9]{1,64})")  # the attempt, and the nonce of its claim
OPERATED: Final = {"reason": "", "limit": operations.LIMIT, "over": 0, "dry_run": False}  # members of a request, and their defaults
NO_ATTEMPT_LEFT: Final = "no attempt is left"


def schedule(call: GatewayCall) -> GatewayAnswer:
    """Schedule a registered task."""
    task, queue = permissions.task_and_queue(call)
    options = enqueue.options(call, queue, "args", "kwargs")
    args, kwargs = tuple(call.body.get("args", ())), call.body.get("kwargs", {})
    return enqueue.put(call, NewJob(task, options, args, kwargs, _place_of_argument))


def _place_of_argument(error: PayloadError, body: dict[str, Any]) -> str:
    argument = error.fields.get("argument")
    return pointer("kwargs", argument) if argument in body.get("kwargs", {}) else "/args"


def get(call: GatewayCall) -> GatewayAnswer:
    """Get a job, with its row and its state in Redis."""
    return _job_answer(call.token, permissions.find_job(call.token, call.path["id"]))


def find(call: GatewayCall) -> GatewayAnswer:
    """Find the unfinished job that has a given key. The answer is that of `get`."""
    key, queue = call.query["key"], call.query["queue"]
    try:
        validate_key(key)
    except PayloadError:  # no job can have it
        raise GatewayProblem("job_unknown") from None
    if not call.token.allows("queues", queue) or queue not in conf.get().queues:
        raise GatewayProblem("job_unknown")
    found = handles.get(key=key, queue=queue, scope=call.token.only_scope or None)
    return _job_answer(call.token, permissions.visible(call.token, found))


def _job_answer(token: Token, found: handles.Job) -> GatewayAnswer:
    row = Job.objects.filter(pk=found.id).first()
    away, view = False, None
    try:
        view = stores.view_of(found.id, found.queue)
    except DOWN:
        if row is None:
            raise
        away = True
    state = row.state if away and row is not None else found.state
    body = {
        "id": found.id,
        "queue": found.queue,
        "state": state,
        "job": None if row is None else _row_document(token, row, view),
        "redis": None if view is None else _redis_document(token, view),
        "redis_answers": not away,
    }
    return GatewayAnswer(status=200, body=body)


def _row_document(token: Token, row: Job, view: JobView | None) -> dict[str, Any]:
    """Without the id of the job that replaced it, unless the token can access that job."""
    found = job_document(row, view)
    if row.merged_into is not None and not permissions.can_access(token, row.merged_into):
        found["error"] = HIDDEN
    return found


def _redis_document(token: Token, view: JobView) -> dict[str, Any]:
    """Without the name of the person who asked to cancel the job."""
    found = redis_document(view)
    found["cancel_requested"] = bool(found.pop("cancel_by"))
    holder = view.name_holder
    if holder is not None and not permissions.can_access(token, holder):
        found["name_held_by"] = None
    return found


def change(verb: Verb, call: GatewayCall) -> GatewayAnswer:
    """Applies a verb to one job. The status is 200 if it had an effect, otherwise 409."""
    found = permissions.find_job(call.token, call.path["id"])
    if found.queue not in conf.get().queues:  # the queue was removed from the settings
        raise GatewayProblem("queue_unlisted")
    return _change_answer(verb, _apply(verb, call, found.queue, found.id), {"id": found.id})


def change_by_key(verb: Verb, call: GatewayCall) -> GatewayAnswer:
    """Applies a verb to all unfinished jobs with a key; a requeue, to the latest job. If the token has access only to some tasks or to
    one scope, applies it only to the job that holds the key.
    """
    key, queue = permissions.key_and_queue(call)
    scope = call.token.only_scope or None
    if call.token.only is None and scope is None:
        result = _apply(verb, call, queue, key=key)
    else:
        id = lookup.latest_of_key(*lookup.keyed(key, queue, None, scope)) if verb is VERBS["requeue"] else None
        one = permissions.visible(call.token, handles.get(id) if id else handles.get(key=key, queue=queue, scope=scope))
        result = _apply(verb, call, queue, one.id)
    if result is Change.UNKNOWN:
        raise GatewayProblem("job_unknown")
    return _change_answer(verb, result, {"queue": queue, "key": key})


def _apply(verb: Verb, call: GatewayCall, queue: str, job: UUID | None = None, key: str | None = None) -> Change:
    more: dict[str, Any] = {"abort": call.body.get("abort", False)} if verb.name == "cancel" else {}
    if verb.needs_date:
        more = parsing.date(call.body)
    actor, reason = call.token.actor, call.body.get("reason", "")
    if job is not None and verb is VERBS["cancel"]:  # of a merged job, it cancels the holder if the token can access it
        return changes.one(Cancel(actor, reason, follows=partial(permissions.can_access, call.token), **more), job, queue)
    act = acts.requeue if verb is VERBS["requeue"] else verb.act  # the act of the verb is for people
    return act(job, key=key, queue=queue, actor=actor, reason=reason, **more)


def _change_answer(verb: Verb, result: Change, named: dict[str, Any]) -> GatewayAnswer:
    body = {**named, "change": result.value}
    if result not in verb.effects:
        raise GatewayProblem("not_changed", more=json.loads(json.dumps(body, default=plain)), change=result.value)
    return GatewayAnswer(status=200, body=body)


def operate(call: GatewayCall) -> GatewayAnswer:
    """Change all jobs of a queue that match a search. A worker carries this out."""
    queue, body, token = permissions.operated_queue(call), call.body, call.token
    if call.again and (started := Operation.objects.filter(pk=call.job).first()):
        return _operation_answer(202, started)
    given: dict[str, Any] = {name: body.get(name, usual) for name, usual in OPERATED.items()}
    given |= {"when": parsing.date(body) if {"delay", "run_at"} & body.keys() else {}, "scope": token.only_scope}
    jobs, wanted = None if token.only is None else Job.objects.filter(task__in=token.only), Selection(queue=queue, text=body["search"])
    try:
        with parsing.problem_of(ConfigError, code="options", place=""):
            planned = operations.plan(body["verb"], wanted, jobs=jobs, actor=token.actor, id=call.job, **given)
    except TooManyJobs as error:
        raise GatewayProblem("too_many_jobs", "/search", **error.fields) from None
    return _operation_answer(200, planned) if given["dry_run"] else _operation_answer(202, operations.start(planned))


def operation(call: GatewayCall) -> GatewayAnswer:
    """Get the progress of an operation that the token has started."""
    return _operation_answer(200, permissions.find_operation(call.token, call.path["operation"]))


def _operation_answer(status: int, found: Operation) -> GatewayAnswer:
    named = {"id": None, "stage": None} if found._state.adding else {"id": found.pk, "stage": found.stage}
    return GatewayAnswer(status=status, body={**named, "jobs": found.expected, "seen": found.seen, "counts": found.counts})


def queues(call: GatewayCall) -> GatewayAnswer:
    """Get the figures of all queues that the token can access."""
    names = [name for name in conf.get().queues if call.token.allows("queues", name)]
    return GatewayAnswer(status=200, body={"queues": list(map(_figures, _depths(names)))})


def queue(call: GatewayCall) -> GatewayAnswer:
    """Get the figures of a queue."""
    name = call.path["queue"]
    if name not in conf.get().queues or not call.token.allows("queues", name):
        raise GatewayProblem("queue_unknown")
    return GatewayAnswer(status=200, body=_figures(_depths([name])[0]))


def _depths(names: list[str]) -> list[QueueDepth]:
    found, missing = stores.from_each(names, lambda reach: stores.inspector(reach).by_partition(names))
    if missing:  # a client would take incomplete figures for complete ones
        raise missing.first
    return list(map(summed, found))


def _figures(depth: QueueDepth) -> dict[str, Any]:
    return {name: getattr(depth, name) for name in FIGURES}


def tasks(call: GatewayCall) -> GatewayAnswer:
    """List the tasks that the token can schedule. Each has its parameters."""
    found = [task for task in map(registry.get, registry.names()) if permissions.may_schedule(call.token, task)]
    return GatewayAnswer(status=200, body={"tasks": list(map(_task_document, found))})


def _task_document(task: Task[..., Any]) -> dict[str, Any]:
    parameters = [
        {"name": one.name, "kind": one.kind.name.lower(), "required": one.default is one.empty and one.kind not in _REST}
        for one in task.signature.parameters.values()
    ]
    return {"task": task.name, "queue": task.queue, "parameters": parameters}


def deliver(call: GatewayCall) -> GatewayAnswer:
    """Schedule an HTTP request, which workers retry until the response is 2xx. The worker checks the address of the host when it sends
    the request.
    """
    http, queue = permissions.delivery_settings(call)
    from django_delayq.targets import delivery  # a project without deliveries does not load it

    body = call.body
    options = enqueue.options(call, queue, "json", "text", "headers")
    content = _content(body)
    timeout = parsing.duration(body["timeout"], "/timeout") if "timeout" in body else None
    if timeout is not None and durations.seconds(timeout) > http.timeout:
        raise GatewayProblem("field_value", "/timeout", cause=f"The maximum in this project is {durations.text(http.timeout)}.")
    given: dict[str, Any] = {name: body[name] for name in ("method", "headers", "secret", "redirects") if name in body}
    with parsing.problem_of(ConfigError, code="options", place=""):
        bound, kwargs = delivery.prepared(body["url"], **content, **given, timeout=timeout, **cast("Any", options))
    return enqueue.put(call, NewJob(bound.task, options, (), kwargs, lambda *_: ""))


def _content(body: dict[str, Any]) -> dict[str, Any]:
    """The content of the request, as arguments of `deliver`."""
    given = [name for name in BODIES if name in body]
    if len(given) > 1:
        raise GatewayProblem("field_value", pointer(given[1]), cause=f"Give one of {', '.join(BODIES)}.")
    if "json" in body:
        return {"json": body["json"]}
    if "base64" not in body:
        return {"data": body.get("text")}
    try:
        return {"data": base64.b64decode(body["base64"], validate=True)}
    except (binascii.Error, ValueError):
        raise GatewayProblem("field_value", "/base64", cause="It must be base64.") from None


def offer(call: GatewayCall) -> GatewayAnswer:
    """Schedule a message for a Redis list or stream."""
    queue = permissions.offer_queue(call)
    from django_delayq.targets.offering import offers  # a project without offers does not load it

    options = enqueue.options(call, queue, "message")
    return enqueue.put(call, NewJob(offers, options, (call.body["message"],), {"to": call.body["to"]}, lambda *_: "/message"))


def push(call: GatewayCall) -> GatewayAnswer:
    """Add a message to a queue."""
    queue = permissions.message_queue(call)
    options = enqueue.options(call, queue.name, "body")
    return enqueue.put(call, NewJob(KIND, options, (call.body["body"],), {}, lambda *_: "/body"))


async def pull(call: GatewayCall) -> GatewayAnswer:
    """Claim due messages. If there are none, waits for the first, but not longer than the server allows."""
    queue, body = permissions.message_queue(call), call.body
    seconds = durations.seconds(parsing.duration(body.get("wait", 0), "/wait"))
    if seconds > openapi.LONGEST_WAIT:
        raise GatewayProblem("field_value", "/wait", cause=f"It must be at most {openapi.LONGEST_WAIT:g} seconds.")
    seconds = min(seconds, call.longest_wait)
    older_ms = durations.milliseconds(parsing.duration(body.get("older_than", 0), "/older_than"))
    ask = Ask(want=body.get("n", 1), lease_ms=_lease_ms(body, queue), older_ms=older_ms)
    batch = await taken(queue.name, ask, seconds, call.token.actor)
    found = [_message_document(message, batch) for message in batch]
    return GatewayAnswer(status=200, body={"messages": found, "lease": batch.lease_ms / 1000, "wait": seconds})


def _message_document(message: Message, batch: MessageBatch) -> dict[str, Any]:
    id, nonce = message.held
    found = {name: getattr(message, name) for name in ("body", "key", "meta", "attempt", "run_at")}
    found |= {"max_attempts": message.max_attempts or None, "lease_end": clock.from_ms(batch.lease_end_ms)}
    return {"id": id, "fence": f"{message.attempt}/{nonce}", **found}


class Settlement(NamedTuple):
    """One message in a request to settle messages. `reason` and `delay_ms`: what the consumer gave, if anything."""

    id: str
    attempt: int
    nonce: str
    reason: str
    delay_ms: int | None

    def outcome(self, kind: Kind, delay_ms: int, reason: str) -> Outcome:
        """Its outcome, for Redis."""
        return put_off_outcome(kind, self.id, self.attempt, self.nonce, delay_ms, reason)


def settle(verb: str, call: GatewayCall) -> GatewayAnswer:
    """Settles several messages, and answers for each."""
    queue = permissions.message_queue(call)
    given = [(pointer("messages", number), one["id"], one) for number, one in enumerate(call.body["messages"])]
    answers = _settle(verb, call, queue, _settlements(given))
    return GatewayAnswer(status=200, body={"messages": answers})


def settle_one(verb: str, call: GatewayCall) -> GatewayAnswer:
    """Settles one message. A lost lease is 409."""
    queue = permissions.message_queue(call)
    (answer,) = _settle(verb, call, queue, _settlements([("", call.path["id"], call.body)]))
    if answer["answer"] == LOST:
        raise GatewayProblem("lease_lost", more={"id": answer["id"]})
    return GatewayAnswer(status=200, body=answer)


def _settlements(given: list[tuple[str, str, dict[str, Any]]]) -> list[Settlement]:
    """Parses all messages first: if one of them is invalid, none is settled."""
    found, seen = [], set()
    for place, id, one in given:
        short = _message_id(id, place)
        if short in seen:
            raise GatewayProblem("field_value", f"{place}/id", cause="The message is listed twice.")
        seen.add(short)
        fence = FENCE.fullmatch(one["fence"])
        if fence is None:
            raise GatewayProblem("field_value", f"{place}/fence", cause="It must be the fence that you received with the message.")
        delay_ms = durations.milliseconds(parsing.duration(one["delay"], f"{place}/delay")) if "delay" in one else None
        found.append(Settlement(short, int(fence[1]), fence[2], one.get("reason", ""), delay_ms))
    return found


def _message_id(given: str, place: str) -> str:
    try:
        return ids.short(ids.parse(given))
    except ValueError:
        if not place:
            raise GatewayProblem("job_unknown") from None
        raise GatewayProblem("field_value", f"{place}/id", cause="It must be the id of a message.") from None


def _retried(queue: QueueConfig, settlements: list[Settlement]) -> list[Outcome]:
    """Takes the delay from the request, otherwise from the backoff in the record of the message."""
    views = stores.inspector().jobs(queue.name, [ids.full(one.id) for one in settlements])
    outcomes = []
    for one, view in zip(settlements, views, strict=True):
        record = None if view is None else view.record
        most = NO_LIMIT if record is None else record.max_attempts
        if one.attempt >= most:
            outcomes.append(one.outcome("fail", 0, one.reason or NO_ATTEMPT_LEFT))
            continue
        options = {} if record is None else _options(record)
        delay_ms = next_delay_ms(options, queue, one.attempt) if one.delay_ms is None else one.delay_ms
        outcomes.append(one.outcome("retry", delay_ms, one.reason))
    return outcomes


def _options(record: JobRecord) -> dict[str, Any]:
    try:
        return codec.decode_payload(record.payload)[2]
    except PayloadError:  # the record was changed after the pull; the next pull reports it
        return {}


def _extend(call: GatewayCall, queue: QueueConfig, settlements: list[Settlement]) -> list[dict[str, Any]]:
    lease_ms = _lease_ms(call.body, queue)
    answers = _holder(call, queue).extend([(one.id, one.nonce) for one in settlements], lease_ms)
    found = []
    for one in settlements:
        held = answers[one.id] in ("ok", "cancel", "abort")
        more = {"lease": lease_ms / 1000, "cancel_requested": answers[one.id] != "ok"} if held else {}
        found.append({"id": one.id, "answer": DONE if held else LOST, **more})
    return found


def _settle(verb: str, call: GatewayCall, queue: QueueConfig, settlements: list[Settlement]) -> list[dict[str, Any]]:
    if verb == "extend":
        return _extend(call, queue, settlements)
    if verb == "retry":
        outcomes = _retried(queue, settlements)
    elif verb == "ack":
        outcomes = [Outcome(one.id, one.attempt, one.nonce, "ack") for one in settlements]
    elif verb == "snooze":
        outcomes = [one.outcome("snooze", one.delay_ms or 0, one.reason) for one in settlements]
    else:
        default = f"failed by its consumer, {call.token.actor}"
        outcomes = [one.outcome("fail", 0, one.reason or default) for one in settlements]
    answers = settle_once(_holder(call, queue), verb, outcomes, again=call.again)
    return [{"id": one.id, "answer": answer} for one, answer in zip(outcomes, answers, strict=True)]


def _holder(call: GatewayCall, queue: QueueConfig) -> Holder:
    return Holder(call.token.actor, queue, stores.queue(queue.name, 0))


def _lease_ms(body: dict[str, Any], queue: QueueConfig) -> int:
    if "lease" not in body:
        return queue.lease_ms
    try:
        return lease_of(parsing.duration(body["lease"], "/lease"), "lease")
    except ConfigError:
        raise GatewayProblem("field_value", "/lease", cause="It must be from 5 seconds to 12 hours.") from None
