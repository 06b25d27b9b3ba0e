"""Histories for tests of the judge: a good one, and what it takes to spoil it."""

from __future__ import annotations

from dataclasses import replace

from tests.laws.dump import Dump
from tests.laws.history import CAMPAIGN, CRASHPOINTS, Final, History, Op, Row, Run
from tests.laws.judge import judge
from tests.store.board import record

S = 1_000_000_000
WALL = 1_700_000_000_000
RECORD = record(1).encode()
SUCCEEDED, CANCELLED = WALL + 0.25, WALL + 0.5  # tombstones


def at(seconds: float) -> int:
    return int(seconds * S)


def wall(seconds: float) -> int:
    return WALL + int(seconds * 1000)


def op(id: str, what: str = "schedule", *, start: float = 0.0, end: float = 0.01, **fields: object) -> Op:
    values = {"answer": "ok", "at": at(start), "wall": wall(start), "until": at(end), **fields}
    return Op(id=id, what=what, **values)  # whatever a test makes up


def run(job: str, *, start: float, end: float | None = None, how: str = "ok", attempt: int = 1, fence: str = "") -> Run:
    made = Run(
        job=job,
        fence=fence or f"{job}-{start}",
        op=f"op-{job}",
        task="quick",
        attempt=attempt,
        at=at(start),
        wall=wall(start),
        real=wall(start),
    )
    if end is not None:
        made.until, made.wall_until, made.how = at(end), wall(end), how
    return made


def scheduled(job: str, *, delay: float = 0.0, created: bool | None = True, **given: object) -> Op:
    """An operation at 0 s that put this job in."""
    due = wall(delay) if created else None
    return op(f"op-{job}", given={"delay": delay, "queue": "default", **given}, ids=[job], jobs=[(job, created, due)])


def good() -> History:
    """One job of each fate: a plain one, a failed one, a cancelled one, one with a key, and an atomic one."""
    ops = [
        scheduled("plain", delay=1.0),
        scheduled("failing"),
        scheduled("stopped", delay=5.0),
        op("c1", "cancel", start=1, end=1.01, reply="done", given={"job": "stopped"}),
        scheduled("keyed", key="k", policy="keep"),
        scheduled("atomic"),
        op("op-never", answer="rolled", ids=["never"]),
    ]
    runs = [
        run("plain", start=1.0, end=1.1),
        run("failing", start=0.1, end=0.2, how="error"),
        run("failing", start=0.4, end=0.5, how="error", attempt=2),
        run("keyed", start=0.1, end=0.2),
        run("atomic", start=0.1, end=0.2),
    ]
    rows = [
        Row(id="plain", op="op-plain", task="quick"),
        Row(id="failing", op="op-failing", task="hopeless", state="failed", attempts=2, max_attempts=2),
        Row(id="stopped", op="op-stopped", task="quick", state="cancelled", attempts=0),
        Row(id="keyed", op="op-keyed", task="keyed", key="k"),
        Row(id="atomic", op="op-atomic", task="atomic"),
    ]
    left = Dump(jobs={"failing": RECORD}, failed={"failing": WALL}, finished={"plain": SUCCEEDED, "stopped": CANCELLED})
    final = Final(
        rows={row.id: row for row in rows},
        attempts=[(one.job, one.attempt, one.fence, "succeeded" if one.how == "ok" else "failed") for one in runs],
        effects=[("atomic", "f", "")],
        queues={"default": left},
    )
    ledger = [("end", one.job, one.fence, "") for one in runs if one.how == "ok"]
    ledger += [("effect", "atomic", "f", ""), ("kept", "atomic", "f", "")]
    return History(sees=CAMPAIGN | CRASHPOINTS, ops={one.id: one for one in ops}, runs=runs, ledger=ledger, final=final)


def broken(history: History) -> set[str]:
    """The names of the laws that it breaks."""
    history.runs.sort(key=lambda one: one.at)
    return {breach.law for breach in judge(history)}


def left(history: History) -> Dump:
    return history.final.queues["default"]


def row(history: History, id: str, **fields: object) -> None:
    history.final.rows[id] = replace(history.final.rows[id], **fields)  # whatever a test makes up


def add(history: History, *ops: Op) -> None:
    history.ops.update({one.id: one for one in ops})
