"""Bulk reads and writes of the mirror on databases without arrays: one parameter per value, in statements whose texts are made once.

The ORM takes longer to make such a text and a model instance per row than SQLite takes to run the statement.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache, lru_cache
from typing import Any
from uuid import UUID

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import Model
from django.db.models.constants import OnConflict


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
    if not ids:
        return []  # MySQL does not accept an empty list
    way, quote = _prepared(model, by), connection.ops.quote_name
    condition = f"{quote(by)} IN ({', '.join(['%s'] * len(ids))}) AND {where}"
    return read(model, columns, condition, [way(id, connection=connection) for id in ids], connection, last)


def read(
    model: type[Model],
    columns: Sequence[str],
    condition: str,
    parameters: Sequence[Any],
    connection: BaseDatabaseWrapper,
    last: str = "",
) -> list[tuple[Any, ...]]:
    """The rows that meet a condition. Its names are quoted, and its parameters have the form that this database takes. `last`: see
    `found`.
    """
    with connection.cursor() as cursor:
        cursor.execute(f"{_select(model, tuple(columns), connection.alias, last)} WHERE {condition}", parameters)
        rows: list[tuple[Any, ...]] = list(cursor.fetchall())
    if not rows:
        return rows
    ways = [(place, column, _ways(column, connection)) for place, column in _converted(model, tuple(columns), connection.alias)]
    for number, row in enumerate(rows):
        values = list(row)
        for place, column, converters in ways:
            for convert in converters:
                values[place] = convert(values[place], column, connection)
        rows[number] = tuple(values)
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
    ways = [(name, _prepared(model, name)) for name in columns]
    table = [[way(getattr(row, name), connection=connection) for name, way in ways] for row in rows]
    what = (model, tuple(columns), tuple(unique), tuple(updated))
    with connection.cursor() as cursor:
        if connection.vendor == "sqlite":  # there is no limit for parameters, and the statement is prepared once
            cursor.executemany(_insert(*what, 1, connection.alias), table)
        else:
            cursor.execute(_insert(*what, len(table), connection.alias), [value for row in table for value in row])


def update(
    model: type[Model], values: Mapping[str, Any], condition: str, parameters: Sequence[Any], connection: BaseDatabaseWrapper
) -> None:
    """Changes the rows that meet a condition, see `read`."""
    given = [_prepared(model, name)(value, connection=connection) for name, value in values.items()]
    with connection.cursor() as cursor:
        cursor.execute(f"{_change(model, tuple(values), connection.alias)} WHERE {condition}", [*given, *parameters])


@cache
def _select(model: type[Model], columns: tuple[str, ...], using: str, last: str) -> str:
    quote = connections[using].ops.quote_name
    return f"SELECT {', '.join(map(quote, columns))}{last and f', {last}'} FROM {quote(model._meta.db_table)}"


@cache
def _change(model: type[Model], columns: tuple[str, ...], using: str) -> str:
    quote = connections[using].ops.quote_name
    return f"UPDATE {quote(model._meta.db_table)} SET {', '.join(f'{quote(name)} = %s' for name in columns)}"


@lru_cache(maxsize=256)
def _insert(
    model: type[Model], columns: tuple[str, ...], unique: tuple[str, ...], updated: tuple[str, ...], count: int, using: str
) -> str:
    ops = connections[using].ops
    row = f"({', '.join(['%s'] * len(columns))})"
    fields = [_field(model, name) for name in columns]
    rest = ops.on_conflict_suffix_sql(fields, OnConflict.UPDATE, updated, unique)
    into = f"INSERT INTO {ops.quote_name(model._meta.db_table)} ({', '.join(map(ops.quote_name, columns))})"
    return f"{into} VALUES {', '.join([row] * count)} {rest}"


@cache
def _converted(model: type[Model], columns: tuple[str, ...], using: str) -> list[tuple[int, Any]]:
    """The columns that this database returns in another form than Python's, with their places."""
    found = [(place, _field(model, name).get_col(model._meta.db_table)) for place, name in enumerate(columns)]
    return [(place, column) for place, column in found if _ways(column, connections[using])]


def _ways(column: Any, connection: BaseDatabaseWrapper) -> list[Callable[..., Any]]:
    return [*connection.ops.get_db_converters(column), *column.get_db_converters(connection)]


@cache
def _prepared(model: type[Model], name: str) -> Callable[..., Any]:
    """The function that makes a parameter from a value of that column."""
    way: Callable[..., Any] = _field(model, name).get_db_prep_save
    return way


@cache
def _field(model: type[Model], name: str) -> Any:
    return next(one for one in model._meta.concrete_fields if one.attname == name)
