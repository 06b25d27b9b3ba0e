"""Waits until replicas have the changes of a call. This is what `REPLICAS` adds to redis durability. `WAIT` follows the script in the
same write, so on the same connection. If too few replicas have the changes, the same call is sent again, because another server may
answer by then.

`WAIT` counts only the writes of its own connection, at least on newer servers. So such a call notes its format (`present` in
begin.lua), and thereby writes even if everything is done already. Otherwise the replicas would be counted for a write of an earlier
call.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from django_delayq import clock
from django_delayq.exceptions import StoreUnavailable
from django_delayq.store.connection.error_replies import StoreError, cause_of
from django_delayq.store.connection.link import Link
from django_delayq.store.connection.places import Places
from django_delayq.store.keys import Keys
from django_delayq.store.scripts import loader
from django_delayq.store.scripts.loader import Script

if TYPE_CHECKING:
    from django_delayq.findings import Finding

FOLLOWS: Final = re.compile(rb"^slave\d+:.*state=online", re.MULTILINE)
WAIT_MS: Final = 100  # the time that one call waits
COOLDOWN: Final = 2.0  # seconds without new jobs after a call that has waited in vain
DEMOTED: Final = "UNBLOCKED"  # the reply of WAIT if its server becomes a replica meanwhile
OWN_TIME: Final = "!"  # the time argument of such a script: the clock of Redis, and a note of the format


class ReplicasLack(StoreUnavailable):
    """The change is in Redis, but on fewer replicas than required: a failover now may lose it. Redis itself can be reached."""


class Replicas:
    """The replicas that must have the changes of one queue.

    Args:
        count: how many.
        seconds: how long a call is sent again until they have it.
    """

    def __init__(self, count: int, seconds: float) -> None:
        self.count = count
        self.seconds = seconds
        self._cooldown_until = 0.0

    @property
    def cooldown(self) -> bool:
        """Whether a call has waited in vain a moment ago. A caller that can do without replicas should then continue and not wait as
        long.
        """
        return self._cooldown_until != 0.0 and clock.monotonic() < self._cooldown_until

    def start(self, link: Link, script: Script, keys: Keys, calls: Sequence[tuple[Any, ...]]) -> Callable[[], list[list[Any]]]:
        """Like `loader.start_each`. The function returns the replies to all calls, for each time that they were sent, in order. The
        replicas have the state that the last replies show.

        Raises:
            ReplicasLack: raised by the function: too few replicas have it.
        """
        wait = ("WAIT", self.count, WAIT_MS)
        told = [(OWN_TIME if now_ms == "" else now_ms, *rest) for now_ms, *rest in calls]

        def send() -> Callable[[], list[Any]]:
            return loader.start_each(link, script, keys, told, wait)

        receive = send()

        def answer() -> list[list[Any]]:
            until = clock.monotonic() + self.seconds
            *replies, found = receive()
            sent = [replies]
            if all(isinstance(reply, Exception) for reply in replies):
                return sent
            while not isinstance(found, int) or found < self.count:
                if isinstance(found, StoreError) and not found.reply.startswith(DEMOTED):
                    raise ReplicasLack(code="replicas_unasked", found=0, wanted=self.count, where=link.where, cause=cause_of(found))
                if clock.monotonic() >= until:
                    self._cooldown_until = clock.monotonic() + COOLDOWN
                    raise ReplicasLack(
                        code="replicas_lack", found=found if isinstance(found, int) else 0, wanted=self.count, where=link.where
                    )
                try:
                    *replies, found = send()()
                except (StoreUnavailable, StoreError) as error:
                    replies = [error] * len(calls)
                if any(map(_fails_now, sent[0], replies)):
                    found = 0  # the master may have become a replica: the first calls have made the change
                    clock.sleep(WAIT_MS / 1000)
                else:
                    sent.append(replies)
            self._cooldown_until = 0.0
            return sent

        return answer


def _fails_now(before: Any, reply: Any) -> bool:
    """Whether a call that was carried out before is refused now. A call that was always refused has changed nothing."""
    return isinstance(reply, Exception) and not isinstance(before, Exception)


def replica_findings(places: Places, wanted: Iterable[tuple[str, int, int]]) -> Iterator[Finding]:
    """Findings about queues that require more replicas than their servers have. `wanted`: for each partition the queue, its number,
    and the required replicas.

    Raises:
        StoreUnavailable: one of their servers cannot be asked.
    """
    from django_delayq.findings import Finding  # a web process needs no findings

    by_server: dict[Link, dict[str, int]] = {}
    for queue, partition, count in wanted:
        by_server.setdefault(places.of(queue, partition).server, {})[queue] = count
    for link, queues in by_server.items():
        try:
            there = len(FOLLOWS.findall(link.execute("INFO", "replication")))
        except StoreError:  # a user without the right for it gets the error at the first job
            continue
        lacking = sorted(name for name, count in queues.items() if count > there)
        if lacking:
            most = max(queues.values())
            yield Finding(
                "E022",
                f"Redis at {link.where} has {there} connected replicas, but REPLICAS of {', '.join(map(repr, lacking))} requires "
                f"up to {most}. "
                "Calls that schedule jobs of redis durability there raise an error.",
            )
        try:
            link.execute("WAIT", 0, 1)
        except StoreError as error:
            yield Finding(
                "E022",
                f"The Redis user of this project has no permission for WAIT, which REPLICAS requires: {error}",
                "To grant the right, run redis-cli ACL SETUSER <user> +wait",
            )
