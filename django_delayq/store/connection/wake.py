"""Connections on which a process waits for a reply, without a timer in the server. An idle mover waits for a token, and an idle record
keeper for events.

The server's blocking timeout is not exact: the server checks it ten times a second. So the process does not rely on it. It sleeps in
`select()` on this connection for as long as it needs. A reply makes the connection readable.
"""

from __future__ import annotations

import contextlib
import select
import selectors
from collections.abc import Callable, Sequence
from itertools import zip_longest
from typing import Any, ClassVar, Final, Never

from redis.connection import Connection
from redis.exceptions import RedisError, ResponseError

from django_delayq import clock
from django_delayq.exceptions import StoreUnavailable
from django_delayq.store.connection.commands import CommandRefused, is_refused, refused
from django_delayq.store.connection.error_replies import StoreError, answered, cause_of
from django_delayq.store.connection.link import Link, cooling_down
from django_delayq.store.keys import Keys

BROKEN: Final = 0.1  # seconds to wait after a line broke, before the next one is made
PATIENCE: Final = 5.0  # seconds after the end of a wait in which its answer must arrive


class ListeningLine:
    """A connection that waits for one reply. If the server refuses the blocking command, no reply comes. Then `deaf` is True for a
    minute, and the caller polls meanwhile.

    1. `arm()` sends the blocking command, if none is outstanding.
    2. The caller runs `select()` on `fileno()`.
    3. The caller reads the reply.

    If the connection breaks, every method raises StoreUnavailable, and the next `arm()` connects again. `arm()` also reconnects if no
    reply came for longer than the command blocks (`waits`, in seconds): a firewall may have dropped the connection. `what`: the name
    of the line in error messages.
    """

    what: ClassVar[str] = "line"
    command: ClassVar[str]  # its name in `store/connection/commands.py`
    waits: ClassVar[float] = float("inf")

    def __init__(self, link: Link) -> None:
        self._link = link
        self.connection: Connection | None = None  # on which it waits
        self.armed = False  # whether a reply may arrive on it
        self._until = 0.0

    def _command(self) -> tuple[str | int, ...]:
        """The blocking command."""
        raise NotImplementedError

    @property
    def deaf(self) -> bool:
        """Whether the server refused the blocking command a moment ago."""
        return is_refused(self._link.where, self.command)

    def arm(self) -> None:
        """Starts to wait, unless the server refused that a moment ago."""
        if self.deaf:
            return
        silent = self.armed and clock.monotonic() > self._until
        if self.connection is not None and (silent or not self._link.leads(self.connection)):
            self.close()  # no reply can arrive on it any more
        if self.connection is None and self._link.cooldown.seconds and self._link.cooldown.active:
            raise cooling_down(self._link.where)
        if not self.armed:
            self._send()

    def _send(self) -> None:
        if self.connection is None:
            self.connection = self._link.dedicated()
        try:
            self.connection.send_command(*self._command(), check_health=False)
        except (RedisError, OSError) as error:
            self._broken(error)
        self.armed = True
        self._until = clock.monotonic() + self.waits + PATIENCE

    def fileno(self) -> int:
        """The descriptor to select on; -1 while there is no connection."""
        sock = getattr(self.connection, "_sock", None)
        return -1 if sock is None else int(sock.fileno())

    def wait(self, seconds: float) -> bool:
        """Waits at most so many seconds for something to read. Returns whether there is something."""
        if self.fileno() < 0:
            clock.sleep(seconds)
            return False
        with selectors.DefaultSelector() as waiting:  # select.select does not accept descriptors above 1023
            waiting.register(self.fileno(), selectors.EVENT_READ)
            return bool(waiting.select(seconds))

    def close(self) -> None:
        """Drops the connection, and with it the outstanding command."""
        connection, self.connection, self.armed = self.connection, None, False
        if connection is not None:
            with contextlib.suppress(Exception):
                connection.disconnect()

    def _heard(self) -> Any:
        """The reply that made the descriptor readable; None while there is no connection."""
        if self.connection is None:
            return None
        try:
            reply = self.connection.read_response()
        except (RedisError, OSError) as error:
            if not refused(self._link.where, self.command, error):
                self._broken(error)
            self.close()
            return None
        self.armed = False
        return reply

    def _broken(self, error: Exception) -> Never:
        self.close()
        self._link.heard(error)
        raise StoreUnavailable(f"The {self.what} to Redis at {self._link.where} broke: {cause_of(error)}.") from error


class WakeLine(ListeningLine):
    """The line of an idle mover: BLPOP on its wake lists, which takes a token.

    If a mover has just died, a token popped for it is lost. The others still find the jobs within a second, when the timer owner
    looks.
    """

    what = "wake line"
    command = "blpop"
    waits = 30.0

    def __init__(self, link: Link, partitions: Sequence[Keys]) -> None:
        super().__init__(link)
        self._keys = [keys["wake"] for keys in partitions]

    def arm_for(self, partitions: Sequence[Keys]) -> None:
        """Waits only for tokens of these partitions from now on."""
        wanted = [keys["wake"] for keys in partitions]
        if wanted != self._keys:
            self.close()
            self._keys = wanted
        if wanted:
            self.arm()

    def _command(self) -> tuple[str | int, ...]:
        return "BLPOP", *self._keys, int(self.waits)

    def drain(self) -> str:
        """Reads the token that made the descriptor readable. Returns the key of its list, or "" if none has arrived for a while."""
        reply = self._heard()
        return reply[0].decode() if reply else ""


class EventLine(ListeningLine):
    """The line of an idle record keeper: XREAD on its event streams, for entries from then on. The caller reads the events themselves.

    A server that stops, or becomes a replica, also makes the descriptor readable: then `drain` raises.
    """

    what = "event line"
    command = "xread"
    waits = 30.0

    def __init__(self, link: Link, partitions: Sequence[Keys]) -> None:
        super().__init__(link)
        self._keys = [keys["events"] for keys in partitions]

    def _command(self) -> tuple[str | int, ...]:
        return "XREAD", "COUNT", 1, "BLOCK", int(self.waits * 1000), "STREAMS", *self._keys, *(["$"] * len(self._keys))

    def arm(self) -> None:
        """Starts to wait for events. After this call, look for entries that were in the streams before.

        Raises:
            StoreUnavailable: the server cannot be reached.
        """
        if self.connection is not None and not self._link.leads(self.connection):
            self.close()
        self._send()

    def fileno(self) -> int:
        """The descriptor to poll; -1 while the line is not armed."""
        return super().fileno() if self.armed else -1

    def answered(self) -> bool:
        """Whether to call `drain`: there is an answer, the wait is over without one, or the line leads to a former master."""
        descriptor = self.fileno()
        if descriptor < 0:
            return self.armed
        if self.connection is not None and not self._link.leads(self.connection):
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
        if self.connection is None:
            return False
        if not self._link.leads(self.connection):
            self.close()
            raise StoreUnavailable(code="redis_away", where=self._link.where, cause="another server is the master now")
        try:
            reply = self.connection.read_response()  # if no answer came at all, this times out
        except ResponseError as error:
            self.close()
            self._link.heard(error)
            if str(error).startswith("UNBLOCKED"):  # the server has become a replica
                raise StoreUnavailable(code="redis_answered", where=self._link.where, cause=cause_of(error)) from error
            if refused(self._link.where, self.command, error):
                raise CommandRefused(code="redis_answered", where=self._link.where, cause=cause_of(error)) from error
            raise answered(error, self._link.where, self._link.misplaced) from error
        except (RedisError, OSError) as error:
            self._broken(error)
        self.armed = False
        return reply is not None


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
