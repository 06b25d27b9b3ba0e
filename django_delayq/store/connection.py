"""Links to Redis: one private set of connections per process, raw replies, no hidden retries.

The client library repeats a command by itself after a connection error; our scripts are safe under that, but the second answer
is another one (a cancel that this very call has done: "finished"), and a caller who waits must know how long. So a `Link` looks
at a connection before it is used, sends a command once, and then says `StoreUnavailable`. Loops with time of their own call again.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any, TypeAlias

from redis import Redis
from redis.backoff import NoBackoff
from redis.connection import Connection, ConnectionPool, SSLConnection, UnixDomainSocketConnection, parse_url
from redis.exceptions import (
    AuthenticationError,
    AuthorizationError,
    BusyLoadingError,
    NoScriptError,
    RedisError,
    ResponseError,
)
from redis.retry import Retry

from django_delayq import clock
from django_delayq.exceptions import ConfigError, DelayqError, StoreUnavailable
from django_delayq.store import embedded

_pack: Callable[[tuple[Any, ...]], bytes] | None
try:
    from hiredis import pack_command as _pack
except ImportError:
    _pack = None

Reply: TypeAlias = Any
RedisSpec: TypeAlias = "str | Mapping[str, Any]"

# What a private pool takes over from the pool of a cache: where the server is and how to be let in. Not the client's
# decoding, retries, pool sizes, timeouts or name: those are ours.
TAKEN_OVER = frozenset({
    "host", "port", "db", "path", "username", "password", "credential_provider", "socket_keepalive",
    "socket_keepalive_options", "connection_pool",
})  # fmt: skip
# Seconds after which an idle connection is not used again: a firewall may have forgotten it, and would tell only after the send.
IDLE = 30.0
SCHEMES = ("redis://", "rediss://", "unix://")
# Replies that say "not now, perhaps later": to the caller the same as a server that cannot be reached. The client turns some
# codes into classes and cuts them off the text; Redis 6.2 puts the code of an error inside a script into the middle of it.
PASSING_CODES = re.compile(r"\b(OOM|READONLY|LOADING|MASTERDOWN|CLUSTERDOWN|MISCONF|NOREPLICAS|TRYAGAIN|BUSY)\b")
PASSING_CLASSES = frozenset(
    {"OutOfMemoryError", "ReadOnlyError", "MasterDownError", "ClusterDownError", "TryAgainError"}
)


class StoreError(DelayqError):
    """Redis answered with an error that is no passing trouble: a wrong type, a refused command, a broken script."""


class StoreRefused(StoreUnavailable):
    """Redis answered, at once, that it will not do this now: no memory, loading, a replica. It can be reached."""

    replica = False


class ScriptMissing(StoreError):
    """The server does not have that script: it was restarted, flushed or replaced."""


class Link:
    """A thread-safe way to send commands to one server.

    `execute` and `execute_many` return raw replies (bytes, int, list, None). Connections are kept in a stack and are never
    shared between processes: after a fork the child begins with an empty one.

    Args:
        factory: makes one unconnected client connection.
        where: the address, for error messages; never with a password.
    """

    def __init__(self, factory: Callable[[], Connection], where: str) -> None:
        self._factory = factory
        self.where = where
        self._idle: deque[tuple[Connection, float]] = deque()  # with when it was put there
        self._pid = os.getpid()

    def execute(self, *command: Any) -> Reply:
        """Sends one command and returns its raw reply.

        Raises:
            StoreUnavailable: the server cannot be reached, did not answer in time, or refuses for the time being.
            StoreError: the server answered with another error.
        """
        reply = self.execute_many((command,))[0]
        if isinstance(reply, Exception):
            raise reply
        return reply

    def execute_many(self, commands: Sequence[tuple[Any, ...]]) -> list[Reply]:
        """Sends several commands in one write and returns their replies in order; an error reply stands in its place as an
        exception object (`StoreUnavailable` or `StoreError`).

        Raises:
            StoreUnavailable: as for `execute`.
        """
        return self._receive(self._send(commands), len(commands))

    def start(self, command: tuple[Any, ...]) -> Callable[[], Reply]:
        """Sends one command, and returns a function that waits for its reply: to be called once, and raises as `execute`.

        Raises:
            StoreUnavailable: the server cannot be reached.
        """
        connection = self._send((command,))

        def receive() -> Reply:
            reply = self._receive(connection, 1)[0]
            if isinstance(reply, Exception):
                raise reply
            return reply

        return receive

    def _send(self, commands: Sequence[tuple[Any, ...]]) -> Connection:
        self._after_fork()
        connection = self._take()
        try:
            connection.connect()
            connection.send_packed_command([b"".join(_packed(connection, commands))], check_health=False)
        except BaseException as error:
            raise self._broken(connection, error) from error
        return connection

    def _receive(self, connection: Connection, count: int) -> list[Reply]:
        try:
            replies = [self._read(connection) for _ in range(count)]
        except BaseException as error:
            raise self._broken(connection, error) from error
        if any(isinstance(reply, StoreRefused) and reply.replica for reply in replies):
            connection.disconnect()  # the address may lead to the new primary by now
        else:
            self._idle.append((connection, clock.monotonic()))
        return replies

    def dedicated(self) -> Connection:
        """A connected connection for one owner that blocks on it (the wake line). The owner disconnects it.

        Raises:
            StoreUnavailable: the server cannot be reached.
        """
        connection = self._factory()
        try:
            connection.connect()
        except (RedisError, OSError) as error:
            raise self._unavailable(error) from error
        return connection

    def close(self) -> None:
        """Closes the idle connections. The link may be used again."""
        while self._idle:
            with contextlib.suppress(IndexError):
                _discard(self._idle.pop()[0])

    def _take(self) -> Connection:
        """An idle connection that is still one, or a new one, not connected yet."""
        while True:
            try:
                connection, since = self._idle.pop()
            except IndexError:
                return self._factory()
            if clock.monotonic() - since < IDLE and _is_quiet(connection):
                return connection
            _discard(connection)

    def _after_fork(self) -> None:
        if self._pid != os.getpid():
            self._pid = os.getpid()
            self.close()

    def _read(self, connection: Connection) -> Reply:
        try:
            return connection.read_response()
        except ResponseError as error:
            if isinstance(error, NoScriptError):
                return ScriptMissing(str(error))
            if type(error).__name__ in PASSING_CLASSES or PASSING_CODES.search(str(error)):
                refused = StoreRefused(str(self._unavailable(error)))
                refused.replica = type(error).__name__ == "ReadOnlyError" or "READONLY" in str(error)
                return refused
            return StoreError(f"Redis at {self.where} answered: {error}")

    def _broken(self, connection: Connection, error: BaseException) -> StoreUnavailable:
        """What to raise after a call has failed in the middle. What is no error of the connection, such as an interrupt, is raised
        here: it, too, leaves a reply that another call would read.
        """
        _discard(connection)
        if not isinstance(error, (RedisError, OSError)):
            raise error
        return self._unavailable(error)

    def _unavailable(self, error: Exception) -> StoreUnavailable:
        if isinstance(error, (AuthenticationError, AuthorizationError)):
            next_step = "Check user and password in DELAYQ['REDIS']."
        elif isinstance(error, BusyLoadingError):
            next_step = "It is loading its data; the call may be repeated."
        else:
            next_step = "Check that the server runs and has memory; the call may be repeated, it takes effect once."
        return StoreUnavailable(f"Redis at {self.where} is not available: {_cause(error)}. {next_step}")


def _packed(connection: Connection, commands: Sequence[tuple[Any, ...]]) -> Iterator[bytes]:
    if _pack is not None:  # the client library looks at each argument first, in Python
        yield from map(_pack, commands)
    else:
        for command in commands:
            yield from connection.pack_command(*command)


def _is_quiet(connection: Connection) -> bool:
    """Whether it is open and nothing waits to be read: the server has not closed it, and no reply of another call is left."""
    try:
        return not connection.can_read(0)
    except (RedisError, OSError):
        return False


def _discard(connection: Connection) -> None:
    with contextlib.suppress(Exception):
        connection.disconnect()


def _cause(error: BaseException) -> str:
    text = str(error).strip().rstrip(".")
    return text or type(error).__name__


def connect(spec: RedisSpec, *, name: str = "delayq", timeout: float = 2.0) -> Link:
    """A link to the server that `DELAYQ["REDIS"]` names. Nothing is sent yet.

    Args:
        spec: alias in CACHES, URL, `{"URL": …, "OPTIONS": {…}}`, dotted path of a factory that returns a `redis.Redis`,
            `"embedded"` or `{"EMBEDDED": directory}`.
        name: client name, as `CLIENT LIST` shows it.
        timeout: seconds to wait for a connection, and for a reply.

    Raises:
        ConfigError: the value names nothing that can be connected to.
    """
    connection_class, kwargs = _resolve(spec)
    ours = {
        "socket_timeout": timeout,
        "socket_connect_timeout": timeout,
        "client_name": name,
        "retry": Retry(NoBackoff(), 0),
        "health_check_interval": 0,
        "decode_responses": False,
        "protocol": 2,
    }
    merged = {**kwargs, **ours}
    return Link(lambda: connection_class(**merged), _where(kwargs))


def address(spec: RedisSpec) -> str:
    """Where that value of `DELAYQ["REDIS"]` leads, without connecting or starting anything; "" for an embedded server.

    Raises:
        ConfigError: it leads nowhere.
    """
    if spec == "embedded" or (isinstance(spec, Mapping) and "EMBEDDED" in spec):
        return ""
    return _where(_resolve(spec)[1])


def cache_aliases() -> list[str]:
    """The aliases of the caches on Redis."""
    from django.core.cache import caches

    return [alias for alias in caches.settings if "redis" in str(caches.settings[alias].get("BACKEND", "")).lower()]


def _where(kwargs: Mapping[str, Any]) -> str:
    if kwargs.get("path"):
        return f"unix:{kwargs['path']}, db {kwargs.get('db') or 0}"
    return f"{kwargs.get('host', 'localhost')}:{kwargs.get('port', 6379)}, db {kwargs.get('db') or 0}"


def _resolve(spec: RedisSpec) -> tuple[type[Connection], dict[str, Any]]:
    if isinstance(spec, Mapping):
        if "EMBEDDED" in spec:
            return _from_url(embedded.ensure(spec["EMBEDDED"]), {})
        if "URL" not in spec:
            raise ConfigError(
                'DELAYQ["REDIS"] is a dict without "URL". Write {"URL": "redis://host:6379/1", "OPTIONS": {}}.'
            )
        return _from_url(spec["URL"], spec.get("OPTIONS", {}))
    if spec == "embedded":
        return _from_url(embedded.ensure(None), {})
    if spec.startswith(SCHEMES):
        return _from_url(spec, {})
    if "." in spec:
        return _from_client(_call_factory(spec))
    return _from_cache(spec)


def _from_url(url: str, options: Mapping[str, Any]) -> tuple[type[Connection], dict[str, Any]]:
    try:
        kwargs = dict(parse_url(url))
    except ValueError as error:
        raise ConfigError(f'DELAYQ["REDIS"] has no usable URL: {error}') from error
    connection_class = kwargs.pop("connection_class", Connection)
    return connection_class, {**kwargs, **options}


def _call_factory(path: str) -> Redis:
    module, _, attribute = path.rpartition(".")
    try:
        factory = getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f'DELAYQ["REDIS"] names the factory {path!r}, which cannot be imported: {error}.') from error
    client = factory()
    if not isinstance(client, Redis):
        raise ConfigError(
            f"The factory {path!r} in DELAYQ['REDIS'] returned {type(client).__name__}; it must return a redis.Redis."
        )
    return client


def _from_cache(alias: str) -> tuple[type[Connection], dict[str, Any]]:
    from django.core.cache import InvalidCacheBackendError, caches  # a cache is built when it is first asked for

    try:
        cache = caches[alias]
    except InvalidCacheBackendError as error:
        raise ConfigError(
            f'DELAYQ["REDIS"] is {alias!r}, which is no alias in CACHES. Add it there, or write a URL such as "redis://localhost:6379/1".'
        ) from error
    inner: Any = getattr(cache, "client", None) or getattr(cache, "_cache", None)
    get_client = getattr(inner, "get_client", None)
    client = get_client(write=True) if get_client else None
    if not isinstance(client, Redis):
        raise ConfigError(
            f"The cache {alias!r} in DELAYQ['REDIS'] is a {type(cache).__name__}, which is not on Redis. "
            "Use an alias of django-redis or of django.core.cache.backends.redis, or write a URL."
        )
    return _from_client(client)


def _from_client(client: Redis) -> tuple[type[Connection], dict[str, Any]]:
    pool: ConnectionPool = client.connection_pool
    kwargs = {
        name: value
        for name, value in pool.connection_kwargs.items()
        if name in TAKEN_OVER or (name.startswith("ssl_") and issubclass(pool.connection_class, SSLConnection))
    }
    if issubclass(pool.connection_class, UnixDomainSocketConnection):
        kwargs = {name: value for name, value in kwargs.items() if name not in {"host", "port"}}
    return pool.connection_class, kwargs
