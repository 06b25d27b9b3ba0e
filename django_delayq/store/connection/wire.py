"""One connection that calls use one after the other, and how it is looked at before each."""

from __future__ import annotations

import contextlib
import select
import socket
from collections.abc import Callable
from typing import Any

from redis.connection import Connection
from redis.exceptions import RedisError


class Wire:
    """A connection that calls use one after the other, and how it is looked at before each. That is what the client's `can_read(0)`
    does; but that makes a new poll object each time, which takes as long as all else that it does for a call. It stays for TLS, which
    keeps what it has read for itself, and for who does without hiredis.
    """

    __slots__ = ("_left_over", "_poll", "connection")

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        sock: Any = getattr(connection, "_sock", None)
        self._left_over: Callable[[], bool] | None = None
        self._poll: Callable[[int], Any] | None = None
        with contextlib.suppress(AttributeError):  # another version of the client, or a system without poll
            if type(sock) is socket.socket:
                poll = select.poll()
                poll.register(sock, select.POLLIN)
                self._left_over, self._poll = connection._parser._reader.has_data, poll.poll

    def is_quiet(self) -> bool:
        """Whether it is open and nothing waits to be read: the server has not closed it, and no reply of another call is left."""
        if self._left_over is not None and self._poll is not None:
            return not self._left_over() and not self._poll(0)
        try:
            return not self.connection.can_read(0)
        except (RedisError, OSError):
            return False

    def discard(self) -> None:
        """Closes it."""
        with contextlib.suppress(Exception):
            self.connection.disconnect()
