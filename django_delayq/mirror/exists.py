"""Queries that loops ask again and again, and of which neither text nor values change: mostly there is nothing to do."""

from __future__ import annotations

from typing import Any

from django.db import connections
from django.db.models import QuerySet


class FixedQuery:
    """1. Makes the text of the query once: the ORM takes longer for that than for asking. 2. Asks."""

    def __init__(self, query: QuerySet[Any]) -> None:
        self._query = query
        self._compiler: Any = None
        self._text: tuple[str, Any] = ("", ())

    def rows(self) -> list[tuple[Any, ...]]:
        """The columns that the query asks for.

        Raises:
            DatabaseError: as any query.
        """
        connection = connections[self._query.db]
        if self._compiler is None:
            compiler = self._query.query.get_compiler(connection=connection)
            self._text = compiler.as_sql()
            self._compiler = compiler
        with connection.cursor() as cursor:
            cursor.execute(*self._text)
            found = cursor.fetchall()
        return list(self._compiler.results_iter(results=[found], tuple_expected=True)) if found else []


class ExistsQuery:
    """Whether a query finds anything."""

    def __init__(self, query: QuerySet[Any]) -> None:
        self._one = FixedQuery(query.order_by().values("pk")[:1])

    def found(self) -> bool:
        """Whether there is a row.

        Raises:
            DatabaseError: as any query.
        """
        return bool(self._one.rows())
