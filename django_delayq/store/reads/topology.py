"""What is at an address: a single server, a node of a Redis Cluster, or a Sentinel; and whether a Cluster is healthy.

The kind is checked first, because a client that expects a single server gets only unclear errors from the others. Nothing here
affects where commands go.
"""

from __future__ import annotations

import re
import socket
import ssl
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

from redis.connection import SSLConnection
from redis.exceptions import NoPermissionError, RedisError, ResponseError
from redis.exceptions import TimeoutError as TimedOut

from django_delayq.exceptions import StoreUnavailable
from django_delayq.findings import Finding
from django_delayq.setting_readers import is_embedded
from django_delayq.store import keys
from django_delayq.store.connection.address import PORT, RedisSpec, is_cluster, nodes_of, resolve, where
from django_delayq.store.connection.cluster import Node, SlotRange, slot_of, slot_ranges
from django_delayq.store.connection.error_replies import SLOTS, StoreError, StoreRefused
from django_delayq.store.connection.link import Link, link_to
from django_delayq.store.connection.places import Places, place
from django_delayq.store.connection.sentinels import PATIENCE, MasterUnknown, Sentinels
from django_delayq.store.keys import Keys

CREDENTIALS: Final = ("username", "password", "credential_provider")
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
            place = _host_and_port(*nodes_of(one)[0])
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
    with suppress(OSError, ValueError), socket.create_connection(address, timeout) as line, context.wrap_socket(line):
        return True
    return False


def _host_and_port(host: str, port: int) -> str:
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
            hosts = ",".join(_host_and_port(*place) for place in by_tls)
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
    with suppress(StoreError, StoreUnavailable, ValueError, IndexError):
        return int(link.execute("CONFIG", "GET", "databases")[1])
    return 0


def _masters(link: Link) -> list[str]:
    """The names of the masters that this Sentinel watches; empty if it does not report them."""
    with suppress(StoreError, StoreUnavailable):
        told = (dict(zip(each[::2], each[1::2], strict=False)) for each in link.execute("SENTINEL", "MASTERS"))
        return [name.decode("utf-8", "replace") for facts in told if (name := facts.get(NAME_OF_MASTER))][:SHOWN]
    return []


UNEVEN: Final = 2  # how many times the fair share of a queue a master must have
BY_KEY: Final = 100_000  # jobs of a slot that is moved key by key, while its master is blocked
AS_A_WHOLE: Final = 2_000_000  # jobs of a slot that is moved in the background
WHOLE: Final[Mapping[str, tuple[int, ...]]] = {"valkey": (9,), "redis": (8, 4)}  # the first versions that move slots in the background
VERSION: Final = re.compile(rb"^(valkey|redis)_version:([0-9.]+)", re.MULTILINE)
SHOWN: Final = 5  # slots, nodes, partitions or masters that a message names at most


class Divided(NamedTuple):
    """A queue of several partitions. `current`: how many get new jobs; `served`: how many may have jobs."""

    queue: str
    current: int
    served: int


def partition_health(
    place: Places, masters: Sequence[Link], prefix: str, queues: Sequence[Divided], away: Sequence[Link]
) -> Iterator[Finding]:
    """Partitions that are distributed badly. `away`: masters that do not answer, and are not asked."""
    for one in queues:
        by_master: dict[Link, list[int]] = {}
        for partition in range(one.served):
            by_master.setdefault(place.of(one.queue, partition).server, []).append(partition)
        yield from _uneven(one, by_master, len(masters))
        yield from _large(one, {master: there for master, there in by_master.items() if master not in away}, prefix)


def _uneven(one: Divided, by_master: Mapping[Link, Sequence[int]], masters: int) -> Iterator[Finding]:
    for master, served in by_master.items():
        partitions = [partition for partition in served if partition < one.current]
        if len(partitions) > max(1, UNEVEN * one.current / masters):
            slots = (str(slot_of(f"{{{keys.tag(one.queue, partition)}}}")) for partition in partitions)
            yield Finding(
                "W027",
                f"{len(partitions)} of the {one.current} partitions of {one.queue!r} are on one of {masters} masters, {master.where}. "
                "It limits the queue while other masters are idle.",
                f"Move some of these slots to other masters: {', '.join(slots)}.",
            )


def _large(one: Divided, by_master: Mapping[Link, Sequence[int]], prefix: str) -> Iterator[Finding]:
    large: dict[int, int] = {}
    limits = [AS_A_WHOLE]
    for master, partitions in by_master.items():
        asked = [("HLEN", Keys.of(prefix, one.queue, partition)["jobs"]) for partition in partitions]
        try:
            info, *counts = master.execute_many([("INFO", "server"), *asked])
        except (StoreUnavailable, StoreError):  # the master has gone meanwhile
            continue
        limit = AS_A_WHOLE if moves_as_a_whole(info) else BY_KEY
        found = {number: count for number, count in zip(partitions, counts, strict=True) if isinstance(count, int) and count > limit}
        large |= found
        limits += [limit] * bool(found)
    if large:
        named = [f"{keys.tag(one.queue, number)} has {large[number]:,}" for number in sorted(large)]
        more = f" and {len(named) - SHOWN} more" * (len(named) > SHOWN)
        yield Finding(
            "W028",
            f"Partitions of {one.queue!r} are too large to move: {', '.join(named[:SHOWN])}{more}, and their masters can move "
            f"{min(limits):,} jobs without delays.",
        )


