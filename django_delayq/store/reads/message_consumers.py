"""Reads for people: the consumers of a queue of messages, and the messages that each of them holds. This module decides nothing."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

from django_delayq.store.connection.link import Link
from django_delayq.store.connection.places import Places
from django_delayq.store.keys import Keys
from django_delayq.store.reads.reach import WHOLE, Reach
from django_delayq.store.scripts import decode
from django_delayq.store.scripts.queue import TAG

MOST: Final = 200  # consumers, and held messages, that are read


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldMessage:
    """A message that a consumer holds. `id`: short. `lease_ms`: when its lease ends, in ms since 1970."""

    id: str
    fence: str
    attempt: int
    lease_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageConsumer:
    """A consumer that has pulled messages within a day. `claimed_ms`: when it last got messages. `held`: its messages, in the order
    in which their leases end. `name` is "" for leases of an unknown consumer: it pulled long ago, or the message was restored from
    its row.
    """

    name: str
    claimed_ms: int
    held: Sequence[HeldMessage] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PulledQueue:
    """`asked_ms`: when a consumer last asked for messages or extended a lease; 0 for never. `held`: the number of held messages.
    `cut`: not all consumers, or not all messages that they hold, were read.
    """

    queue: str
    now_ms: int
    asked_ms: int
    held: int
    consumers: Sequence[MessageConsumer]
    cut: bool


class MessageConsumers:
    """The message consumers of the queues of one prefix.

    Raises (all methods):
        StoreUnavailable, StoreError: as `Link.execute`.
    """

    def __init__(self, places: Places, *, prefix: str) -> None:
        self._places = places
        self._prefix = prefix

    def of_each(self, queues: Sequence[str], reach: Reach = WHOLE) -> list[PulledQueue]:
        """The consumers of these queues, each of which has one partition."""
        found: list[PulledQueue] = []
        parts = [Keys.of(self._prefix, queue, 0) for queue in queues]
        reach.each(self._places, parts, lambda _link, there: found.extend(self.of(keys.queue) for keys in there))
        return found

    def of(self, queue: str) -> PulledQueue:
        """The consumers of that queue, in two round trips. It reads at most MOST of each kind."""
        keys, link = Keys(self._prefix, queue), self._places.of(queue, 0)
        replies = link.execute_many(
            [
                ("TIME",),
                ("HGET", keys["meta"], "alive"),
                ("HSCAN", keys["claims"], 0, "COUNT", MOST),
                ("ZCARD", keys["leases"]),
                ("ZRANGE", keys["leases"], 0, MOST - 1, "WITHSCORES"),
            ]
        )
        for reply in replies:
            if isinstance(reply, Exception):
                raise reply
        time, alive, (cursor, claims), count, leases = replies
        held = self._held(link, keys, leases)
        consumers = []
        for name, claim in islice(zip(claims[::2], claims[1::2], strict=True), MOST):
            nonce, _, rest = claim.partition(b" ")
            mine = held.pop(decode.text(nonce)[:TAG], ())
            claimed_ms = decode.moment_ms(rest.partition(b" ")[0])
            consumers.append(MessageConsumer(name=decode.text(name), claimed_ms=claimed_ms, held=mine))
        others = sorted((one for rest in held.values() for one in rest), key=lambda one: one.lease_ms)
        consumers.sort(key=lambda one: -one.claimed_ms)
        if others:
            consumers.append(MessageConsumer(name="", claimed_ms=0, held=others))
        return PulledQueue(
            queue=queue,
            now_ms=decode.time_ms(time),
            asked_ms=decode.moment_ms(alive or b"0"),
            held=count,
            consumers=consumers,
            cut=cursor != b"0" or len(claims) > 2 * MOST or count > MOST,
        )

    def _held(self, link: Link, keys: Keys, leases: Sequence[bytes]) -> dict[str, list[HeldMessage]]:
        """The held messages by the first characters of their nonces."""
        found: defaultdict[str, list[HeldMessage]] = defaultdict(list)
        if not leases:
            return found
        runs = link.execute("HMGET", keys["runs"], *leases[::2])
        for id, end, run in zip(leases[::2], leases[1::2], runs, strict=True):
            parts = decode.text(run or b"").split(":")
            if decode.job_id(id) is not None and len(parts) >= 4:
                fence = parts[3]
                found[fence[:TAG]].append(
                    HeldMessage(id=id.decode(), fence=fence, attempt=decode.number(parts[0].encode()), lease_ms=decode.moment_ms(end))
                )
        return found
