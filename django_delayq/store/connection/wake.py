"""Connections on which a process waits for a reply, without a timer in the server. An idle mover, for example, waits for a token.

The server's blocking timeout is not exact: the server checks it ten times a second. So the process does not rely on it. It sleeps in
`select()` on this connection for as long as it needs. A reply makes the connection readable.
"""

from __future__ import annotations

import contextlib
import selectors
from collections.abc import Sequence
from typing import Any, ClassVar, Final, Never

from redis.connection import Connection
from redis.exceptions import RedisError

from django_delayq import clock
from django_delayq.exceptions import StoreUnavailable
from django_delayq.store.connection.commands import is_refused, refused
from django_delayq.store.connection.error_replies import cause_of
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
        self._connection: Connection | None = None
        self._armed = False
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
        if self._connection is not None and (self._is_deaf or not self._link.leads(self._connection)):
            self.close()  # no reply can arrive on it any more
        if self._connection is None:
            if self._link.cooldown.seconds and self._link.cooldown.active:
                raise cooling_down(self._link.where)
            self._connection = self._link.dedicated()
            self._armed = False
        if not self._armed:
            try:
                self._connection.send_command(*self._command(), check_health=False)
            except (RedisError, OSError) as error:
                self._broken(error)
            self._armed = True
            self._until = clock.monotonic() + self.waits + PATIENCE

    @property
    def _is_deaf(self) -> bool:
        return self._armed and clock.monotonic() > self._until

    @property
    def listens(self) -> bool:
        """Whether a reply may arrive on this connection."""
        return self._armed

    @property
    def connection(self) -> Connection | None:
        """The connection on which it waits, or None."""
        return self._connection

    def fileno(self) -> int:
        """The descriptor to select on; -1 while there is no connection."""
        sock = getattr(self._connection, "_sock", None)
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
        connection, self._connection, self._armed = self._connection, None, False
        if connection is not None:
            with contextlib.suppress(Exception):
                connection.disconnect()

    def _heard(self) -> Any:
        """The reply that made the descriptor readable; None while there is no connection."""
        if self._connection is None:
            return None
        try:
            reply = self._connection.read_response()
        except (RedisError, OSError) as error:
            if not refused(self._link.where, self.command, error):
                self._broken(error)
            self.close()
            return None
        self._armed = False
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
