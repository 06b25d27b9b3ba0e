"""Converts records to rows and back, and inserts them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from functools import cache, lru_cache
from operator import attrgetter
from typing import Any, Final, NamedTuple
from uuid import UUID

from django.db import DatabaseError
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import Case, F, Value, When

from django_delayq import clock, codec, ids
from django_delayq.exceptions import DelayqError, PayloadError
from django_delayq.logger import lacks_migrations
from django_delayq.models import Event, Job, JSONText, database
from django_delayq.producer.outbox.shapes import packed
from django_delayq.states import FAIL_CLASS, AttemptOutcome, EndingKind, State
from django_delayq.store.scripts.record import JobRecord, ScheduleItem, band_of
from django_delayq.text import clean as clean
from django_delayq.text import text_fingerprint

PRIORITIES = {"high": 1, "normal": 0, "low": -1}
STUB = "?"  # the task of a row whose record is unknown
_DISPLACED: Final = {EndingKind.MERGED: "key held by", EndingKind.REPLACED: "replaced by"}
NO_RECORD = "the record of this job did not reach the database"
fingerprint = text_fingerprint  # of an error that came without one, such as a worker's crash
REQUEUE_ASKED: Final = (
    "requeue_asked"  # the kind of an event that no script writes: a requeue was asked for, and the mirror has not folded it
)
ITEMS: Final = 1_000_000  # more than the number of items in an entry
NO_LIST, NO_DICT = JSONText("[]"), JSONText("{}")


@dataclass(slots=True, eq=False)
class JobRow:
    """A row of `Job` while the mirror works on it. A model instance takes 19 us to make, which is more than all further work on it;
    this takes 1.4 us. `known`: the row was read from the database. It may then lack columns that the mirror does not change.
    """

    # The columns that folding needs of an existing row come first, in the order in which they are read: see KNOWN and WHOLE.
    id: UUID
    queue: str
    run_at: datetime
    state: str = State.SCHEDULED.value
    started_at: datetime | None = None
    finished_at: datetime | None = None
    attempts: int = 0
    crashes: int = 0
    worker: str = ""
    error: str = ""
    fingerprint: str = ""
    result: Any = None
    cancel_requested: bool = False
    published: datetime | None = None
    last_event: str = ""
    durable: bool = True
    settled: str = ""
    ending: str | None = None
    merged_into: UUID | None = None
    asked: int | None = None
    follow_up: Any = None
    batch: UUID | None = None
    awaited: bool = False
    task: str = STUB
    args: Any = NO_LIST
    kwargs: Any = NO_DICT
    options: Any = NO_DICT
    key: str = ""
    priority: int = 0
    created_at: datetime | None = None
    expires_at: datetime | None = None
    max_attempts: int = 1
    on_conflict: str = "keep"
    delay_ms: int | None = None
    known: bool = False
    # The mirror neither reads nor writes these columns: the jobs of its events are near.
    far: bool = False
    far_key: str | None = None

    @property
    def partition(self) -> int:
        """The partition that its id names."""
        return ids.partition(self.id)


class UnfinishedRow(NamedTuple):
    """The part of a row that Redis gets. It is not a model: a restore may read a million rows, and model instances would take a good
    part of its time.
    """

    id: UUID
    task: str
    args: Any
    kwargs: Any
    options: Any
    key: str
    state: str
    priority: int
    run_at: datetime
    expires_at: datetime | None
    attempts: int
    max_attempts: int
    crashes: int
    asked: int | None
    cancel_requested: bool
    durable: bool


JOB_COLUMNS: Final = tuple(field.attname for field in Job._meta.concrete_fields)
_MODEL: Final[Any] = Job  # by position, all columns in the order of the model: much faster than by name
_READ: Final = attrgetter(*JOB_COLUMNS)
WHOLE: Final = tuple(one.name for one in fields(JobRow))[: JobRow.__slots__.index("known")]
KNOWN: Final = WHOLE[: WHOLE.index("task")]


@dataclass(slots=True, eq=False)
class RunRow:
    """A row of `Attempt`. It is not a model instance either. Job and fence identify it."""

    job_id: UUID
    fence: str
    number: int
    worker: str
    started_at: datetime
    finished_at: datetime | None = None
    outcome: str = AttemptOutcome.RUNNING.value
    error_class: str = ""
    message: str = ""
    traceback: str = ""
    problem: dict[str, Any] | None = None


def new_row(record: JobRecord, queue: str, run_at: datetime, **fields: Any) -> JobRow:
    """The row of a record that has not run. If the payload cannot be decoded, the arguments stay empty and `error` has the reason."""
    args, kwargs, options, error = arguments(record)  # always decoded: another program may have written it to Redis
    same = _is_plain(record.payload) and not error
    row = JobRow(
        id=record.id,
        queue=queue,
        run_at=run_at,
        task=clean(record.task, 200),
        args=JSONText(record.payload[1:-1].decode()) if same else args,
        kwargs=kwargs or NO_DICT,
        options=options or NO_DICT,
        key=clean(record.key, 200),
        priority=PRIORITIES[record.band],
        created_at=run_at,
        expires_at=clock.from_ms(record.expires_ms) if record.expires_ms else None,
        max_attempts=record.max_attempts,
        durable=record.durable,
        error=error,
    )
    for name, value in fields.items():
        setattr(row, name, value)
    return row


def model_of(row: JobRow) -> Job:
    """The same as a model instance."""
    made: Job = _MODEL(*_READ(row))
    return made


def arguments(record: JobRecord) -> tuple[list[Any], dict[str, Any], dict[str, Any], str]:
    """The arguments and options of a record. If the payload cannot be decoded, they are empty, and the error is returned."""
    try:
        return *codec.decode_payload(record.payload), ""
    except PayloadError as problem:
        return [], {}, {}, clean(f"unreadable payload: {problem}")


def texts(record: JobRecord) -> tuple[str, str, str, str]:
    """The texts of the columns args, kwargs and options, and the error of the payload."""
    if _is_plain(record.payload):
        return record.payload[1:-1].decode(), "{}", "{}", ""  # the same JSON, without decoding and encoding it again
    args, kwargs, options, error = arguments(record)
    return _json(args), _json(kwargs), _json(options), error


def _is_plain(payload: bytes) -> bool:
    """Whether this payload has no keyword arguments, no options, and no characters that a column would store in another form."""
    return payload.startswith(b"[[") and payload.endswith(b"]]") and payload.isascii()


def _json(value: Any) -> str:
    return ARGS.get_prep_value(value) or "null"


ARGS: Final = Job._meta.get_field("args")


def stub(id: UUID, queue: str, at: datetime, why: str = NO_RECORD) -> JobRow:
    """The row of a job of which only events are known."""
    return JobRow(id=id, queue=queue, task=STUB, run_at=at, created_at=at, durable=False, error=why, published=at)


def item_of(partition: int, number: int) -> int:
    """The `item` of an Event row: its place in the entry, counted separately for each partition, since two partitions may have
    entries with the same id.
    """
    return partition * ITEMS + number


def note(job: UUID | None, queue: str, kind: str, actor: str, reason: str, detail: Any = None) -> None:
    """Writes an event that happened here. `queue`: the queue of the job, if it is known; "" for an event about no queue."""
    if job is not None:
        queue = queue or Job.objects.values_list("queue", flat=True).get(pk=job)
    Event.objects.bulk_create([event_of(job, queue, kind, actor, reason, detail)], ignore_conflicts=True)


def event_of(job: UUID | None, queue: str, kind: str, actor: str, reason: str, detail: Any, event: str = "", item: int = 0) -> Event:
    """The row of an event that happened here, or, with `event` and `item`, at that place of the stream in Redis. The mirror writes the
    latter too when it reads it.
    """
    return Event(
        job_id=job,
        queue=queue,
        at=database.ago(),
        kind=str(kind),
        actor=clean(actor, 200),
        reason=clean(reason),
        stream_id=event or f"row:{ids.new().hex}",
        item=item_of(ids.partition(job), item) if job is not None else 0,
        detail=detail,
    )


def error_of(detail: Mapping[str, Any]) -> str:
    """The error of a row, from the detail of an outcome: class and message. The message of `Fail` is stored without the class."""
    parts = ("m",) if detail.get("c") == FAIL_CLASS and detail.get("m") else ("c", "m")
    return clean(": ".join(str(detail[part]) for part in parts if detail.get(part)))


def displaced(ending: EndingKind, holder: UUID | None) -> str:
    """The error of a row whose job was displaced by another job."""
    return f"{_DISPLACED[ending]} {ids.short(holder) if holder else 'a job of which its sender may not know'}"


def record_of(job: Job | UnfinishedRow, *, payload: bool = True) -> JobRecord:
    """The record that a row was made of, for the relay, requeue and restore; or the same without its payload.

    Raises:
        PayloadError: the row has no record (a stub).
    """
    if job.task == STUB:
        raise PayloadError(f"the row of job {ids.short(job.id)} is a stub: its record did not reach the database")
    return JobRecord(
        id=job.id,
        task=job.task,
        band=band_of(job.priority),
        durable=job.durable,
        max_attempts=job.max_attempts,
        expires_ms=clock.to_ms(job.expires_at) if job.expires_at else 0,
        key=job.key,
        payload=codec.pack(job.args, job.kwargs, job.options) if payload else b"",
    )


def each(column: str, values: Mapping[UUID, Any]) -> Case:
    """An expression that sets a separate value in each row. The column is the default, because PostgreSQL takes the type from it."""
    field: Any = Job._meta.get_field(column)
    whens = [When(pk=job, then=Value(value, output_field=field)) for job, value in values.items()]
    return Case(*whens, default=F(column), output_field=field)


def hindered(error: Exception | None) -> dict[str, Any]:
    """The problem of a row: the code and the fields of the error, for `console.wording.format_error`. None: there is no problem."""
    if error is None:
        return {"problem": None}
    code, fields = (error.code, error.fields) if isinstance(error, DelayqError) and error.fields else ("", {})
    told = {name: value if isinstance(value, (int, str)) else str(value) for name, value in fields.items()}
    other = {"code": "unexpected", "fields": {"kind": type(error).__name__, "cause": str(error)}}
    return {"problem": {"code": code, "fields": told} if code else other}


# The INSERT of the outbox: one statement whose constant columns are literals. It uses no model instances, except on database vendors
# that are not known here. It writes exactly the row that `new_row` describes. For a view that schedules in a transaction, this
# statement is the longest wait.
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
# Columns that a statement leaves out if all its rows have their defaults. The functions return the value of an item.
Rare = tuple[str, ...]
RARE: Final[Mapping[str, Callable[[ScheduleItem], Any]]] = {
    "partition": lambda item: ids.partition(item.id),
    "follow_up": lambda item: None if item.then is None else _json(packed(item.then)),
    "batch": attrgetter("batch"),
}
COPIED: Final = 20  # the number of rows from which COPY saves more than the permission check costs
CASTS: Final = {
    "id": "uuid",
    "partition": "smallint",
    "batch": "uuid",
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
        Job.objects.bulk_create([model_of(_new_row(item, now, far)) for item in items])
        return
    try:
        rare = _rare(items)
        with connection.cursor() as cursor:
            if vendor == "postgresql" and len(items) > 1:
                began = _may_copy(cursor, connection) if len(items) >= COPIED else None
                if began is not None:
                    _copy(items, cursor, connection, began, far, rare)
                else:
                    # One JSON parameter: a driver takes longer to put 3,000 values into a statement than the server takes to read this
                    # one.
                    values = [_row(item, str, datetime.isoformat, rare) for item in items]
                    cursor.execute(_from_json(far, rare), [codec.dumps(values).decode()])
                return
            moment = connection.ops.adapt_datetimefield_value
            uuid = _id_writer(connection)
            if vendor == "sqlite":  # no parameter limit is reached, and the statement is prepared once
                cursor.executemany(_statement(vendor, 1, far, rare), list(_dated(items, uuid, moment, database.now(), rare)))
            elif vendor == "mysql" and connection.timezone_name != "UTC":
                table = list(_dated(items, uuid, moment, database.now(), rare))
                cursor.execute(_statement("", len(table), far, rare), [value for row in table for value in row])
            else:
                table = [_row(item, uuid, moment, rare) for item in items]
                cursor.execute(_statement(vendor, len(table), far, rare), [value for row in table for value in row])
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
        rare = _rare([item])
        [row] = _dated([item], uuid, moment, database.now(), rare)
        cursor.execute(_keyed_statement(connection.vendor, rare), [far_key, *row])
        return bool(cursor.rowcount)


def _id_writer(connection: BaseDatabaseWrapper) -> Callable[[UUID], Any]:
    return (lambda id: id) if connection.features.has_native_uuid_field else attrgetter("hex")


def _rare(items: Sequence[ScheduleItem]) -> tuple[str, ...]:
    """The columns of `RARE` that the statement names."""
    found = ["partition"] if any(ids.partition(item.id) for item in items) else []
    found += ["follow_up"] if any(item.then is not None for item in items) else []
    found += ["batch"] if any(item.batch is not None for item in items) else []
    return tuple(found)


def _new_row(item: ScheduleItem, now: datetime, far: bool) -> JobRow:
    return new_row(
        item,
        item.queue,
        clock.from_ms(item.due_ms or 0) if item.delay_ms is None else database.later(now, item.delay_ms),
        priority=item.priority,
        on_conflict=item.on_conflict,
        delay_ms=item.delay_ms,
        created_at=now,
        far=far,
        follow_up=None if item.then is None else packed(item.then),
        batch=item.batch,
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


def _copy(items: Sequence[ScheduleItem], cursor: Any, connection: BaseDatabaseWrapper, now: datetime, far: bool, rare: Rare) -> None:
    connection.validate_no_broken_transaction()  # every statement of Django does this
    with connection.wrap_database_errors, cursor.copy(_copied(far, rare)) as rows_in:
        same = tuple(_copied_values(far).values())
        for row in _dated(items, str, lambda moment: moment, now, rare):
            rows_in.write_row((*row, *same))


def _row(item: ScheduleItem, uuid: Callable[[UUID], Any], moment: Callable[[datetime], Any], rare: Rare) -> tuple[Any, ...]:
    """The values of the columns `GIVEN` up to `delay_ms`, then the given date, then the delay once more. The `rare` columns come
    first.
    """
    args, kwargs, options, error = texts(item)
    row = (
        uuid(item.id),
        item.queue,
        item.task,
        args,
        kwargs,
        options,
        item.key,
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
    return (*[uuid(value) if type(value := RARE[name](item)) is UUID else value for name in rare], *row) if rare else row


def _dated(
    items: Sequence[ScheduleItem], uuid: Callable[[UUID], Any], moment: Callable[[datetime], Any], now: datetime, rare: Rare
) -> Iterator[tuple[Any, ...]]:
    """The values of the columns `GIVEN`, with the database's current time."""
    written = moment(now)
    for item in items:
        row = _row(item, uuid, moment, rare)
        delay_ms = row[-1]
        date = row[-2] if delay_ms is None else moment(database.later(now, delay_ms))
        yield (*row[:-2], written, date)


