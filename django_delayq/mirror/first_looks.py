"""Sends the first Redis commands of many partitions' loops together: one write per server, not one per partition."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, Protocol, TypeVar, runtime_checkable

from django_delayq.exceptions import StoreUnavailable
from django_delayq.store.connection.link import Link

FEW: Final = 2  # loops; so few send their own commands


@runtime_checkable
class FirstAsks(Protocol):
    """A loop that lists the commands it sends first. Its `poll` takes the replies."""

    @property
    def asks(self) -> Sequence[tuple[Any, ...]]:
        """Commands that change nothing."""

    def poll(self, told: Sequence[Any] = ()) -> float:
        """One pass."""


class LooksFirst(Protocol):
    """A runner of such a loop."""

    @property
    def link(self) -> Link | None:
        """The link to its partition."""

    @property
    def asks(self) -> Sequence[tuple[Any, ...]]:
        """See `FirstAsks`."""


LooksFirstT = TypeVar("LooksFirstT", bound=LooksFirst)


def first_looks(loops: Iterable[LooksFirstT]) -> dict[LooksFirstT, list[Any]]:
    """The replies for each loop, in the order of its commands. A loop that is missing in the result sends its own commands. That
    happens if few loops use its server, if the server is unavailable or refuses, or if its slot has moved to another server: the
    replies are then not about its server.
    """
    by_server: dict[Link, list[LooksFirstT]] = {}
    for loop in loops:
        if loop.link is not None:
            by_server.setdefault(loop.link.server, []).append(loop)
    found: dict[LooksFirstT, list[Any]] = {}
    for server, those in by_server.items():
        if len(those) > FEW:
            commands = list(dict.fromkeys(command for loop in those for command in loop.asks))  # INFO once
            try:
                replies = dict(zip(commands, _led_by(those[0]).execute_many(commands), strict=True))
            except StoreUnavailable:
                continue
            for loop in those:
                own = [replies[command] for command in loop.asks]
                if _led_by(loop).server is server and not any(isinstance(reply, Exception) for reply in own):
                    found[loop] = own
    return found


def _led_by(loop: LooksFirst) -> Link:
    assert loop.link is not None
    return loop.link
