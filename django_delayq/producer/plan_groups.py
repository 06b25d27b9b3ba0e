"""Jobs to be in groups: what goes into one statement, or in one call."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import TypeVar

from django_delayq.producer.commit import Plan
from django_delayq.producer.options import JobTemplate

T = TypeVar("T")
K = TypeVar("K")


def by(plans: Sequence[Plan], trait: Callable[[JobTemplate], K]) -> Iterable[tuple[K, list[Plan]]]:
    """By a trait of what their task and options decide."""
    template = plans[0].template if plans else None
    if template is not None and all(plan.template is template for plan in plans):  # mostly
        return [(trait(template), list(plans))]
    groups: dict[K, list[Plan]] = {}
    for plan in plans:
        groups.setdefault(trait(plan.template), []).append(plan)
    return groups.items()


def by_store(plans: Sequence[Plan]) -> Iterable[tuple[tuple[str, str, int], list[Plan]]]:
    """By queue, database and partition."""
    for (queue, using), group in by(plans, lambda template: (template.queue.name, template.using)):
        if not group[0].template.divided:
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
