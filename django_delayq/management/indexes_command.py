"""The subcommand indexes: where queues have a horizon, indexes in which far rows need no place leave them out. No migration does it,
since processes of the release before could not use such indexes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TextIO

from django.db import connections, transaction

from django_delayq import conf
from django_delayq.management.change_commands import confirm, said
from django_delayq.models import Job


@dataclass(frozen=True, slots=True)
class SmallIndex:
    """An index as it is to be. `done`: whether a definition is that one already; `everywhere`: on SQLite as well, which can tell that a
    query is about its rows alone.
    """

    name: str
    columns: str
    rows: str
    done: Callable[[str], bool] = lambda definition: " WHERE " in definition
    everywhere: bool = False


UNPUBLISHED: Final = SmallIndex("delayq_job_unpublished", "state, published, id", "NOT far", everywhere=True)
SMALL: Final = (
    UNPUBLISHED,
    SmallIndex("delayq_job_retrying", "state, attempts, run_at, id", "attempts > 0 OR state <> 'scheduled'"),
    SmallIndex("delayq_job_fingerprint", "fingerprint, state, run_at", "fingerprint <> ''"),
    SmallIndex("delayq_job_key", "queue, key varchar_pattern_ops, id", "key <> ''"),
    # Which of one date come in first is all the same.
    SmallIndex("delayq_job_far", "queue, run_at", "far", lambda definition: "(queue, run_at)" in definition),
)
OF_MYSQL: Final = ("state", "far", "published", "id")  # of the first; it has no index of some rows


def indexes(out: TextIO, options: dict[str, Any]) -> int:
    """Makes those anew that are not small yet; on PostgreSQL one by one, while the table is written to."""
    connection = connections[conf.get().database]
    left = left_to_do(connection)
    names = [index.name for index in left]
    document = {"indexes": names, "changed": False}
    if not left:
        return said(out, options, document, "In these indexes far rows take as little room as they can already.")
    listed = ", ".join(names)
    if options["dry_run"]:
        return said(out, options, document, f"Would make anew, so that far rows take less room: {listed}.")
    if not options["yes"]:
        confirm(
            f"This makes indexes anew, so that far rows take less room: {listed}. Processes of an older release read the whole table "
            "from then on: is this release everywhere? [y/N] "
        )
    for index in left:
        _make(connection, index)
    return said(out, options, {**document, "changed": True}, f"Far rows take less room from now on: {listed}.")


def left_to_do(connection: Any) -> list[SmallIndex]:
    """Those that this database could make small, and has not."""
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute("SELECT indexname, indexdef FROM pg_indexes WHERE schemaname = ANY(current_schemas(false))")
            there = dict(cursor.fetchall())
            return [index for index in SMALL if not index.done(there.get(index.name, ""))]
        if connection.vendor == "sqlite":
            cursor.execute("SELECT name, sql FROM sqlite_master WHERE type = 'index' AND sql IS NOT NULL")
            there = dict(cursor.fetchall())
            return [index for index in SMALL if index.everywhere and not index.done(there.get(index.name, ""))]
        found = connection.introspection.get_constraints(cursor, Job._meta.db_table).get(UNPUBLISHED.name, {})
        return [] if "far" in found.get("columns", ()) else [UNPUBLISHED]


def _make(connection: Any, index: SmallIndex) -> None:
    table, name = Job._meta.db_table, index.name
    new, partial = f"{name}_near", f"ON {table} ({index.columns}) WHERE {index.rows}"
    if connection.vendor == "postgresql":
        statements = [
            f"DROP INDEX CONCURRENTLY IF EXISTS {new}",  # what a call that was broken off has left, which may be no good
            f"CREATE INDEX CONCURRENTLY {new} {partial}",
            f"DROP INDEX CONCURRENTLY IF EXISTS {name}",
            f"ALTER INDEX {new} RENAME TO {name}",
        ]
    elif connection.vendor == "sqlite":
        with transaction.atomic(using=connection.alias), connection.cursor() as cursor:
            cursor.execute(f"DROP INDEX IF EXISTS {name}")
            cursor.execute(f"CREATE INDEX {name} {partial}")
        return
    else:
        statements = [f"ALTER TABLE {table} DROP INDEX {name}, ADD INDEX {name} ({', '.join(OF_MYSQL)})"]
    with connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)
