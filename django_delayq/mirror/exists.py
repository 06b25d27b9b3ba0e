"""Whether a query finds anything, asked again and again by loops that mostly have nothing to do."""

from __future__ import annotations

from typing import Any

from django.db import connections
from django.db.models import QuerySet


class ExistsQuery:
    """1. Makes the text of the query once: the ORM takes longer for that than for asking. 2. Asks. Its values do not change."""

    def __init__(self, query: QuerySet[Any]) -> None:
        self._query = query
        self._text: tuple[str, Any] | None = None

    def found(self) -> bool:
        """Whether there is a row.

        Raises:
            DatabaseError: as any query.
        """
        connection = connections[self._query.db]
        if self._text is None:
            one = self._query.order_by().values("pk")[:1]
            self._text = one.query.get_compiler(connection=connection).as_sql()
        with connection.cursor() as cursor:
            cursor.execute(*self._text)
            return cursor.fetchone() is not None
