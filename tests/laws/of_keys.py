"""Laws of keys, judged by the answers of calls, by recorded runs, and by the runs whose outcome counted. Within one partition the
scripts enforce them. Across partitions, they hold because each key belongs to one partition.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import combinations, pairwise

from tests.laws.history import FOREVER, History, Op, Run, Sees
from tests.laws.law import Findings, law
from tests.laws.of_names import MARGIN, UNCOUNTED

FREEING = ("cancel", "cancel_key")  # calls after which a key of a period may be free
SECOND = 1_000_000_000  # ns
MOVING = ("reschedule", "run_now", "requeue", "edit")  # calls that give a job another date
TOUCHING = ("cancel", "cancel_key", "requeue", "edit")  # calls by which a job may have lost its key, or got it back


@law(Sees.CALLS | Sees.ROWS | Sees.RUNS)
def one_job_of_a_key_runs_at_a_time(history: History) -> Findings:
    """No two jobs of a key run at the same time if the outcome of both counts. Exceptions: Redis lost the holder of the key, or
    producers with different settings scheduled at the same time while the number of partitions was changed.
    """
    counted = {(job, fence) for job, _, fence, outcome in history.final.attempts if outcome not in UNCOUNTED}
    for (queue, key), ops in history.by_key.items():
        runs = [run for op in ops for run in _held(history, op, counted)]
        for run, other in combinations(sorted(runs, key=lambda run: run.at), 2):
            if run.job != other.job and other.at < run.until and not _excused(history, run.job, other.job, run.at, other.at):
                yield other.job, f"began while {run.job} ran, which has the key {key!r} of {queue}, too"


@law(Sees.CALLS | Sees.RUNS)
def a_key_has_one_unfinished_job(history: History) -> Findings:
    """If a call created a job for a key, that job replaces all earlier jobs of the key, so none of those that were waiting run.
    Exceptions: a job scheduled with "after", and those of the previous law.
    """
    for (queue, key), ops in history.by_key.items():
        made = [(op, job) for op in ops if op.what == "schedule" and op.answer == "ok" for job, created, _ in op.jobs if created]
        for op, job in made:
            runs = history.runs_of.get(job, [])
            if not runs or any(change.what in TOUCHING for change in history.changes.get(job, ())):
                continue
            for later, other in made:
                between = op.until < later.at and later.until < runs[0].at
                behind = later.given.get("policy") == "after"
                if between and not behind and not _excused(history, job, other, op.at, later.until):
                    yield job, f"has the key {key!r} of {queue}, and ran though {later.id} has made {other} while it waited"


@law(Sees.CALLS | Sees.ROWS | Sees.RUNS)
def a_key_schedules_one_job_per_period(history: History) -> Findings:
    """If a call with `once_for` created a job, another call with that key creates a job only if the first job was cancelled, if a
    person freed the key, or if the period has passed since the job's end.
    """
    for (queue, key), ops in history.by_key.items():
        calls = [op for op in ops if op.what == "schedule" and op.answer == "ok" and op.given.get("once_for")]
        made = [(op, job) for op in calls for job, created, _ in op.jobs if created]
        freed = any(op.what == "forget" and op.perhaps for op in ops)
        for (op, job), (later, other) in pairwise(sorted(made, key=lambda one: one[0].at)):
            row = history.final.rows.get(job)
            cancelled = row is not None and row.state == "cancelled"
            if freed or cancelled or any(change.what in FREEING and change.perhaps for change in history.changes.get(job, ())):
                continue
            ends = [run.until for run in history.runs_of.get(job, ())]
            if not ends or later.until < max(ends) + int(op.given["once_for"] * SECOND):
                yield other, f"was made for the key {key!r} of {queue}, though {job} has it for {op.given['once_for']} seconds"


@law(Sees.CALLS | Sees.ROWS | Sees.RUNS)
def a_debounce_ends(history: History) -> Findings:
    """A job that a call with `at_most` has scheduled begins with a date at most that long after this call, however many such calls
    follow. Exceptions: another call moved it without `at_most`, a person did, Redis lost its data, or its clock was set. A worker that
    puts a job back gives it another date, so only jobs with one attempt count.
    """
    claims = Counter(job for job, *_ in history.final.attempts)
    for (queue, key), ops in history.by_key.items():
        calls = [op for op in ops if op.given.get("at_most")]
        free = [op for op in ops if op.given.get("policy") == "latest" and op not in calls]
        for op in calls:
            longest = max(other.given["at_most"] for other in calls)
            for run in (run for job in op.ids for run in history.runs_of.get(job, ()) if claims[job] == 1):
                moved = any(change.what in MOVING for change in history.changes.get(run.job, ()))
                moved = moved or any(other.at < run.at and other.until > op.at for other in free)
                last = op.wall + (op.until - op.at) // 1_000_000 + int(longest * 1000)
                if run.due > last and not (moved or history.steps or history.rolled_over(op.at, run.at, run.job)):
                    yield (
                        run.job,
                        f"began {run.due - last} ms after the latest date that calls with the key {key!r} of {queue} can give it",
                    )


def _held(history: History, op: Op, counted: set[tuple[str, str]]) -> Iterator[Run]:
    """The call's runs that held their lease, and so the key, from start to end."""
    for job in op.ids if op.what == "schedule" else ():
        for run in history.runs_of.get(job, ()):
            if run.until < FOREVER and (job, run.fence.partition("/")[0]) in counted:
                yield run


def _excused(history: History, job: str, other: str, first: int, last: int) -> bool:
    scheduled = [history.scheduled_by[one] for one in (job, other)]
    begin = min([first, *(op.at for op in scheduled)]) - MARGIN
    forgotten = any(history.rolled_over(begin, last + MARGIN, one) for one in (job, other))
    one, two = scheduled
    at_once = one.at <= two.until and two.at <= one.until
    return forgotten or (at_once and any(history.rolled(op.at, op.until) for op in scheduled))
