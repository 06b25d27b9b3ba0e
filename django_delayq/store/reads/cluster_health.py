"""What speaks against a Redis Cluster, by what its masters tell of themselves. Nothing here decides where a command goes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Final

from django_delayq.exceptions import StoreUnavailable
from django_delayq.findings import Finding
from django_delayq.store.connection import cluster_slots
from django_delayq.store.connection.address import RedisSpec, is_cluster
from django_delayq.store.connection.cluster_map import Node
from django_delayq.store.connection.cluster_slots import SLOTS, SlotRange
from django_delayq.store.connection.error_replies import StoreError, StoreRefused
from django_delayq.store.connection.link import Link
from django_delayq.store.connection.places import place
from django_delayq.store.reads.partition_health import Divided, partition_health

OPEN: Final = re.compile(r"\[(?P<slot>\d+)-(?P<way>[<>])-(?P<other>[0-9a-f]+)\]")  # in the line of the node itself
SHOWN: Final = 5  # slots or nodes that a message names at most
COVERAGE: Final = "cluster-require-full-coverage"


def cluster_findings(redis: RedisSpec, prefix: str, queues: Sequence[Divided], *, timeout: float = 2.0) -> list[Finding]:
    """What is wrong with the Cluster at that value of `DELAYQ["REDIS"]`; nothing where it leads to a server of its own.

    Args:
        redis, prefix: as in the settings.
        queues: those there that have several partitions.

    Raises:
        ConfigError: the value leads nowhere.
        StoreUnavailable: no node of the Cluster tells who they are.
    """
    if not is_cluster(redis):
        return []
    there = place(redis, name="delayq:check", timeout=timeout)
    try:
        masters = there.nodes()
        away: list[Link] = []
        found = list(_findings(masters, away))
        return [*found, *partition_health(there, masters, prefix, queues, away)]
    finally:
        there.close()


def _findings(masters: Sequence[Link], away: list[Link]) -> Iterator[Finding]:
    """`away` gets those that do not answer."""
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
        yield Finding("E019", f"Nodes of the Cluster that cannot be reached from here: {_some(map(_place, away))}.")
    lacking = sorted(set(range(SLOTS)) - {slot for one in told for slot in range(one.first, one.last + 1)})
    if lacking and told:
        yield Finding(
            "E018",
            f"Slots of the Cluster without a node ({len(lacking):,}): {_some(map(str, lacking))}. Queues in these slots stop.",
            f"redis-cli --cluster fix {_place(masters[0])}",
        )
    if opened:
        yield Finding(
            "W024",
            f"Slots that are being moved, or whose move has stopped half-way: {_some(map(_way, opened.items()))}. Queues in these "
            f"slots stop until the move has ended.",
            f"If no move is in progress, run redis-cli --cluster fix {_place(masters[0])}",
        )
    if alone:
        yield Finding("W025", f"Masters of the Cluster without a replica: {_some(alone)}. When one fails, its queues stop.")
    if strict:
        yield Finding(
            "W026",
            f"With {COVERAGE} the loss of one master also stops the queues of all others.",
        )


def _served(link: Link) -> list[SlotRange]:
    with suppress(ValueError, StoreError):
        return cluster_slots.served(link.execute("CLUSTER", "SLOTS"), _place(link).rpartition(":")[0])
    return []


def _lines(link: Link) -> list[list[str]]:
    """What the node says of all nodes: id, address, flags, id of its master and more, its slots. Nothing if our user may not ask."""
    with suppress(StoreError):
        told = link.execute("CLUSTER", "NODES").decode("utf-8", "replace")
        return [line.split(" ") for line in told.splitlines() if line]
    return []


def _open(lines: Sequence[Sequence[str]]) -> dict[int, str]:
    """By slot, between which nodes it is moved, as far as the node tells that has said these lines."""
    addresses = {line[0]: line[1].partition("@")[0] for line in lines}
    own = next((line for line in lines if "myself" in line[2].split(",")), ())
    found: dict[int, str] = {}
    for one in filter(None, map(OPEN.fullmatch, own[8:])):
        there, here = addresses.get(one["other"], "?"), addresses[own[0]]
        found[int(one["slot"])] = f"from {here} to {there}" if one["way"] == ">" else f"from {there} to {here}"
    return found


def _alone(lines: Sequence[Sequence[str]]) -> list[str]:
    """The masters that serve slots and have no replica. By these lines, since CLUSTER SLOTS leaves out replicas that are new."""
    followed = {line[3] for line in lines if "slave" in line[2].split(",") and "fail" not in line[2].split(",")}
    return sorted(line[1].partition("@")[0] for line in lines if line[8:] and line[0] not in followed)


def _needs_all(link: Link) -> bool:
    with suppress(StoreError, IndexError):  # a managed server hides CONFIG
        return bool(link.execute("CONFIG", "GET", COVERAGE)[1] == b"yes")
    return False


def _way(opened: tuple[int, str]) -> str:
    return f"{opened[0]} {opened[1]}"


def _place(link: Link) -> str:
    return _text(link.address) if isinstance(link, Node) else link.where


def _text(address: tuple[str, int]) -> str:
    return f"{address[0]}:{address[1]}"


def _some(names: Iterable[str]) -> str:
    found = list(names)
    return ", ".join(found[:SHOWN]) + ", …" * (len(found) > SHOWN)
