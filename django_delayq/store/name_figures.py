"""Reads for people: the names of a queue that jobs share, who holds them, and how many wait for each. Nothing here decides."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from django_delayq.store import decode
from django_delayq.store.connection import Link
from django_delayq.store.keys import Keys
from django_delayq.store.queue import QueueStore

LOOKED: Final = 2_000  # holders, and as many waiters: however many there are, the look costs the same


@dataclass(frozen=True, slots=True, kw_only=True)
class NameFigures:
    """A name. `holders`: the jobs that hold it; `waiting`: due jobs that wait for it; both of those that were looked at."""

    name: str
    holders: tuple[UUID, ...]
    waiting: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NamesSeen:
    """`figures`: those for which most wait first. `cut`: more jobs hold a name, or wait for one, than were looked at."""

    figures: list[NameFigures]
    cut: bool


def look_at_all(parts: Sequence[QueueStore]) -> NamesSeen:
    """Those of these partitions of a queue. Raises: as `look`."""
    seen = [look(part.link, part.keys) for part in parts]
    figures = sorted((one for part in seen for one in part.figures), key=_most_waited_for)
    return NamesSeen(figures=figures, cut=any(part.cut for part in seen))


def look(link: Link, keys: Keys) -> NamesSeen:
    """The names that are held or waited for, in one round trip, with the commands that scripts need, too.

    Raises:
        StoreUnavailable, StoreError: as `Link.execute`.
    """
    replies = link.execute_many([("ZRANGE", keys[key], "-", "+", "BYLEX", "LIMIT", 0, LOOKED + 1) for key in ("holders", "waiters")])
    for reply in replies:
        if isinstance(reply, Exception):
            raise reply
    holding, waiting = replies
    holders: dict[bytes, list[UUID]] = {}
    for member in holding[:LOOKED]:
        name, _, id = member.rpartition(b"\0")
        if name and (job := decode.job_id(id)) is not None:
            holders.setdefault(name, []).append(job)
    waits = Counter(member.partition(b"\0")[0] for member in waiting[:LOOKED])
    figures = [
        NameFigures(name=name.decode("utf-8", "replace"), holders=tuple(holders.get(name, ())), waiting=waits[name])
        for name in {**holders, **waits}
        if name
    ]
    figures.sort(key=_most_waited_for)
    return NamesSeen(figures=figures, cut=max(len(holding), len(waiting)) > LOOKED)


def _most_waited_for(one: NameFigures) -> tuple[int, int, str]:
    return -one.waiting, -len(one.holders), one.name
