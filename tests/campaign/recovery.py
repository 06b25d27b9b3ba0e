"""How long it took to recover from each fault: until every job that was harmed by it, or due by then, had begun again or ended."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from tests.laws.history import FOREVER, FaultSeen, History, Op

MS = 1_000_000
RETRY = 300 * MS  # the longest delay between attempts of those that are measured
CRASHES = 3  # MAX_CRASHES: after so many, a job runs alone, and its process finishes its others first
BACKLOG = 500 * MS  # what was late by so much before a fault is not late because of it
# The promised times in seconds, on an idle machine. The lease here is 4 s.
PROMISED = {
    "kill task process": 1.0,
    "kill worker": 2.0,
    "kill supervisor": 2.0,
    "lose host": 5.0,
    "kill redis": 2.0,
    "restart redis": 2.0,
    "kill master": 5.0,
    "kill master ahead": 5.0,
}


@dataclass(frozen=True, slots=True)
class Recovery:
    """Seconds until the jobs that Redis had were running again; and `rows`: those that waited in the database only."""

    fault: FaultSeen
    seconds: float
    rows: float


def recoveries(history: History) -> list[Recovery]:
    """For each fault that occurred alone. A run that continues through a fault, or had ended before, is not affected."""
    faults = sorted(history.faults, key=lambda fault: fault.since)
    moments = [fault.since for fault in faults]
    worst = {True: [0] * len(faults), False: [0] * len(faults)}
    for start, end, published, cut in _spans(history):
        for number in range(bisect_left(moments, start), bisect_left(moments, end)):
            if cut < faults[number].at if cut else start + BACKLOG < faults[number].at:
                continue
            worst[published][number] = max(worst[published][number], end - moments[number])
    return [
        Recovery(fault, published / 1e9, row / 1e9)
        for fault, published, row in zip(faults, worst[True], worst[False], strict=True)
        if fault.alone
    ]


def by_kind(found: list[Recovery]) -> dict[str, list[Recovery]]:
    """The recoveries from each kind."""
    kinds: dict[str, list[Recovery]] = defaultdict(list)
    for one in found:
        kinds[one.fault.kind].append(one)
    return dict(kinds)


def _spans(history: History) -> Iterator[tuple[int, int, bool, int]]:
    """Per job, while it waits: from its date to its first run, from a cut to the next begin, from a failure to the next attempt;
    then whether Redis had it, and for a run that was cut off until when it lived, 0 for others. Not where somebody moved or
    requeued the job meanwhile: then it ran when it was told to. Nor where it waited for its last chance.
    """
    for job, runs in history.runs_of.items():
        op = history.scheduled_by.get(job)
        if op is None or history.stepped(op.at, runs[-1].at):
            continue
        changed = any(change.what not in ("cancel", "cancel_key") for change in history.changes.get(job, ()))
        if not changed and not op.given.get("key"):
            due = op.at + int(op.given.get("delay", 0) * 1000) * MS
            yield due, runs[0].at, any(id == job and created for id, created, _ in op.jobs), 0
        crashes = 0
        for run, following in pairwise(runs):
            crashes += run.until == FOREVER
            if any(_restarts(change) and run.at <= change.at <= following.at for change in history.changes.get(job, ())):
                continue
            if crashes >= CRASHES:
                continue
            if run.how not in ("ok", "error", "snooze"):
                yield run.at, following.at, True, run.until
            elif run.until + RETRY < following.at and run.how != "ok" and not changed and run.until < FOREVER:
                yield run.until + RETRY, following.at, True, 0


def _restarts(change: Op) -> bool:
    """Whether it may have given the job another date."""
    return change.what in ("reschedule", "run_now", "requeue") and change.perhaps


def percentile(values: list[float], share: float) -> float:
    """The value below which that share lies."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
