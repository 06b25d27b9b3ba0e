"""Laws of concurrency names, judged by recorded runs and by the runs whose outcome counted. Such a run held its lease from its claim to
its end, so no frozen or disconnected run is among them. Holders of a name are numbered in order (`turn`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from tests.laws.history import FOREVER, History, Op, Run, Sees
from tests.laws.law import Findings, law

UNCOUNTED = ("running", "crashed")  # outcomes of attempts that nobody who held the lease has told
MARGIN = 5_000_000_000  # ns; a run is claimed before it begins, and one that came back is adopted within a lease


@law(Sees.CALLS | Sees.RUNS)
def each_run_gets_its_name_and_a_unique_number(history: History) -> Findings:
    """Each run of a job with a name gets that name, and a number that no other run of the name has."""
    seen: dict[tuple[str, int], Run] = {}
    for run in history.runs:
        op = history.scheduled_by.get(run.job)
        name = op.given.get("name", "") if op is not None else ""
        if run.name != name or bool(run.turn) != bool(name):
            yield run.job, f"was given the name {name!r}, and was told {run.name!r} and the number {run.turn}"
        elif name and (other := seen.setdefault((name, run.turn), run)) is not run:
            yield run.job, f"has the number {run.turn} of {name!r}, which {other.job} has, too"


@law(Sees.CALLS | Sees.ROWS | Sees.RUNS)
def a_name_has_no_more_leases_than_allowed(history: History) -> Findings:
    """When a run starts, fewer earlier runs of its name than allowed still hold their lease. Only runs whose outcome counts are
    considered. Exception: Redis lost the holders.
    """
    for run, op, others in _by_name(history):
        earlier = [one for one in others if one.turn < run.turn and one.until > run.at and _remembered(history, run, one)]
        if len(earlier) >= op.given["most"]:
            told = ", ".join(f"{one.job} (number {one.turn})" for one in earlier)
            yield run.job, f"began as number {run.turn} of {run.name!r}, of which {op.given['most']} may run, while {told} held it"


@law(Sees.CALLS | Sees.ROWS | Sees.RUNS)
def numbers_of_a_name_increase(history: History) -> Findings:
    """If a job was scheduled after another run of its name had ended, its run has a higher number."""
    for run, op, others in _by_name(history):
        for one in others:
            if one.turn > run.turn and one.until < op.at and _remembered(history, run, one):
                yield run.job, f"has the number {run.turn} of {run.name!r}, and {one.turn} had ended before it was scheduled"


def _by_name(history: History) -> Iterator[tuple[Run, Op, list[Run]]]:
    """Each run with a name, the call that scheduled its job, and all runs of that name whose outcome counted."""
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
    """Whether Redis lost nothing between the claim of one run and the start of the other."""
    return not history.rolled_over(min(run.at, other.at) - MARGIN, max(run.at, other.at) + MARGIN, run.job)
