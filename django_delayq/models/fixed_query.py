"""Queries that loops repeat with the same text and values. Most of the time they find nothing to do."""

from __future__ import annotations

from typing import Any

from django.db import connections
from django.db.models import QuerySet


class Placeholder(str):
    """Marks a value in a `FixedQuery` that each call passes under this name."""


class FixedQuery:
    """Compiles the query once. To compile it takes the ORM longer than the database needs to answer."""

    def __init__(self, query: QuerySet[Any]) -> None:
        self._query = query
        self._compiler: Any = None
        self._converters: Any = None  # for the columns that the database returns in another form
        self._text: tuple[str, Any] = ("", ())

    def rows(self, **values: Any) -> list[tuple[Any, ...]]:
        """The rows, with the columns of the query. `values`: one for each `Placeholder` of the query.

        Raises:
            DatabaseError: as any query.
        """
        connection = connections[self._query.db]
        if self._compiler is None:
            compiler = self._query.query.get_compiler(connection=connection)
            self._text = compiler.as_sql()
            self._converters = compiler.get_converters([column for column, *_ in compiler.select[: compiler.col_count]])
            self._compiler = compiler
        text, places = self._text
        with connection.cursor() as cursor:
            cursor.execute(text, [values[one] if type(one) is Placeholder else one for one in places] if values else places)
            found: list[tuple[Any, ...]] = cursor.fetchall()
        return [tuple(row) for row in self._compiler.apply_converters(found, self._converters)] if self._converters else found


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
