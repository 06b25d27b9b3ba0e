"""How full queues are, each added up over its partitions."""

from __future__ import annotations

from collections.abc import Sequence

from django_delayq.producer.stores import stores
from django_delayq.store.reads.inspector import Inspector
from django_delayq.store.reads.queue_depth import QueueDepth, summed


def queue_depth(queue: str, inspector: Inspector | None = None) -> QueueDepth:
    """Of one queue, by default of this project."""
    return queue_depths([queue], inspector)[0]


def queue_depths(queues: Sequence[str], inspector: Inspector | None = None) -> list[QueueDepth]:
    """Of several queues, in their order."""
    return [summed(parts) for parts in (inspector or stores.inspector()).by_partition(queues)]
