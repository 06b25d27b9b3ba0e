"""What schedule, push, deliver and offer have in common: the options that a body may have, and the answer when the job is put in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from uuid import UUID
from zlib import crc32

from django.db import IntegrityError

from django_delayq import clock, codec, conf, ids
from django_delayq.console.overview import DOWN
from django_delayq.contrib.gateway.exchange import GatewayAnswer, GatewayCall
from django_delayq.contrib.gateway.problems import GatewayProblem, pointer
from django_delayq.exceptions import ConfigError, KeyTaken, PayloadError, PayloadTooLarge
from django_delayq.producer import where
from django_delayq.producer.options import NONE
from django_delayq.producer.schedule import put_in
from django_delayq.producer.stores import stores
from django_delayq.shared_name import NAMED
from django_delayq.states import CARRIED, PERIODIC, SCHEDULED_BY, EndingKind
from django_delayq.store.inspector import JobView
from django_delayq.store.record import validate_key
from django_delayq.text import visible

LONGEST_DETAIL: Final = 1_000
DISPLACES: Final = {"replace": "cancel", "earliest": "reschedule", "latest": "reschedule"}  # what a policy may do to the holder


@dataclass(frozen=True, slots=True)
class Proposed:
    """A job that a request asks for. `place`: of a payload that cannot be, in its body."""

    kind: Any
    options: dict[str, Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    place: Callable[[PayloadError, dict[str, Any]], str]


def put(call: GatewayCall, asked: Proposed) -> GatewayAnswer:
    """Puts it in: 201; 200, where another job holds the key and stands for it; 202, where its row is committed and Redis has not
    confirmed it, so that nobody knows yet whether another holds the key.
    """
    options = asked.options
    queue, policy = options["queue"], options["on_conflict"]
    if call.again and (found := _before(call, queue, policy)) is not None:
        return found
    try:
        job = put_in(asked.kind, NONE.but(options, asked.kind.name), asked.args, asked.kwargs, call.job, turn=crc32(call.job.bytes))
    except KeyTaken as error:
        raise _held(error.holder) from None
    except PayloadTooLarge as error:
        place = asked.place(error, {})
        raise GatewayProblem("payload_size", place, size=error.fields["size"], limit=error.fields["limit"]) from None
    except PayloadError as error:
        raise GatewayProblem("arguments", asked.place(error, call.body), cause=told(error)) from None
    except ConfigError as error:
        raise GatewayProblem("options", "", cause=told(error)) from None
    except IntegrityError:  # another process has carried out the same request meanwhile
        if (found := _before(call, queue, policy)) is not None:
            return found
        raise
    return _scheduled(job.id, queue, job.key, job.created, job.due_ms)


def options(call: GatewayCall, queue: str, *payload: str) -> dict[str, Any]:
    """The options of `schedule`, each looked at by itself, so that what is wrong has a place. `payload`: the members that are JSON of
    the caller's, beside meta.
    """
    body = call.body
    found: dict[str, Any] = {name: body[name] for name in ("priority", "max_attempts") if name in body}
    found |= {"queue": queue, "on_conflict": body.get("on_conflict", "error" if "key" in body else "keep")}
    for name in (*payload, "meta"):
        try:
            codec.check(body.get(name), name)
        except PayloadError as error:
            raise GatewayProblem("arguments", pointer(name), cause=told(error)) from None
    if "key" in body:
        found["key"] = key(body["key"], "/key")
        _check_displaces(call, found["on_conflict"])
    elif "on_conflict" in body:
        raise GatewayProblem("field_missing", "/key")
    if "delay" in body or "run_at" in body:
        found |= date(body)
    if "expires" in body:
        found["expires"] = _expiry(body["expires"])
    return found | {"meta": {**_meta(body), SCHEDULED_BY: call.token.actor}}


def _check_displaces(call: GatewayCall, on_conflict: str) -> None:
    """What displaces another job needs the verb that would end or move it."""
    needed = DISPLACES.get(on_conflict)
    if needed is not None and not call.token.allows("verbs", needed):
        raise GatewayProblem("verb_denied", "/on_conflict", verb=needed)


def _expiry(given: Any) -> Any:
    dated = isinstance(given, str) and "T" in given  # durations have small letters
    return _moment(given, "/expires") if dated else duration(given, "/expires")


def _meta(body: dict[str, Any]) -> dict[str, Any]:
    meta: dict[str, Any] = body.get("meta", {})
    for name in (SCHEDULED_BY, CARRIED, PERIODIC, NAMED):
        if name in meta:
            raise GatewayProblem("field_value", pointer("meta", name), cause="This name is taken by the package.")
    return meta


def allowed(call: GatewayCall, usual: str) -> str:
    """The queue that a body names, else the usual one.

    Raises:
        GatewayProblem: queue_denied, queue_unlisted.
    """
    queue = str(call.body.get("queue", usual))
    if not call.token.allows("queues", queue):
        raise GatewayProblem("queue_denied", "/queue")
    if queue not in conf.get().queues:
        raise GatewayProblem("queue_unlisted", "/queue")
    return queue


def date(body: dict[str, Any]) -> dict[str, Any]:
    """Its delay or its run_at, as `schedule` takes it."""
    if ("delay" in body) == ("run_at" in body):
        raise GatewayProblem("field_value", "/run_at" if "run_at" in body else "/delay", cause="Give either delay or run_at.")
    if "delay" in body:
        return {"delay": duration(body["delay"], "/delay")}
    return {"run_at": _moment(body["run_at"], "/run_at")}


def duration(given: Any, place: str) -> clock.Delay:
    """A duration, as it was given: seconds, or text as `clock.Delay` has it.

    Raises:
        GatewayProblem: field_value: it is none.
    """
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


def key(given: str, place: str) -> str:
    """A business key.

    Raises:
        GatewayProblem: field_value: it cannot be one.
    """
    try:
        return validate_key(given)
    except PayloadError as error:
        raise _wrong(place, error) from None


def _before(call: GatewayCall, queue: str, policy: str) -> GatewayAnswer | None:
    """What came of the same request when it was carried out before; None: no row tells of that. Of redis durability none does; the same
    job sent twice is one.
    """
    partitions = conf.get().queue(queue).served
    row = where.row_of(call.job) if len(partitions) == 1 else where.row_in_any(call.job, partitions)
    if row is None:
        return None
    if row.ending == EndingKind.MERGED and row.holder is not None:
        if policy in ("error", "replace"):  # the latter where the holder ran and could not be replaced
            raise _held(row.holder)
        return _scheduled(row.holder, queue, row.record.key, False, None)
    id = row.record.id
    view = _seen(queue, id)
    due_ms = view.date_ms if view is not None and view.state == "scheduled" else row.run_at_ms
    return _scheduled(id, queue, row.record.key, True if row.published or view is not None else None, due_ms)


def _seen(queue: str, id: UUID) -> JobView | None:
    """As Redis knows it; None also where Redis does not answer."""
    try:
        with stores.guarded(queue, ids.partition(id)):
            return stores.inspector().job(queue, id)
    except DOWN:
        return None


def _scheduled(id: UUID, queue: str, key: str, created: bool | None, due_ms: int | None) -> GatewayAnswer:
    run_at = None if due_ms is None else clock.from_ms(due_ms)
    body = {"id": id, "queue": queue, "key": key, "created": created, "run_at": run_at}
    return GatewayAnswer(status={True: 201, False: 200, None: 202}[created], body=body)


def _held(holder: UUID) -> GatewayProblem:
    return GatewayProblem("key_held", "/key", more={"holder": ids.short(holder)})


def _wrong(place: str, error: Exception) -> GatewayProblem:
    """A value that cannot be, in the words of the error."""
    return GatewayProblem("field_value", place, cause=told(error))


def told(error: Exception) -> str:
    """What an error says, as strangers may read it."""
    return visible(str(error))[:LONGEST_DETAIL]
