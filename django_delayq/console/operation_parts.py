"""The order in which an operation goes through jobs, by id, and the parts that it leaves for later because a server was unreachable."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import reduce
from operator import or_
from typing import Any
from uuid import UUID

from django.db.models import Q, QuerySet

from django_delayq import clock, conf, ids
from django_delayq.console.selection import Selection
from django_delayq.exceptions import StoreUnavailable
from django_delayq.models import Job, Operation
from django_delayq.producer.stores import stores
from django_delayq.store.connection.error_replies import StoreError

Part = tuple[str, int]  # a queue, and the number of a partition


@dataclass(frozen=True, slots=True)
class Stretch:
    """The jobs of these partitions after `last`, by id. None: all jobs that are in no other stretch."""

    parts: frozenset[Part] | None
    last: UUID | None

    def has(self, part: Part) -> bool:
        return self.parts is not None and part in self.parts

    def without(self, others: Sequence[Stretch], last: UUID | None) -> Stretch:
        """The rest of the stretch, after `last`."""
        gone = frozenset(part for other in others for part in other.parts or ())
        return Stretch((self.parts or frozenset()) - gone, last)


@dataclass(slots=True)
class ChunkResult:
    """The result of a chunk. `at`: the number of the job at which it ended, because the rest of the stretch cannot be reached. `error`:
    of the last job that failed.
    """

    counts: Counter[str] = field(default_factory=Counter)
    done: list[Job] = field(default_factory=list)
    passed: list[Stretch] = field(default_factory=list)
    at: int | None = None
    error: StoreUnavailable | StoreError | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Jobs of a stretch that are handled together, by id. `others`: stretches that are left for later; `last`: the last id of the
    chunk; `more`: whether there may be more in the stretch; `again`: whether these jobs had been started before.
    """

    stretch: Stretch
    others: Sequence[Stretch]
    jobs: Sequence[Job]
    last: UUID | None
    more: bool
    again: bool = False

    def before(self, number: int) -> UUID | None:
        """The last id before this job."""
        return self.jobs[number - 1].pk if number else self.stretch.last

    def left(self, operation: Operation, result: ChunkResult) -> dict[str, Any]:
        last, rest, over = self.last, list[str](), not self.more and result.at is None
        if result.at is not None:  # the rest of the stretch is on unreachable servers
            last = self.before(result.at)
            alone = self.stretch.parts is None and not (self.others or result.passed)
            rest = [str(job.pk) for job in self.jobs[result.at :]] if self.again and alone else []
        later = [*self.others, *result.passed]
        if self.stretch.parts is None:
            return {"last": operation.upto if over else last, "passed_over": written(later), "chunk": rest}
        if not over:  # after the others, which are next
            later.insert(len(self.others), self.stretch.without(result.passed, last))
        return {"last": operation.last, "passed_over": written(later), "chunk": rest}


def open_ones(operation: Operation) -> list[Stretch]:
    """The stretches that are not done yet, in order."""
    first = [] if operation.last == operation.upto else [Stretch(None, operation.last)]
    return [*first, *left(operation)]


def left(operation: Operation) -> list[Stretch]:
    return [
        Stretch(frozenset((queue, partition) for queue, partition in each["parts"]), UUID(each["last"]) if each["last"] else None)
        for each in operation.passed_over or ()
    ]


def written(stretches: Iterable[Stretch]) -> list[dict[str, Any]] | None:
    """The stretches, as the column stores them."""
    return [{"parts": sorted(each.parts or ()), "last": each.last.hex if each.last else None} for each in stretches] or None


def labels(operation: Operation) -> list[str]:
    """The queues of stretches that are left for later, with a number if a queue has several partitions."""
    known = conf.get().queues
    parts = sorted({part for stretch in left(operation) for part in stretch.parts or ()})
    return [known[queue].label(partition) if queue in known else queue for queue, partition in parts]


def of(rows: QuerySet[Job], stretch: Stretch, others: Sequence[Stretch], wanted: Selection) -> QuerySet[Job]:
    """The jobs of a stretch that existed when the operation was created, by the clock of the database: ids contain the clock of web
    hosts. For rows that the mirror wrote, only the id is known.
    """
    if wanted.at_ms:
        rows = rows.filter(Q(durable=False) | Q(created_at__lt=clock.from_ms(wanted.at_ms + 1)))
    if stretch.parts is not None:
        return rows.filter(_rows(stretch.parts))
    elsewhere = frozenset(part for other in others for part in other.parts or ())
    return rows.exclude(_rows(elsewhere)) if elsewhere else rows


def cut(stretch: Stretch, others: Sequence[Stretch], part: Part, wanted: Selection) -> frozenset[Part] | None:
    """The partitions of a stretch that are on the same unreachable server as this one; None if all of them are."""
    parts = _all(wanted) if stretch.parts is None else stretch.parts
    parts = frozenset(each for each in parts if not any(other.has(each) for other in others))
    try:
        server = stores.places.of(*part).server
        away = frozenset(each for each in parts if stores.places.of(*each).server is server) | {part}
    except StoreUnavailable:  # the places are unknown
        return None
    return away if parts - away else None


def part_of(job: Job) -> Part:
    """The queue and the partition of a job."""
    return job.queue, ids.partition(job.pk)


def options(operation: Operation) -> dict[str, Any]:
    """The arguments of the verb besides the job: `delay` in seconds, or `run_at`."""
    given = dict(operation.options)
    if "run_at" in given:
        given["run_at"] = datetime.fromisoformat(given["run_at"])
    return given


def _all(wanted: Selection) -> frozenset[Part]:
    only = wanted.queue or wanted.search.value("queue")
    queues = conf.get().queues.items()
    return frozenset((name, partition) for name, queue in queues if only in ("", name) for partition in queue.served)


def _rows(parts: frozenset[Part]) -> Q:
    by_queue: dict[str, list[int]] = {}
    for queue, partition in sorted(parts):
        by_queue.setdefault(queue, []).append(partition)
    return reduce(or_, (Q(queue=queue, partition__in=numbers) for queue, numbers in by_queue.items()))


def taken(steps: Iterator[int]) -> tuple[list[int], StoreUnavailable | None]:
    """The results of these steps, including those before an unreachable server, and the error."""
    done: list[int] = []
    try:
        for step in steps:
            done.append(step)
    except StoreUnavailable as error:
        return done, error
    return done, None
