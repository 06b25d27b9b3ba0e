"""Reads of schedules and their ticks for people. Only rows are read here; `periodic` calculates future dates."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from django.db.models import Count, Min, OuterRef, Q, Subquery

from django_delayq import clock
from django_delayq.console.wording import format_error
from django_delayq.models import Attempt, Job, Periodic, Tick, database
from django_delayq.states import State

STANDINGS: Final = ("on", "off", "trouble", "retired")
LATE: Final = 60.0  # seconds by which ticks can be late
UNNOTICED: Final = 7 * 86_400.0  # seconds
Fate = Tick.Fate


@dataclass(frozen=True, slots=True, kw_only=True)
class TickView:
    """A tick with its job. `state`: the state of the job, or else "missed", "skipped" or "withdrawn"; "" if the row of the job is gone.
    `late`: seconds from the date until the first attempt, or until now if there was none; None if it is not late.
    """

    tick: Tick
    job: Job | None
    state: str
    late: float | None
    ahead: bool


def standing(row: Periodic) -> str:
    """The standing of a schedule, one of `STANDINGS`."""
    if row.retired_at is not None:
        return "retired"
    if not row.enabled:
        return "off"
    return "trouble" if row.problem else "on"


def standing_so(name: str) -> Q:
    """The condition for rows with this standing."""
    lives = Q(retired_at__isnull=True)
    return {
        "retired": Q(retired_at__isnull=False),
        "off": lives & Q(enabled=False),
        "trouble": lives & Q(enabled=True, problem__isnull=False),
        "on": lives & Q(enabled=True, problem__isnull=True),
    }[name]


def problem(row: Periodic) -> str:
    """Why the schedule cannot create jobs, in the active language; "" if it can."""
    found: Any = row.problem
    return format_error(found["code"], found["fields"]) if found else ""


def ticks_of(row: Periodic, most: int, *, behind: Tick | None = None) -> list[Tick]:
    """The ticks of a schedule, newest first, including future ones. `behind`: only those after this tick in this order."""
    ticks = Tick.objects.filter(schedule=row)
    if behind is not None:
        ticks = ticks.filter(Q(at__lt=behind.at) | Q(at=behind.at, pk__lt=behind.pk))
    return list(ticks.order_by("-at", "-pk")[:most])


def seen(ticks: Sequence[Tick]) -> list[TickView]:
    """The ticks with their jobs, in two queries."""
    now, light = clock.now(), Job.objects.defer("args", "kwargs", "options", "result")
    jobs = light.in_bulk([tick.job_id for tick in ticks if tick.job_id is not None])
    begun = dict(Attempt.objects.filter(job_id__in=jobs).order_by().values_list("job_id").annotate(Min("started_at")) if jobs else ())
    return [_view(tick, jobs.get(tick.job_id) if tick.job_id else None, begun, now) for tick in ticks]


def last_seen(rows: Iterable[Periodic]) -> dict[int, TickView]:
    """The last past tick of each schedule, by the primary key of the schedule, in three queries."""
    keys = [row.pk for row in rows]
    past = Tick.objects.filter(schedule=OuterRef("pk"), at__lte=database.ago())
    past = past.exclude(fate__in=(Fate.WITHDRAWN, Fate.CANCELLED)).order_by("-at", "-pk")
    latest = Periodic.objects.filter(pk__in=keys).order_by().annotate(last=Subquery(past.values("pk")[:1]))
    wanted = [key for key in latest.values_list("last", flat=True) if key is not None] if keys else []
    ticks = list(Tick.objects.filter(pk__in=wanted)) if wanted else []
    return {view.tick.schedule_id: view for view in seen(ticks)}


def schedule_of(jobs: Iterable[UUID]) -> dict[UUID, Periodic]:
    """The schedules that created these jobs, in one query."""
    found = Tick.objects.filter(job_id__in=list(jobs)).select_related("schedule")
    return {tick.job_id: tick.schedule for tick in found if tick.job_id is not None}


def wrong() -> dict[str, Q]:
    """The conditions for schedules with a problem: "trouble"; "late", if no process has written their ticks for a minute; and "retired"
    within the last week.
    """
    return {
        "trouble": standing_so("trouble"),
        "late": standing_so("on") & Q(write_at__lt=database.ago(LATE)),
        "retired": Q(retired_at__gt=database.ago(UNNOTICED)),
    }


def count_wrong() -> dict[str, int]:
    """The number of schedules for each condition of `wrong()`, in one query."""
    return Periodic.objects.aggregate(**{name: Count("pk", filter=which) for name, which in wrong().items()})


def _view(tick: Tick, job: Job | None, begun: dict[Any, datetime], now: datetime) -> TickView:
    ahead = tick.at > now and tick.fate == Fate.SCHEDULED
    if tick.fate in (Fate.WITHDRAWN, Fate.CANCELLED):
        state = "withdrawn"
    elif tick.fate != Fate.SCHEDULED:
        state = str(tick.fate)
    else:
        state = job.derived if job is not None else ""
    first = begun.get(job.pk) or job.started_at if job is not None else None
    late = None
    if first is not None:
        late = max(0.0, (first - tick.run_at).total_seconds())
    elif job is not None and job.state == State.SCHEDULED:
        late = job.late or None
    return TickView(tick=tick, job=job, state=state, late=late, ahead=ahead)
