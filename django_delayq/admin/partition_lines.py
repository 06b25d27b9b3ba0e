"""The partitions of a queue in plain values: a line each, also for one that cannot be asked. Templates only write it down."""

from __future__ import annotations

from dataclasses import dataclass

from django_delayq.console.overview import QueueView
from django_delayq.console.wording import duration, error_text
from django_delayq.producer.stores import stores
from django_delayq.store.reads.queue_depth import QueueDepth
from django_delayq.text import visible


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionLine:
    """One partition. `place`: its server; `depth`: None where that cannot be asked, and then `error` says why."""

    number: int
    place: str
    depth: QueueDepth | None = None
    waiting: int = 0
    late: str = ""
    behind: str = ""
    generation: str = ""
    error: str = ""


def of(queue: QueueView) -> list[PartitionLine]:
    """Those of a queue in order; nothing of one that is not divided."""
    if queue.partitions < 2:
        return []
    places = {number: visible(stores.places.of(queue.name, number).where) for number in range(queue.partitions)}
    found = [_line(number, places[number], depth) for number, depth in queue.parts.items()]
    found += [PartitionLine(number=number, place=places[number], error=error_text(error)) for number, error in queue.away.items()]
    return sorted(found, key=lambda line: line.number)


def _line(number: int, place: str, depth: QueueDepth) -> PartitionLine:
    return PartitionLine(
        number=number,
        place=place,
        depth=depth,
        waiting=depth.scheduled - depth.due,
        late=_seconds(depth.oldest_late_ms),
        behind=_seconds(depth.events_late_ms),
        generation=visible(depth.generation)[:8],
    )


def _seconds(ms: int) -> str:
    return duration(float(ms // 1000)) if ms >= 1000 else "–"
