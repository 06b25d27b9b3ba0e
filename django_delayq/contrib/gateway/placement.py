"""What schedule, push, deliver and offer have in common: the options that a body may have, and the answer when the job is put in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final
from uuid import UUID
from zlib import crc32

from django_delayq import clock, codec, conf, ids
from django_delayq.console.overview import DOWN
from django_delayq.contrib.gateway.exchange import GatewayAnswer, GatewayCall
from django_delayq.contrib.gateway.problems import GatewayProblem, pointer
from django_delayq.exceptions import ConfigError, KeyTaken, PayloadError, PayloadTooLarge
from django_delayq.producer import database, where
from django_delayq.producer.database import AlreadyScheduled, Once, TakenKey
from django_delayq.producer.options import NONE, Planned, most_attempts
from django_delayq.producer.schedule import put_in
from django_delayq.producer.stores import stores
from django_delayq.shared_name import NAMED
from django_delayq.states import CARRIED, PERIODIC, SCHEDULED_BY, EndingKind
from django_delayq.store.inspector import JobView
from django_delayq.store.record import validate_key
from django_delayq.text import visible
from django_delayq.token_limits import ONLY

LONGEST_DETAIL: Final = 1_000
KEPT_MS: Final = 24 * 3_600_000  # for so long a key schedules one job
RESENT_MS: Final = 50 * 60_000  # for so long Redis knows a job that it got: it knows an ended one for an hour
# The verb for what a policy may do to the holder.
DISPLACES: Final = {"replace": "cancel", "after": "cancel", "earliest": "reschedule", "latest": "reschedule"}


@dataclass(frozen=True, slots=True)
class Proposed:
    """A job that a request asks for. `place`: of a payload that cannot be, in its body."""

    kind: Planned
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
    _check_attempts(asked.kind, queue, options.get("max_attempts"))
    once = None if call.key is None else Once.of(call.token.scope, queue, call.key, KEPT_MS)
    taken = _taken(once) if once is not None and call.again else None
    if once is not None and taken is not None and (found := _before(call, taken, queue, policy)) is not None:
        return found
    try:
        job = put_in(
            asked.kind,
            NONE.but(options, asked.kind.name),
            asked.args,
            asked.kwargs,
            call.job if taken is None else taken.job,
            turn=crc32(call.job.bytes),
            only=call.token.only,
            once=None if taken is not None else once,
        )
    except AlreadyScheduled:  # by another process, at this moment
        return put(replace(call, again=True), asked)
    except KeyTaken as error:
        raise (GatewayProblem("key_denied", "/key") if error.code == "key_denied" else _held(error.holder)) from None
    except PayloadTooLarge as error:
        place = asked.place(error, {})
        raise GatewayProblem("payload_size", place, size=error.fields["size"], limit=error.fields["limit"]) from None
    except PayloadError as error:
        raise GatewayProblem("arguments", asked.place(error, call.body), cause=told(error)) from None
    except ConfigError as error:
        raise GatewayProblem("options", "", cause=told(error)) from None
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


def _check_attempts(kind: Planned, queue: str, given: int | None) -> None:
    """A program may have fewer attempts than its task or its queue allows, and not more."""
    most = most_attempts(kind.max_attempts, conf.get().queue(queue).max_attempts)
    if given is not None and most_attempts(given) > most:
        raise GatewayProblem("field_value", "/max_attempts", cause=f"It must be 1 to {most}: the task or its queue allows no more.")


def _expiry(given: Any) -> Any:
    dated = isinstance(given, str) and "T" in given  # durations have small letters
    return _moment(given, "/expires") if dated else duration(given, "/expires")


def _meta(body: dict[str, Any]) -> dict[str, Any]:
    meta: dict[str, Any] = body.get("meta", {})
    for name in (SCHEDULED_BY, CARRIED, PERIODIC, NAMED, ONLY):
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


def _taken(once: Once) -> TakenKey | None:
    """The job that an earlier request with this key has scheduled, or may have."""
    return database.need().find_key(once, conf.get().database)


def _before(call: GatewayCall, taken: TakenKey, queue: str, policy: str) -> GatewayAnswer | None:
    """The answer about a job that was scheduled before. None: Redis may not have got it, and knows it if it has; so it is sent again.

    The row of an ended job may be gone, and Redis forgets the job an hour after its end. All that is known then is that the job was
    committed, or, with redis durability, sent.
    """
    row = where.row_of(taken.job)
    if row is None:
        key = call.body.get("key", "")
        durable = conf.get().queue(queue).durability == "outbox"
        if not durable and taken.age_ms < RESENT_MS:
            return None
        view = _seen(queue, taken.job)
        known = (durable and not key) or (view is not None and view.state != "finished")
        return _scheduled(taken.job, queue, key, True if known else None, None if view is None else view.date_ms)
    if row.ending == EndingKind.MERGED and row.holder is None:
        raise GatewayProblem("key_denied", "/key")
    if row.ending == EndingKind.MERGED and row.holder is not None:
        if policy in ("error", "replace"):  # the latter where the holder ran and could not be replaced
            raise _held(row.holder)
        return _scheduled(row.holder, queue, row.record.key, False, None)
    id = row.record.id
    view = _seen(queue, id)
    due_ms = view.date_ms if view is not None and view.state == "scheduled" else row.run_at_ms
    return _scheduled(id, queue, row.record.key, True if row.published or row.far or view is not None else None, due_ms)


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
