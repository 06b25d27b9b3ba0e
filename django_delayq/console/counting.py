"""How many jobs are meant, counted up to a bound."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.core.exceptions import EmptyResultSet
from django.db import connections
from django.db.models import QuerySet

from django_delayq.console import keyset
from django_delayq.console.selection import Selection
from django_delayq.models import Job


def count(selection: Selection, jobs: QuerySet[Job], most: int, using: str) -> int | None:
    """How many of `jobs` are meant, counted up to `most` + 1; None where too many rows would have to be looked at to tell."""
    if not selection.indexed or selection.search.complaints:
        return None
    rows = selection.rows(jobs).order_by()
    if not selection.search.rough:
        return count_many([rows], most, using)[0]
    looked = rows.values_list(*dict.fromkeys(["id", *sorted(selection.search.columns)]), named=True)
    found = list(looked[: keyset.WINDOW + 1])
    return None if len(found) > keyset.WINDOW else sum(map(selection.search.exact, found))


def meant(selection: Selection, rows: QuerySet[Job]) -> int:
    """How many of these rows, which the database has found, are meant: all are read, if each has to be looked at."""
    if not selection.search.rough:
        return rows.count()
    return sum(map(selection.search.exact, keyset.through(rows.order_by("pk"), ("id",), keyset.STEP)))


def count_many(queries: Sequence[QuerySet[Any]], most: int, using: str) -> list[int]:
    """How many rows each has, counted up to `most` + 1, all in one statement."""
    if not queries:
        return []
    parts: list[str] = []
    given: list[Any] = []
    for number, rows in enumerate(queries):
        compiler = rows.order_by().values_list("pk")[: most + 1].query.get_compiler(using=using)
        try:
            sql, arguments = compiler.as_sql()
        except EmptyResultSet:
            parts.append("0")
            continue
        parts.append(f"(SELECT COUNT(*) FROM ({sql}) AS part{number})")
        given += arguments
    with connections[using].cursor() as cursor:
        cursor.execute(f"SELECT {', '.join(parts)}", given)
        return [int(count) for count in cursor.fetchone()]
