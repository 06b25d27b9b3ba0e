"""Finished jobs over time, for charts. Queues use the exact counters in Redis. Tasks use the newest rows, which an index finds, so a
table with millions of rows costs no more than a small one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple, TypeVar
from uuid import UUID

from django.db import connections
from django.db.models import Model, QuerySet, TextField
from django.db.models.functions import Cast, Left

from django_delayq import clock
from django_delayq.console.search_fields import task_rows
from django_delayq.models import RETRYING, Attempt, Event, Job
from django_delayq.producer.task import registry
from django_delayq.states import EventKind, State

NEWEST: Final = 4_000  # jobs, and attempts, that are looked at
JOBS: Final = 2_000  # whose attempts are looked at: few enough that the planner takes the index
ENDED: Final = (State.SUCCEEDED.value, State.FAILED.value)
HEADLINE: Final = 300  # characters of an error
EVENTS: Final = 1_000
PAUSES: Final = 20
T = TypeVar("T")


class Span(NamedTuple):
    """The time range of a chart: the number of steps, and the minutes of a step."""

    steps: int
    step: int

    def start(self, now: datetime) -> datetime:
        """The start of the first step."""
        step_ms = self.step * 60_000
        return clock.from_ms((clock.to_ms(now) // step_ms - self.steps + 1) * step_ms)


SPANS: Final = {"1h": Span(60, 1), "1d": Span(96, 15), "7d": Span(84, 120)}


class EndedJob(NamedTuple):
    """A row of a job that succeeded or failed. The dates are those of its last run."""

    job: UUID
    task: str
    queue: str
    state: str
    attempts: int
    run_at: datetime
    started_at: datetime | None
    finished_at: datetime | None

    @property
    def late(self) -> float | None:
        """Seconds between the date and the run; None if it never ran."""
        return max(0.0, (self.started_at - self.run_at).total_seconds()) if self.started_at else None

    @property
    def ran(self) -> float | None:
        """Seconds between the start and the end of the run."""
        return max(0.0, (self.finished_at - self.started_at).total_seconds()) if self.started_at and self.finished_at else None


class EndedRun(NamedTuple):
    """An attempt that has ended."""

    id: int
    job: UUID
    number: int
    worker: str
    outcome: str
    error_class: str
    started_at: datetime
    finished_at: datetime

    @property
    def ran(self) -> float:
        return max(0.0, (self.finished_at - self.started_at).total_seconds())


@dataclass(frozen=True, slots=True)
class NewestJobs:
    """The newest jobs that ended, newest first. `since`: there are no others from this date on; None if these are all."""

    rows: Sequence[EndedJob]
    since: datetime | None

    def covers(self, start: datetime) -> bool:
        """Whether these are all from this date on."""
        return self.since is None or self.since <= start


@dataclass(frozen=True, slots=True)
class NewestRuns:
    """The newest attempts, in the order in which they ended, newest first. `since`: as in `NewestJobs`."""

    rows: Sequence[EndedRun]
    since: datetime | None


def ends(jobs: QuerySet[Job], **names: str) -> NewestJobs:
    """The NEWEST of `jobs` that succeeded or failed, in two queries. `names`: the queue, the task, or neither; each has an index."""
    found: list[EndedJob] = []
    jobs = jobs.filter(task_rows(names.pop("task"))) if "task" in names else jobs
    for state in ENDED:
        rows = jobs.filter(state=state, **names).order_by("-run_at", "-id")
        if len(found) > NEWEST:
            rows = rows.filter(run_at__gte=found[-1].run_at)
        columns = ("id", "task", "queue", "state", "attempts")
        for (id, task, *others), dates in _read(rows, columns, ("run_at", "started_at", "finished_at")):
            found.append(EndedJob(id, registry.spellings(task)[0], *others, *dates))
    found.sort(key=lambda one: one.run_at, reverse=True)
    return NewestJobs(found[:NEWEST], found[NEWEST - 1].run_at if len(found) > NEWEST else None)


def runs(ended: NewestJobs, jobs: QuerySet[Job], task: str) -> NewestRuns:
    """The NEWEST attempts of the newest JOBS of these jobs and of the jobs of the task that retry, in two queries."""
    waiting = _read(jobs.filter(RETRYING).order_by("-attempts", "-run_at", "-id"), ("id", "task"), ("started_at",))
    wanted, names = [(one.started_at or one.run_at, one.job) for one in ended.rows], registry.spellings(task)
    wanted += [(started_at, id) for (id, name), (started_at,) in waiting if name in names and started_at]
    wanted.sort(reverse=True)
    rows = Attempt.objects.filter(job_id__in=[id for _, id in wanted[:JOBS]], finished_at__isnull=False).order_by()
    columns = ("id", "job_id", "number", "worker", "outcome", "error_class")
    found = [EndedRun(*columns, *dates) for columns, dates in _read(rows, columns, ("started_at", "finished_at"))]
    found.sort(key=lambda one: one.finished_at, reverse=True)
    limits = [ended.since]
    if len(wanted) > JOBS:
        limits.append(wanted[JOBS][0])
    if len(found) > NEWEST:
        limits.append(found[NEWEST - 1].finished_at)
    return NewestRuns(found[:NEWEST], max(filter(None, limits), default=None))


def _read(rows: QuerySet[Model], columns: Sequence[str], dates: Sequence[str]) -> Iterator[tuple[Sequence[Any], Iterator[Any]]]:
    """Reads these columns and these dates of NEWEST + 1 rows. The database returns the dates as text, because Django's converters for
    dates took most of the time of these pages.
    """
    zone = connections[rows.db].timezone

    def date(text: str | None) -> datetime | None:
        found = datetime.fromisoformat(text) if text else None
        return found if found is None or found.tzinfo else found.replace(tzinfo=zone)

    for row in rows.values_list(*columns, *(Cast(name, TextField()) for name in dates))[: NEWEST + 1]:
        yield row[: len(columns)], map(date, row[len(columns) :])


def messages(wanted: Iterable[EndedRun], jobs: QuerySet[Job]) -> dict[int, str]:
    """The start of the error messages of these attempts, by id."""
    rows = Attempt.objects.filter(pk__in=[run.id for run in wanted])
    return dict(rows.annotate(text=Left("message", HEADLINE, output_field=TextField())).values_list("pk", "text"))


def pauses(queue: str) -> list[Event]:
    """The times at which the queue was paused and resumed, newest first, among the latest EVENTS without a job."""
    latest = Event.objects.filter(job__isnull=True).order_by("-id")
    rows = latest.only("queue", "kind", "at", "actor", "reason")[:EVENTS]
    return [row for row in rows if row.queue == queue and row.kind in (EventKind.PAUSED, EventKind.RESUMED)][:PAUSES]


def spread_over(span: Span, found: Iterable[tuple[datetime, T]], now: datetime) -> tuple[datetime, list[list[T]]]:
    """The values in the steps of the span, and the start of the first step."""
    step, start = timedelta(minutes=span.step), span.start(now)
    steps: list[list[T]] = [[] for _ in range(span.steps)]
    for at, value in found:
        if 0 <= (number := (at - start) // step) < span.steps:
            steps[number].append(value)
    return start, steps


def quantile(values: Sequence[float], share: float) -> float | None:
    """The value below which this share (0 to 1) of the values lies; None if there are no values."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))] if values else None
