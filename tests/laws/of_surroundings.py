"""Laws about the surroundings of a project: its connections, the clocks of its hosts, and other projects on the same Redis."""

from __future__ import annotations

from tests.laws.history import History, Sees
from tests.laws.law import Findings, law

CHANGES = ("cancel", "cancel by key", "reschedule", "run_now", "requeue")
REFUSED = ("refused", "away")  # the answers of a queue of another site, and of servers that cannot be reached
UNCHANGED = (*REFUSED, "unknown", "finished", "conflict")  # also those that a database gives by itself
NEAR = 15 * 60_000  # ms by which the clocks of web processes may be wrong, and a campaign goes on after its last call


@law(Sees.ANSWERS)
def every_answer_belongs_to_its_query(history: History) -> Findings:
    """A task gets the database's answer to its own query, and never the answer to the query of another task."""
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


@law(Sees.SITES)
def another_site_is_refused(history: History) -> Findings:
    """Another site on the same Redis and prefix is refused: it changes, pauses, locks and schedules nothing there."""
    for what, answer in history.rivalry.attempts if history.rivalry is not None else ():
        as_row = what in ("schedule", "schedule by key")  # the row waits in its own database
        if not as_row and answer not in (UNCHANGED if what in CHANGES else REFUSED):
            yield "", f"another site tried {what}, and the answer was {answer}"


@law(Sees.SITES)
def no_job_crosses_to_another_site(history: History) -> Findings:
    """Another site runs nothing, and no job of its database gets into Redis."""
    if history.rivalry is None:
        return
    yield from ((job, f"ran at another site, with the fence {fence}") for job, fence in history.rivalry.runs)
    for job, state, published in history.rivalry.rows:
        if published or state != "scheduled":
            yield job, f"a job of another site is {'published' if published else 'unpublished'} and {state}"


@law(Sees.SITES)
def a_queue_stays_with_its_site(history: History) -> Findings:
    """Each partition has the ID of its own database, whatever another site has tried."""
    for part, site in history.final.sites.items():
        if site != history.final.site:
            yield "", f"{part} is of site {site or '(none)'}, and this database is site {history.final.site}"
