"""Failed and retrying jobs, grouped by the fingerprint of their error. The number of rows that are read is bounded, so the page costs
the same for a thousand jobs and for millions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, NamedTuple
from urllib.parse import urlencode

from django.db.models import Count, Max, Min, OuterRef, Q, QuerySet, Subquery
from django.db.models.functions import Substr

from django_delayq.admin.tracebacks import read_traceback
from django_delayq.console.moments import written
from django_delayq.console.search_fields import NO_FINGERPRINT
from django_delayq.console.wording import cut
from django_delayq.models import RETRYING, Attempt, Job, database
from django_delayq.states import AttemptOutcome, State
from django_delayq.text import visible, without_varying

WINDOW: Final = 10_000  # jobs that are read: the latest failed ones, and the retrying ones with the most attempts
SHOWN: Final = 30  # groups
HEARD: Final = 20  # latest jobs of a group whose messages are compared
HEADLINE: Final = 160  # characters of an error


class Period(NamedTuple):
    """The time in which a job failed, or began its latest attempt. None: open."""

    since: datetime | None = None
    until: datetime | None = None

    def rows(self, column: str) -> Q:
        """The condition for this date of a job."""
        found = Q() if self.since is None else Q(**{f"{column}__gte": self.since})
        return found if self.until is None else found & Q(**{f"{column}__lt": self.until})

    def words(self, dates: str) -> str:
        """The search for the same jobs. `dates`: started or ended."""
        given = (("after", self.since), ("before", self.until))
        return "".join(f" {dates}_{word}:{written(date)}" for word, date in given if date is not None)


@dataclass(slots=True)
class Group:
    """Jobs with one fingerprint. `count`: failed; `retrying`: waiting for another attempt; `first`, `last`: when a job failed or began
    its latest attempt; `latest`: run_at of the sample; `others`: other messages, with the number of the latest jobs that have them.
    """

    fingerprint: str
    period: Period
    count: int = 0
    retrying: int = 0
    first: datetime | None = None
    last: datetime | None = None
    latest: datetime | None = None
    tasks: dict[str, int] = field(default_factory=dict)
    queues: dict[str, int] = field(default_factory=dict)
    sample: Job | None = None
    error: str = ""
    place: str = ""
    others: dict[str, int] = field(default_factory=dict)

    def add(self, row: Mapping[str, Any], *, retrying: bool) -> None:
        """Adds the jobs of one task and queue. The failed jobs come first."""
        count = row["count"]
        if retrying:
            self.retrying += count
        else:
            self.count += count
        self.tasks[row["task"]] = self.tasks.get(row["task"], 0) + count
        self.queues[row["queue"]] = self.queues.get(row["queue"], 0) + count
        if row["first"] is not None:
            self.first = min(filter(None, (self.first, row["first"])))
            self.last = max(filter(None, (self.last, row["last"])))
        if not (retrying and self.count):
            self.latest = max(filter(None, (self.latest, row["latest"])))

    def forget(self) -> None:
        """Removes the message of the sample."""
        self.sample, self.error, self.place, self.others = None, "", "", {}

    @property
    def jobs(self) -> Q:
        """The failed jobs, or the retrying ones if none has failed."""
        found = Q(fingerprint=self.fingerprint)
        return found & (_failed_in(self.period) if self.count else _retrying_in(self.period))

    @property
    def samples(self) -> Q:
        """The jobs that can represent the group."""
        return self.jobs & Q(run_at=self.latest)

    @property
    def headline(self) -> str:
        return cut(self.error or self.fingerprint, HEADLINE)

    @property
    def search(self) -> str:
        """The search for these jobs."""
        return f"fingerprint:{self.fingerprint or NO_FINGERPRINT}"

    @property
    def failed_query(self) -> str:
        """The query string of the failed jobs, for the list and for an operation."""
        return urlencode({"state": "failed", "q": self.search + self.period.words("ended")})

    @property
    def retrying_query(self) -> str:
        """The query string of the retrying jobs."""
        return urlencode({"state": "retrying", "q": self.search + self.period.words("started")})


def look(jobs: QuerySet[Job], period: Period, *, compare: bool = True) -> dict[str, Any]:
    """Groups the latest failed and the retrying jobs of the period, the largest group first. `compare`: also collect other messages
    than that of the sample. `more`: the number of groups that are not shown; `cut`: there are older failed jobs; `retrying_cut`: there
    are more retrying jobs.
    """
    groups: dict[str, Group] = {}
    failed, cut = _failed(jobs.filter(_failed_in(period)))
    waiting, retrying_cut = _retrying(jobs)
    waiting = waiting.filter(_retrying_in(period))
    for rows, date, retrying in ((failed, "finished_at", False), (waiting, "started_at", True)):
        grouped = rows.values("fingerprint", "task", "queue")
        for row in grouped.annotate(count=Count("pk"), first=Min(date), last=Max(date), latest=Max("run_at")):
            groups.setdefault(row["fingerprint"], Group(row["fingerprint"], period)).add(row, retrying=retrying)
    ordered = sorted(groups.values(), key=lambda group: (-group.count - group.retrying, group.fingerprint))
    shown = ordered[:SHOWN]
    _add_samples(jobs, shown)
    if compare:
        _add_others(jobs, [group for group in shown if group.sample is not None and group.fingerprint])
    return {"groups": shown, "more": len(ordered) - len(shown), "cut": cut, "retrying_cut": retrying_cut}


def _failed_in(period: Period) -> Q:
    return Q(state=State.FAILED.value) & period.rows("finished_at")


def _retrying_in(period: Period) -> Q:
    return RETRYING & period.rows("started_at")


def _failed(jobs: QuerySet[Job]) -> tuple[QuerySet[Job], bool]:
    """Returns the latest of these failed jobs, and whether there are more."""
    failed = jobs.order_by("-finished_at")
    edge = list(failed.values_list("finished_at", flat=True)[WINDOW : WINDOW + 1])
    return (failed.filter(finished_at__gt=edge[0]) if edge and edge[0] else failed).order_by(), bool(edge)


def _retrying(jobs: QuerySet[Job]) -> tuple[QuerySet[Job], bool]:
    """Returns the retrying jobs with the most attempts, which is the order of their index, and whether there are more."""
    waiting = jobs.filter(RETRYING).order_by("-attempts", "-run_at", "-id")
    edge = list(waiting.values_list("attempts", "run_at", "id")[WINDOW : WINDOW + 1])
    if edge:
        attempts, run_at, id = edge[0]
        same = Q(attempts=attempts) & (Q(run_at__gt=run_at) | Q(run_at=run_at, id__gt=id))
        waiting = waiting.filter(Q(attempts__gt=attempts) | same)
    return waiting.exclude(fingerprint="").order_by(), bool(edge)


def _add_samples(jobs: QuerySet[Job], groups: list[Group]) -> None:
    """Reads a sample for each group. One query per group: thousands of jobs can have the same date."""
    if not groups:
        return
    found = {f"job{number}": Subquery(jobs.filter(group.samples).order_by().values("pk")[:1]) for number, group in enumerate(groups)}
    [ids] = jobs.order_by().annotate(**found).values_list(*found)[:1]
    runs = Attempt.objects.filter(job_id=OuterRef("pk"), outcome__in=(AttemptOutcome.FAILED.value, AttemptOutcome.RETRIED.value))
    trace = Subquery(runs.order_by("-started_at").values("traceback")[:1])
    shown = jobs.filter(pk__in=[id for id in ids if id is not None]).defer("args", "kwargs", "options", "result")
    samples = {job.pk: job for job in shown.annotate(trace=trace)}
    for group, id in zip(groups, ids, strict=True):
        sample = samples.get(id)
        if sample is not None:
            group.sample, group.error = sample, visible(sample.error)
            frames = read_traceback(sample.trace or "").frames
            group.place = frames[0].place if frames else ""


def _add_others(jobs: QuerySet[Job], groups: list[Group]) -> None:
    """Reads other error messages for each group, with one index entry per job."""
    if not groups:
        return
    connection = database.connection()
    parts, parameters = [], []
    for number, group in enumerate(groups):
        latest = jobs.filter(group.jobs).order_by("-run_at").annotate(said=Substr("error", 1, HEADLINE))
        text, values = latest.values_list("fingerprint", "said")[:HEARD].query.get_compiler(connection=connection).as_sql()
        parts.append(f"SELECT * FROM ({text}) AS g{number}")  # SQLite does not allow LIMIT in a part of a union
        parameters += values
    heard: dict[str, dict[str, tuple[str, int]]] = {}
    with connection.cursor() as cursor:
        cursor.execute(" UNION ALL ".join(parts), parameters)
        for fingerprint, error in cursor.fetchall():
            said, forms = visible(error)[:HEADLINE], heard.setdefault(fingerprint, {})
            first, count = forms.get(form := without_varying(said), (said, 0))
            forms[form] = (first, count + 1)
    for group in groups:
        heard.get(group.fingerprint, {}).pop(without_varying(group.error[:HEADLINE]), None)
        group.others = dict(heard.get(group.fingerprint, {}).values())
