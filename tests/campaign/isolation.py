"""The effect of a faulty server on the queues of other servers: their jobs are not later than usual, calls about them are answered,
and no run loses its lease. Only faults that occurred alone are judged, because then no other fault can be the cause.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from django_delayq.store.keys import tag
from tests.campaign.recovery import MS, percentile
from tests.laws.history import FOREVER, FaultSeen, History, Op, partition
from tests.laws.judge import Breach

WAITED = 1.0  # seconds after which a job, or a call, has waited for another server; on a machine that has nothing else to do
BEFORE = 4_000 * MS  # what is compared with the time of the fault
LEASE = 4_000 * MS  # the longest wait of a campaign after faults of servers; see script.py
SHORTEST = 500 * MS  # shorter faults delay no job


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """One fault: of the partitions on other servers, by how many seconds jobs were late that were due meanwhile, and right before; and
    how long calls about them took.
    """

    fault: FaultSeen
    late: list[tuple[float, str]]
    before: list[tuple[float, str]]
    calls: list[tuple[float, str]]


def elsewhere(history: History) -> list[Elsewhere]:
    """For each fault that occurred alone and affected one of several servers for a while."""
    due = list(_due(history))
    return [
        Elsewhere(
            fault,
            [(late, job) for at, late, job, part in due if fault.at <= at <= fault.until and part not in fault.parts],
            [(late, job) for at, late, job, part in due if fault.at - BEFORE <= at < fault.at and part not in fault.parts],
            [
                ((op.until - op.at) / 1e9, op.id)
                for op in history.ops.values()
                if fault.at <= op.at and op.until <= fault.until and _about_others(history, op, fault)
            ],
        )
        for fault in history.faults
        if fault.alone and fault.parts and fault.until - fault.at >= SHORTEST
    ]


def _about_others(history: History, op: Op, fault: FaultSeen) -> bool:
    """Whether a call was about nothing that the fault met. One about a key says no partition: it may ask several."""
    queue = op.given.get("queue")
    if not queue:
        return False
    jobs = [*op.ids, *filter(None, [op.given.get("job")])]
    if not jobs and tag(queue, 1) in history.final.queues:
        return False
    return {tag(queue, partition(job)) for job in jobs or [""]}.isdisjoint(fault.parts)


def _due(history: History) -> Iterator[tuple[int, float, str, str]]:
    """The due date and the lateness, in seconds, of each job that waits for no other job and was not changed since it was scheduled.
    Only ticks that do not wait for each other are included.
    """
    policies = {name: plan.overlap for plans in history.calendar.plans.values() for name, plan in plans.items()}
    for job, runs in history.runs_of.items():
        tick = history.calendar.of_job.get(job)
        if tick is not None and policies.get(tick.name) == "allow":
            late = max(0, runs[0].real - tick.run_at)
            yield runs[0].at - late * MS, late / 1000, job, history.part(job)
            continue
        op = history.scheduled_by.get(job)
        if op is None or op.what != "schedule" or job in history.changes or len(op.ids) > 1:
            continue
        if op.given.get("key") or op.given.get("name"):
            continue
        at = op.at + int(op.given.get("delay", 0) * 1000) * MS
        at = max(at, op.until)  # one that is due at once is put in first
        yield at, max(0.0, (runs[0].at - at) / 1e9), job, history.part(job)


def waited(history: History, slack: float) -> Iterator[Breach]:
    """Jobs and calls that waited for a server that was not theirs, beyond what is promised times `slack`; and runs that lost their
    lease to it.
    """
    for one in elsewhere(history):
        said = f"{one.fault.kind} ({one.fault.detail})"
        usual = max([late for late, _ in one.before], default=0.0)
        for late, job in one.late:
            if late > max(usual, WAITED * slack):
                yield Breach("waited for another server", job, f"{late:.1f} s late during {said}; at most {usual:.1f} s right before")
        for took, op in one.calls:
            if took > WAITED * slack:
                yield Breach("waited for another server", "", f"{op} took {took:.1f} s during {said}")
        for job in _lost(history, one.fault):
            yield Breach("lost its lease to another server", job, said)


def _lost(history: History, fault: FaultSeen) -> Iterator[str]:
    """Jobs of other servers whose run was taken for dead while the fault was about, or a lease later: no other fault comes before."""
    crashed = {(job, fence) for job, _, fence, outcome in history.final.attempts if outcome == "crashed"}
    for job, runs in history.runs_of.items():
        for run, following in pairwise(runs):
            alive = run.at >= fault.at or fault.at <= run.until < FOREVER
            soon = run.at <= fault.until and following.at <= fault.until + LEASE
            if alive and soon and (job, run.fence.partition("/")[0]) in crashed and history.part(job) not in fault.parts:
                yield job


def lines(history: History) -> list[str]:
    """For the report: by kind of fault, how late jobs of other servers were, beside those right before it."""
    found: dict[str, list[Elsewhere]] = {}
    for one in elsewhere(history):
        found.setdefault(one.fault.kind, []).append(one)
    if not found:
        return []
    said = ["elsewhere   while one server was harmed alone, on the others; seconds (before: in the four seconds before it):"]
    said.append(f"  {'':22}  all   jobs  late p50     p99    p100  before p99    p100  calls p99    p100")
    for kind, ones in sorted(found.items()):
        late = [seconds for one in ones for seconds, _ in one.late]
        before = [seconds for one in ones for seconds, _ in one.before]
        calls = [seconds for one in ones for seconds, _ in one.calls]
        said.append(f"  {kind:22}{len(ones):5}{len(late):7}{_at(late, 0.5):10.3f}{_ends(late)}{_ends(before):>20}{_ends(calls):>19}")
    return said


def _ends(values: list[float]) -> str:
    return f"{_at(values, 0.99):8.3f}{_at(values, 1.0):8.3f}"


def _at(values: list[float], share: float) -> float:
    return percentile(values, share) if values else 0.0
