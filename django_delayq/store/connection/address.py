"""Reads `DELAYQ["REDIS"]`: an alias in CACHES, a URL, a factory, or an embedded server."""

from __future__ import annotations

import ipaddress
import re
import ssl
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any, Final, NamedTuple, TypeAlias
from urllib.parse import parse_qs, unquote, urlsplit

from redis import Redis
from redis.cluster import RedisCluster
from redis.connection import Connection, ConnectionPool, SSLConnection, UnixDomainSocketConnection, parse_url
from redis.sentinel import Sentinel, SentinelConnectionPool

from django_delayq.exceptions import ConfigError
from django_delayq.setting_readers import is_embedded
from django_delayq.store.connection import embedded, sentinels
from django_delayq.store.connection.connection_options import checked, known, left_out, wrong_option
from django_delayq.store.connection.sentinels import Entrance, Sentinels

RedisSpec: TypeAlias = "str | Mapping[str, Any]"
CLUSTER_SCHEMES: Final = ("redis+cluster://", "rediss+cluster://")
SCHEMES = ("redis://", "rediss://", "unix://", *sentinels.SCHEMES, *CLUSTER_SCHEMES)
# The options that a private pool copies from the pool of a cache: the address of the server and the credentials. Decoding, retries,
# pool sizes, timeouts and name are not copied: this package sets its own.
TAKEN_OVER = frozenset(
    {
        "host",
        "port",
        "db",
        "path",
        "username",
        "password",
        "credential_provider",
        "socket_keepalive",
        "socket_keepalive_options",
    }
)
# Error messages quote no more of an address than this, since the rest may contain a password.
SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{0,15}://")
HOST: Final = re.compile(r"[\w.:%-]+")  # host names, IPv4 and IPv6 addresses
NAME: Final = re.compile(r"[\w-]+")
DATABASE: Final = re.compile(r"/?[0-9]*")  # if the path has other characters, redis-py uses the digits in it, or 0
UNCHECKED: Final = (None, "none", ssl.CERT_NONE)  # values of ssl_cert_reqs
HOW_ENCODED: Final = "Percent-encode characters of a password that are not letters or digits: %40 for @, %2F for /."
HOW: Final = f"Write redis://:PASSWORD@host:6379/1. {HOW_ENCODED}"
SHARDS: Final = ("NotImplementedError",)  # raised by a client that spreads its keys over several servers
SHARDED: Final = "It spreads keys over several servers. Name one server: write a URL, or an alias that has one."
CLUSTER_LINE: Final = "redis+cluster://user:password@host1:6379,host2:6379"
PORT: Final = 6379


class Way(NamedTuple):
    """The way to a server. `network`: not by a unix socket. `here`: it is on this host. `checked`: TLS checks the certificate and the
    name. `password`: there is a password, or an object that provides one.
    """

    where: str
    network: bool
    here: bool
    tls: bool
    checked: bool
    password: bool


def address(spec: RedisSpec) -> str:
    """The address in that value of `DELAYQ["REDIS"]`, without connecting or starting anything; "" for an embedded server.

    Raises:
        ConfigError: the value leads nowhere.
    """
    return "" if is_embedded(spec) else where(resolve(spec)[1])


def way(spec: RedisSpec) -> Way:
    """The way to the server of that value of `DELAYQ["REDIS"]`, without connecting; not for an embedded one.

    Raises:
        ConfigError: the value leads nowhere.
    """
    connection_class, kwargs = resolve(spec)
    tls = issubclass(connection_class, SSLConnection)
    return Way(
        where=where(kwargs),
        network=not kwargs.get("path"),
        here="sentinels" not in kwargs and all(is_here(host) for host, _ in nodes_of(kwargs)),
        tls=tls,
        checked=tls and kwargs["ssl_check_hostname"],
        password=bool(kwargs.get("password") or kwargs.get("credential_provider")),
    )


def nodes_of(kwargs: Mapping[str, Any]) -> Sequence[tuple[str, int]]:
    """Host and port of each server in these arguments of a connection; several for a Cluster."""
    cluster: Sequence[tuple[str, int]] | None = kwargs.get("cluster")
    return cluster or [(kwargs.get("host", "localhost"), int(kwargs.get("port", PORT)))]


def is_cluster(spec: RedisSpec) -> bool:
    """Whether that value of `DELAYQ["REDIS"]` leads to a Redis Cluster, without connecting or starting anything.

    Raises:
        ConfigError: the value leads nowhere.
    """
    return not is_embedded(spec) and "cluster" in resolve(spec)[1]


