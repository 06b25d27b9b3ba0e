"""The outbox's INSERT: one statement whose constant columns are literals. It uses no model instances, except on database vendors that
are not known here. It writes exactly the row that `rows.new_row` describes. For a view that schedules in a transaction, this
statement is the longest wait.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import cache, lru_cache
from operator import attrgetter
from typing import Any, Final
from uuid import UUID

from django.db import DatabaseError
from django.db.backends.base.base import BaseDatabaseWrapper

from django_delayq import clock, codec, ids
from django_delayq.logger import lacks_migrations
from django_delayq.models import Job, database
from django_delayq.producer.outbox import rows
from django_delayq.states import State
from django_delayq.store.scripts.record import ScheduleItem

VENDORS: Final = ("postgresql", "sqlite", "mysql")  # vendors on which the literals below have the intended meaning
GIVEN: Final = (
    "id",
    "queue",
    "task",
    "args",
    "kwargs",
    "options",
    "key",
    "priority",
    "expires_at",
    "max_attempts",
    "durable",
    "error",
    "on_conflict",
    "delay_ms",
    "created_at",
    "run_at",
)
SAME: Final = {
    "state": f"'{State.SCHEDULED.value}'",
    "started_at": "NULL",
    "finished_at": "NULL",
    "attempts": "0",
    "crashes": "0",
    "worker": "''",
    "fingerprint": "''",
    "result": "NULL",
    "settled": "''",
    "cancel_requested": "FALSE",
    "published": "NULL",
    "last_event": "''",
    "ending": "NULL",
    "merged_into": "NULL",
    "asked": "NULL",
}
FAR: Final = {**SAME, "far": "TRUE"}  # near rows leave these two columns out; far_key is NULL except for far rows with a key
FAR_KEY: Final = "far_key"
PARTITION: Final = "partition"
COPIED: Final = 20  # the number of rows from which COPY saves more than the permission check costs
CASTS: Final = {
    "id": "uuid",
    "partition": "smallint",
    "priority": "integer",
    "run_at": "timestamptz",
    "created_at": "timestamptz",
    "expires_at": "timestamptz",
    "max_attempts": "integer",
    "durable": "boolean",
    "delay_ms": "bigint",
}
# The database sets `created_at`, and `run_at` for a delay, see `models.database`.
BY_THE_DATABASE: Final = {
    "postgresql": "clock_timestamp(), COALESCE({date}, clock_timestamp() + {delay} * interval '1 millisecond')",
    "mysql": "UTC_TIMESTAMP(6), COALESCE({date}, TIMESTAMPADD(MICROSECOND, {delay} * 1000, UTC_TIMESTAMP(6)))",
}


def insert(items: Sequence[ScheduleItem], *, far: bool = False) -> None:
    """Inserts rows. A single row is one statement, which needs no transaction around it. `far`: the rows are far, so Redis does not
    get them yet.
    """
    connection = database.connection()
    vendor = connection.vendor
    if vendor not in VENDORS:
        now = database.now()
        Job.objects.bulk_create([rows.model_of(_new_row(item, now, far)) for item in items])
        return
    try:
        split = _split(items)
        with connection.cursor() as cursor:
            if vendor == "postgresql" and len(items) > 1:
                began = _may_copy(cursor, connection) if len(items) >= COPIED else None
                if began is not None:
                    _copy(items, cursor, connection, began, far, split)
                else:
                    # One JSON parameter: a driver takes longer to put 3,000 values into a statement than the server takes to read this
                    # one.
                    values = [_row(item, str, datetime.isoformat, split) for item in items]
                    cursor.execute(_from_json(far, split), [codec.dumps(values).decode()])
                return
            moment = connection.ops.adapt_datetimefield_value
            uuid = _id_writer(connection)
            if vendor == "sqlite":  # no parameter limit is reached, and the statement is prepared once
                cursor.executemany(_statement(vendor, 1, far, split), list(_dated(items, uuid, moment, database.now(), split)))
            elif vendor == "mysql" and connection.timezone_name != "UTC":
                table = list(_dated(items, uuid, moment, database.now(), split))
                cursor.execute(_statement("", len(table), far, split), [value for row in table for value in row])
            else:
                table = [_row(item, uuid, moment, split) for item in items]
                cursor.execute(_statement(vendor, len(table), far, split), [value for row in table for value in row])
    except DatabaseError as error:
        if lacks_migrations(error):
            error.add_note("The database does not have all tables of delayq. Run manage.py migrate.")
        raise


def insert_keyed(item: ScheduleItem, far_key: str, connection: BaseDatabaseWrapper) -> bool:
    """Inserts a far row whose key no other far row may have. Returns False if another row has it. On MySQL that is an IntegrityError,
    and the caller rolls back to a savepoint.
    """
    moment = connection.ops.adapt_datetimefield_value
    uuid = _id_writer(connection)
    with connection.cursor() as cursor:
        split = _split([item])
        [row] = _dated([item], uuid, moment, database.now(), split)
        cursor.execute(_keyed_statement(connection.vendor, split), [far_key, *row])
        return bool(cursor.rowcount)


def _id_writer(connection: BaseDatabaseWrapper) -> Callable[[UUID], Any]:
    return (lambda id: id) if connection.features.has_native_uuid_field else attrgetter("hex")


def _split(items: Sequence[ScheduleItem]) -> bool:
    """Whether the statement names the partition column. It does not if all rows are in partition 0, the default."""
    return any(ids.partition(item.id) for item in items)


def _new_row(item: ScheduleItem, now: datetime, far: bool) -> rows.JobRow:
    return rows.new_row(
        item,
        item.queue,
        clock.from_ms(item.due_ms or 0) if item.delay_ms is None else database.later(now, item.delay_ms),
        priority=item.priority,
        on_conflict=item.on_conflict,
        delay_ms=item.delay_ms,
        created_at=now,
        far=far,
    )


def _may_copy(cursor: Any, connection: BaseDatabaseWrapper) -> datetime | None:
    """The database's current time if COPY can be used, else None. COPY needs psycopg 3, no execute wrappers that watch statements,
    and a table without active row-level security.
    """
    if connection.execute_wrappers or not hasattr(cursor, "copy"):
        return None
    cursor.execute("SELECT row_security_active(%s), clock_timestamp()", [Job._meta.db_table])
    active, now = cursor.fetchone()
    return None if active else now


def _copy(items: Sequence[ScheduleItem], cursor: Any, connection: BaseDatabaseWrapper, now: datetime, far: bool, split: bool) -> None:
    connection.validate_no_broken_transaction()  # every statement of Django does this
    with connection.wrap_database_errors, cursor.copy(_copied(far, split)) as rows_in:
        same = tuple(_copied_values(far).values())
        for row in _dated(items, str, lambda moment: moment, now, split):
            rows_in.write_row((*row, *same))


def _row(item: ScheduleItem, uuid: Callable[[UUID], Any], moment: Callable[[datetime], Any], split: bool) -> tuple[Any, ...]:
    """The values of the columns `GIVEN` up to `delay_ms`, then the given date, then the delay once more. With `split`, the partition
    comes first.
    """
    args, kwargs, options, error = rows.texts(item)
    row = (
        uuid(item.id),
        item.queue,
        rows.clean(item.task, 200),
        args,
        kwargs,
        options,
        rows.clean(item.key, 200),
        item.priority,
        moment(clock.from_ms(item.expires_ms)) if item.expires_ms else None,
        item.max_attempts,
        item.durable,
        error,
        item.on_conflict,
        item.delay_ms,
        moment(clock.from_ms(item.due_ms or 0)) if item.delay_ms is None else None,
        item.delay_ms,
    )
    return (ids.partition(item.id), *row) if split else row


def _dated(
    items: Sequence[ScheduleItem], uuid: Callable[[UUID], Any], moment: Callable[[datetime], Any], now: datetime, split: bool
) -> Iterator[tuple[Any, ...]]:
    """The values of the columns `GIVEN`, with the database's current time."""
    written = moment(now)
    for item in items:
        row = _row(item, uuid, moment, split)
        delay_ms = row[-1]
        date = row[-2] if delay_ms is None else moment(database.later(now, delay_ms))
        yield (*row[:-2], written, date)


