"""The event line: a connection on which idle record keepers wait for events, so that they need not look for them."""

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
    """1. `arm()` sends XREAD on the event streams, for what comes from then on. 2. `poll()` on `fileno()`. 3. `drain()` takes the
    answer; what the events say is read elsewhere. A server that ends, or becomes a replica, makes it readable too: then `drain` raises.
    """

    def __init__(self, link: Link, partitions: Sequence[Keys]) -> None:
        self._link = link
        self._keys = [keys["events"] for keys in partitions]
        self._connection: Connection | None = None
        self._until = 0.0
        self.armed = False

    def arm(self) -> None:
        """Waits for an event from now on. What is in the streams already must be looked for behind this.

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
        """The one on which it waits, if there is one."""
        return self._connection

    def fileno(self) -> int:
        """The descriptor to poll; -1 while nothing is waited for."""
        sock = getattr(self._connection, "_sock", None) if self.armed else None
        return -1 if sock is None else int(sock.fileno())

    def answered(self) -> bool:
        """Whether `drain` will find an answer, or that there is none where there should be one by now."""
        descriptor = self.fileno()
        if descriptor < 0:
            return self.armed
        if self._connection is not None and not self._link.leads(self._connection):
            return True
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        return bool(poll.poll(0)) or clock.monotonic() > self._until

    def drain(self) -> bool:
        """Reads the answer; the line is not armed then. Returns whether there is an event: nothing has come for a while otherwise.

        Raises:
            StoreUnavailable: the connection broke, or the server is another than it was.
            CommandRefused: the server does not allow this.
            StoreError: one of the keys is no stream.
        """
        if self._connection is None:
            return False
        if not self._link.leads(self._connection):
            self.close()
            raise StoreUnavailable(code="redis_away", where=self._link.where, cause="another server is the master now")
        try:
            reply = self._connection.read_response()  # a deaf line: it times out
        except ResponseError as error:
            self.close()
            self._link.heard(error)
            if str(error).startswith("UNBLOCKED"):  # it has become a replica
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
    """Several event lines as one, since one XREAD asks for streams of one slot only. Its steps are those of `EventLine`; it is armed
    when all of them are.
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
        """See `EventLine`. Those that are armed stay so; of a server that is away the others do not hear less.

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
        """See `EventLine`: of what becomes readable when one of them does."""
        descriptor: Callable[[], int] | None = getattr(self._selector, "fileno", None)
        return descriptor() if descriptor is not None and self.armed else -1

    def answered(self) -> bool:
        """See `EventLine`."""
        return any(line.answered() for line in self._lines)

    def drain(self) -> bool:
        """See `EventLine`: of all that have an answer.

        Raises:
            StoreUnavailable, StoreError: of the first of them whose connection broke; the others were read.
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
        # Anew: of a connection that was closed the selector does not know, and its number may be that of another one by now.
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
