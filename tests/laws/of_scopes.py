"""Laws of scopes, such as tenants. A key, a `serial` name and a pause belong to one scope. Histories name keys and names with their
scopes, so the laws of keys and names judge those of two scopes apart.
"""

from __future__ import annotations

from django_delayq.job_meta import scope_of, shown
from tests.laws.dump import record_of
from tests.laws.history import History, Op, Sees
from tests.laws.law import Findings, law


@law(Sees.CALLS | Sees.ROWS)
def scopes_never_meet(history: History) -> Findings:
    """The job that a call schedules has the scope of the call. A call is only answered with jobs of its scope, and by key it changes
    only these. A job gives way only to a job of its scope.
    """
    rows = history.rows
    for row in rows.values():
        op, holder = history.scheduled_by.get(row.id), rows.get(row.holder)
        if op is not None and row.scope != _scope(op):
            yield row.id, f"has the scope {row.scope!r}, and was scheduled in {_scope(op)!r}"
        if holder is not None and row.scope != holder.scope:
            yield row.id, f"of the scope {row.scope!r} gave way to {holder.id} of {holder.scope!r}"
    for op in history.ops.values():
        for row in (rows[job] for job, *_ in op.jobs if job in rows):
            if row.scope != _scope(op):
                yield row.id, f"of the scope {row.scope!r} was the answer to {op.id} in {_scope(op)!r}"
    for kind, job, actor in history.final.acts:
        act = history.ops.get(actor)
        if act is not None and act.what == "cancel_key" and job in rows and rows[job].scope != _scope(act):
            yield job, f"of the scope {rows[job].scope!r} has the change {kind!r} by {act.id} in {_scope(act)!r}"


@law(Sees.QUEUES)
def a_scope_has_only_its_own_jobs(history: History) -> Findings:
    """In Redis, the holder of a key or a name of a scope has this scope. So has a job that waits for the name, or that a pause of the
    scope or of the name holds.
    """
    for dump in (look.after for look in history.moments):
        places = [*dump.keys.items(), *_places(dump.holders), *_places(dump.waiters)]
        for text, id in places:
            scope = _scope_in(text)
            if scope and id in dump.jobs and record_of(dump.jobs[id]).scope != scope:
                yield id, f"of the scope {record_of(dump.jobs[id]).scope!r} holds {shown(text)!r}, or waits for it"


def _scope(op: Op) -> str:
    return str(op.given.get("scope", ""))


def _places(members: list[bytes]) -> list[tuple[str, str]]:
    return [(one.partition(b"\0")[0].decode(), one.rpartition(b"\0")[2].decode()) for one in members]


def _scope_in(text: str) -> str:
    """The scope of a key, a name or the line of a pause; "" without one."""
    if text.startswith("\1scope:"):
        return text.removeprefix("\1scope:")
    return scope_of(text.removeprefix("\1name:"))
