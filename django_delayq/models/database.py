"""The database of the rows, `DELAYQ["DATABASE"]`: its connection, transactions and clock, queries that are compiled once, the
manager of all models, and fields and indexes that are the same on every database.

The clock of the database dates rows and starts delays. The clock of a web host does not matter. With SQLite the two are one.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self, TypeVar

from django.core.signals import setting_changed
from django.db import connections, models, transaction
from django.db.models import DateTimeField, Q
from django.db.models.expressions import RawSQL
from django.dispatch import receiver

from django_delayq import clock, conf
from django_delayq.setting_readers import SETTING

RowT = TypeVar("RowT", bound=models.Model)
# By vendor: the time of the statement, not of its transaction; and the time so many seconds before it, in a form for which the
# database can use an index. A database that is not listed has no clock.
SQL: Final = {
    "postgresql": ("clock_timestamp()", "(statement_timestamp() - make_interval(secs => %s))"),
    "mysql": ("UTC_TIMESTAMP(6)", "(UTC_TIMESTAMP(6) - INTERVAL %s SECOND)"),
}


_alias = ""  # kept, since each query needs it


@receiver(setting_changed, dispatch_uid="delayq.database")
def _forget(*, setting: str, **_: Any) -> None:
    global _alias
    _alias = "" if setting == SETTING else _alias


def alias() -> str:
    """The alias of this database in DATABASES."""
    global _alias
    _alias = _alias or conf.get().database
    return _alias


def connection() -> Any:
    """The connection of this thread."""
    return connections[_alias or alias()]


def atomic(*, savepoint: bool = True, durable: bool = False) -> transaction.Atomic:
    """`transaction.atomic()` on this database."""
    return transaction.atomic(using=_alias or alias(), savepoint=savepoint, durable=durable)


def now() -> datetime:
    """The time of the database's clock.

    Raises:
        DatabaseError: as any query.
    """
    db = connection()
    if db.vendor not in SQL:
        return clock.now()
    with db.cursor() as cursor:
        cursor.execute(f"SELECT {SQL[db.vendor][0]}")
        shown: datetime = cursor.fetchone()[0]
    return shown.replace(tzinfo=UTC) if shown.tzinfo is None else shown


def ago(seconds: float = 0.0) -> Any:
    """The time so many seconds ago, as a value for a statement that writes or compares dates. Usually this needs no extra query."""
    db = connection()
    if db.vendor not in SQL or db.timezone_name != "UTC":  # MySQL stores dates in the time zone of the connection
        return now() - timedelta(seconds=seconds)
    return RawSQL(SQL[db.vendor][1], [float(seconds)], output_field=DateTimeField())


def later(moment: datetime, delay_ms: int) -> datetime:
    """The moment `delay_ms` later."""
    return moment + timedelta(milliseconds=delay_ms)


def written(since: datetime, now: datetime) -> Q:
    """Rows that were written between `since` and now. A row dated later was dated by another clock, or by one that was set back:
    waiting until it is old could take forever.
    """
    return Q(created_at__gte=since, created_at__lte=now)


class Placeholder(str):
    """Marks a value in a `FixedQuery` that each call passes under this name."""


class FixedQuery:
    """Compiles the query once. To compile it takes the ORM longer than the database needs to answer."""

    def __init__(self, query: models.QuerySet[Any]) -> None:
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

    def __init__(self, query: models.QuerySet[Any]) -> None:
        self._one = FixedQuery(query.order_by().values("pk")[:1])

    def found(self) -> bool:
        """Whether there is a row.

        Raises:
            DatabaseError: as any query.
        """
        return bool(self._one.rows())


class RowManager(models.Manager[RowT]):
    """Uses `DELAYQ["DATABASE"]` whatever the project's routers say, because all rows are there."""

    def get_queryset(self) -> models.QuerySet[RowT]:
        """All rows. `db_manager()` and `using()` can still choose another database."""
        rows = super().get_queryset()
        return rows if self._db else rows.using(_alias or alias())


class DelayqModel(models.Model):
    """A table of this package. If a model has its own Meta, it inherits from this one, or names its permissions."""

    objects: ClassVar[RowManager[Self]] = RowManager()

    class Meta:
        abstract = True
        default_permissions: ClassVar[tuple[str, ...]] = ()


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
