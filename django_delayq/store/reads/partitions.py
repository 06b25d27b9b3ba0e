"""Which partitions the queues have that somebody reads. Readers add up what is in those of one queue."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final
from uuid import UUID

from django_delayq import ids
from django_delayq.store.keys import Keys

ONE: Final[Mapping[str, int]] = MappingProxyType({})  # of each queue


class Partitions:
    """The keys of queues of one prefix.

    Args:
        counts: by queue, how many partitions it has; one that is not named has one.
    """

    def __init__(self, prefix: str, counts: Mapping[str, int] = ONE) -> None:
        self.prefix = prefix
        self._counts = counts

    def of(self, queue: str) -> list[Keys]:
        """All of a queue, in order."""
        return [self.at(queue, partition) for partition in range(self._counts.get(queue, 1))]

    def of_each(self, queues: Iterable[str]) -> list[Keys]:
        """All of these queues."""
        return [keys for queue in queues for keys in self.of(queue)]

    def at(self, queue: str, partition: int) -> Keys:
        """One of them."""
        return Keys.of(self.prefix, queue, partition)

    def with_job(self, queue: str, job: UUID) -> Keys:
        """The one in which that job is, if it is in the queue."""
        return Keys.of(self.prefix, queue, ids.partition(job))
