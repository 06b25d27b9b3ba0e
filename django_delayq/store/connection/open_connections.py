"""The connections to Redis that this process has opened for the package. A worker closes them before it forks."""

from __future__ import annotations

import contextlib
import os
from typing import Any, Final
from weakref import WeakSet

from redis.connection import Connection

LINKS: Final[WeakSet[Any]] = WeakSet()  # each has close(), and is added when it is made
CONNECTIONS: Final[WeakSet[Connection]] = WeakSet()  # also those that one owner blocks on


def close_all() -> dict[int, str]:
    """Closes all of them. Returns the name of each socket that was open, by its inode. Links and lines may be used again."""
    found: dict[int, str] = {}
    connections = list(CONNECTIONS)
    for connection in connections:
        sock = getattr(connection, "_sock", None)
        if sock is not None:
            with contextlib.suppress(OSError):
                found[os.fstat(sock.fileno()).st_ino] = f"a connection of delayq to {_place(connection)}"
    for link in list(LINKS):
        link.close()
    for connection in connections:
        with contextlib.suppress(Exception):
            connection.disconnect()  # type: ignore[no-untyped-call]  # redis-py types only some methods
    return found


def _place(connection: Connection) -> str:
    path = getattr(connection, "path", None)
    return f"Redis at {path}" if path else f"Redis at {getattr(connection, 'host', '')}:{getattr(connection, 'port', '')}"
