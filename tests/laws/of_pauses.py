"""Laws of pauses, judged by calls and by recorded runs. A call names a queue, a task, a scope or a concurrency name."""

from __future__ import annotations

from collections.abc import Iterator

from tests.laws.history import FOREVER, History, Op, Run, Sees
from tests.laws.law import Findings, law

AT_ONCE = 2_000_000_000  # ns from the answer to a pause
Word = tuple[str, str]  # queue, task, scope or name, and its text


@law(Sees.CALLS | Sees.ROWS | Sees.RUNS)
def nothing_paused_begins_two_seconds_after_the_answer(history: History) -> Findings:
    """From two seconds after the answer to a pause, no run of what is paused begins until somebody resumes it, or until its date."""
    for op, run in _begun(history):
        if not history.rolled_over(op.until, run.at, run.job):
            yield run.job, f"began {(run.at - op.until) / 1e9:.1f} s after {op.id} had paused it"


@law(Sees.CALLS | Sees.ROWS | Sees.RUNS)
def a_pause_outlives_a_loss_of_data(history: History) -> Findings:
    """The same if Redis has lost its data since the pause."""
    for op, run in _begun(history):
        if history.rolled_over(op.until, run.at, run.job):
            yield run.job, f"began after a loss of data, though {op.id} had paused it"


@law(Sees.CALLS | Sees.ROWS | Sees.RUNS)
def what_a_pause_held_runs_after_it(history: History) -> Findings:
    """A job that was scheduled before the end of a pause has run, unless it was cancelled."""
    for op, end, until in _pauses(history):
        for row in history.rows.values() if min(end, until) < FOREVER else ():
            made = history.scheduled_by.get(row.id)
            there = made is not None and made.until < end and row.state != "cancelled"
            if there and _word(op) in _words(history, row.id) and row.id not in history.runs_of:
                yield row.id, f"was paused by {op.id}, and has not run since the pause ended"


def _begun(history: History) -> Iterator[tuple[Op, Run]]:
    """Each run that began while its job was paused, and the call that had paused it."""
    for op, end, until in _pauses(history):
        for run in history.runs:
            if op.until + AT_ONCE < run.at < end and run.wall < until and _word(op) in _words(history, run.job):
                yield op, run


def _pauses(history: History) -> Iterator[tuple[Op, int, int]]:
    """Each pause that all partitions confirmed, when the call began that ended or changed it, and the date at which it ends itself."""
    calls = sorted((op for op in history.ops.values() if op.what in ("pause", "resume")), key=lambda op: op.at)
    for number, op in enumerate(calls):
        if op.what == "pause" and op.done:
            until = op.given.get("until", FOREVER)
            later = (one for one in calls[number + 1 :] if one.perhaps and _word(one) == _word(op))
            changes = (one for one in later if one.what == "resume" or one.given.get("until", FOREVER) != until)
            yield op, next((one.at for one in changes), FOREVER), until


def _word(op: Op) -> Word:
    return next((kind, op.given[kind]) for kind in ("queue", "task", "scope", "name") if op.given.get(kind))


def _words(history: History, job: str) -> set[Word]:
    """The words by which a job can be paused."""
    row, made = history.rows.get(job), history.scheduled_by.get(job)
    words = {("queue", row.queue), ("task", row.task), ("scope", row.scope)} if row else set[Word]()
    return words | {("name", made.given["name"])} if made and made.given.get("name") else words
