"""A column that stores JSON exactly as it was given."""

from __future__ import annotations

import json
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
