"""What answers at the address: a server of its own, a node of a Redis Cluster, or a Sentinel; and whether it has that database number.
Asked before anything else, since to a client that takes it for a server of its own it says nothing that could be understood.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from redis.connection import Connection, SSLConnection
from redis.exceptions import NoPermissionError, RedisError, ResponseError

from django_delayq.exceptions import StoreUnavailable
from django_delayq.store.address import PORT, RedisSpec, is_embedded, nodes_of, resolve, where
from django_delayq.store.connection import Link, link_to
from django_delayq.store.error_replies import StoreError
from django_delayq.store.fitness import Finding
from django_delayq.store.sentinels import MasterUnknown, Sentinels

CREDENTIALS: Final = ("username", "password", "credential_provider")
SHOWN: Final = 5  # names of masters that a hint has at most
NAME_OF_MASTER: Final = b"name"


def kind_findings(redis: RedisSpec, *, timeout: float = 2.0) -> list[Finding]:
    """What speaks against working with what answers there. Nothing, for a server of its own, and where nothing can be learnt: that it
    cannot be reached, or lets nobody in, is told by who goes on to use it.

    Raises:
        ConfigError: the value leads nowhere.
    """
    if is_embedded(redis):
        return []
    connection_class, kwargs = resolve(redis)
    if (sentinels := kwargs.get("sentinels")) and _unknown(sentinels):
        return [
            Finding(
                "E016",
                "error",
                f"The Sentinels in DELAYQ['REDIS'] know no master of the name {sentinels.name!r}.",
                "Write the name of their `sentinel monitor`. Those that one knows: redis-cli -p 26379 SENTINEL MASTERS",
            )
        ]
    by_cluster = "cluster" in kwargs
    for one in _servers(kwargs):
        for given in _entrances(one):
            link = link_to(connection_class, given, name="", timeout=timeout)
            try:
                return list(_found(link, one, connection_class, by_cluster))
            except (StoreUnavailable, StoreError):
                continue
            finally:
                link.close()
    return []


def _servers(kwargs: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The arguments for each server that may be asked: any node of a Cluster knows it."""
    if "cluster" not in kwargs:
        yield kwargs
        return
    rest = {name: value for name, value in kwargs.items() if name != "cluster"}
    for host, port in nodes_of(kwargs):
        yield {**rest, "host": host, "port": port}


def _unknown(sentinels: Sentinels) -> bool:
    try:
        sentinels.ask()
    except MasterUnknown:
        return True
    except (RedisError, OSError):  # told by who goes on
        return False
    return False


def _entrances(kwargs: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """As we are, but in the database that every server has; then as a stranger, since a Sentinel knows other users, or none."""
    yield {**kwargs, "db": 0}
    if any(kwargs.get(name) for name in CREDENTIALS):
        yield {name: value for name, value in kwargs.items() if name not in CREDENTIALS} | {"db": 0}


def _found(link: Link, kwargs: Mapping[str, Any], connection_class: type[Connection], by_cluster: bool) -> Iterator[Finding]:
    facts = link.execute("INFO").decode("utf-8", "replace").splitlines()
    place = where(kwargs)
    clustered = "redis_mode:cluster" in facts or "cluster_enabled:1" in facts
    tls = issubclass(connection_class, SSLConnection)
    if clustered and not by_cluster:
        yield Finding(
            "E013",
            "error",
            f"Redis at {place} is a node of a Redis Cluster, and the address is that of a server of its own.",
            f"Write {_cluster_line(kwargs, tls)} in DELAYQ['REDIS'], with several of its nodes, parted by commas.",
        )
    elif by_cluster and not clustered and not {"redis_mode:sentinel", "server_mode:sentinel"} & set(facts):
        yield Finding(
            "E017",
            "error",
            f"The server at {place} is no node of a Redis Cluster.",
            f"Write {'rediss' if tls else 'redis'}://[user:password@]{kwargs.get('host')}:{kwargs.get('port')}/0 in DELAYQ['REDIS'].",
        )
    elif by_cluster and clustered:
        return
    elif "redis_mode:sentinel" in facts or "server_mode:sentinel" in facts:
        yield _sentinel_finding(place, _line(kwargs, tls), _masters(link))
    elif (number := int(kwargs.get("db") or 0)) and _refuses(link, number):
        count = _databases(link)
        yield Finding(
            "E015",
            "error",
            f"The server at {place} has no database {number}{f'; it has {count}, from 0 on' if count else ''}.",
            f"End the URL in DELAYQ['REDIS'] with a number that it has{f': /0 to /{count - 1}' if count else ', such as /0'}; "
            "or raise `databases` in its configuration.",
        )


def _cluster_line(kwargs: Mapping[str, Any], tls: bool) -> str:
    """What to write in the place of a node's address."""
    return f"{'rediss' if tls else 'redis'}+cluster://[user:password@]{kwargs.get('host', 'localhost')}:{kwargs.get('port', PORT)}"


def _line(kwargs: Mapping[str, Any], tls: bool) -> str:
    """What to write in the place of a Sentinel's address, but for the name."""
    scheme = "rediss+sentinel" if tls else "redis+sentinel"
    return f"{scheme}://[user:password@]{kwargs.get('host', 'localhost')}:{kwargs.get('port', 6379)}/{{name}}/{kwargs.get('db') or 0}"


def _sentinel_finding(place: str, line: str, names: Sequence[str]) -> Finding:
    told = f"It watches over {', '.join(names)}." if names else "The name is that of its `sentinel monitor`."
    return Finding(
        "E014",
        "error",
        f"At {place} a Sentinel answers, which keeps no jobs.",
        f"Write {line.format(name=names[0] if names else 'mymaster')} in DELAYQ['REDIS'], with all Sentinels, parted by commas. {told}",
    )


def _refuses(link: Link, number: int) -> bool:
    """Whether the server has no such database. That our user may not choose any says nothing of that."""
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
    """How many there are; 0 if the server does not say."""
    with contextlib.suppress(StoreError, StoreUnavailable, ValueError, IndexError):
        return int(link.execute("CONFIG", "GET", "databases")[1])
    return 0


def _masters(link: Link) -> list[str]:
    """The names of those whom this Sentinel watches; none if it does not say."""
    with contextlib.suppress(StoreError, StoreUnavailable):
        told = (dict(zip(each[::2], each[1::2], strict=False)) for each in link.execute("SENTINEL", "MASTERS"))
        return [name.decode("utf-8", "replace") for facts in told if (name := facts.get(NAME_OF_MASTER))][:SHOWN]
    return []
