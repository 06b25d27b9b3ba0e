"""What must hold when a case is over: of the answers, the runs, the rows and Redis."""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from django_delayq.models import Attempt, Event, Job, Operation, Step
from django_delayq.store.connection import Link
from django_delayq.store.keys import Keys
from tests.crashpoints.app import tasks
from tests.crashpoints.app.models import Effect
from tests.crashpoints.cases import Case
from tests.model import dump as dumps
from tests.model import invariants

TOLERANCE = 5  # ms by which a clock may be read apart
STEPS = {"atomic": ("",), "stepwise": tasks.STEPS}
OPERATIONS = "select stage, seen, counts from {}"


@dataclass
class Row:
    """A job, as the database has it."""

    id: str
    task: str
    state: str
    published: bool
    attempts: int
    most: int
    error: str
    holder: str | None


@dataclass
class Found:
    """All that is left when a case is over."""

    answers: list[dict[str, Any]]
    runs: list[dict[str, Any]]
    rows: dict[str, Row]
    attempts: list[tuple[str, str]]  # job, outcome
    effects: list[tuple[str, str]]  # job, step
    operations: list[tuple[str, int, str]]  # stage, seen, counts
    orphans: list[tuple[str, str]]  # table and job of what belongs to a job that has no row
    dump: dumps.Dump = field(default_factory=dumps.Dump)
    events: int = 0


def lines(path: Path) -> list[dict[str, Any]]:
    """The lines of a file; a last one that was not finished is left out."""
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def select(folder: Path, what: str) -> list[tuple[Any, ...]]:
    """Asks the database of a case. Not by the ORM: the process that forks must not have a connection."""
    line = sqlite3.connect(folder / "db.sqlite3", timeout=20)
    try:
        return line.execute(what).fetchall()
    finally:
        line.close()


def look(folder: Path, link: Link, keys: Keys) -> Found:
    """Reads everything."""
    tables = (model._meta.db_table for model in (Job, Attempt, Effect, Operation, Event, Step))
    job, attempt, effect, operation, event, step = tables
    alone = "select '{0}', job_id from {0} where job_id is not null and job_id not in (select id from {1})"
    fields = "id, task, state, published is not null, attempts, max_attempts, error, merged_into"
    rows = (Row(*found) for found in select(folder, f"select {fields} from {job}"))
    return Found(
        answers=lines(folder / "answers"),
        runs=lines(folder / "runs"),
        rows={row.id: row for row in rows},
        attempts=[(id, outcome) for id, outcome in select(folder, f"select job_id, outcome from {attempt}")],
        effects=[(id, step) for id, step in select(folder, f"select job, step from {effect}")],
        operations=[(stage, seen, counts) for stage, seen, counts in select(folder, OPERATIONS.format(operation))],
        orphans=[(t, id) for each in (attempt, event, step) for t, id in select(folder, alone.format(each, job))],
        dump=dumps.read(link, keys),
        events=int(link.execute("XLEN", keys["events"])),
    )


def restless(folder: Path, link: Link, keys: Keys) -> str:
    """What is still going on; "" when nothing is."""
    replies = link.execute_many([("ZCARD", keys[name]) for name in (*dumps.LANES, "leases")] + [("XLEN", keys["events"])])
    if any(replies):
        return f"in Redis: {dict(zip((*dumps.LANES, 'leases', 'events'), replies, strict=True))}"
    # A cancel may be noted, and Redis forget it before it is told: that row never hears that it was published.
    unpublished = "published is null and state not in ('cancelled', 'failed')"
    open_rows = f"select count(*) from {Job._meta.db_table} where {unpublished} or state in ('scheduled', 'running')"
    old = " union all ".join(
        f"select 1 from {model._meta.db_table} where {date} < '2020'"
        for model, date in ((Job, "run_at"), (Step, "at"), (Operation, "finished_at"))
    )
    for what, count in (
        ("rows are unfinished or unpublished", open_rows),
        ("operations are not finished", f"select count(*) from {Operation._meta.db_table} where stage != 'finished'"),
        ("rows should have been pruned", f"select count(*) from ({old})"),
    ):
        ((found,),) = select(folder, count)
        if found:
            return f"{found} {what}"
    return ""


def judge(case: Case, found: Found) -> Iterator[str]:
    """What is wrong, a sentence each."""
    yield from _rows(case, found)
    yield from _runs(case, found)
    yield from _effects(found)
    yield from _operations(case, found)
    yield from _redis(found)