def is_here(host: str) -> bool:
    """Whether this name is the local host."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def cache_aliases() -> list[str]:
    """The aliases of the caches on Redis."""
    from django.core.cache import caches

    return [alias for alias in caches.settings if "redis" in str(caches.settings[alias].get("BACKEND", "")).lower()]


def where(kwargs: Mapping[str, Any]) -> str:
    """The address for people, without a password."""
    if kwargs.get("path"):
        return f"unix:{kwargs['path']}, db {kwargs.get('db') or 0}"
    if cluster := kwargs.get("cluster"):
        return f"the Cluster of {', '.join(f'{host}:{port}' for host, port in cluster)}"
    if sentinels := kwargs.get("sentinels"):
        return f"{sentinels.name} by Sentinel at {sentinels.places}, db {kwargs.get('db') or 0}"
    return f"{kwargs.get('host', 'localhost')}:{kwargs.get('port', 6379)}, db {kwargs.get('db') or 0}"


def resolve(spec: RedisSpec) -> tuple[type[Connection], dict[str, Any]]:
    """The class of the connections, and their arguments. Instead of host and port there is `sentinels`, if Sentinels report the
    master, or `cluster`: host and port of some nodes.

    Raises:
        ConfigError: the value leads nowhere.
    """
    connection_class, kwargs = _resolve(spec)
    return connection_class, _named(connection_class, kwargs)


def _named(connection_class: type[Connection], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Sets `ssl_check_hostname`. With TLS, the certificate must contain the name under which the server is called. The default of
    redis-py differs between its versions.
    """
    if not issubclass(connection_class, SSLConnection):
        return dict(kwargs)
    checked = kwargs.get("ssl_cert_reqs", "required") not in UNCHECKED
    return {**kwargs, "ssl_check_hostname": checked and kwargs.get("ssl_check_hostname", True)}


def _resolve(spec: RedisSpec) -> tuple[type[Connection], dict[str, Any]]:
    if isinstance(spec, Mapping):
        if "EMBEDDED" in spec:
            return _from_url(embedded.ensure(spec["EMBEDDED"], spec.get("WITH", 0)), {})
        if "URL" not in spec:
            raise ConfigError('DELAYQ["REDIS"] is a dict without "URL".', hint='Write {"URL": "redis://host:6379/1", "OPTIONS": {}}.')
        return _from_url(spec["URL"], spec.get("OPTIONS", {}))
    if spec == "embedded":
        return _from_url(embedded.ensure(None), {})
    if "://" in spec:
        return _from_url(spec, {})
    if "." in spec and all(map(str.isidentifier, spec.split("."))):
        return _from_client(_call_factory(spec))
    return _from_cache(spec)


def _from_url(url: str, options: Mapping[str, Any]) -> tuple[type[Connection], dict[str, Any]]:
    _check(url, 'DELAYQ["REDIS"]')
    if url.startswith(sentinels.SCHEMES):
        return _from_sentinel_url(url, options)
    if url.startswith(CLUSTER_SCHEMES):
        return _from_cluster_url(url, options)
    kwargs = dict(parse_url(url))
    connection_class = kwargs.pop("connection_class", Connection)
    return connection_class, checked(connection_class, {**kwargs, **options})


def _from_sentinel_url(url: str, options: Mapping[str, Any]) -> tuple[type[Connection], dict[str, Any]]:
    found = _SeveralServers(url, "+sentinel", sentinels.LINE)
    name, _, database = found.path.partition("/")
    if not name:
        raise found.refused("it does not contain the name of a master")
    name = unquote(name)
    if not sentinels.MASTER.fullmatch(name) or not re.fullmatch(r"\d*", database):
        raise found.refused("the Sentinels are not followed by a name and a database number")
    connection_class, kwargs = found.rest(database or "0")
    at = sentinels.places(found.hosts, sentinels.PORT)
    if not at:
        raise found.refused("it does not contain any Sentinels")
    entrances, kwargs = sentinels.entrances(at, connection_class, {**kwargs, **options})
    named = [(made, _named(made, checked(made, one))) for made, one in entrances]
    return connection_class, {**checked(connection_class, kwargs), "sentinels": Sentinels(name, named)}


def _from_cluster_url(url: str, options: Mapping[str, Any]) -> tuple[type[Connection], dict[str, Any]]:
    found = _SeveralServers(url, "+cluster", CLUSTER_LINE)
    at = sentinels.places(found.hosts, PORT)
    if not at:
        raise found.refused("does not contain any nodes")
    connection_class, kwargs = found.rest("")
    given = {**kwargs, **options}
    if found.path not in ("", "0") or given.pop("db", 0):
        raise found.refused("a Redis Cluster has database 0 only")
    taken = checked(connection_class, {name: value for name, value in given.items() if name not in ("host", "port")})
    return connection_class, {**taken, "cluster": at}


