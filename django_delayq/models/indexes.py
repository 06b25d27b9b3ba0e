"""Indexes that differ by database."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.db import models


class PartialIndex(models.Index):
    """An index of some rows. PostgreSQL indexes the `rows` alone. SQLite does so with `sqlite`, for conditions that the queries repeat
    literally. MySQL and MariaDB index all rows, by the columns `mysql` if these are given.
    """

    def __init__(
        self,
        *,
        fields: Sequence[str],
        name: str,
        rows: models.Q,
        sqlite: bool = False,
        mysql: Sequence[str] = (),
        opclasses: Sequence[str] = (),
        unique: bool = False,
    ) -> None:
        super().__init__(fields=fields, name=name, opclasses=opclasses)
        self.rows, self.sqlite, self.mysql, self.unique = rows, sqlite, tuple(mysql), unique

    def deconstruct(self) -> Any:
        """See Django's documentation of migrations."""
        path, _, kwargs = super().deconstruct()
        return path, (), {**kwargs, "rows": self.rows, "sqlite": self.sqlite, "mysql": self.mysql, "unique": self.unique}

    def create_sql(self, model: Any, schema_editor: Any, using: str = "", **kwargs: Any) -> Any:
        """The statement that creates the index on that database."""
        vendor = schema_editor.connection.vendor
        partial = vendor == "postgresql" or (vendor == "sqlite" and self.sqlite)
        fields = self.mysql if vendor == "mysql" and self.mysql else self.fields
        plain = models.Index(fields=fields, name=self.name, opclasses=self.opclasses, condition=self.rows if partial else None)
        made = plain.create_sql(model, schema_editor, using, **kwargs)
        if self.unique:
            made.template = made.template.replace("CREATE INDEX", "CREATE UNIQUE INDEX", 1)
        return made
