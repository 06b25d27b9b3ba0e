"""Waits until replicas have what a call has written: what `REPLICAS` adds to redis durability. `WAIT` goes behind the script in the
same write, so on the same connection; where too few have it, the same call is sent again, for another server may answer by then.

`WAIT` speaks of what its own connection has written, on newer servers of nothing else. So such a call leaves word of its format
(`present` in begin.lua), and writes though it finds all done: else the replicas would be said to have what an earlier one has written.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from django_delayq import clock
from django_delayq.exceptions import StoreUnavailable
from django_delayq.findings import Finding
from django_delayq.store.connection.error_replies import StoreError, cause_of
from django_delayq.store.connection.link import Link
from django_delayq.store.connection.places import Places
from django_delayq.store.keys import Keys
from django_delayq.store.scripts import loader
from django_delayq.store.scripts.loader import Script

FOLLOWS: Final = re.compile(rb"^slave\d+:.*state=online", re.MULTILINE)
WAIT_MS: Final = 100  # for which one call waits
COOLDOWN: Final = 2.0  # seconds for which nothing new is put in behind a call that has waited in vain
DEMOTED: Final = "UNBLOCKED"  # what WAIT answers when its server becomes a replica meanwhile
OWN_TIME: Final = "!"  # what such a script is given for the time: that of Redis, and leave word


class ReplicasLack(StoreUnavailable):
    """It is in Redis, and on fewer replicas than are wanted: a failover now may lose it. Redis itself can be reached."""


class Replicas:
    """Those that are to have what is done on one queue.

    Args:
        count: how many.
        seconds: for so long a call is sent again until they have it.
    """

    def __init__(self, count: int, seconds: float) -> None:
        self.count = count
        self.seconds = seconds
        self._cooldown_until = 0.0

    @property
    def cooldown(self) -> bool:
        """Whether a call has just waited in vain: who can do without is to go on, and not to wait as long."""
        return self._cooldown_until != 0.0 and clock.monotonic() < self._cooldown_until

    def start(self, link: Link, script: Script, keys: Keys, now_ms: int | str | None, *arguments: Any) -> Callable[[], list[Any]]:
        """As `loader.start`; the function returns the replies of all calls, in order; they have what the last one found.

        Raises:
            ReplicasLack: by the function: too few have it.
        """
        wait = ("WAIT", self.count, WAIT_MS)
        now = OWN_TIME if now_ms == "" else now_ms

        def send() -> Callable[[], list[Any]]:
            return loader.start_all(link, script, keys, (keys.opening(script.sha, script.keys), now, *arguments), wait)

        receive = send()

        def answer() -> list[Any]:
            until = clock.monotonic() + self.seconds
            reply, found = receive()
            replies = [reply]
            while not isinstance(found, int) or found < self.count:
                if isinstance(found, StoreError) and not found.reply.startswith(DEMOTED):
                    raise ReplicasLack(code="replicas_unasked", found=0, wanted=self.count, where=link.where, cause=cause_of(found))
                if clock.monotonic() >= until:
                    self._cooldown_until = clock.monotonic() + COOLDOWN
                    raise ReplicasLack(
                        code="replicas_lack", found=found if isinstance(found, int) else 0, wanted=self.count, where=link.where
                    )
                try:
                    reply, found = send()()
                    replies.append(reply)
                except (StoreUnavailable, StoreError):
                    found = 0  # as of a master that has become a replica: the first call has done it
                    clock.sleep(WAIT_MS / 1000)
            self._cooldown_until = 0.0
            return replies

        return answer


def replica_findings(places: Places, wanted: Iterable[tuple[str, int, int]]) -> Iterator[Finding]:
    """What speaks against how many replicas queues want: of each partition the queue, the number, and how many.

    Raises:
        StoreUnavailable: one of their servers cannot be asked.
    """
    by_server: dict[Link, dict[str, int]] = {}
    for queue, partition, count in wanted:
        by_server.setdefault(places.of(queue, partition).server, {})[queue] = count
    for link, queues in by_server.items():
        try:
            there = len(FOLLOWS.findall(link.execute("INFO", "replication")))
        except StoreError:  # a user that may not ask learns it from the first job
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
