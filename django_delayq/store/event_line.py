"""The event line: a connection on which idle record keepers wait for events, so that they need not look for them."""

from __future__ import annotations

import contextlib
import select
from collections.abc import Sequence
from typing import Final, NoReturn

from redis.connection import Connection
from redis.exceptions import RedisError, ResponseError

from django_delayq import clock
from django_delayq.exceptions import StoreUnavailable
from django_delayq.store.connection import Link, answered
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
            StoreError: the server does not allow this, or one of the keys is no stream.
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
            if str(error).startswith("UNBLOCKED"):  # it has become a replica
                raise StoreUnavailable(code="redis_answered", where=self._link.where, cause=str(error)) from error
            raise answered(error, self._link.where) from error
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
        raise StoreUnavailable(f"The event line to Redis at {self._link.where} broke: {error}.") from error
