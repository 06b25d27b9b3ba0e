"""Bulk reads and writes of the mirror on PostgreSQL. Each column is sent as one array, or as one value if all rows have the same.

With model instances and a parameter per value, this process takes four times as long as the server takes for the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from functools import cache
from typing import Any, Final
from uuid import UUID

from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import Model

# A cast to the type of a limited column would truncate long values. As text they are refused.
TYPES: Final = {
    "UUIDField": "uuid",
    "ForeignKey": "uuid",
    "DateTimeField": "timestamptz",
    "BooleanField": "boolean",
    "IntegerField": "integer",
    "PositiveIntegerField": "integer",
    "SmallIntegerField": "integer",
    "BigIntegerField": "bigint",
    "CharField": "text",
    "TextField": "text",
}
ESCAPED: Final = str.maketrans({"\\": "\\\\", '"': '\\"'})


def found(
    model: type[Model],
    columns: Sequence[str],
    by: str,
    ids: Sequence[UUID],
    where: str,
    connection: BaseDatabaseWrapper,
    last: str = "",
) -> list[tuple[Any, ...]]:
    """The rows whose column `by` is one of these ids, if they meet the condition. `last`: an expression whose value ends each row."""
    names = ", ".join(f'"{name}"' for name in columns) + (last and f", {last}")
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {names} FROM {_table(model)} WHERE {by} = ANY(%s::uuid[]) AND {where}", [_array(_uuid, ids)])
        rows: list[tuple[Any, ...]] = cursor.fetchall()
    for place, name in enumerate(columns):
        if (way := _read(model, name)) is not None:
            rows = [row if row[place] is None else (*row[:place], way(row[place]), *row[place + 1 :]) for row in rows]
    return rows


def upsert(
    model: type[Model],
    columns: Sequence[str],
    rows: Sequence[Any],
    unique: Sequence[str],
    updated: Sequence[str],
    connection: BaseDatabaseWrapper,
) -> None:
    """Inserts rows. In rows that already exist, it changes the `updated` columns."""
    given, values, names = _given(model, columns, rows, unique)
    wanted = ", ".join(f'"{name}"' for name in names)
    changes = ", ".join(f'"{name}" = EXCLUDED."{name}"' for name in updated)
    target = ", ".join(f'"{name}"' for name in unique)
    _execute(f"INSERT INTO {_table(model)} ({wanted}) {given} ON CONFLICT ({target}) DO UPDATE SET {changes}", values, connection)


def update(model: type[Model], columns: Sequence[str], rows: Sequence[Any], key: str, connection: BaseDatabaseWrapper) -> None:
    """Changes these columns of existing rows. It skips rows that were deleted meanwhile."""
    given, values, names = _given(model, (key, *columns), rows, (key,))
    table = _table(model)
    changes = ", ".join(f'"{name}" = given."{name}"' for name in columns)
    listed = ", ".join(f'"{name}"' for name in names)
    _execute(
        f'UPDATE {table} SET {changes} FROM ({given}) AS given ({listed}) WHERE {table}."{key}" = given."{key}"', values, connection
    )


def _given(
    model: type[Model], columns: Sequence[str], rows: Sequence[Any], unique: Sequence[str]
) -> tuple[str, list[str | None], list[str]]:
    """Returns a SELECT that gives the rows, its parameters, and its columns in order."""
    arrays, singles = [], []
    for name in columns:
        kind, text = _column(model, name)
        values = [getattr(row, name) for row in rows]
        first = values[0]
        if name not in unique and values.count(first) == len(values) and (_plain(first) or _one_text(text, values)):
            singles.append((name, f"%s::{kind}", None if first is None else text(first)))
        else:
            arrays.append((name, f"%s::{kind}[]", _array(_quoted(kind, text), values)))
    select = "".join(f", {place}" for _, place, _ in singles)
    unnest = ", ".join(place for _, place, _ in arrays)
    parts = f"SELECT each.*{select} FROM unnest({unnest}) AS each"
    return parts, [value for *_, value in (*singles, *arrays)], [name for name, *_ in (*arrays, *singles)]


def _plain(value: Any) -> bool:
    """Whether equal values are identical. True equals 1 and 1.0, also within lists."""
    return value is None or not isinstance(value, (bool, int, float, list, tuple, dict))


def _one_text(text: Callable[[Any], str], values: Sequence[Any]) -> bool:
    first = text(values[0])
    return all(text(value) == first for value in values)


def _execute(statement: str, values: Sequence[str | None], connection: BaseDatabaseWrapper) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statement, values)


def _array(text: Callable[[Any], str], values: Sequence[Any]) -> str:
    return "{" + ",".join(["NULL" if value is None else text(value) for value in values]) + "}"


@cache
def _table(model: type[Model]) -> str:
    return f'"{model._meta.db_table}"'


@cache
def _column(model: type[Model], name: str) -> tuple[str, Callable[[Any], str]]:
    """The type of a column, and the function that makes the text of a value."""
    field: Any = next(one for one in model._meta.concrete_fields if one.attname == name)
    kind = TYPES[field.get_internal_type()]
    ways: dict[str, Callable[[Any], str]] = {
        "uuid": _uuid,
        "timestamptz": datetime.isoformat,
        "boolean": str,
        "integer": str,
        "bigint": str,
        "text": field.get_prep_value,
    }
    return kind, ways[kind]


@cache
def _quoted(kind: str, text: Callable[[Any], str]) -> Callable[[Any], str]:
    if kind != "text":
        return text

    def quoted(value: Any) -> str:
        return f'"{text(value).translate(ESCAPED)}"'

    return quoted


@cache
def _read(model: type[Model], name: str) -> Callable[[Any], Any] | None:
    """The function that converts a value of that column after a read, or None."""
    field: Any = next(one for one in model._meta.concrete_fields if one.attname == name)
    convert = getattr(field, "from_db_value", None)
    return None if convert is None else lambda value: convert(value, None, None)


def _uuid(id: UUID) -> str:
    return f"{id.int:032x}"
