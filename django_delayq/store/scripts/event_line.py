"""The event line: a connection on which idle record keepers wait for events, so that they need not poll."""

from __future__ import annotations

import contextlib
import select
import selectors
from collections.abc import Callable, Sequence
from itertools import zip_longest
from typing import Final, NoReturn

from redis.connection import Connection
from redis.exceptions import RedisError, ResponseError

from django_delayq import clock
from django_delayq.exceptions import StoreUnavailable
from django_delayq.store.connection.commands import CommandRefused, refused
from django_delayq.store.connection.error_replies import StoreError, answered, cause_of
from django_delayq.store.connection.link import Link
from django_delayq.store.keys import Keys

BLOCK: Final = 30.0  # seconds; a line that is silent for longer is deaf: a firewall may have forgotten the connection
PATIENCE: Final = 5.0


class EventLine:
    """1. `arm()` sends XREAD on the event streams, for entries from then on.
    2. The caller runs `poll()` on `fileno()`.
    3. `drain()` reads the answer; other code reads the events themselves.

    A server that stops, or becomes a replica, also makes the descriptor readable: then `drain` raises.
    """

    def __init__(self, link: Link, partitions: Sequence[Keys]) -> None:
        self._link = link
        self._keys = [keys["events"] for keys in partitions]
        self._connection: Connection | None = None
        self._until = 0.0
        self.armed = False

    def arm(self) -> None:
        """Starts to wait for events. After this call, look for entries that were in the streams before.

        Raises:
            StoreUnavailable: the server cannot be reached.
        """
        if self._connection is None or not self._link.leads(self._connection):
            self.close()
            self._connection = self._link.dedicated()
        command = ["XREAD", "COUNT", 1, "BLOCK", int(BLOCK * 1000), "STREAMS", *self._keys, *(["$"] * len(self._keys))]
        try:
            self._connection.send_command(*command, check_health=False)
        except (RedisError, OSError) as error:
            self._broken(error)
        self.armed = True
        self._until = clock.monotonic() + BLOCK + PATIENCE

    @property
    def connection(self) -> Connection | None:
        """The connection on which it waits, or None."""
        return self._connection

    def fileno(self) -> int:
        """The descriptor to poll; -1 while the line is not armed."""
        sock = getattr(self._connection, "_sock", None) if self.armed else None
        return -1 if sock is None else int(sock.fileno())

    def answered(self) -> bool:
        """Whether to call `drain`: there is an answer, the wait is over without one, or the line leads to a former master."""
        descriptor = self.fileno()
        if descriptor < 0:
            return self.armed
        if self._connection is not None and not self._link.leads(self._connection):
            return True
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        return bool(poll.poll(0)) or clock.monotonic() > self._until

    def drain(self) -> bool:
        """Reads the answer, after which the line is not armed. Returns whether there is an event; False if none has arrived for a
        while.

        Raises:
            StoreUnavailable: the connection broke, or another server has taken over.
            CommandRefused: the server does not allow XREAD.
            StoreError: one of the keys is not a stream.
        """
        if self._connection is None:
            return False
        if not self._link.leads(self._connection):
            self.close()
            raise StoreUnavailable(code="redis_away", where=self._link.where, cause="another server is the master now")
        try:
            reply = self._connection.read_response()  # on a deaf line this times out
        except ResponseError as error:
            self.close()
            self._link.heard(error)
            if str(error).startswith("UNBLOCKED"):  # the server has become a replica
                raise StoreUnavailable(code="redis_answered", where=self._link.where, cause=cause_of(error)) from error
            if refused(self._link.where, "xread", error):
                raise CommandRefused(code="redis_answered", where=self._link.where, cause=cause_of(error)) from error
            raise answered(error, self._link.where, self._link.misplaced) from error
        except (RedisError, OSError) as error:
            self._broken(error)
        self.armed = False
        return reply is not None

    def close(self) -> None:
        """Drops the connection, and with it the outstanding XREAD."""
        connection, self._connection, self.armed = self._connection, None, False
        if connection is not None:
            with contextlib.suppress(Exception):
                connection.disconnect()

    def _broken(self, error: Exception) -> NoReturn:
        self.close()
        self._link.heard(error)
        raise StoreUnavailable(f"The event line to Redis at {self._link.where} broke: {cause_of(error)}.") from error


class EventLines:
    """Several event lines as one, since one XREAD can read streams of one slot only. Its steps are those of `EventLine`. It is armed
    when all lines are.
    """

    def __init__(self, lines: Sequence[EventLine]) -> None:
        self._lines = lines
        self._selector = selectors.DefaultSelector()
        self._watched: list[Connection | None] = []

    @property
    def armed(self) -> bool:
        """See `EventLine`."""
        return all(line.armed for line in self._lines)

    def arm(self) -> None:
        """See `EventLine`. Lines that are armed stay so. If one server is unavailable, the lines of the others are still armed.

        Raises:
            StoreUnavailable: a server cannot be reached.
        """
        trouble: StoreUnavailable | None = None
        for line in self._lines:
            if not line.armed:
                try:
                    line.arm()
                except StoreUnavailable as error:
                    trouble = error
        if trouble is not None:
            raise trouble
        connections = [line.connection for line in self._lines]
        if any(one is not other for one, other in zip_longest(connections, self._watched)):
            self._watch()
            self._watched = connections

    def fileno(self) -> int:
        """See `EventLine`. The descriptor becomes readable when that of any line does."""
        descriptor: Callable[[], int] | None = getattr(self._selector, "fileno", None)
        return descriptor() if descriptor is not None and self.armed else -1

    def answered(self) -> bool:
        """See `EventLine`."""
        return any(line.answered() for line in self._lines)

    def drain(self) -> bool:
        """See `EventLine`. Reads all lines that have an answer.

        Raises:
            StoreUnavailable, StoreError: of the first line whose connection broke; the others were read.
        """
        news = False
        trouble: StoreUnavailable | StoreError | None = None
        for line in self._lines:
            if line.answered():
                try:
                    news = line.drain() or news
                except (StoreUnavailable, StoreError) as error:
                    trouble = trouble or error
        if trouble is not None:
            raise trouble
        return news

    def close(self) -> None:
        """See `EventLine`."""
        for line in self._lines:
            line.close()
        self._watched = []

    def _watch(self) -> None:
        # A new selector: it does not notice that a connection was closed, and another connection may have the same descriptor by now.
        self._selector.close()
        self._selector = selectors.DefaultSelector()
        for line in self._lines:
            self._selector.register(line.fileno(), selectors.EVENT_READ)


def event_line(parts: Sequence[tuple[Link, Keys]]) -> EventLine | EventLines:
    """The event lines of these partitions, each with the link to its server."""
    found: dict[Link, list[Keys]] = {}
    for link, keys in parts:
        found.setdefault(link, []).append(keys)
    lines = [EventLine(link, keys) for link, keys in found.items()]
    return lines[0] if len(lines) == 1 else EventLines(lines)
