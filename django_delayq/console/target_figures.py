"""The places that jobs go to: hosts of deliveries and targets of offers, and the circuits that workers report as open.

The newest rows of each state are counted, so a table with millions of rows costs no more than a small one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from statistics import median
from typing import Any, Final, NamedTuple
from uuid import UUID

from django.db.models import TextField
from django.db.models.functions import Left, Right

from django_delayq.console import overview
from django_delayq.models import Attempt, Job
from django_delayq.states import DELIVERY, OFFER, AttemptOutcome, State

NEWEST: Final = 500  # rows of each state
MOST_HOSTS: Final = 50
STATES: Final = (State.SCHEDULED, State.RUNNING, State.FAILED, State.SUCCEEDED)
SHOWN: Final = 300  # characters of an error
TAIL: Final = 300  # characters at the end of the arguments, which contain the host after up to 64 KB of body
START: Final = 60  # characters at the start of a result, which can have 2 KB
UNREAD: Final = 200  # rows whose arguments are read in full, because people edited them and they end differently
ENDS: Final = (AttemptOutcome.RETRIED.value, AttemptOutcome.FAILED.value)
MOST_RUNS: Final = 2_000
_HOST: Final = re.compile(r'[{,]"host":"([a-z0-9_.:-]{1,253})"\}\Z')  # in JSON, a quote within text has a backslash
_RESULT: Final = re.compile(r'\{"status":(\d{1,9}),"ms":(\d{1,9})\b')
Row = Mapping[str, Any]
MOST_CIRCUITS: Final = 20  # in the beat of a worker


@dataclass(slots=True)
class TargetFigures:
    """A host or a target, counted from rows. The last result is `status`, or else `error`. `times`: durations in ms."""

    name: str
    waiting: int = 0
    retrying: int = 0
    running: int = 0
    failed: int = 0
    succeeded: int = 0
    last_success: datetime | None = None
    last_end: datetime | None = None
    last_job: UUID | None = None
    status: int | None = None
    error: str = ""
    times: list[int] = field(default_factory=list)

    @property
    def median_ms(self) -> float | None:
        """The median duration; None if there are none."""
        return median(self.times) if self.times else None

    @property
    def unwell(self) -> int:
        """The number of failed and retrying jobs, which sorts the worst first."""
        return self.failed + self.retrying

    def count(self, row: Row) -> None:
        """Adds one row."""
        state, ended = row["state"], row["finished_at"] or row["started_at"]
        if state == State.SUCCEEDED:
            self.succeeded += 1
            status, ms = map(int, read.groups()) if (read := _RESULT.match(row["start"] or "")) else (None, None)
            self._say(row["id"], ended, status=status, error="")
            if ended and (self.last_success is None or ended > self.last_success):
                self.last_success = ended
            if ms is not None:
                self.times.append(ms)
            return
        if state == State.RUNNING:
            self.running += 1
        elif state == State.FAILED:
            self.failed += 1
        elif row["attempts"]:
            self.retrying += 1
        else:
            self.waiting += 1
        if row["short_error"] and state != State.RUNNING:
            self._say(row["id"], ended, status=None, error=row["short_error"])

    def _say(self, job: UUID, at: datetime | None, *, status: int | None, error: str) -> None:
        if at is not None and (self.last_end is None or at > self.last_end):
            self.last_job, self.last_end, self.status, self.error = job, at, status, error


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetsSeen:
    """`figures`: the worst first. `cut`: states with more than the NEWEST rows that were counted; `more`: how many figures are left
    out.
    """

    figures: list[TargetFigures]
    cut: frozenset[str]
    more: int = 0


def of_hosts() -> TargetsSeen:
    """The hosts of deliveries, in at most six queries."""
    rows, cut = _newest(DELIVERY, tail=Right("kwargs", TAIL, output_field=TextField()))
    unread = [row["id"] for row in rows if not _HOST.search(row["tail"])][:UNREAD]
    whole: dict[UUID, Any] = dict(Job.objects.filter(pk__in=unread).values_list("pk", "kwargs")) if unread else {}
    found: dict[str, TargetFigures] = {}
    for row in rows:
        read = _HOST.search(row["tail"])
        host = read[1] if read else whole.get(row["id"], {}).get("host")
        if isinstance(host, str) and host:
            found.setdefault(host, TargetFigures(host)).count(row)
    ranked = sorted(found.values(), key=lambda one: (-one.unwell, -one.waiting, one.name))[:MOST_HOSTS]
    _tell_statuses(ranked)
    return TargetsSeen(figures=ranked, cut=cut, more=len(found) - len(ranked))


def of_offers() -> TargetsSeen:
    """The targets of offers, including those that are no longer listed, in four queries."""
    rows, cut = _newest(OFFER, "kwargs")  # they have only the name
    found: dict[str, TargetFigures] = {}
    for row in rows:
        if isinstance(name := row["kwargs"].get("to"), str):
            found.setdefault(name, TargetFigures(name)).count(row)
    ranked = sorted(found.values(), key=lambda one: one.name)[:MOST_HOSTS]
    return TargetsSeen(figures=ranked, cut=cut, more=len(found) - len(ranked))


def _newest(task: str, *read: str, **made: Any) -> tuple[list[dict[str, Any]], frozenset[str]]:
    rows: list[dict[str, Any]] = []
    cut = set()
    for state in STATES:
        ordered = Job.objects.filter(task=task, state=state.value).order_by("-run_at", "-id")  # the order of an index
        names = ("id", "state", "attempts", "started_at", "finished_at", *read)
        begins = Left("result", START, output_field=TextField())
        found = list(
            ordered.annotate(short_error=Left("error", SHOWN), start=begins, **made).values(*names, "short_error", "start", *made)[
                : NEWEST + 1
            ]
        )
        if len(found) > NEWEST:
            cut.add(state.value)
        rows += found[:NEWEST]
    return rows, frozenset(cut)


def _tell_statuses(figures: Sequence[TargetFigures]) -> None:
    """Sets the status and the error of targets whose last run failed, from the attempt."""
    wanted = [one.last_job for one in figures if one.error and one.last_job]
    if not wanted:
        return
    ends = Attempt.objects.filter(job_id__in=wanted, outcome__in=ENDS)
    newest = ends.annotate(text=Left("message", SHOWN)).order_by("-id").values_list("job_id", "problem", "text")[:MOST_RUNS]
    told = {job: (problem, text) for job, problem, text in reversed(newest)}
    for one in figures:
        if one.error and one.last_job in told:
            problem, text = told[one.last_job]
            one.error = text or one.error
            status: Any = (problem.get("fields") or {}).get("status") if isinstance(problem, dict) else None
            one.status = status if type(status) is int and 0 <= status < 2**31 else None


class OpenCircuit(NamedTuple):
    """`target`: host:port; `until_ms`: since 1970, in the past if the next delivery is the probe; `worker`: its reporter."""

    target: str
    until_ms: int
    failures: int
    worker: str

    @property
    def host(self) -> str:
        """The host without the port, as jobs contain it."""
        return self.target.rpartition(":")[0].strip("[]")


def open_circuits(workers: Iterable[dict[str, Any]]) -> list[OpenCircuit]:
    """The open circuits of these workers, the longest first. Invalid values are ignored: any program that can write to Redis can write
    a beat.
    """
    found = []
    for worker in workers:
        told = worker.get("circuits")
        for one in told[:MOST_CIRCUITS] if isinstance(told, list) and not worker["silent"] else ():
            if isinstance(one, dict) and isinstance(one.get("target"), str) and (until := overview.whole(one, "until")):
                found.append(OpenCircuit(one["target"][:300], until, overview.whole(one, "failures"), worker["id"]))
    return sorted(found, key=lambda one: (-one.until_ms, one.worker))


def circuits_of_host(workers: Iterable[dict[str, Any]], host: str) -> list[OpenCircuit]:
    """The open circuits of one host, on any port."""
    return [one for one in open_circuits(workers) if one.host == host]
