"""Where `DELAYQ["REDIS"]` leads: an alias in CACHES, a URL, a factory, an embedded server."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any, TypeAlias

from redis import Redis
from redis.connection import Connection, ConnectionPool, SSLConnection, UnixDomainSocketConnection, parse_url

from django_delayq.exceptions import ConfigError
from django_delayq.store import embedded

RedisSpec: TypeAlias = "str | Mapping[str, Any]"
SCHEMES = ("redis://", "rediss://", "unix://")
# What a private pool takes over from the pool of a cache: where the server is and how to be let in. Not the client's
# decoding, retries, pool sizes, timeouts or name: those are ours.
TAKEN_OVER = frozenset({
    "host", "port", "db", "path", "username", "password", "credential_provider", "socket_keepalive",
    "socket_keepalive_options", "connection_pool",
})  # fmt: skip


def address(spec: RedisSpec) -> str:
    """Where that value of `DELAYQ["REDIS"]` leads, without connecting or starting anything; "" for an embedded server.

    Raises:
        ConfigError: it leads nowhere.
    """
    if spec == "embedded" or (isinstance(spec, Mapping) and "EMBEDDED" in spec):
        return ""
    return where(resolve(spec)[1])


def cache_aliases() -> list[str]:
    """The aliases of the caches on Redis."""
    from django.core.cache import caches

    return [alias for alias in caches.settings if "redis" in str(caches.settings[alias].get("BACKEND", "")).lower()]


def where(kwargs: Mapping[str, Any]) -> str:
    """The address for people, without a password."""
    if kwargs.get("path"):
        return f"unix:{kwargs['path']}, db {kwargs.get('db') or 0}"
    return f"{kwargs.get('host', 'localhost')}:{kwargs.get('port', 6379)}, db {kwargs.get('db') or 0}"


def resolve(spec: RedisSpec) -> tuple[type[Connection], dict[str, Any]]:
    """The class of the connections, and their arguments.

    Raises:
        ConfigError: it leads nowhere.
    """
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
