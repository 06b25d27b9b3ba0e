"""Failures: failed jobs of one cause stand together, by fingerprint. Read from the latest failed rows, so that the page costs the same
with a thousand of them and with millions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final
from urllib.parse import urlencode

from django.db.models import Count, Max, Min, Q, QuerySet

from django_delayq import conf
from django_delayq.admin import tracebacks
from django_delayq.admin.show import visible
from django_delayq.models import Attempt, Job
from django_delayq.overview import MOST_COUNTED, count_text
from django_delayq.selection import count_many
from django_delayq.states import AttemptOutcome, State

WINDOW: Final = 10_000  # failed jobs that are looked at, the latest
SHOWN: Final = 30  # groups


@dataclass(slots=True)
class Group:
    """Failed jobs with one fingerprint. `latest` is the date of the sample's run; `retrying`: jobs that wait to fail so once more."""

    fingerprint: str
    count: int = 0
    first: datetime | None = None
    last: datetime | None = None
    latest: datetime | None = None
    tasks: dict[str, int] = field(default_factory=dict)
    queues: dict[str, int] = field(default_factory=dict)
    sample: Job | None = None
    error: str = ""
    place: str = ""
    retrying: int = 0

    def add(self, row: Mapping[str, Any]) -> None:
        """Takes in the jobs of one task and queue."""
        self.count += row["count"]
        self.tasks[row["task"]] = self.tasks.get(row["task"], 0) + row["count"]
        self.queues[row["queue"]] = self.queues.get(row["queue"], 0) + row["count"]
        if row["first"] is not None:
            self.first = min(filter(None, (self.first, row["first"])))
            self.last = max(filter(None, (self.last, row["last"])))
        self.latest = max(filter(None, (self.latest, row["latest"])))

    @property
    def search(self) -> str:
        """What finds these jobs in the list."""
        return f"fingerprint:{self.fingerprint or chr(34) * 2}"

    @property
    def failed_query(self) -> str:
        """For the list, and for an operation: the failed ones."""
        return urlencode({"state": "failed", "q": self.search})

    @property
    def retrying_query(self) -> str:
        """Those that wait for another attempt."""
        return urlencode({"state": "retrying", "q": self.search})

    @property
    def retrying_text(self) -> str:
        """How many, bounded."""
        return count_text(self.retrying)


@dataclass(frozen=True, slots=True)
class Failures:
    """`groups`: the largest first; `more`: groups that are not shown; `cut`: there are failed jobs older than those looked at."""

    groups: list[Group]
    more: int
    cut: bool


def look(jobs: QuerySet[Job]) -> Failures:
    """Groups the latest failed ones of `jobs`."""
    failed = jobs.filter(state=State.FAILED.value).order_by("-finished_at")
    edge = list(failed.values_list("finished_at", flat=True)[WINDOW : WINDOW + 1])
    looked_at = failed.filter(finished_at__gt=edge[0]) if edge and edge[0] else failed
    rows = (
        looked_at.order_by().values("fingerprint", "task", "queue")
        .annotate(count=Count("pk"), first=Min("finished_at"), last=Max("finished_at"), latest=Max("run_at"))
    )  # fmt: skip
    groups: dict[str, Group] = {}
    for row in rows:
        groups.setdefault(row["fingerprint"], Group(row["fingerprint"])).add(row)
    ordered = sorted(groups.values(), key=lambda group: (-group.count, group.fingerprint))
    shown = ordered[:SHOWN]
    _add_samples(jobs, shown)
    _add_retrying(jobs, shown)
    return Failures(shown, len(ordered) - len(shown), bool(edge))


def _add_samples(jobs: QuerySet[Job], groups: list[Group]) -> None:
    wanted = Q(pk__in=[])
    for group in groups:
        wanted |= Q(fingerprint=group.fingerprint, state=State.FAILED.value, run_at=group.latest)
    found: dict[str, Job] = {}
    for job in jobs.filter(wanted).defer("args", "kwargs", "options", "result")[: 10 * SHOWN]:
        found.setdefault(job.fingerprint, job)
    runs = Attempt.objects.using(conf.get().database).filter(
        job_id__in=[job.pk for job in found.values()], outcome=AttemptOutcome.FAILED.value
    )
    traces = {run.job_id: run.traceback for run in runs.only("job_id", "traceback").order_by("id")}
    for group in groups:
        group.sample = found.get(group.fingerprint)
        if group.sample is not None:
            group.error = visible(group.sample.error)
            trace = tracebacks.read(traces.get(group.sample.pk, ""))
            group.place = trace.frames[0].place if trace.frames else ""


def _add_retrying(jobs: QuerySet[Job], groups: list[Group]) -> None:
    waiting = jobs.filter(state=State.SCHEDULED.value, attempts__gte=1)
    counts = count_many(
        [waiting.filter(fingerprint=group.fingerprint) for group in groups if group.fingerprint],
        MOST_COUNTED, conf.get().database,
    )  # fmt: skip
    for group, count in zip([group for group in groups if group.fingerprint], counts, strict=True):
        group.retrying = count
