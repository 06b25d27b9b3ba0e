"""How a read for people reaches partitions and their servers: either all of them, or all except those that fail, which it names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from types import MappingProxyType
from typing import Final
from uuid import UUID

from django_delayq import ids
from django_delayq.exceptions import StoreUnavailable
from django_delayq.store.connection.link import Link
from django_delayq.store.connection.places import Places, by_node
from django_delayq.store.keys import Keys
from django_delayq.store.scripts.site import is_refusal

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
        self._away: dict[Link, StoreUnavailable] = {}
        self.missing: dict[tuple[str, int], StoreUnavailable] = {}

    def each(self, places: Places, parts: Iterable[Keys], ask: Callable[[Link, list[Keys]], None]) -> None:
        """See `Reach`."""
        for link, there in by_node(places, parts).items():
            error = self._away.get(link.server)
            left = there
            while error is None and left:
                try:
                    with self._guarded(left[0].queue, left[0].partition):
                        ask(link, left)
                    break
                except StoreUnavailable as unavailable:
                    if not is_refusal(unavailable):
                        error = self._away[link.server] = unavailable
                        break
                    # Only this queue belongs to another site.
                    refused = [part for part in left if part.queue == unavailable.fields.get("queue")] or left
                    self.missing |= {(part.queue, part.partition): unavailable for part in refused}
                    left = [part for part in left if part not in refused]
            if error is not None:
                for part in left:
                    self.missing.setdefault((part.queue, part.partition), error)
