"""How the partitions of queues lie on the masters of a Cluster: whether a master has too many of them, or one of them too many jobs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from django_delayq.exceptions import StoreUnavailable
from django_delayq.findings import Finding
from django_delayq.store import keys
from django_delayq.store.connection.cluster_slots import slot_of
from django_delayq.store.connection.error_replies import StoreError
from django_delayq.store.connection.link import Link
from django_delayq.store.connection.places import Places
from django_delayq.store.keys import Keys

UNEVEN: Final = 2  # times what a master has to have of a queue
BY_KEY: Final = 100_000  # jobs of a slot that is moved key by key, while its master stands still
AS_A_WHOLE: Final = 2_000_000  # of one that is moved in the background
WHOLE: Final[Mapping[str, tuple[int, ...]]] = {"valkey": (9,), "redis": (8, 4)}  # from which version on they do that
VERSION: Final = re.compile(rb"^(valkey|redis)_version:([0-9.]+)", re.MULTILINE)
SHOWN: Final = 5


class Divided(NamedTuple):
    """A queue of several partitions. `current`: how many get new jobs; `served`: how many may have some."""

    queue: str
    current: int
    served: int


def partition_health(
    place: Places, masters: Sequence[Link], prefix: str, queues: Sequence[Divided], away: Sequence[Link]
) -> Iterator[Finding]:
    """What speaks against where their partitions are. `away`: masters that do not answer, and are not asked."""
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
                f"{len(partitions)} of the {one.current} partitions of {one.queue!r} are on one of {masters} masters, {master.where}: "
                "it works while others wait for it.",
                f"Move some of their slots to other masters: {', '.join(slots)}.",
            )


def _large(one: Divided, by_master: Mapping[Link, Sequence[int]], prefix: str) -> Iterator[Finding]:
    large: dict[int, int] = {}
    limits = [AS_A_WHOLE]
    for master, partitions in by_master.items():
        asked = [("HLEN", Keys.of(prefix, one.queue, partition)["jobs"]) for partition in partitions]
        try:
            info, *counts = master.execute_many([("INFO", "server"), *asked])
        except (StoreUnavailable, StoreError):  # it has gone meanwhile
            continue
        limit = AS_A_WHOLE if moves_as_a_whole(info) else BY_KEY
        found = {number: count for number, count in zip(partitions, counts, strict=True) if isinstance(count, int) and count > limit}
        large |= found
        limits += [limit] * bool(found)
    if large:
        named = [f"{keys.tag(one.queue, number)} has {large[number]:,}" for number in sorted(large)]
        more = f" and {len(named) - SHOWN} others" * (len(named) > SHOWN)
        yield Finding(
            "W028",
            f"Partitions of {one.queue!r} are too large to move: {', '.join(named[:SHOWN])}{more}, and their masters can move "
            f"{min(limits):,} jobs without delays.",
        )


def moves_as_a_whole(info: object) -> bool:
    """Whether a server that says this of itself moves slots in the background. Key by key where it says nothing."""
    told = dict(VERSION.findall(info)) if isinstance(info, bytes) else {}
    flavour = "valkey" if b"valkey" in told else "redis"
    version = tuple(int(part) for part in told.get(flavour.encode(), b"0").split(b".") if part)
    return version >= WHOLE[flavour]