class _SeveralServers:
    """The parts of a URL of Sentinels or of a Cluster. `hosts`: a list separated by commas. `line`: an example of such a URL."""

    def __init__(self, url: str, kind: str, line: str) -> None:
        self._scheme, _, rest = url.partition("://")
        front, *self._query = rest.partition("?")
        *self._credentials, rest = front.rpartition("@")
        self.hosts, _, self.path = rest.partition("/")
        self._kind, self._line = kind, line

    def refused(self, wrong: str) -> ConfigError:
        """The error for that reason. Its text quotes nothing of the URL but the scheme."""
        return ConfigError(f'DELAYQ["REDIS"] begins with {self._scheme}://, and {wrong}.', hint=f"Write {self._line}. {HOW_ENCODED}")

    def rest(self, database: str) -> tuple[type[Connection], dict[str, Any]]:
        """The class of the connections, and their arguments without host and port."""
        url = "".join((self._scheme.removesuffix(self._kind), "://", *self._credentials, "server/", database, *self._query))
        try:
            kwargs = dict(parse_url(url))
        except ValueError as error:
            raise self.refused(f"what follows is no usable address{wrong_option(error)}") from None
        connection_class = kwargs.pop("connection_class", Connection)
        return connection_class, {key: value for key, value in kwargs.items() if key not in ("host", "port")}


def not_obeyed(spec: RedisSpec) -> list[str]:
    """The options in that value of `DELAYQ["REDIS"]` that the package ignores."""
    url, options = (spec.get("URL", ""), spec.get("OPTIONS", {})) if isinstance(spec, Mapping) else (spec, {})
    return left_out([*options, *parse_qs(url.partition("?")[2])]) if "://" in url else []


def _check(url: Any, place: str) -> None:
    """Refuses an address that cannot be read, or that an unencoded / or @ in a password has split in the wrong place.

    Raises:
        ConfigError: its text names only place and scheme, because the texts of the parsers quote the address.
    """
    scheme = SCHEME.match(url) if isinstance(url, str) else None
    said = f"{place} begins with {scheme[0]}" if scheme else f"{place} is an address without a scheme"
    if scheme is None or not url.startswith(SCHEMES):
        raise ConfigError(f"{said}. Available schemes: {', '.join(SCHEMES)}.", hint=HOW)
    _, *behind = re.split(r"[/?#]", url[scheme.end() :], maxsplit=1)
    several = url.startswith((*sentinels.SCHEMES, *CLUSTER_SCHEMES))
    try:
        host = None if several else parse_url(url).get("host")
        usable = "@" not in "".join(behind) and (host is None or HOST.fullmatch(host))
    except ValueError as error:
        raise ConfigError(f"{said}, and what follows is no usable address{wrong_option(error)}.", hint=HOW) from None
    if not usable:
        raise ConfigError(f"{said}, and what follows is no usable address.", hint=HOW)
    if not several and not url.startswith("unix://") and not DATABASE.fullmatch(urlsplit(url).path):
        raise ConfigError(f"{said}, and what follows the host is no database number.", hint=HOW)


def _call_factory(path: str) -> Redis | RedisCluster:
    module, _, attribute = path.rpartition(".")
    try:
        factory = getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f'The factory {path!r} in DELAYQ["REDIS"] cannot be imported: {error}.') from error
    client, raised = _attempted(factory)
    if raised:
        raise ConfigError(
            f"The factory {path!r} in DELAYQ['REDIS'] raised {raised}.", hint=f"Call it yourself to find the cause. {HOW}"
        )
    if not isinstance(client, Redis | RedisCluster):
        said = f"The factory {path!r} in DELAYQ['REDIS'] returned {type(client).__name__}; it must return a redis.Redis."
        raise ConfigError(said, hint=_way_out(client))
    return client


def _way_out(client: object) -> str:
    """A setting that replaces a client of redis-py that is not a client of one server."""
    if isinstance(client, Sentinel):
        return "Return its master_for('mymaster'), with the name that the Sentinels know; or write redis+sentinel://… in its place."
    return ""


def _attempted(make: Callable[[], Any]) -> tuple[Any, str]:
    """The result, and the class of the error if it raised one: the text of the error may quote parts of the address."""
    try:
        return make(), ""
    except Exception as error:
        return None, type(error).__name__


