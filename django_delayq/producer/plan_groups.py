"""Jobs to be in groups: what goes into one statement, or in one call."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import TypeVar

from django_delayq.producer.commit import Plan
from django_delayq.producer.options import Mould

T = TypeVar("T")
K = TypeVar("K")


def by(plans: Sequence[Plan], trait: Callable[[Mould], K]) -> Iterable[tuple[K, list[Plan]]]:
    """By a trait of what their task and options decide."""
    mould = plans[0].mould if plans else None
    if mould is not None and all(plan.mould is mould for plan in plans):  # mostly
        return [(trait(mould), list(plans))]
    groups: dict[K, list[Plan]] = {}
    for plan in plans:
        groups.setdefault(trait(plan.mould), []).append(plan)
    return groups.items()


def by_store(plans: Sequence[Plan]) -> Iterable[tuple[tuple[str, str, int], list[Plan]]]:
    """By queue, database and partition."""
    for (queue, using), group in by(plans, lambda mould: (mould.queue.name, mould.using)):
        if not group[0].mould.divided:
            yield (queue, using, 0), group
            continue
        parts: dict[int, list[Plan]] = {}
        for plan in group:
            parts.setdefault(plan.partition, []).append(plan)
        for partition, part in parts.items():
            yield (queue, using, partition), part


def batches(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """So many at a time, in their order; none is drawn before its batch is asked for."""
    rest = iter(items)
    while batch := list(islice(rest, size)):
        yield batch
