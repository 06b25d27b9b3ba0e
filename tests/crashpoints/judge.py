"""The state after a case, as a history with the facts of the case: the jobs that must be cancelled, fail or not exist."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

from django_delayq import ids
from django_delayq.job_meta import Quota
from django_delayq.producer.outbox.pauses import DECLARED, RATE, is_rate, limit_of
from django_delayq.store.connection.places import Places
from django_delayq.store.keys import Keys
from tests.app import seen, tasks
from tests.app.record import lines
from tests.crashpoints.cases import NEW_RATE, OFFERING, ONCE, RATED, Case
from tests.laws.history import CRASHPOINTS, HOPELESS, History, Op
from tests.laws.judge import Breach, judge

ASKED_FIRST = ("producer.ask", "producer.asked")  # who holds the key, before anything is written
SOMEBODY_DIES = ("orphan", "deaf", "term", "wiped", "rolled")  # stages


def select(folder: Path, what: str) -> Sequence[tuple[Any, ...]]:
    """Asks the database of a case. Not by the ORM: the process that forks must not have a connection."""
    line = sqlite3.connect(folder / "db.sqlite3", timeout=20)
    try:
        return line.execute(what).fetchall()
    finally:
        line.close()


def runs(folder: Path) -> list[dict[str, Any]]:
    """The records of tasks, by time."""
    return lines(folder, "runs-*.jsonl")


def parts(folder: Path, *names: str) -> list[str]:
    """Jobs that the case has for one of these purposes."""
    return [line["job"] for line in lines(folder, "parts-*.jsonl") if line["part"] in names]


def restless(folder: Path, places: Places, keys: Sequence[Keys]) -> str:
    """The work that is not finished, or ""."""
    return seen.restless(lambda what: select(folder, what), places, keys)


def calls(folder: Path) -> dict[str, Op]:
    """The calls of the web processes and their answers."""
    return seen.history(folder, seen.Final(), CRASHPOINTS).ops


def breaches(case: Case, folder: Path, places: Places, keys: Sequence[Keys]) -> list[Breach]:
    """The violations after the case."""
    final = seen.left(lambda what: select(folder, what), places, keys)
    history = seen.history(folder, final, CRASHPOINTS)
    history.unharmed = case.action == "lose" and case.point.stage not in SOMEBODY_DIES
    history.asked = len(parts(folder, "later")) if case.point.stage == "operation" else None
    _settle_calls(case, history)
    history.fates = _fates(case, folder, history)
    return judge(history)


def offers(case: Case, folder: Path, places: Places, key: str) -> list[str]:
    """The violations in the entries of offers: each job that succeeded has one, and no other job has any."""
    if case.kind not in OFFERING:
        return []
    link = places.of("default", 0).beside(key)  # a target is on the server of the queue
    there = Counter(ids.full(fields[1].decode()) for _, fields in link.execute("XRANGE", key, "-", "+"))
    wanted = Counter(UUID(id) for (id,) in select(folder, "select id from delayq_job where state = 'succeeded'"))
    return [] if there == wanted and wanted else [f"offered: {dict(there)}; succeeded: {dict(wanted)}"]


def rates(folder: Path, places: Places, queues: Sequence[Keys]) -> list[str]:
    """The violations in the rates: the one in the code has a row, and so has the one of a call that was answered. Redis has the same
    ones.
    """
    there = dict(select(folder, f"select word, rate from {seen.PAUSE} where paused_at is not null"))
    wanted = {f"{DECLARED}{tasks.metered.name}": tasks.metered.rated.pace.told()}
    wanted |= {f"{RATE}{RATED}": Quota.read(NEW_RATE).told()} if parts(folder, "rate") else {}
    wrong = [f"{word} has the rate {there.get(word)}, not {rate}" for word, rate in wanted.items() if there.get(word) != rate]
    limits = {limit_of(word): rate for word, rate in there.items() if is_rate(word)}
    for keys in queues:
        flat = [one.decode() for one in places.of(keys.queue, keys.partition).execute("HGETALL", keys["limits"])]
        found = dict(zip(flat[::2], flat[1::2], strict=True))
        wrong += [] if found == limits else [f"{keys.queue}/{keys.partition} has the rates {found}, not {limits}"]
    return wrong


def periods(case: Case, folder: Path) -> list[str]:
    """The violations in the keys of periods: a job that was scheduled has its key, and its period has begun if it has ended."""
    if case.kind not in ONCE:
        return []
    keys = {str(UUID(job)): until for job, until in select(folder, "select job, until from delayq_period_key")}
    jobs = {str(UUID(job)): state for job, state in select(folder, "select id, state from delayq_job where \"key\" != ''")}
    wrong = [f"{job} {state} has no key, or no period" for job, state in jobs.items() if state != "cancelled" and not keys.get(job)]
    return wrong + [f"a key for {len(keys)} jobs"] * (len(keys) > 1)


def _settle_calls(case: Case, history: History) -> None:
    """The position where the call of this case broke off is known."""
    for op in history.ops.values():
        if op.given.get("operation") == "schedule":
            if case.point.name in ("producer.commit", "producer.took_key") and not case.freezes:
                op.answer = "rolled"
            elif op.answer == "unknown" and case.point.name not in ASKED_FIRST:
                op.answer = "committed"


def _fates(case: Case, folder: Path, history: History) -> dict[str, str]:
    """Every job succeeds, except those that must not."""
    fates = {row.id: "failed" if row.task in HOPELESS else "succeeded" for row in history.rows.values()}
    if case.kind == "keyed":
        fates |= {row.id: "cancelled" for row in history.rows.values() if row.merged}
    fates |= dict.fromkeys(parts(folder, "broken"), "failed")
    return fates | dict.fromkeys(parts(folder, "victim"), "cancelled")
