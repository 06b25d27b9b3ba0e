"""Reads for people: how long the lists and streams are into which offers go, and how far their readers are. Nothing here decides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from django_delayq.store.connection.error_replies import StoreError
from django_delayq.store.connection.link import Link
from django_delayq.store.scripts import decode
from django_delayq.target import OfferTarget

MOST_GROUPS: Final = 20  # of one stream


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderGroup:
    """A consumer group of a stream. `pending`: entries taken and not acknowledged; `lag`: entries that none of it has been given, None
    where Redis does not know (before 7, or after entries in the middle were deleted).
    """

    name: str
    consumers: int
    pending: int
    lag: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetLength:
    """`length`: entries that stand there, None with a `fault`: "type", something else does; "rights", our user may not look. `groups`:
    of a stream, MOST_GROUPS at most; None where our user may not look, or of a list.
    """

    target: OfferTarget
    length: int | None
    fault: Literal["", "type", "rights"] = ""
    groups: Sequence[ReaderGroup] | None = None


def look(link: Link, targets: Sequence[OfferTarget]) -> list[TargetLength]:
    """All of them, in one round trip.

    Raises:
        StoreUnavailable: as `Link.execute`.
    """
    commands: list[tuple[Any, ...]] = []
    for target in targets:
        streams = target.kind == "stream"
        commands += [("XLEN", target.key), ("XINFO", "GROUPS", target.key)] if streams else [("LLEN", target.key)]
    replies = iter(link.execute_many(commands) if commands else ())
    return [_read(target, next(replies), next(replies) if target.kind == "stream" else None) for target in targets]


def added(looks: Sequence[Sequence[TargetLength]]) -> list[TargetLength]:
    """What was seen of the same targets on several servers, as one: an offer goes to the server of its job's queue."""
    return [one[0] if len(one) == 1 else _sum(one) for one in zip(*looks, strict=True)]


def _sum(those: Sequence[TargetLength]) -> TargetLength:
    faulty = next((one for one in those if one.fault), None)
    if faulty is not None:
        return faulty
    groups = [group for one in those for group in one.groups or ()]
    seen = any(one.groups is not None for one in those)
    return TargetLength(
        target=those[0].target, length=sum(one.length or 0 for one in those), groups=groups[:MOST_GROUPS] if seen else None
    )


def _read(target: OfferTarget, length: Any, groups: Any) -> TargetLength:
    if isinstance(length, StoreError):
        return TargetLength(target=target, length=None, fault="type" if length.reply.startswith("WRONGTYPE") else "rights")
    if isinstance(length, Exception):
        raise length
    if isinstance(groups, StoreError) and groups.reply.endswith("no such key"):
        groups = []
    found = [_group(one) for one in groups[:MOST_GROUPS]] if isinstance(groups, list) else None
    return TargetLength(target=target, length=length, groups=found)


def _group(flat: Sequence[Any]) -> ReaderGroup:
    told = dict(zip(map(decode.text, flat[::2]), flat[1::2], strict=True))
    lag = told.get("lag")
    return ReaderGroup(
        name=decode.text(told.get("name", b"")),
        consumers=told.get("consumers", 0),
        pending=told.get("pending", 0),
        lag=lag if isinstance(lag, int) else None,
    )
