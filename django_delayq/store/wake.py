"""Connections on which somebody waits to hear something, with a clock of its own: an idle mover for a token, say.

The server's blocking timeout is no timer: it is checked ten times a second. So the command that waits is sent without one, and
who waits sleeps in `select()` on this connection, for as long as it likes. What comes meanwhile makes the connection readable.
"""

from __future__ import annotations

import contextlib
import selectors
from collections.abc import Sequence
from typing import Any, ClassVar, Never

from redis.connection import Connection
from redis.exceptions import RedisError

from django_delayq.exceptions import StoreUnavailable
from django_delayq.store.connection import Link
from django_delayq.store.keys import Keys


class ListeningLine:
    """1. `arm()` sends the command that waits, if none is outstanding. 2. `select()` on `fileno()`. 3. What it has heard is read.
    It dies with its connection: every method then raises StoreUnavailable, and the next `arm()` connects anew. `what`: it, in errors.
    """

    what: ClassVar[str] = "line"

    def __init__(self, link: Link) -> None:
        self._link = link
        self._connection: Connection | None = None
        self._armed = False

    def _command(self) -> tuple[str | int, ...]:
        """What waits, for ever."""
        raise NotImplementedError

    def arm(self) -> None:
        """Waits from now on."""
        if self._connection is not None and not self._link.leads(self._connection):
            self.close()  # nobody calls there any more
        if self._connection is None:
            self._connection = self._link.dedicated()
            self._armed = False
        if not self._armed:
            try:
                self._connection.send_command(*self._command(), check_health=False)
            except (RedisError, OSError) as error:
                self._broken(error)
            self._armed = True

    @property
    def listens(self) -> bool:
        """Whether what is told now may come here."""
        return self._armed

    def fileno(self) -> int:
        """The descriptor to select on; -1 while there is no connection."""
        sock = getattr(self._connection, "_sock", None)
        return -1 if sock is None else int(sock.fileno())

    def wait(self, seconds: float) -> bool:
        """Waits for something to read, so long at most. Returns whether there is."""
        with selectors.DefaultSelector() as waiting:  # select.select takes no descriptor above 1023
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
            self._broken(error)
        self._armed = False
        return reply

    def _broken(self, error: Exception) -> Never:
        self.close()
        self._link.heard(error)
        raise StoreUnavailable(f"The {self.what} to Redis at {self._link.where} broke: {error}.") from error


class WakeLine(ListeningLine):
    """The line of an idle mover: BLPOP on its wake lists, which takes a token.

    A token popped for a mover that has just died is lost; the others find the jobs by their safety poll within a second.
    """

    what = "wake line"

    def __init__(self, link: Link, partitions: Sequence[Keys]) -> None:
        super().__init__(link)
        self._keys = [keys["wake"] for keys in partitions]

    def _command(self) -> tuple[str | int, ...]:
        return "BLPOP", *self._keys, 0

    def drain(self) -> str:
        """Reads the token that made the descriptor readable. Returns the key of the list it came from."""
        reply = self._heard()
        return reply[0].decode() if reply else ""
