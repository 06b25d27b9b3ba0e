"""How a read for people reaches partitions and their servers: either all of them, or all except those that fail, which it names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from operator import itemgetter
from types import MappingProxyType
from typing import Final
from uuid import UUID

from django_delayq import ids
from django_delayq.exceptions import StoreUnavailable
from django_delayq.store.connection.error_replies import is_refusal
from django_delayq.store.connection.link import FanOut, Link
from django_delayq.store.connection.places import Places, by_node
from django_delayq.store.keys import Keys

ONE: Final[Mapping[str, int]] = MappingProxyType({})  # of each queue


class Partitions:
    """The keys of queues of one prefix.

    Args:
        counts: by queue, how many partitions it has; a queue that is not named has one.
    """

    def __init__(self, prefix: str, counts: Mapping[str, int] = ONE) -> None:
        self.prefix = prefix
        self._counts = counts

    def of(self, queue: str) -> list[Keys]:
        """All partitions of a queue, in order."""
        return [self.at(queue, partition) for partition in range(self._counts.get(queue, 1))]

    def of_each(self, queues: Iterable[str]) -> list[Keys]:
        """All partitions of these queues."""
        return [keys for queue in queues for keys in self.of(queue)]

    def at(self, queue: str, partition: int) -> Keys:
        """One partition."""
        return Keys.of(self.prefix, queue, partition)

    def with_job(self, queue: str, job: UUID) -> Keys:
        """The partition in which that job is, if it is in the queue."""
        return Keys.of(self.prefix, queue, ids.partition(job))


class Reach:
    """Asks each server about the partitions that it has. This one ends the read if a server cannot be asked.

    Raises:
        StoreUnavailable, StoreError: the errors of `ask`.
    """

    def each(self, places: Places, parts: Iterable[Keys], ask: Callable[[Link, list[Keys]], None]) -> None:
        """Calls `ask` once for each server of these partitions, in the order of the first partition of each."""
        for link, there in by_node(places, parts).items():
            ask(link, there)


WHOLE: Final = Reach()


class PartialReach(Reach):
    """Tries a server that cannot be asked once, and then leaves it out. `missing`: its partitions, by queue and number, with the
    error.

    Args:
        guarded: a context manager for a call to the server of that partition of a queue.
    """

    def __init__(self, guarded: Callable[[str, int], AbstractContextManager[None]]) -> None:
        self._guarded = guarded
        self._fan_out = FanOut[tuple[Link, list[Keys]]]()
        self.missing: dict[tuple[str, int], StoreUnavailable] = {}

    def each(self, places: Places, parts: Iterable[Keys], ask: Callable[[Link, list[Keys]], None]) -> None:
        """See `Reach`."""
        groups = [*by_node(places, [part for part in parts if (part.queue, part.partition) not in self.missing]).items()]

        def read(group: tuple[Link, list[Keys]]) -> None:
            link, there = group
            with self._guarded(there[0].queue, there[0].partition):
                ask(link, there)

        for (link, there), error in self._fan_out.each(groups, itemgetter(0), read):
            if error is not None:
                refused = is_refusal(error)  # of one queue, which belongs to another site
                gone = [part for part in there if not refused or part.queue == error.fields.get("queue")] or there
                self.missing |= {(part.queue, part.partition): error for part in gone}
                if left := [part for part in there if part not in gone]:
                    groups.append((link, left))
