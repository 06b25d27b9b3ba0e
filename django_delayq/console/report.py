"""What ran, for reconciliations and audits: a document per job, with its first start, its runs, its end and who changed it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any, Final
from uuid import UUID

from django_delayq.conf import QueueConfig
from django_delayq.console.export import STEP, plain
from django_delayq.models import Attempt, Event, Job
from django_delayq.states import FINISHED, EventKind, State

COLUMNS: Final = (
    "id",
    "key",
    "queue",
    "task",
    "created_at",
    "run_at",
    "started_at",
    "finished_at",
    "attempts",
    "state",
    "ending",
    "error",
)

_ENDED: Final = {State.SUCCEEDED: "succeeded", State.FAILED: "failed", State.CANCELLED: "were cancelled"}


@dataclass(slots=True)
class JobReport:
    """The documents of these jobs, of which only a few hundred are in memory at a time. After the last one, `ends` has the number of
    jobs by end, and `repeated` the number of those that ran more than once.
    """

    jobs: Iterable[Job]
    ends: Counter[str] = field(default_factory=Counter)
    repeated: int = 0

    def __iter__(self) -> Iterator[dict[str, Any]]:
        ahead = iter(self.jobs)
        while some := list(islice(ahead, STEP)):
            ids = [job.pk for job in some]
            runs, events = dict[UUID, list[Attempt]](), dict[UUID, list[Event]]()
            for run in Attempt.objects.filter(job_id__in=ids).only("job_id", "started_at", "error_class").order_by("id"):
                runs.setdefault(run.job_id, []).append(run)
            acts = Event.objects.filter(job_id__in=ids).exclude(actor="").only("job_id", "kind", "at", "actor").order_by("id")
            for event in acts:
                if event.job_id is not None:
                    events.setdefault(event.job_id, []).append(event)
            for job in some:
                found = document(job, runs.get(job.pk, []), events.get(job.pk, []))
                self.ends[found["ending"] or found["state"]] += 1
                self.repeated += found["runs"] > 1
                yield found


def document(job: Job, runs: list[Attempt], acts: list[Event]) -> dict[str, Any]:
    """The document of a job. `runs`: the runs that have rows, oldest first; `acts`: the events that name a person or a program."""
    return {
        "key": job.key,
        "id": job.id,
        "queue": job.queue,
        "task": job.task,
        "created_at": utc(job.created_at),
        "run_at": utc(job.run_at),
        "first_started_at": utc(min([run.started_at for run in runs], default=job.started_at)),
        "finished_at": utc(job.finished_at),
        "runs": max(len(runs), job.attempts),
        "requeues": sum(act.kind == EventKind.REQUEUED for act in acts),
        "state": job.state,
        "ending": job.ending or "",
        "error_class": runs[-1].error_class if runs and job.error else "",
        "acts": "; ".join(f"{plain(utc(act.at))} {act.kind} by {act.actor}" for act in acts),
    }


def utc(moment: datetime | None) -> datetime | None:
    """The same moment in UTC, whatever time zone the connection has."""
    return moment and moment.astimezone(UTC)


def unknown(queues: Iterable[QueueConfig], now: datetime, since: datetime | None) -> Iterator[str]:
    """What a report of jobs that were due since then lacks, because the database does not have it."""
    for queue in queues:
        for state in sorted(FINISHED):
            kept = queue.retention[state.value]
            edge = (now - timedelta(seconds=kept or 0)).replace(microsecond=0)
            if kept is not None and (since is None or since < edge):
                yield f"{queue.name}: RETENTION has deleted the jobs that {_ENDED[state]} before {plain(utc(edge))}."
        if queue.audit == "failures":
            yield f"{queue.name}: AUDIT is 'failures', so jobs that succeeded or were cancelled are missing."
        if queue.audit != "full":
            yield f"{queue.name}: AUDIT is {queue.audit!r}, so runs that succeeded have no rows, and `runs` can be too low."
    yield "Runs that were put off (Snooze, NotYet): at most ten in a row are counted."