@lru_cache(maxsize=256)
def _statement(vendor: str, count: int, far: bool, split: bool) -> str:
    same = FAR if far else SAME
    marks = ["%s"] * (split + len(GIVEN) - 2)
    marks.append(BY_THE_DATABASE.get(vendor, "{date}, {delay}").format(date="%s", delay="%s"))
    row = f"({', '.join((*marks, *same.values()))})"
    return f"INSERT INTO {_target(vendor, same, split)} VALUES {', '.join([row] * count)}"


@cache
def _keyed_statement(vendor: str, split: bool) -> str:
    ours = "" if vendor == "mysql" else " ON CONFLICT DO NOTHING"
    values = ", ".join(["%s"] * (1 + split + len(GIVEN)) + list(FAR.values()))
    return f"INSERT INTO {_target(vendor, FAR, split, FAR_KEY)} VALUES ({values}){ours}"


@cache
def _from_json(far: bool, split: bool) -> str:
    """Each row is an array: objects would repeat the names in every row."""
    same, names = FAR if far else SAME, ((PARTITION,) if split else ()) + GIVEN
    *columns, date, delay = range(len(names))
    given = [f"(each->>{place})::{CASTS[names[place]]}" if names[place] in CASTS else f"each->>{place}" for place in columns]
    dates = BY_THE_DATABASE["postgresql"].format(date=f"(each->>{date})::timestamptz", delay=f"(each->>{delay})::bigint")
    values = ", ".join((*given, dates, *same.values()))
    return f"INSERT INTO {_target('postgresql', same, split)} SELECT {values} FROM json_array_elements(%s::json) AS each"


@cache
def _copied(far: bool, split: bool) -> str:
    return f"COPY {_target('postgresql', _copied_values(far), split)} FROM STDIN"


@cache
def _copied_values(far: bool) -> Mapping[str, str]:
    """Columns that are left out are NULL, and cost the driver no time."""
    return {name: text.strip("'") for name, text in (FAR if far else SAME).items() if text != "NULL"}


def _target(vendor: str, same: Iterable[str], split: bool, *first: str) -> str:
    quote = '"' if vendor in ("postgresql", "sqlite") else "`"
    names = ", ".join(f"{quote}{name}{quote}" for name in (*first, *((PARTITION,) if split else ()), *GIVEN, *same))
    return f"{quote}{Job._meta.db_table}{quote} ({names})"
