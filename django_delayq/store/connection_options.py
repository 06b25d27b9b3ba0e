"""The arguments of a connection: which of those that a project gives are taken, and what is added."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from redis.backoff import NoBackoff
from redis.connection import Connection
from redis.exceptions import ResponseError
from redis.retry import Retry

from django_delayq.store import open_connections
from django_delayq.store.commands import is_refused, refused

SETNAME: Final = "client|setname"


def unconnected(connection_class: type[Connection], kwargs: Mapping[str, Any], *, name: str, timeout: float, where: str) -> Connection:
    """A connection of ours with these arguments, without retries, that will wait for `timeout` seconds."""
    connection = connection_class(
        **{
            **kwargs,
            "socket_timeout": timeout,
            "socket_connect_timeout": timeout,
            "redis_connect_func": Greeting(name, where, kwargs.get("redis_connect_func")),
            "retry": Retry(NoBackoff(), 0),
            "health_check_interval": 0,
            "decode_responses": False,
            "protocol": 2,
        }
    )
    connection.socket_timeout = timeout  # redis-py 5 forgets it on unix sockets, and would wait for ever
    for told in ("driver_info", "lib_name", "lib_version"):  # CLIENT SETINFO: a refusal would stand in ACL LOG for each connection
        if hasattr(connection, told):
            setattr(connection, told, None)
    open_connections.CONNECTIONS.add(connection)
    return connection


class Greeting:
    """What a connection does when it is made: it logs in, and gives its name, which nothing needs."""

    def __init__(self, name: str, where: str, log_in: Callable[[Connection], None] | None) -> None:
        self._name = name
        self._where = where
        self._log_in = log_in

    def __call__(self, connection: Connection) -> None:
        if self._log_in is None:
            connection.on_connect()  # type: ignore[no-untyped-call]
        else:
            self._log_in(connection)
        if not self._name or is_refused(self._where, SETNAME):
            return
        connection.send_command("CLIENT", "SETNAME", self._name, check_health=False)  # type: ignore[no-untyped-call]
        try:
            connection.read_response()
        except ResponseError as error:
            if not refused(self._where, SETNAME, error):
                raise