@lru_cache(maxsize=256)
def _statement(vendor: str, count: int, far: bool, rare: Rare) -> str:
    same = FAR if far else SAME
    marks = ["%s"] * (len(rare) + len(GIVEN) - 2)
    marks.append(BY_THE_DATABASE.get(vendor, "{date}, {delay}").format(date="%s", delay="%s"))
    row = f"({', '.join((*marks, *same.values()))})"
    return f"INSERT INTO {_target(vendor, same, rare)} VALUES {', '.join([row] * count)}"


@cache
def _keyed_statement(vendor: str, rare: Rare) -> str:
    ours = "" if vendor == "mysql" else " ON CONFLICT DO NOTHING"
    values = ", ".join(["%s"] * (1 + len(rare) + len(GIVEN)) + list(FAR.values()))
    return f"INSERT INTO {_target(vendor, FAR, rare, FAR_KEY)} VALUES ({values}){ours}"


@cache
def _from_json(far: bool, rare: Rare) -> str:
    """Each row is an array: objects would repeat the names in every row."""
    same, names = FAR if far else SAME, (*rare, *GIVEN)
    *columns, date, delay = range(len(names))
    given = [f"(each->>{place})::{CASTS[names[place]]}" if names[place] in CASTS else f"each->>{place}" for place in columns]
    dates = BY_THE_DATABASE["postgresql"].format(date=f"(each->>{date})::timestamptz", delay=f"(each->>{delay})::bigint")
    values = ", ".join((*given, dates, *same.values()))
    return f"INSERT INTO {_target('postgresql', same, rare)} SELECT {values} FROM json_array_elements(%s::json) AS each"


@cache
def _copied(far: bool, rare: Rare) -> str:
    return f"COPY {_target('postgresql', _copied_values(far), rare)} FROM STDIN"


@cache
def _copied_values(far: bool) -> Mapping[str, str]:
    """Columns that are left out are NULL, and cost the driver no time."""
    return {name: text.strip("'") for name, text in (FAR if far else SAME).items() if text != "NULL"}


def _target(vendor: str, same: Iterable[str], rare: Rare, *first: str) -> str:
    quote = '"' if vendor in ("postgresql", "sqlite") else "`"
    names = ", ".join(f"{quote}{name}{quote}" for name in (*first, *rare, *GIVEN, *same))
    return f"{quote}{Job._meta.db_table}{quote} ({names})"
