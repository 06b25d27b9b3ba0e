"""The arguments of a connection: the options of a project that are used, and those that this package adds. Also all connections of
this process: a worker closes them before it forks.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Final
from weakref import WeakSet

from redis.backoff import NoBackoff
from redis.connection import Connection
from redis.exceptions import RedisError, ResponseError
from redis.retry import Retry

from django_delayq.exceptions import ConfigError
from django_delayq.store.connection.commands import is_refused, refused
from django_delayq.text import did_you_mean

LINKS: Final[WeakSet[Any]] = WeakSet()  # each has close(), and is added when it is made
CONNECTIONS: Final[WeakSet[Connection]] = WeakSet()  # also connections on which one owner blocks


def close_all() -> dict[int, str]:
    """Closes all connections. Returns the name of each socket that was open, by its inode. Links and lines may be used again."""
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


SETNAME: Final = "client|setname"
# Arguments that redis-py knows, and that mean nothing here. A link keeps its own connections: threads never wait for one of them.
OF_POOLS: Final = frozenset({"max_connections", "timeout", "queue_class", "connection_class", "cache_factory"})
# `unconnected` sets these itself.
OWN: Final = frozenset(
    {
        "socket_timeout",
        "socket_connect_timeout",
        "client_name",
        "lib_name",
        "lib_version",
        "driver_info",
        "retry",
        "retry_on_timeout",
        "retry_on_error",
        "health_check_interval",
        "decode_responses",
        "encoding",
        "encoding_errors",
        "protocol",
        "parser_class",
    }
)
OPTION: Final = re.compile(r"Invalid value for '(\w+)' in connection URL\.?")
LEFT_OUT: Final = OF_POOLS | OWN


def wrong_option(error: ValueError) -> str:
    """The option of a URL whose value redis-py cannot read. Returns "" for other errors, whose text may quote parts of the address."""
    found = OPTION.fullmatch(str(error))
    return f": its option {found[1]!r} has a value of a wrong kind" if found else ""


def left_out(names: Iterable[str]) -> list[str]:
    """The options in `names` that the package ignores."""
    return sorted(LEFT_OUT & set(names))


def checked(connection_class: type[Connection], given: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a project for a connection, without those that are left out.

    Raises:
        ConfigError: the class does not know one of them, or does not take its value.
    """
    names = known(connection_class) | LEFT_OUT
    for name in given:
        if name not in names:
            raise ConfigError(
                f"DELAYQ['REDIS'] has the unknown option {name!r}{did_you_mean(name, names)}.",
                hint=f"Remove or correct it. The options are the arguments of redis.connection.{connection_class.__name__}.",
            )
    taken = {name: value for name, value in given.items() if name not in LEFT_OUT}
    wrong = [name for name in ("db", "port") if not str(taken.get(name) or 0).isdecimal()]
    if wrong or not _can_be_made(connection_class, taken):
        wrong = wrong or [name for name, value in taken.items() if not _can_be_made(connection_class, {name: value})]
        said = "a value that a connection does not take" if wrong else "options that do not go together"
        raise ConfigError(
            f"DELAYQ['REDIS'] has {said}: {', '.join(wrong or sorted(taken))}.",
            hint=f"See the arguments of redis.connection.{connection_class.__name__}.",
        )
    return taken


def known(connection_class: type[Connection]) -> frozenset[str]:
    """The names of the arguments that a class of connections takes."""
    kinds = [kind.__dict__["__init__"] for kind in connection_class.__mro__ if "__init__" in kind.__dict__ and kind is not object]
    parameters = [one for made in kinds for one in inspect.signature(made).parameters.values()]
    return frozenset(one.name for one in parameters if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)) - {"self"}


def _can_be_made(connection_class: type[Connection], taken: Mapping[str, Any]) -> bool:
    try:
        connection_class(**taken)
    except (TypeError, ValueError, AttributeError, RedisError):
        return False
    return True


def unconnected(connection_class: type[Connection], kwargs: Mapping[str, Any], *, name: str, timeout: float, where: str) -> Connection:
    """A connection of this package with these arguments, without retries, that waits for `timeout` seconds."""
    connection = connection_class(
        **{
            **kwargs,
            "socket_timeout": timeout,
            "socket_connect_timeout": timeout,
            "redis_connect_func": partial(_greet, name, where, kwargs.get("redis_connect_func")),
            "retry": Retry(NoBackoff(), 0),
            "health_check_interval": 0,
            "decode_responses": False,
            "protocol": 2,
        }
    )
    connection.socket_timeout = timeout  # redis-py 5 loses it on unix sockets, and would wait forever
    for told in ("driver_info", "lib_name", "lib_version"):  # CLIENT SETINFO: a refusal would appear in ACL LOG for each connection
        if hasattr(connection, told):
            setattr(connection, told, None)
    CONNECTIONS.add(connection)
    return connection


def _greet(name: str, where: str, log_in: Callable[[Connection], None] | None, connection: Connection) -> None:
    """Logs a new connection in, and gives it its name, which nothing needs."""
    if log_in is None:
        connection.on_connect()  # type: ignore[no-untyped-call]  # redis-py types only some methods
    else:
        log_in(connection)
    if not name or is_refused(where, SETNAME):
        return
    connection.send_command("CLIENT", "SETNAME", name, check_health=False)  # type: ignore[no-untyped-call]  # redis-py types only some methods
    try:
        connection.read_response()
    except ResponseError as error:
        if not refused(where, SETNAME, error):
            raise
