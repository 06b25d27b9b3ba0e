"""The subcommand indexes: where queues have a horizon, the index by which a relay finds unpublished rows leaves out far ones. No
migration does it, since a relay of the release before could not use that index.
"""

from __future__ import annotations

from typing import Any, Final, TextIO

from django.db import connections, transaction

from django_delayq import conf
from django_delayq.management.change_commands import confirm, said
from django_delayq.models import Job

INDEX: Final = "delayq_job_unpublished"
NEW: Final = f"{INDEX}_near"
COLUMNS: Final = ("state", "published", "id")
OF_MYSQL: Final = ("state", "far", "published", "id")  # it has no index of some rows


def indexes(out: TextIO, options: dict[str, Any]) -> int:
    """Makes that index anew; on PostgreSQL while the table is written to."""
    connection = connections[conf.get().database]
    document = {"index": INDEX, "changed": False}
    if is_for_near_rows(connection):
        return said(out, options, document, f"{INDEX} leaves out far rows already.")
    if options["dry_run"]:
        return said(out, options, document, f"Would make {INDEX} anew, without far rows.")
    if not options["yes"]:
        confirm(
            f"This makes the index {INDEX} anew, without far rows. A relay of an older release reads the whole table from then on: is "
            "this release everywhere? [y/N] "
        )
    _change(connection)
    return said(out, options, {**document, "changed": True}, f"{INDEX} leaves out far rows from now on.")


def is_for_near_rows(connection: Any) -> bool:
    """Whether it does already."""
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute("SELECT indexdef FROM pg_indexes WHERE schemaname = ANY(current_schemas(false)) AND indexname = %s", [INDEX])
            return any(" WHERE " in definition for (definition,) in cursor.fetchall())
        if connection.vendor == "sqlite":
            cursor.execute("SELECT sql FROM sqlite_master WHERE type = 'index' AND name = %s", [INDEX])
            return any(" WHERE " in definition for (definition,) in cursor.fetchall())
        found = connection.introspection.get_constraints(cursor, Job._meta.db_table).get(INDEX, {})
        return bool("far" in found.get("columns", ()))


def _change(connection: Any) -> None:
    table, quote = connection.ops.quote_name(Job._meta.db_table), connection.ops.quote_name
    partial = f"ON {table} ({', '.join(map(quote, COLUMNS))}) WHERE NOT {quote('far')}"
    if connection.vendor == "postgresql":
        statements = [
            f"DROP INDEX CONCURRENTLY IF EXISTS {NEW}",  # what a call that was broken off has left, which may be no good
            f"CREATE INDEX CONCURRENTLY {NEW} {partial}",
            f"DROP INDEX CONCURRENTLY IF EXISTS {INDEX}",
            f"ALTER INDEX {NEW} RENAME TO {INDEX}",
        ]
    elif connection.vendor == "sqlite":
        with transaction.atomic(using=connection.alias), connection.cursor() as cursor:
            cursor.execute(f"DROP INDEX IF EXISTS {INDEX}")
            cursor.execute(f"CREATE INDEX {INDEX} {partial}")
        return
    else:
        statements = [f"ALTER TABLE {table} DROP INDEX {INDEX}, ADD INDEX {INDEX} ({', '.join(map(quote, OF_MYSQL))})"]
    with connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)
