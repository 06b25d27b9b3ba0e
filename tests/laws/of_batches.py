"""Laws of batches and follow-ups. The calls of a batch and of `then=` name the next job by the operation of the members and NEXT."""

from __future__ import annotations

from collections import Counter

from tests.laws.history import FINISHED, NEXT, BatchLeft, History, Row, Sees
from tests.laws.law import Findings, law


def members(history: History, batch: BatchLeft) -> list[Row]:
    """A merged job is no member."""
    return [row for row in history.rows.values() if row.batch == batch.id and not row.merged]


@law(Sees.ROWS | Sees.BATCHES)
def a_batch_schedules_its_next_job_once(history: History) -> Findings:
    """When a batch is over, its next job exists once. A batch that was cancelled before has none, and an open batch has none yet."""
    there = Counter(row.op for row in history.rows.values())
    for batch in history.final.batches:
        wanted = int(batch.over and not batch.cancelled)
        if (found := there[batch.key + NEXT]) != wanted:
            yield "", f"{batch} has {found} next jobs"
        elif wanted and (next_job := history.rows.get(batch.next_job)) is None:
            yield "", f"{batch} names a next job without a row"
        elif wanted and next_job is not None and next_job.op != batch.key + NEXT:
            yield batch.next_job, f"is no next job of {batch}"


@law(Sees.ROWS | Sees.BATCHES)
def a_success_schedules_its_next_job_once(history: History) -> Findings:
    """The next job of a job exists once if that job has succeeded, and not at all otherwise."""
    there = Counter(row.op for row in history.rows.values())
    for row in history.rows.values():
        if row.follow_up and there[row.op + NEXT] != int(row.state == "succeeded"):
            yield row.id, f"{row.state}, and has {there[row.op + NEXT]} next jobs"


@law(Sees.ROWS | Sees.BATCHES | Sees.CALLS)
def a_batch_counts_its_members(history: History) -> Findings:
    """The counts of a batch that is over are those of its rows, unless members were put back since."""
    for batch in history.final.batches:
        mine = members(history, batch)
        states = Counter(row.state for row in mine)
        rows = tuple(states[state] for state in ("succeeded", "failed", "cancelled"))
        # A frozen run can add members when a later run of its job has ended.
        late = len(mine) - sum(batch.counts) if any(row.task == "adding" for row in mine) else 0
        again = late or any(history.requeued(row.id, 0) for row in mine)
        if batch.over and (sum(batch.counts) + max(0, late) != len(mine) or (batch.counts != rows and not again)):
            yield "", f"{batch} has rows {rows}"


@law(Sees.ROWS | Sees.BATCHES)
def every_batch_comes_to_its_end(history: History) -> Findings:
    """A batch is over if its members have ended as it wants, or if it was cancelled. Then no member is left."""
    for batch in history.final.batches:
        states = {row.state for row in members(history, batch)}
        ended, well = states <= set(FINISHED), states <= {"succeeded"}
        if not batch.over and ended and (well or batch.waits_for == "ended" or batch.cancelled):
            yield "", f"{batch} is open, and its members are {sorted(states)}"
        if batch.cancelled and not ended:
            yield "", f"{batch} was cancelled, and its members are {sorted(states)}"