def _from_cache(alias: str) -> tuple[type[Connection], dict[str, Any]]:
    from django.core.cache import caches  # a cache is built when it is first asked for

    if alias not in caches.settings:
        said = repr(alias) if NAME.fullmatch(alias) else "a text"
        raise ConfigError(
            f'DELAYQ["REDIS"] is {said}, which is not an alias in CACHES.',
            hint='Add it there, or write a URL such as "redis://localhost:6379/1".',
        )
    place = f"LOCATION of the cache {alias!r} in DELAYQ['REDIS']"
    for url in _locations(caches.settings[alias].get("LOCATION")):
        _check(url, place)
    client, error = _attempted(lambda: _client_of(caches[alias]))
    if error:
        raise ConfigError(f"{place} is refused by its client, which raises {error}.", hint=SHARDED if error in SHARDS else HOW)
    if not isinstance(client, Redis | RedisCluster):
        raise ConfigError(
            f"The cache {alias!r} in DELAYQ['REDIS'] is a {type(caches[alias]).__name__}, which does not use Redis.",
            hint=_way_out(client) or "Use an alias of django-redis or of django.core.cache.backends.redis, or write a URL.",
        )
    return _from_client(client)


def _client_of(cache: Any) -> Any:
    inner = getattr(cache, "client", None) or getattr(cache, "_cache", None)
    get_client = getattr(inner, "get_client", None)
    return get_client(write=True) if get_client else None


def _locations(location: Any) -> Iterator[str]:
    """The addresses of a cache, if it has any."""
    texts = [location] if isinstance(location, str) else location if isinstance(location, (list, tuple)) else []
    for text in texts:
        if "://" in str(text):  # a cache on disk or in a table has another kind of location
            yield from re.split("[;,]", str(text))  # as the backends do


def _from_client(client: Redis | RedisCluster) -> tuple[type[Connection], dict[str, Any]]:
    if isinstance(client, RedisCluster):
        return _from_cluster_client(client)
    pool: ConnectionPool = client.connection_pool
    if isinstance(pool, SentinelConnectionPool):
        return _from_sentinel_pool(pool)
    kwargs = _taken_over(pool)
    if issubclass(pool.connection_class, UnixDomainSocketConnection):
        kwargs = {name: value for name, value in kwargs.items() if name not in {"host", "port"}}
    return pool.connection_class, kwargs


def _from_cluster_client(client: RedisCluster) -> tuple[type[Connection], dict[str, Any]]:
    """The nodes and credentials of a Cluster client. The client itself is neither changed nor used."""
    manager = getattr(client, "nodes_manager", None)
    nodes = {**getattr(manager, "startup_nodes", {}), **getattr(manager, "nodes_cache", {})}
    kwargs = getattr(manager, "connection_kwargs", None)
    found = list(dict.fromkeys((str(node.host), int(node.port)) for node in nodes.values() if node.host and node.port))
    if not found or not isinstance(kwargs, dict):
        raise ConfigError(
            f"DELAYQ['REDIS'] refers to a {type(client).__name__} that does not list its nodes.",
            hint=f"Write {CLUSTER_LINE} in its place. {HOW_ENCODED}",
        )
    tls = bool(kwargs.get("ssl")) or issubclass(kwargs.get("connection_class", Connection), SSLConnection)
    own = TAKEN_OVER - {"host", "port", "db", "path"}
    taken = {name: value for name, value in kwargs.items() if name in own or (tls and name.startswith("ssl_"))}
    return SSLConnection if tls else Connection, {**taken, "cluster": found}


def _from_sentinel_pool(pool: SentinelConnectionPool) -> tuple[type[Connection], dict[str, Any]]:
    """Asks the Sentinels of a pool over separate connections, since those of the pool may wait forever."""
    if not pool.is_master:
        said = f"DELAYQ['REDIS'] leads to replicas of {pool.service_name!r}, which take no writes."
        raise ConfigError(said, hint="Remove is_master=0 from LOCATION. A factory must return master_for instead of slave_for.")
    connection_class = SSLConnection if issubclass(pool.connection_class, SSLConnection) else Connection
    entrances: list[Entrance] = []
    for client in pool.sentinel_manager.sentinels:
        own = client.connection_pool
        entrances.append((own.connection_class, _named(own.connection_class, {**_taken_over(own), "db": 0})))
    kwargs = {name: value for name, value in _taken_over(pool).items() if name not in {"host", "port"}}
    return connection_class, {**kwargs, "sentinels": Sentinels(pool.service_name, entrances)}


def _taken_over(pool: ConnectionPool) -> dict[str, Any]:
    names = known(pool.connection_class)  # a unix socket, for example, has no keep-alive
    tls = issubclass(pool.connection_class, SSLConnection)
    taken = {name for name in pool.connection_kwargs if name in TAKEN_OVER or (tls and name.startswith("ssl_"))}
    return {name: value for name, value in pool.connection_kwargs.items() if name in taken & names}
