"""The record keeper: runs the loops of floor 4 one after the other in one process. It knows neither threads nor signals; whoever runs
it gives it a way to wait and a way to stop.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Protocol

from django.db import DatabaseError, close_old_connections, connections

from django_delayq import clock
from django_delayq.conf import Config, QueueConfig
from django_delayq.exceptions import StoreUnavailable
from django_delayq.mirror.loop import MirrorLoop
from django_delayq.mirror.prune import PruneLoop, TidyLoop
from django_delayq.mirror.relay import RelayLoop
from django_delayq.mirror.restore import RestoreLoop
from django_delayq.operations import OperationLoop
from django_delayq.store.connection import Link, StoreError

logger = logging.getLogger("django_delayq.mirror")

MOST_BACKOFF: Final = 10.0
ROLES: Final = ("mirror", "relay")


class Poll(Protocol):
    """A loop: one pass, then seconds to sleep."""

    def poll(self) -> float:
        """One pass."""


class Keeper:
    """A loop with its next date and its trouble, if it has any."""

    def __init__(self, name: str, loop: Poll, *, longest: float = MOST_BACKOFF) -> None:
        self.name = name
        self.loop = loop
        self._longest = longest
        self.next = 0.0
        self._failures = 0

    def turn(self) -> None:
        """One pass if it is time. Trouble with a server is said once when it begins and once when it is over."""
        try:
            sleep = self.loop.poll()
        except (StoreUnavailable, StoreError, DatabaseError) as error:
            self._failures += 1
            if self._failures == 1:
                logger.warning("%s waits, nothing is lost: %s", self.name, error)
            self.next = clock.monotonic() + min(self._longest, 0.25 * 2 ** min(self._failures, 10))
            _drop_broken_connections()
        else:
            if self._failures:
                logger.warning("%s goes on after %d failed passes", self.name, self._failures)
            self._failures = 0
            self.next = clock.monotonic() + sleep


class Service:
    """Restore, mirror, relay, prune and tidy of the queues, and the operations that people have started, in turn.

    Args:
        roles: "mirror" (with prune, tidy and operations) and "relay".
    """

    def __init__(self, link: Link, config: Config, queues: Iterable[QueueConfig], roles: Sequence[str] = ROLES) -> None:
        queues = list(queues)
        common: Any = {"prefix": config.prefix, "using": config.database}
        signed: Any = {**common, "signer": config.signer}
        self.mirrors = [MirrorLoop(link, queue, **signed) for queue in queues] if "mirror" in roles else []
        auto = config.restore == "auto"
        # First, since workers wait for it after a restart of Redis.
        self._keepers = [
            Keeper(f"restore of {queue.name}", RestoreLoop(link, queue, auto=auto, **signed), longest=0.5)
            for queue in queues
            if roles
        ]
        self._keepers += [Keeper(f"the mirror of {loop.queue.name}", loop) for loop in self.mirrors]
        if "relay" in roles:
            self._keepers += [
                Keeper(f"the relay of {queue.name}", RelayLoop(link, queue, **signed)) for queue in queues
            ]
        if "mirror" in roles:
            self._keepers += [
                Keeper(f"prune of {queue.name}", PruneLoop(queue, using=config.database)) for queue in queues
            ]
            self._keepers += [Keeper(f"tidy of {queue.name}", TidyLoop(link, queue, **common)) for queue in queues]
        if "mirror" in roles:
            self._keepers.append(Keeper("operations", OperationLoop(using=config.database)))

    def turn(self) -> float:
        """Gives every loop its turn. Returns seconds until the next is due.

        Never raises for trouble with Redis or the database: the loops wait and go on.
        """
        close_old_connections()
        now = clock.monotonic()
        for keeper in self._keepers:
            if keeper.next <= now:
                keeper.turn()
        return max(0.0, min((keeper.next for keeper in self._keepers), default=1.0) - clock.monotonic())

    def drain(self) -> None:
        """Folds all events that are there, for burst and for tests.

        Raises:
            StoreUnavailable, DatabaseError.
        """
        for mirror in self.mirrors:
            mirror.drain()

    def run(self, *, stop: Callable[[], bool], wait: Callable[[float], None]) -> None:
        """Turns until `stop()`; then folds what is left, if the servers are there."""
        while not stop():
            seconds = self.turn()
            if seconds > 0:
                wait(seconds)
        try:
            self.drain()
        except (StoreUnavailable, StoreError, DatabaseError) as error:
            logger.warning(
                "the mirror leaves before it has seen everything; it goes on when it is started again: %s", error
            )


def _drop_broken_connections() -> None:
    for connection in connections.all(initialized_only=True):
        if not connection.in_atomic_block:
            connection.close()
