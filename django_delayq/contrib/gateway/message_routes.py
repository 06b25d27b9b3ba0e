"""Messages for consumers that speak HTTP: push, pull, and the verbs that settle what was pulled."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from django_delayq import clock, codec, conf, ids
from django_delayq.conf import QueueConfig
from django_delayq.contrib.gateway import json_schemas, placement, settled_before
from django_delayq.contrib.gateway.exchange import GatewayAnswer, GatewayCall
from django_delayq.contrib.gateway.placement import Proposed
from django_delayq.contrib.gateway.problems import GatewayProblem, pointer
from django_delayq.contrib.gateway.settled_before import DONE, LOST
from django_delayq.exceptions import ConfigError, PayloadError
from django_delayq.messages import settling
from django_delayq.messages.message import Message, MessageBatch, lease_of
from django_delayq.messages.pull import taken
from django_delayq.messages.puller import Ask
from django_delayq.messages.push import KIND
from django_delayq.messages.settling import Holder
from django_delayq.producer.stores import stores
from django_delayq.states import NO_LIMIT
from django_delayq.store.queue import Outcome
from django_delayq.store.record import JobRecord

ANSWERS: Final = (DONE, LOST)
FENCE: Final = re.compile(r"([1-9][0-9]{0,8})/([A-Za-z0-9]{1,64})")  # the attempt, and the nonce of its claim
LAST: Final = "no attempt is left"


class ClaimTold(NamedTuple):
    """What a request says of one message: `place` of it in the body; `given`: its options."""

    place: str
    id: str
    attempt: int
    nonce: str
    given: dict[str, Any]


def push(call: GatewayCall) -> GatewayAnswer:
    """Puts a message in, as `schedule` does with a job."""
    queue = permit(call)
    options = placement.options(call, queue.name, "body")
    return placement.put(call, Proposed(KIND, options, (call.body["body"],), {}, lambda *_: "/body"))


async def pull(call: GatewayCall) -> GatewayAnswer:
    """Takes messages under a lease, and waits for the first as long as the caller likes, and may."""
    queue, body = permit(call), call.body
    seconds = clock.seconds(placement.duration(body.get("wait", 0), "/wait"))
    if seconds > json_schemas.LONGEST_WAIT:
        raise GatewayProblem("field_value", "/wait", cause=f"It must be {json_schemas.LONGEST_WAIT:g} seconds at most.")
    seconds = min(seconds, call.patience)
    older_ms = clock.milliseconds(placement.duration(body.get("older_than", 0), "/older_than"))
    ask = Ask(want=body.get("n", 1), lease_ms=_lease(body, queue, "/lease"), older_ms=older_ms)
    batch = await taken(queue.name, ask, seconds, call.token.actor)
    found = [_shown(message, batch) for message in batch]
    return GatewayAnswer(status=200, body={"messages": found, "lease": batch.lease_ms / 1000, "wait": seconds})


def settle(verb: str, call: GatewayCall) -> GatewayAnswer:
    """Tells of the ends of many messages in one call, and answers for each."""
    queue = permit(call)
    given = [(pointer("messages", number), one["id"], one) for number, one in enumerate(call.body["messages"])]
    answers = TELLERS[verb](call, queue, _told(given))
    return GatewayAnswer(status=200, body={"messages": answers})


def settle_one(verb: str, call: GatewayCall) -> GatewayAnswer:
    """The same of one: a lease that was lost is 409."""
    queue = permit(call)
    (answer,) = TELLERS[verb](call, queue, _told([("", call.path["id"], call.body)]))
    if answer["answer"] == LOST:
        raise GatewayProblem("lease_lost", more={"id": answer["id"]})
    return GatewayAnswer(status=200, body=answer)


def _ack(call: GatewayCall, queue: QueueConfig, told: list[ClaimTold]) -> list[dict[str, Any]]:
    return _settled(call, queue, "ack", [Outcome(one.id, one.attempt, one.nonce, "ack") for one in told])


def _snooze(call: GatewayCall, queue: QueueConfig, told: list[ClaimTold]) -> list[dict[str, Any]]:
    ends = [settling.put_off("snooze", one.id, one.attempt, one.nonce, _delay(one), _reason(one)) for one in told]
    return _settled(call, queue, "snooze", ends)


def _fail(call: GatewayCall, queue: QueueConfig, told: list[ClaimTold]) -> list[dict[str, Any]]:
    usual = f"failed by its consumer, {call.token.actor}"
    ends = [settling.put_off("fail", one.id, one.attempt, one.nonce, 0, _reason(one) or usual) for one in told]
    return _settled(call, queue, "fail", ends)


def _retry(call: GatewayCall, queue: QueueConfig, told: list[ClaimTold]) -> list[dict[str, Any]]:
    """By the ladder of the message, unless a delay is given: that stands in its record."""
    for one in told:
        _delay(one)
    views = stores.inspector().jobs(queue.name, [ids.full(one.id) for one in told])
    ends = []
    for one, view in zip(told, views, strict=True):
        record = None if view is None else view.record
        most = NO_LIMIT if record is None else record.max_attempts
        if one.attempt >= most:
            ends.append(settling.put_off("fail", one.id, one.attempt, one.nonce, 0, _reason(one) or LAST))
            continue
        options = {} if record is None else _options(record)
        delay_ms = _delay(one) if "delay" in one.given else settling.next_ms(options, queue, one.attempt)
        ends.append(settling.put_off("retry", one.id, one.attempt, one.nonce, delay_ms, _reason(one)))
    return _settled(call, queue, "retry", ends)


def _extend(call: GatewayCall, queue: QueueConfig, told: list[ClaimTold]) -> list[dict[str, Any]]:
    lease_ms = _lease(call.body, queue, "/lease")
    answers = _holder(call, queue).extend([(one.id, one.nonce) for one in told], lease_ms)
    found = []
    for one in told:
        held = answers[one.id] in ("ok", "cancel", "abort")
        more = {"lease": lease_ms / 1000, "cancel_requested": answers[one.id] != "ok"} if held else {}
        found.append({"id": one.id, "answer": DONE if held else LOST, **more})
    return found


# Of each verb of a consumer, what tells Redis.
TELLERS: Final[dict[str, Callable[[GatewayCall, QueueConfig, list[ClaimTold]], list[dict[str, Any]]]]] = {
    "ack": _ack,
    "retry": _retry,
    "snooze": _snooze,
    "fail": _fail,
    "extend": _extend,
}


def _settled(call: GatewayCall, queue: QueueConfig, verb: str, ends: list[Outcome]) -> list[dict[str, Any]]:
    answers = settled_before.settle(_holder(call, queue), verb, ends, again=call.again)
    return [{"id": end.id, "answer": answer} for end, answer in zip(ends, answers, strict=True)]


def _holder(call: GatewayCall, queue: QueueConfig) -> Holder:
    return Holder(call.token.actor, queue, stores.queue(queue.name, 0))


def permit(call: GatewayCall) -> QueueConfig:
    """The queue of the address, which is one of messages."""
    name = call.path["queue"]
    found = conf.get().queues.get(name)
    if found is None or not call.token.allows("queues", name):
        raise GatewayProblem("queue_unknown")
    if not found.pulled:
        raise GatewayProblem("queue_of_workers")
    return found


def _told(given: list[tuple[str, str, dict[str, Any]]]) -> list[ClaimTold]:
    """What is said of which claim. Nothing is told to Redis of a request of which one part cannot be read."""
    found, seen = [], set()
    for place, id, one in given:
        short = _id(id, place)
        if short in seen:
            raise GatewayProblem("field_value", f"{place}/id", cause="The message is listed twice.")
        seen.add(short)
        fence = FENCE.fullmatch(one["fence"])
        if fence is None:
            raise GatewayProblem("field_value", f"{place}/fence", cause="It must be the fence with which the message was pulled.")
        found.append(ClaimTold(place, short, int(fence[1]), fence[2], one))
    return found


def _id(given: str, place: str) -> str:
    try:
        return ids.short(ids.parse(given))
    except ValueError:
        if not place:
            raise GatewayProblem("job_unknown") from None
        raise GatewayProblem("field_value", f"{place}/id", cause="It must be the id of a message.") from None


def _delay(one: ClaimTold) -> int:
    return clock.milliseconds(placement.duration(one.given.get("delay", 0), f"{one.place}/delay"))


def _options(record: JobRecord) -> dict[str, Any]:
    try:
        return codec.decode_payload(record.payload)[2]
    except PayloadError:  # it was changed since it was pulled; its next pull will say so
        return {}


def _reason(one: ClaimTold) -> str:
    return str(one.given.get("reason", ""))


def _lease(body: dict[str, Any], queue: QueueConfig, place: str) -> int:
    if "lease" not in body:
        return queue.lease_ms
    try:
        return lease_of(placement.duration(body["lease"], place), "lease")
    except ConfigError:
        raise GatewayProblem("field_value", place, cause="It must be from 5 seconds to 12 hours.") from None


def _shown(message: Message, batch: MessageBatch) -> dict[str, Any]:
    id, nonce = message.held
    return {
        "id": id,
        "fence": f"{message.attempt}/{nonce}",
        "body": message.body,
        "key": message.key,
        "meta": message.meta,
        "attempt": message.attempt,
        "max_attempts": message.max_attempts or None,
        "run_at": message.run_at,
        "lease_end": clock.from_ms(batch.lease_end_ms),
    }
