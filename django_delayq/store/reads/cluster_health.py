"""The problems of a Redis Cluster, and of the distribution of partitions over its masters. It does not affect where commands go."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from django_delayq.exceptions import StoreUnavailable
from django_delayq.findings import Finding
from django_delayq.store import keys
from django_delayq.store.connection.address import RedisSpec, is_cluster
from django_delayq.store.connection.cluster import Node, SlotRange, slot_of, slot_ranges
from django_delayq.store.connection.error_replies import SLOTS, StoreError, StoreRefused
from django_delayq.store.connection.link import Link
from django_delayq.store.connection.places import Places, place
from django_delayq.store.keys import Keys

UNEVEN: Final = 2  # how many times the fair share of a queue a master must have
BY_KEY: Final = 100_000  # jobs of a slot that is moved key by key, while its master is blocked
AS_A_WHOLE: Final = 2_000_000  # jobs of a slot that is moved in the background
WHOLE: Final[Mapping[str, tuple[int, ...]]] = {"valkey": (9,), "redis": (8, 4)}  # the first versions that move slots in the background
VERSION: Final = re.compile(rb"^(valkey|redis)_version:([0-9.]+)", re.MULTILINE)
SHOWN: Final = 5  # slots, nodes or partitions that a message names at most


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
