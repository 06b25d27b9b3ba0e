"""Reads for people: the names of a queue that jobs share, who holds them, and how many wait for each. Nothing here decides."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from django_delayq.store.connection.link import Link
from django_delayq.store.connection.places import Places
from django_delayq.store.keys import Keys
from django_delayq.store.reads.reach import WHOLE, Reach
from django_delayq.store.scripts import decode

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


def look(places: Places, parts: Sequence[Keys], reach: Reach = WHOLE) -> NamesSeen:
    """The names that are held or waited for in these partitions of a queue, in one round trip per server, with the commands that
    scripts need, too.

    Raises:
        StoreUnavailable, StoreError: as `Link.execute`.
    """
    replies: list[Any] = []

    def ask(link: Link, there: list[Keys]) -> None:
        keys = [part[key] for part in there for key in ("holders", "waiters")]
        found = link.execute_many([("ZRANGE", key, "-", "+", "BYLEX", "LIMIT", 0, LOOKED + 1) for key in keys])
        for reply in found:
            if isinstance(reply, Exception):
                raise reply
        replies.extend(found)

    reach.each(places, parts, ask)
    holders: dict[bytes, list[UUID]] = {}
    waits = Counter[bytes]()
    for holding, waiting in zip(replies[::2], replies[1::2], strict=True):
        for member in holding[:LOOKED]:
            name, _, id = member.rpartition(b"\0")
            if name and (job := decode.job_id(id)) is not None:
                holders.setdefault(name, []).append(job)
        waits.update(member.partition(b"\0")[0] for member in waiting[:LOOKED])
    figures = [
        NameFigures(name=name.decode("utf-8", "replace"), holders=tuple(holders.get(name, ())), waiting=waits[name])
        for name in {**holders, **waits}
        if name
    ]
    figures.sort(key=_most_waited_for)
    return NamesSeen(figures=figures, cut=max(map(len, replies), default=0) > LOOKED)


def _most_waited_for(one: NameFigures) -> tuple[int, int, str]:
    return -one.waiting, -len(one.holders), one.name
