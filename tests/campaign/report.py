"""The report of a campaign, on one page."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.campaign import isolation
from tests.campaign.recovery import PROMISED, Recovery, by_kind, percentile, recoveries
from tests.laws.history import History
from tests.laws.judge import Breach, unjudged

JOBS_SHOWN = 3
KINDS_SHOWN = 6
STARVED = 1.0  # seconds after which a job of a queue with few jobs has waited for those of another one


def page(history: History, breaches: list[Breach], notes: list[str], heading: str) -> str:
    """Counts, recoveries, violations."""
    rows = history.rows
    ops = Counter((op.what, op.answer) for op in history.ops.values())
    states = Counter(row.state for row in rows.values())
    runs = Counter(run.how or "cut off" for run in history.runs)
    ledger = Counter(what for what, *_ in history.ledger)
    crashed = sum(row.crashes for row in rows.values())
    names = [run.name for run in history.runs if run.name]
    said = [
        heading,
        f"operations  {len(history.ops)}: " + _counts({f"{what} {answer}": n for (what, answer), n in ops.items()}),
        f"jobs        {len(rows)}: " + _counts(states) + f"; {crashed} crashes",
        f"runs        {len(history.runs)}: " + _counts(runs) + f"; in the ledger {_counts(ledger)}",
        f"answers     {len(history.answers)} of the database to tasks",
        f"second site {_counts(Counter(map(_shown, history.rivalry.attempts if history.rivalry else ())))}",
        f"names       {len(set(names))}, which {len(names)} runs had",
        f"schedules   {len(history.calendar.stretches)}, their ticks {len(history.calendar.ticks)}: "
        + _counts(Counter(tick.fate for tick in history.calendar.ticks))
        + "; "
        + _counts(Counter(turn.kind for turn in history.calendar.turns)),
        f"faults      {len(history.faults)}; of those that came alone, seconds until all that was due ran (rows: without Redis):",
        f"  {'':22}  all  alone     p50    p100  promised   rows p100",
    ]
    found = by_kind(recoveries(history))
    for kind, count in sorted(Counter(fault.kind for fault in history.faults).items()):
        said.append(f"  {kind:22}{count:5}" + _figures(kind, found.get(kind, [])))
    said += isolation.lines(history)
    said += [f"note        {note}" for note in notes]
    said.append("not judged  " + ", ".join(unjudged(history.sees)))
    said.append(f"violations  {len(breaches)}" + (": " + _counts(Counter(one.law for one in breaches)) if breaches else ""))
    return "\n".join(said)


def _shown(attempt: tuple[str, str]) -> str:
    what, answer = attempt
    return f"{what} {answer.split(':')[0][:40]}"


def _figures(kind: str, found: list[Recovery]) -> str:
    if not found:
        return f"{0:7}"
    spans = [one.seconds for one in found]
    promised = f"{PROMISED[kind]:10.1f}" if kind in PROMISED else " " * 10
    rows = max(one.rows for one in found)
    return f"{len(found):7}{percentile(spans, 0.5):8.2f}{max(spans):8.2f}{promised}{rows:12.2f}"


def too_slow(history: History, slack: float) -> list[Breach]:
    """Recoveries that took longer than what is promised, times `slack`."""
    return [
        Breach("slow to recover", "", f"{one.fault.kind} ({one.fault.detail}): {one.seconds:.2f} s")
        for one in recoveries(history)
        if slack and one.seconds > PROMISED.get(one.fault.kind, float("inf")) * slack
    ] + ([*_starved(history, slack), *isolation.waited(history, slack)] if slack else [])


def _starved(history: History, slack: float) -> Iterator[Breach]:
    """Jobs of a queue with few that waited while another one had many."""
    alone = [fault for fault in history.faults if fault.kind == "flood" and fault.alone]
    for job, op in history.scheduled_by.items():
        runs = history.runs_of.get(job)
        if op.given.get("probe") and runs and any(fault.at <= op.at <= fault.until for fault in alone):
            waited = (runs[0].at - op.until) / 1e9
            if waited > STARVED * slack:
                yield Breach("starved", job, f"a job of {op.given['queue']} waited {waited:.1f} s for those of another queue")


def details(history: History, breaches: list[Breach]) -> str:
    """The first breaches of each law, with the history of their jobs."""
    by_law: dict[str, list[Breach]] = defaultdict(list)
    for breach in breaches:
        by_law[breach.law].append(breach)
    said = []
    for law, found in list(by_law.items())[:KINDS_SHOWN]:
        for breach in found[:JOBS_SHOWN]:
            said.append(f"\n{law}: {breach.job} {breach.text}")
            if breach.job:
                said += [f"  {line}" for line in story(history, breach.job)]
    return "\n".join(said)


def story(history: History, job: str) -> list[str]:
    """All that is known of one job, in order of time."""
    told: list[tuple[int, str]] = []
    op = history.scheduled_by.get(job)
    for one in ([op] if op else []) + history.changes.get(job, []):
        given = {name: value for name, value in one.given.items() if name != "job"}
        told.append((one.at, f"{one.id} {one.what} {given}"))
        if one.until < 1 << 62:
            jobs = [made for made in one.jobs if made[0] == job]
            told.append((one.until, f"{one.id} answered {one.answer} {one.reply} {jobs or ''}"))
    tick = history.calendar.of_job.get(job)
    for turn in history.calendar.turns if tick is not None and history.runs else ():
        if turn.name == tick.name:
            told.append((history.runs[0].at + (turn.at - history.runs[0].real) * 1_000_000, f"{turn}"))
    for run in history.runs_of.get(job, []):
        told.append((run.at, f"run began: {run.task} attempt {run.attempt} fence {run.fence}"))
        if run.how:
            told.append((run.until, f"run ended: {run.how} (fence {run.fence})"))
    for fault in history.faults:
        if told and min(told)[0] - 10**10 < fault.until and fault.at < max(told)[0] + 10**10:
            told.append((fault.at, f"-- fault: {fault.kind} {fault.detail}"))
            told.append((fault.until, f"-- end of: {fault.kind}"))
    told.sort()
    start = told[0][0] if told else 0
    said = [f"{(at - start) / 1e9:9.3f} s  {text}" for at, text in told[:60]]
    said.append(f"row       {history.final.rows.get(job)}")
    said += [f"tick      {tick}"] if tick is not None else []
    said += [f"attempt   {number} {fence} {how}" for id, number, fence, how in history.final.attempts if id == job]
    said += [f"event     {kind} by {actor}" for kind, id, actor in history.final.acts if id == job]
    return said


def _counts(counts: Any) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items(), key=lambda pair: -pair[1]))


def last_words(folder: Path) -> list[str]:
    """The errors logged by workers and web processes that no task raises on purpose."""
    found: Counter[str] = Counter()
    for path in sorted(folder.glob("*.log")):
        for line in path.read_text(errors="replace").splitlines():
            if " ERROR " in line and "Trouble" not in line and "was killed by" not in line and "File " not in line:
                found[f"{path.stem}: {line[:150]}"] += 1
    return [f"{count} x {line}" for line, count in found.most_common(8)]
