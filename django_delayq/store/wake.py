"""The wake line: a connection on which an idle mover waits for tokens, with its own clock.

The server's blocking timeout is no timer: it is checked ten times a second. So BLPOP is sent without one, and the mover sleeps in
`select()` on this connection, for as long as claim told it. A token that comes meanwhile makes the connection readable.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from redis.connection import Connection
from redis.exceptions import RedisError

from django_delayq.exceptions import StoreUnavailable
from django_delayq.store.connection import Link
from django_delayq.store.keys import Keys


class WakeLine:
    """1. `arm()` sends BLPOP on the wake lists, if none is outstanding. 2. `select()` on `fileno()`. 3. `drain()` takes the token.
    It dies with its connection: every method then raises StoreUnavailable, and the next `arm()` connects anew.

    A token popped for a mover that has just died is lost; the others find the jobs by their safety poll within a second.
    """

    def __init__(self, link: Link, partitions: Sequence[Keys]) -> None:
        self._link = link
        self._keys = [keys["wake"] for keys in partitions]
        self._connection: Connection | None = None
        self._armed = False

    def arm(self) -> None:
        """Waits for a token from now on."""
        if self._connection is None:
            self._connection = self._link.dedicated()
            self._armed = False
        if not self._armed:
            try:
                self._connection.send_command("BLPOP", *self._keys, 0, check_health=False)
            except (RedisError, OSError) as error:
                self._broken(error)
            self._armed = True

    @property
    def listens(self) -> bool:
        """Whether a token that is pushed now may come here."""
        return self._armed

    def fileno(self) -> int:
        """The descriptor to select on; -1 while there is no connection."""
        sock = getattr(self._connection, "_sock", None)
        return -1 if sock is None else int(sock.fileno())

    def drain(self) -> str:
        """Reads the token that made the descriptor readable. Returns the key of the list it came from."""
        if self._connection is None:
            return ""
        try:
            reply = self._connection.read_response()
        except (RedisError, OSError) as error:
            self._broken(error)
        self._armed = False
        return reply[0].decode() if reply else ""

    def close(self) -> None:
        """Drops the connection, and with it the outstanding BLPOP."""
        connection, self._connection, self._armed = self._connection, None, False
        if connection is not None:
            with contextlib.suppress(Exception):
                connection.disconnect()

    def _broken(self, error: Exception) -> None:
        self.close()
        raise StoreUnavailable(f"The wake line to Redis at {self._link.where} broke: {error}.") from error
