"""The kind of server at an address: a single server, a node of a Redis Cluster, or a Sentinel; and whether it has that database
number. This is checked first, because a client that expects a single server gets only unclear errors from the others.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
from collections.abc import Iterator, Mapping
from typing import Any, Final

from redis.connection import SSLConnection
from redis.exceptions import NoPermissionError, RedisError, ResponseError
from redis.exceptions import TimeoutError as TimedOut

from django_delayq.exceptions import StoreUnavailable
from django_delayq.findings import Finding
from django_delayq.setting_readers import is_embedded
from django_delayq.store.connection.address import PORT, RedisSpec, nodes_of, resolve, where
from django_delayq.store.connection.error_replies import StoreError
from django_delayq.store.connection.link import Link, link_to
from django_delayq.store.connection.sentinels import PATIENCE, MasterUnknown, Sentinels

CREDENTIALS: Final = ("username", "password", "credential_provider")
SHOWN: Final = 5  # names of masters that a hint has at most
NAME_OF_MASTER: Final = b"name"


def kind_findings(redis: RedisSpec, *, timeout: float = 2.0) -> list[Finding]:
    """The problems with the kind of server that answers there. None for a single server, and none if nothing can be learned: a later
    connection reports that the server cannot be reached, or refuses the login.

    Raises:
        ConfigError: the value leads nowhere.
    """
    if is_embedded(redis):
        return []
    connection_class, kwargs = resolve(redis)
    if (sentinels := kwargs.get("sentinels")) and (found := _of_sentinels(sentinels, kwargs.get("db") or 0)):
        return [found]
    by_cluster = "cluster" in kwargs
    tls = issubclass(connection_class, SSLConnection)
    for one in _servers(kwargs):
        hung_up = False
        for given in _entrances(one):
            link = link_to(connection_class, given, name="", timeout=timeout)
            try:
                return list(_found(link, one, tls, by_cluster))
            except StoreUnavailable as error:
                # A TLS server does this when it receives anything else.
                hung_up = error.code == "redis_away" and not isinstance(error.__cause__, TimedOut)
            except StoreError:
                pass
            finally:
                link.close()
        if hung_up and not tls and not kwargs.keys() & {"path", "sentinels"} and _speaks_tls(nodes_of(one)[0], timeout):
            place = _place(*nodes_of(one)[0])
            kind, database = ("+cluster", "") if by_cluster else ("", f"/{one.get('db') or 0}")
            line = f"rediss{kind}://[user:password@]{place}{database}"
            hint = f"Set DELAYQ['REDIS'] to {line}, and ssl_ca_certs to the file of the certificate authority."
            return [Finding("E020", f"The server at {place} requires TLS, but the URL does not use it.", hint)]
    return []


def _servers(kwargs: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The arguments for each server that may be asked. Any node of a Cluster can answer."""
    if "cluster" not in kwargs:
        yield kwargs
        return
    rest = {name: value for name, value in kwargs.items() if name != "cluster"}
    for host, port in nodes_of(kwargs):
        yield {**rest, "host": host, "port": port}


def _speaks_tls(address: tuple[str, int], timeout: float) -> bool:
    """Whether the server there speaks TLS. Only the handshake is sent, so the identity of the server does not matter."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    with contextlib.suppress(OSError, ValueError), socket.create_connection(address, timeout) as line, context.wrap_socket(line):
        return True
    return False


def _place(host: str, port: int) -> str:
    """The address in the form of a URL."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _of_sentinels(sentinels: Sentinels, database: int) -> Finding | None:
    try:
        sentinels.ask()
    except MasterUnknown:
        return Finding("E016", f"The Sentinels in DELAYQ['REDIS'] do not know a master named {sentinels.name!r}.")
    except (RedisError, OSError):  # a later connection reports this
        by_tls = [place for place in sentinels.plain if _speaks_tls(place, PATIENCE)]
        if by_tls:
            hosts = ",".join(_place(*place) for place in by_tls)
            return Finding(
                "E020",
                f"The Sentinels at {hosts} require TLS, but the URL does not use it.",
                f"Set DELAYQ['REDIS'] to rediss+sentinel://[user:password@]{hosts}/{sentinels.name}/{database}, with all Sentinels, "
                "and ssl_ca_certs to the file of the certificate authority.",
            )
    return None


