"""A column that stores JSON exactly as it was given, and indexes that differ by database."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from django.db import models

if TYPE_CHECKING:
    AnyTextField = models.TextField[Any, Any]
else:
    AnyTextField = models.TextField

_ASCII: Final = json.JSONEncoder(separators=(",", ":"))  # made once: json.dumps would make one for each value


class JSONText(str):
    """JSON text in the form that `ExactJSONField` writes. It is written to the column unchanged."""

    __slots__ = ()


class ExactJSONField(AnyTextField):
    """JSON as ASCII text. The databases' own JSON types change values: PostgreSQL refuses `\\u0000` and lone surrogates, MySQL turns
    large integers into floats. No query looks inside these values, so text serves better.
    """

    def from_db_value(self, value: str | None, expression: Any, connection: Any) -> Any:
        """The value as it was given."""
        return None if value is None else json.loads(value)

    def to_python(self, value: Any) -> Any:
        """Reads JSON text, for serializers."""
        return json.loads(value) if isinstance(value, str) else value

    def get_prep_value(self, value: Any) -> str | None:
        """Compact ASCII text."""
        if type(value) is JSONText:
            return str(value)
        return None if value is None else _ASCII.encode(value)

    def value_to_string(self, obj: models.Model) -> str:
        """For serializers."""
        return self.get_prep_value(self.value_from_object(obj)) or "null"


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
