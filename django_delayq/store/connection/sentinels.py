"""The Sentinels that watch over a master. They are asked for the current master, over separate short
connections, each time a connection is made. The client library has this too. But its pools have no time limit, and treat a demoted
master as a broken connection.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

from redis.backoff import NoBackoff
from redis.connection import Connection, SSLConnection
from redis.exceptions import ConnectionError, RedisError
from redis.retry import Retry

from django_delayq import clock
from django_delayq.store.connection import connection_options

SCHEMES: Final = ("redis+sentinel://", "rediss+sentinel://")
PORT: Final = 26379
PATIENCE: Final = 0.5  # seconds for one Sentinel to connect, and to answer; another Sentinel also knows the master
RARELY: Final = 30.0  # seconds between requests of `look` while no Sentinel answers
MASTER: Final = re.compile(r"[\w.-]+")  # the names that a Sentinel accepts
PLACE: Final = re.compile(r"(?:\[(?P<six>[0-9A-Fa-f:.]+)\]|(?P<host>[\w.-]+))(?::(?P<port>\d{1,5}))?")
LINE: Final = "redis+sentinel://user:password@host1:26379,host2:26379,host3:26379/mymaster/0"

Entrance: TypeAlias = "tuple[type[Connection], Mapping[str, Any]]"  # the class of a connection, and its arguments


class MasterUnknown(ConnectionError):
    """No Sentinel that answered knows a master of that name."""


class Sentinels:
    """The Sentinels of one master. Thread-safe: at worst, two threads both ask.

    Args:
        name: of the master, as in `sentinel monitor`.
        entrances: one for each Sentinel.
    """

    def __init__(self, name: str, entrances: Sequence[Entrance]) -> None:
        self.name = name
        self._entrances = list(entrances)
        self.places = ", ".join(sorted(map(_place, entrances)))  # these identify a master among others of the same name
        self._look_at = self._told_at = 0.0
        self.master: tuple[str, int] | None = None  # as reported last

    def ask(self) -> tuple[str, int]:
        """Host and port of the master now. The Sentinel that answers is asked first the next time.

        Raises:
            MasterUnknown: see there.
            redis.exceptions.ConnectionError: no Sentinel answers.
        """
        troubles: list[str] = []
        answered = False
        for entrance in self._entrances:
            try:
                found = _asked(entrance, self.name)
            except (RedisError, OSError) as error:
                troubles.append(f"{_place(entrance)}: {str(error).rstrip('.') or type(error).__name__}")
                continue
            if found is not None:
                self._entrances = [entrance, *(other for other in self._entrances if other is not entrance)]
                self.master, self._told_at = found, clock.monotonic()
                return found
            answered = True
        if answered:
            raise MasterUnknown(f"its Sentinels do not know a master named {self.name!r}")
        raise ConnectionError(f"no Sentinel responds ({'; '.join(troubles)})")

    @property
    def plain(self) -> list[tuple[str, int]]:
        """Host and port of the Sentinels that are asked without TLS."""
        by_tls = (issubclass(made, SSLConnection) for made, _ in self._entrances)
        return [(kwargs["host"], int(kwargs["port"])) for (_, kwargs), tls in zip(self._entrances, by_tls, strict=True) if not tls]

    @property
    def told_for(self) -> float:
        """Seconds since a Sentinel has reported the master."""
        return clock.monotonic() - self._told_at

    def look(self) -> None:
        """Asks for the master before a connection is used. While no Sentinel answers, the last reported master stays valid."""
        if clock.monotonic() < self._look_at:
            return
        try:
            self.ask()
        except (RedisError, OSError):
            self._look_at = clock.monotonic() + RARELY


def _asked(entrance: Entrance, name: str) -> tuple[str, int] | None:
    connection_class, kwargs = entrance
    limits = {"socket_timeout": PATIENCE, "socket_connect_timeout": PATIENCE}
    connection = connection_class(**{**kwargs, **limits, "retry": Retry(NoBackoff(), 0), "protocol": 2, "decode_responses": False})
    connection_options.CONNECTIONS.add(connection)
    try:
        connection.connect()
        connection.send_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", name, check_health=False)
        found = connection.read_response()
    finally:
        connection.disconnect()
    return None if found is None else (found[0].decode(), int(found[1]))


def _place(entrance: Entrance) -> str:
    return f"{entrance[1].get('host', 'localhost')}:{entrance[1].get('port', PORT)}"


def places(text: str, default: int) -> list[tuple[str, int]]:
    """Hosts and ports from a list separated by commas. Empty if one of them is not valid. `default`: the port of hosts without one."""
    matches = [PLACE.fullmatch(place) for place in text.split(",")]
    found = [(match["six"] or match["host"], int(match["port"] or default)) for match in matches if match is not None]
    return found if len(found) == len(matches) and all(0 < port < 65_536 for _, port in found) else []


def entrances(
    at: Sequence[tuple[str, int]], connection_class: type[Connection], kwargs: Mapping[str, Any]
) -> tuple[list[Entrance], dict[str, Any]]:
    """The ways to connect to the Sentinels at these places, and the arguments for the master. Arguments that begin with `sentinel_`
    are for the Sentinels alone; those for TLS and keep-alive are for both.
    """
    shared = {key: value for key, value in kwargs.items() if key.startswith(("ssl_", "socket_keepalive"))}
    own = {key.removeprefix("sentinel_"): value for key, value in kwargs.items() if key.startswith("sentinel_")}
    rest = {key: value for key, value in kwargs.items() if not key.startswith("sentinel_")}
    made = SSLConnection if issubclass(connection_class, SSLConnection) else Connection
    return [(made, {**shared, **own, "host": host, "port": port}) for host, port in at], rest