def _entrances(kwargs: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The ways to connect: with our credentials, to database 0, which every server has; then without credentials, since a Sentinel
    has other users, or none.
    """
    yield {**kwargs, "db": 0}
    if any(kwargs.get(name) for name in CREDENTIALS):
        yield {name: value for name, value in kwargs.items() if name not in CREDENTIALS} | {"db": 0}


def _found(link: Link, kwargs: Mapping[str, Any], tls: bool, by_cluster: bool) -> Iterator[Finding]:
    facts = link.execute("INFO").decode("utf-8", "replace").splitlines()
    place = where(kwargs)
    clustered = "redis_mode:cluster" in facts or "cluster_enabled:1" in facts
    if clustered and not by_cluster:
        yield Finding(
            "E013",
            f"Redis at {place} is a node of a Redis Cluster, but the URL is that of a single server.",
            f"Set DELAYQ['REDIS'] to {_url(kwargs, tls, '+cluster')} with several nodes, separated by commas.",
        )
    elif by_cluster and not clustered and not {"redis_mode:sentinel", "server_mode:sentinel"} & set(facts):
        yield Finding(
            "E017",
            f"The server at {place} is not a node of a Redis Cluster.",
            f"Set DELAYQ['REDIS'] to {_url(kwargs, tls)}/0.",
        )
    elif by_cluster and clustered:
        return
    elif "redis_mode:sentinel" in facts or "server_mode:sentinel" in facts:
        names = _masters(link)
        line = f"{_url(kwargs, tls, '+sentinel')}/{names[0] if names else 'mymaster'}/{kwargs.get('db') or 0}"
        told = f"Its masters are {', '.join(names)}." if names else "Use the name in its `sentinel monitor`."
        yield Finding(
            "E014",
            f"The server at {place} is a Sentinel, which stores no jobs.",
            f"Set DELAYQ['REDIS'] to {line} with all Sentinels, separated by commas. {told}",
        )
    elif (number := int(kwargs.get("db") or 0)) and _refuses(link, number):
        count = _databases(link)
        yield Finding(
            "E015",
            f"The server at {place} does not have a database {number}{f', only 0 to {count - 1}' if count else ''}.",
            f"Use another number at the end of the URL in DELAYQ['REDIS']{'' if count else ', such as /0'}, or increase "
            "`databases` in the configuration of the server.",
        )


def _url(kwargs: Mapping[str, Any], tls: bool, kind: str = "") -> str:
    """The beginning of a setting that replaces the address of that server."""
    return f"{'rediss' if tls else 'redis'}{kind}://[user:password@]{kwargs.get('host', 'localhost')}:{kwargs.get('port', PORT)}"


def _refuses(link: Link, number: int) -> bool:
    """Whether the server does not have this database. If our user may not select any database, returns False."""
    connection = link.dedicated()
    try:
        connection.send_command("SELECT", number, check_health=False)
        connection.read_response()
    except NoPermissionError:
        return False
    except ResponseError:
        return True
    except (RedisError, OSError):
        return False
    finally:
        connection.disconnect()
    return False


def _databases(link: Link) -> int:
    """The number of databases; 0 if the server does not report it."""
    with contextlib.suppress(StoreError, StoreUnavailable, ValueError, IndexError):
        return int(link.execute("CONFIG", "GET", "databases")[1])
    return 0


def _masters(link: Link) -> list[str]:
    """The names of the masters that this Sentinel watches; empty if it does not report them."""
    with contextlib.suppress(StoreError, StoreUnavailable):
        told = (dict(zip(each[::2], each[1::2], strict=False)) for each in link.execute("SENTINEL", "MASTERS"))
        return [name.decode("utf-8", "replace") for facts in told if (name := facts.get(NAME_OF_MASTER))][:SHOWN]
    return []
