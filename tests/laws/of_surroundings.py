"""Laws about the surroundings of a project: its connections, the clocks of its hosts, and other projects on the same Redis."""

from __future__ import annotations

from tests.laws.history import History, Sees
from tests.laws.law import Findings, law

NEAR = 15 * 60_000  # ms by which the clocks of web processes may be wrong, and a campaign goes on after its last call


@law(Sees.ANSWERS)
def every_answer_is_to_ones_own_question(history: History) -> Findings:
    """A task gets the answer of the database to its own query, and never the answer to a query of another task."""
    for job, asked, heard in history.answers:
        if heard != asked:
            yield job, f"asked the database for {asked}, and got {heard}"


@law(Sees.DATES | Sees.CALLS)
def no_row_is_dated_by_a_wrong_clock(history: History) -> Findings:
    """Every moment in the tables lies within the campaign, by the clock of the database or by that of Redis. A host's clock that is
    hours or days off dates nothing.
    """
    calls = [op.wall for op in history.ops.values()]
    if history.dated_by_hosts or not calls:
        return
    steps = [0, *(step.offset for step in history.steps)]
    first, last = min(calls) + min(steps) - NEAR, max(calls) + max(steps) + NEAR
    for column, (earliest, latest) in sorted(history.final.dates.items()):
        for moment in (earliest, latest):
            if not first <= moment <= last:
                hours = (moment - (first if moment < first else last)) / 3_600_000
                yield "", f"{column} has a moment {abs(hours):.1f} hours {'before' if hours < 0 else 'after'} the campaign"