def moves_as_a_whole(info: object) -> bool:
    """Whether the server with this INFO moves slots in the background. False if INFO does not show it: slots are then moved key by
    key.
    """
    told = dict(VERSION.findall(info)) if isinstance(info, bytes) else {}
    flavour = "valkey" if b"valkey" in told else "redis"
    version = tuple(int(part) for part in told.get(flavour.encode(), b"0").split(b".") if part)
    return version >= WHOLE[flavour]


OPEN: Final = re.compile(r"\[(?P<slot>\d+)-(?P<way>[<>])-(?P<other>[0-9a-f]+)\]")  # in the line of the node itself
COVERAGE: Final = "cluster-require-full-coverage"


def cluster_findings(redis: RedisSpec, prefix: str, queues: Sequence[Divided]) -> list[Finding]:
    """The problems of the Cluster at that value of `DELAYQ["REDIS"]`; none if it is a single server.

    Args:
        redis, prefix: as in the settings.
        queues: those there that have several partitions.

    Raises:
        ConfigError: the value leads nowhere.
        StoreUnavailable: no node of the Cluster tells who they are.
    """
    if not is_cluster(redis):
        return []
    there = place(redis, name="delayq:check")
    try:
        masters = there.nodes()
        away: list[Link] = []
        found = list(_findings(masters, away))
        return [*found, *partition_health(there, masters, prefix, queues, away)]
    finally:
        there.close()


def _findings(masters: Sequence[Link], away: list[Link]) -> Iterator[Finding]:
    """Yields the findings. Adds masters that do not answer to `away`."""
    told: list[SlotRange] = []
    opened: dict[int, str] = {}
    alone: list[str] = []
    strict = False
    for link in masters:
        try:
            told = told or _served(link)
            lines = _lines(link)
            opened |= _open(lines)
            alone = alone or _alone(lines)
            strict = strict or _needs_all(link)
        except StoreRefused:
            continue
        except StoreUnavailable:
            away.append(link)
    if away:
        yield Finding("E019", f"These nodes of the Cluster cannot be reached from this host: {_some(map(_place, away))}.")
    lacking = sorted(set(range(SLOTS)) - {slot for one in told for slot in range(one.first, one.last + 1)})
    if lacking and told:
        yield Finding(
            "E018",
            f"No node of the Cluster serves these slots ({len(lacking):,}): {_some(map(str, lacking))}. Queues in these slots do "
            f"not work.",
            f"Run redis-cli --cluster fix {_place(masters[0])}",
        )
    if opened:
        moves = _some(f"{slot} {way}" for slot, way in opened.items())
        yield Finding(
            "W024",
            f"Slots of the Cluster are being moved, or a move has stopped halfway: {moves}. Queues in "
            f"these slots wait until the move has finished.",
            f"If no move is running, run redis-cli --cluster fix {_place(masters[0])}",
        )
    if alone:
        yield Finding("W025", f"These masters of the Cluster have no replica: {_some(alone)}. If one of them fails, its queues stop.")
    if strict:
        yield Finding("W026", f"{COVERAGE} is enabled, so if one master fails, the queues of all masters stop.")


def _served(link: Link) -> list[SlotRange]:
    with suppress(ValueError, StoreError):
        return slot_ranges(link.execute("CLUSTER", "SLOTS"), _place(link).rpartition(":")[0])
    return []


def _lines(link: Link) -> list[list[str]]:
    """All nodes in the report of this node: id, address, flags, id of its master and more, its slots. Empty if our user may not ask."""
    with suppress(StoreError):
        told = link.execute("CLUSTER", "NODES").decode("utf-8", "replace")
        return [line.split(" ") for line in told.splitlines() if line]
    return []


def _open(lines: Sequence[Sequence[str]]) -> dict[int, str]:
    """For each slot that is being moved, its two nodes, according to the node that reported these lines."""
    addresses = {line[0]: line[1].partition("@")[0] for line in lines}
    own = next((line for line in lines if "myself" in line[2].split(",")), ())
    found: dict[int, str] = {}
    for one in filter(None, map(OPEN.fullmatch, own[8:])):
        there, here = addresses.get(one["other"], "?"), addresses[own[0]]
        found[int(one["slot"])] = f"from {here} to {there}" if one["way"] == ">" else f"from {there} to {here}"
    return found


def _alone(lines: Sequence[Sequence[str]]) -> list[str]:
    """The masters that serve slots and have no replica. It uses these lines, since CLUSTER SLOTS leaves out new replicas."""
    followed = {line[3] for line in lines if "slave" in line[2].split(",") and "fail" not in line[2].split(",")}
    return sorted(line[1].partition("@")[0] for line in lines if line[8:] and line[0] not in followed)


def _needs_all(link: Link) -> bool:
    with suppress(StoreError, IndexError):  # a managed server hides CONFIG
        return bool(link.execute("CONFIG", "GET", COVERAGE)[1] == b"yes")
    return False


def _place(link: Link) -> str:
    return "{}:{}".format(*link.address) if isinstance(link, Node) else link.where


def _some(names: Iterable[str]) -> str:
    found = list(names)
    return ", ".join(found[:SHOWN]) + ", …" * (len(found) > SHOWN)