def _rows(case: Case, found: Found) -> Iterator[str]:
    told = [job for answer in found.answers for job in answer.get("jobs", ())]
    for id, created, _ in told:
        if created and id not in found.rows:
            yield f"lost: {id} was acknowledged and has no row"
    victims = _victims(found)
    for id in victims:
        if id not in found.rows or found.rows[id].state != "cancelled":
            yield f"{id} was cancelled, its row is {found.rows.get(id)}"
    for row in found.rows.values():
        merged = case.kind == "keyed" and row.error.startswith("key held by")
        wanted = "cancelled" if row.id in victims or merged else "succeeded"
        if row.task.endswith(".deaf") or row.id in _said(found, "broken"):
            wanted = "failed"
        if row.state != wanted:
            yield f"lost: {row.id} should have {wanted}: {row}"
        holder = found.rows.get(row.holder or "")
        if merged and (holder is None or holder.state != "succeeded"):
            yield f"lost: {row.id} was merged into {holder}"
        if row.attempts > row.most:
            yield f"{row.id} has {row.attempts} attempts of {row.most}"
        if not row.published and row.state == "succeeded":
            yield f"{row.id} is unpublished"
    main = [row for row in found.rows.values() if row.id not in _known(found)]
    rolled_back = case.point.name == "producer.commit" and not case.freezes
    if rolled_back and main:
        yield f"scheduled though its transaction was not committed: {main}"
    asked_first = case.point.name in ("producer.ask", "producer.asked")  # who holds the key, before anything is written
    if not rolled_back and not main and (told or not asked_first):
        yield "the case scheduled nothing"
    succeeded = Counter(job for job, outcome in found.attempts if outcome == "succeeded")
    for id, outcome in found.attempts:
        if outcome == "running" and id in found.rows:
            yield f"an attempt of {id} runs for ever by its row"
    yield from (f"{count} attempts of {id} have succeeded" for id, count in succeeded.items() if count > 1)


def _runs(case: Case, found: Found) -> Iterator[str]:
    victims = _victims(found)
    cancelled = victims | {row.id for row in found.rows.values() if row.state == "cancelled"}
    ended = Counter(run["job"] for run in found.runs if run["what"] == "ended")
    dates = {id: (answer["at"], due) for answer in found.answers for id, _, due in answer.get("jobs", ())}
    moves: dict[str, list[tuple[int, int]]] = {}
    for answer in found.answers:
        if answer.get("due"):
            moves.setdefault(answer["job"], []).append((answer["at"], answer["due"]))
    fences = Counter((run["job"], run["fence"]) for run in found.runs if run["what"] == "began")
    yield from (f"two runs of {id} bear the fence {fence}" for (id, fence), count in fences.items() if count > 1)
    for run in found.runs:
        if run["job"] in cancelled:
            yield f"run of a job that was cancelled, or merged into another: {run}"
        if run["job"] not in found.rows:
            yield f"a run of a job that has no row: {run}"
        told, promised = dates.get(run["job"], (0, 0))
        moved = [date for at, date in moves.get(run["job"], ()) if at <= run["at"]]
        due = max(run["due"], moved[-1] if moved else promised if told <= run["at"] else 0)
        if run["what"] == "began" and run["at"] + TOLERANCE < due:
            yield f"early by {due - run['at']} ms: {run}"
    # Where a reply is lost and nobody dies, every call is sent again and has its effect once: so have the runs.
    once = case.action == "lose" and case.point.stage not in ("orphan", "deaf", "term", "wiped", "rolled")
    for id, outcome in found.attempts:
        if once and outcome == "crashed":
            yield f"a run of {id} counts as a crash, and nobody has died"
    for row in found.rows.values():
        times = ended[row.id]
        if row.state == "succeeded" and (times != 1 if once else times < 1):
            yield f"{row.id} has succeeded, and {times} of its runs came to their end"


def _effects(found: Found) -> Iterator[str]:
    times = Counter(found.effects)
    for id, count in times.items():
        if count > 1 or id[0] not in found.rows:
            yield f"{count} effects of {id}"
    for row in found.rows.values():
        for step in STEPS.get(row.task.rpartition(".")[2], ()):
            if row.state == "succeeded" and times[row.id, step] != 1:
                yield f"{times[row.id, step]} effects {step} of {row.id}, which has succeeded"
    yield from (f"{table} speaks of {id}, which has no row" for table, id in found.orphans)


def _operations(case: Case, found: Found) -> Iterator[str]:
    if case.point.stage == "operation" and len(found.operations) != 1:
        yield f"one operation was started: {found.operations}"
    for stage, seen, counts in found.operations:
        asked = len(_said(found, "later"))
        if stage != "finished" or not asked <= seen == sum(json.loads(counts).values()) <= len(found.rows):
            yield f"an operation is {stage} with {seen} jobs of {asked}: {counts}"


def _redis(found: Found) -> Iterator[str]:
    dump = found.dump
    yield from invariants.broken(dump)
    for name in (*dumps.LANES, "leases", "runs", "cancels", "progress", "keys"):
        if left := getattr(dump, name):
            yield f"left behind in {name}: {left}"
    unfinished = dump.jobs.keys() - dump.failed.keys()
    if unfinished:
        yield f"left behind in jobs: {unfinished}"
    if found.events:
        yield f"{found.events} events are not folded"


def _victims(found: Found) -> set[str]:
    return _said(found, "victim")


def _said(found: Found, *says: str) -> set[str]:
    return {answer["job"] for answer in found.answers if answer["say"] in says}


def _known(found: Found) -> set[str]:
    """Jobs that the case has besides those it is about."""
    besides = _said(found, "victim", "later", "broken")
    return besides | {row.id for row in found.rows.values() if row.task.endswith(".deaf")}
