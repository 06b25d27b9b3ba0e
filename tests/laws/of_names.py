"""What holds of the names of which only so many jobs run at a time, judged by what runs have recorded and by whose ends counted.

A run whose end counted held its lease from its claim until then, so from its begin to its end: no frozen or cut-off run is among
these. A name goes from holder to holder in the order of their numbers (`turn`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from tests.laws.history import FOREVER, History, Op, Run, Sees
from tests.laws.law import Findings, law

UNCOUNTED = ("running", "crashed")  # outcomes of attempts that nobody who held the lease has told
MARGIN = 5_000_000_000  # ns; a run is claimed before it begins, and one that came back is adopted within a lease


@law(Sees.CALLS | Sees.RUNS)
def a_run_is_told_its_name_and_a_number_that_no_other_has(history: History) -> Findings:
    """A job that was given a name is told it in each of its runs, and a number that no other run of that name has."""
    seen: dict[tuple[str, int], Run] = {}
    for run in history.runs:
        op = history.scheduled_by.get(run.job)
        name = op.given.get("name", "") if op is not None else ""
        if run.name != name or bool(run.turn) != bool(name):
            yield run.job, f"was given the name {name!r}, and was told {run.name!r} and the number {run.turn}"
        elif name and (other := seen.setdefault((name, run.turn), run)) is not run:
            yield run.job, f"has the number {run.turn} of {name!r}, which {other.job} has, too"


@law(Sees.CALLS | Sees.ROWS | Sees.RUNS)
def of_one_name_no_more_hold_a_lease_than_may(history: History) -> Findings:
    """When a run begins, less than so many of its name hold their lease who have had the name before it and whose end counts; but where
    Redis has forgotten who does.
    """
    for run, op, others in _by_name(history):
        earlier = [one for one in others if one.turn < run.turn and one.until > run.at and _remembered(history, run, one)]
        if len(earlier) >= op.given["most"]:
            told = ", ".join(f"{one.job} (number {one.turn})" for one in earlier)
            yield run.job, f"began as number {run.turn} of {run.name!r}, of which {op.given['most']} may run, while {told} held it"


@law(Sees.CALLS | Sees.ROWS | Sees.RUNS)
def numbers_of_a_name_rise(history: History) -> Findings:
    """A run whose job was not there yet when another of its name had ended has a higher number than that one."""
    for run, op, others in _by_name(history):
        for one in others:
            if one.turn > run.turn and one.until < op.at and _remembered(history, run, one):
                yield run.job, f"has the number {run.turn} of {run.name!r}, and {one.turn} had ended before it was scheduled"


def _by_name(history: History) -> Iterator[tuple[Run, Op, list[Run]]]:
    """Each run that was told a name, with the call that made its job, and all runs of that name whose end counted."""
    counted = {(job, fence) for job, _, fence, outcome in history.final.attempts if outcome not in UNCOUNTED}
    named: dict[str, list[Run]] = defaultdict(list)
    for run in history.runs:
        if run.turn:
            named[run.name].append(run)
    for name, runs in named.items():
        held = [one for one in runs if one.until < FOREVER and (one.job, one.fence.partition("/")[0]) in counted]
        for run in runs:
            op = history.scheduled_by.get(run.job)
            if op is not None and op.given.get("name") == name:
                yield run, op, held


def _remembered(history: History, run: Run, other: Run) -> bool:
    """Whether Redis has forgotten nothing from the claim of the one to the begin of the other."""
    return not history.rolled_over(min(run.at, other.at) - MARGIN, max(run.at, other.at) + MARGIN, run.job)
