"""Schedules the jobs of schedule, push, deliver and offer: validates their options, and answers when the job is scheduled."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final
from uuid import UUID
from zlib import crc32

from django_delayq import clock, codec, conf, ids
from django_delayq.console.overview import DOWN
from django_delayq.contrib.gateway import parsing, permissions
from django_delayq.contrib.gateway.dispatch import GatewayCall
from django_delayq.contrib.gateway.responses import GatewayAnswer, GatewayProblem, pointer
from django_delayq.exceptions import ConfigError, KeyTaken, PayloadError, PayloadTooLarge
from django_delayq.job_meta import NAMED, ONLY, VERSION
from django_delayq.producer import lookup, outbox
from django_delayq.producer.options import NONE, OPTIONS, Planned, most_attempts
from django_delayq.producer.outbox.shapes import AlreadyScheduled, Once, TakenKey
from django_delayq.producer.put import RESENT_MS
from django_delayq.producer.schedule import put_in
from django_delayq.producer.stores import stores
from django_delayq.states import CARRIED, PERIODIC, SCHEDULED_BY, EndingKind
from django_delayq.store.reads.inspector import JobView

KEPT_MS: Final = 24 * 3_600_000  # an Idempotency-Key schedules one job in this time


@dataclass(frozen=True, slots=True)
class NewJob:
    """A job that a request asks for. `place`: returns the place in the body of an invalid payload."""

    kind: Planned
    options: dict[str, Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    place: Callable[[PayloadError, dict[str, Any]], str]


def put(call: GatewayCall, new: NewJob) -> GatewayAnswer:
    """Schedules the job. The status is 201; 200 if another job has the key and replaces this one; 202 if the row is committed but Redis
    has not confirmed it, so another job may have the key.
    """
    options = new.options
    queue, policy = options["queue"], options["on_conflict"]
    _check_attempts(new.kind, queue, options.get("max_attempts"))
    once = None if call.key is None else Once.of(call.token.scope, queue, call.key, KEPT_MS)
    taken = outbox.period_keys.find(once, stores.places.shared) if once is not None and call.again else None
    if taken is not None and (found := _earlier_answer(call, taken, queue, policy)) is not None:
        return found
    try:
        job = put_in(
            new.kind,
            NONE.but(options, new.kind.name),
            new.args,
            new.kwargs,
            call.job if taken is None else taken.job,
            turn=crc32(call.job.bytes),
            only=call.token.only,
            once=None if taken is not None else once,
        )
    except AlreadyScheduled:  # another process did it just now
        return put(replace(call, again=True), new)
    except KeyTaken as error:
        raise (GatewayProblem("key_denied", "/key") if error.code == "key_denied" else _key_held(error.holder)) from None
    except PayloadTooLarge as error:
        place = new.place(error, {})
        raise GatewayProblem("payload_size", place, size=error.fields["size"], limit=error.fields["limit"]) from None
    except PayloadError as error:
        raise GatewayProblem("arguments", new.place(error, call.body), cause=parsing.error_text(error)) from None
    except ConfigError as error:
        raise GatewayProblem("options", "", cause=parsing.error_text(error)) from None
    return _answer(job.id, queue, job.key, job.created, job.due_ms)


def options(call: GatewayCall, queue: str, *payload: str) -> dict[str, Any]:
    """The options of `schedule`. It validates each option separately, so that an error has a place. `payload`: the fields that contain
    JSON of the client, in addition to meta.
    """
    body = call.body
    for name in (*payload, "meta"):
        with parsing.problem_of(PayloadError, code="arguments", place=pointer(name)):
            codec.check(body.get(name), name)
    if "delay" in body and "run_at" in body:
        parsing.date(body)  # raises
    given = [(name, option) for name, option in OPTIONS.items() if name in body and option.gateway and name != "queue"]
    found = {name: read(body[name], pointer(name)) if (read := _READERS.get(option.kind)) else body[name] for name, option in given}
    if "once_for" in body and call.key is not None:
        cause = "Send either once_for or an Idempotency-Key."
        raise GatewayProblem("options", "/once_for", cause=cause)
    found.setdefault("on_conflict", "error" if "key" in body and "once_for" not in body else "keep")
    if "key" in body:
        permissions.check_policy(call, found["on_conflict"])
    elif "on_conflict" in body:
        raise GatewayProblem("field_missing", "/key")
    return found | {"queue": queue, "meta": {**_meta(body), SCHEDULED_BY: call.token.actor}}


def _expiry(value: Any, place: str) -> Any:
    dated = isinstance(value, str) and "T" in value  # durations contain only lower-case letters
    return parsing.moment(value, place) if dated else parsing.duration(value, place)


_READERS: Final[Mapping[str | None, Callable[[Any, str], Any]]] = {
    "duration": parsing.duration,
    "date": parsing.moment,
    "expiry": _expiry,
    "text": parsing.key,
}


def _check_attempts(kind: Planned, queue: str, given: int | None) -> None:
    """A client can lower the limit of the task or the queue, but not raise it."""
    most = most_attempts(kind.max_attempts, conf.get().queue(queue).max_attempts)
    if given is not None and most_attempts(given) > most:
        raise GatewayProblem("field_value", "/max_attempts", cause=f"It must be 1 to {most}, the limit of the task or its queue.")


def _meta(body: dict[str, Any]) -> dict[str, Any]:
    meta: dict[str, Any] = body.get("meta", {})
    for name in (SCHEDULED_BY, CARRIED, PERIODIC, NAMED, ONLY, VERSION):
        if name in meta:
            raise GatewayProblem("field_value", pointer("meta", name), cause="This name is reserved.")
    return meta


def _earlier_answer(call: GatewayCall, taken: TakenKey, queue: str, policy: str) -> GatewayAnswer | None:
    """The answer about a job that an earlier request scheduled. None: Redis may not have received the job, so it is sent again.

    The row of an ended job may be deleted, and Redis forgets the job an hour after its end. Then the answer only says that the job was
    committed, or sent if its durability is redis.
    """
    row = lookup.row_of(taken.job)
    if row is None:
        key = call.body.get("key", "")
        durable = conf.get().queue(queue).durability == "outbox"
        if not durable and taken.age_ms < RESENT_MS:
            return None
        view = _view(queue, taken.job)
        known = (durable and not key) or (view is not None and view.state != "finished")
        return _answer(taken.job, queue, key, True if known else None, None if view is None else view.date_ms)
    if row.ending == EndingKind.MERGED and row.holder is None:
        raise GatewayProblem("key_denied", "/key")
    if row.ending == EndingKind.MERGED and row.holder is not None:
        if policy in ("error", "replace"):  # replace: the holder was running
            raise _key_held(row.holder)
        return _answer(row.holder, queue, row.record.key, False, None)
    id = row.record.id
    view = _view(queue, id)
    due_ms = view.date_ms if view is not None and view.state == "scheduled" else row.run_at_ms
    return _answer(id, queue, row.record.key, True if row.published or row.far or view is not None else None, due_ms)


def _view(queue: str, id: UUID) -> JobView | None:
    """The job in Redis. None if Redis does not have it, or does not answer."""
    try:
        return stores.view_of(id, queue)
    except DOWN:
        return None


def _answer(id: UUID, queue: str, key: str, created: bool | None, due_ms: int | None) -> GatewayAnswer:
    run_at = None if due_ms is None else clock.from_ms(due_ms)
    body = {"id": id, "queue": queue, "key": key, "created": created, "run_at": run_at}
    return GatewayAnswer(status={True: 201, False: 200, None: 202}[created], body=body)


def _key_held(holder: UUID) -> GatewayProblem:
    return GatewayProblem("key_held", "/key", more={"holder": ids.short(holder)})
