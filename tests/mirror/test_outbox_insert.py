"""The outbox's own INSERT writes the rows that model instances would have made."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from django.db import IntegrityError, connection, connections, transaction

from django_delayq import clock, codec, ids
from django_delayq.models import Job, JSONText, database
from django_delayq.producer.outbox import far_rows, rows
from django_delayq.producer.outbox.far_rows import far_key
from django_delayq.producer.outbox.shapes import packed, unpacked
from django_delayq.store.scripts.record import JobRecord, ScheduleItem

PAYLOADS = [
    codec.dumps(value)
    for value in (
        [[], {}],
        [[1, "plain", None, True, 1.5, 2**70, {}], {}],
        [["quote \" ' back \\ percent % %s %(x)s {} $1 \x7f"], {}],
        [["nul \x00 line \n tab \t"], {}],
        [["Grüße 你好 🙂"], {}],
        [[[{"a": {}}, {}]], {"name": {}, "ключ": ["%s", "\x00"]}],
        [[7], {}, {"meta": {"who": "Zoë"}, "timeout": 1.5, "backoff": "1s"}],
        [[], {}, {"meta": {}}],
        [[[], {}], {"x": [{}]}],
    )
] + [b"no JSON", b"no JSON,{}"]


def items() -> list[ScheduleItem]:
    """Two of them have a follow-up, and one of these has a follow-up of its own."""
    found = [
        ScheduleItem.of(
            JobRecord(
                id=ids.new(),
                task="tests.täsk",
                band=band,
                max_attempts=3 + place,
                payload=payload,
                key=f"key '%s' \\ {place} é" if place % 2 else "",
                expires_ms=4_000_000_000_123 if place % 3 else 0,
            ),
            queue="orders",
            due_ms=2_000_000_000_001 + place,
            delay_ms=None,
            on_conflict="earliest",
            priority=priority,
        )
        for place, payload in enumerate(PAYLOADS)
        for band, priority in (("low", -7), ("normal", 0), ("high", 2**31 - 1))
    ]
    found[4].then, found[5].then = found[0], found[4]
    return found


def columns(job: Job) -> dict[str, object]:
    """All but when it was written."""
    names = [field.attname for field in Job._meta.concrete_fields if field.attname != "created_at"]
    found = {name: getattr(job, name) for name in names}
    return {name: json.loads(value) if isinstance(value, JSONText) else value for name, value in found.items()}


def row_of(item: ScheduleItem) -> Job:
    date = clock.from_ms(item.due_ms)
    then = None if item.then is None else packed(item.then)
    row = rows.new_row(item, item.queue, date, priority=item.priority, on_conflict=item.on_conflict, follow_up=then)
    return rows.model_of(row)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("together", [True, False], ids=["together", "alone"])
def test_rows_are_those_of_model_instances(together):
    """Every column, of every kind of value, in one statement or in many."""
    given = items()
    for batch in [given] if together else [[item] for item in given]:
        rows.insert(batch)
    for item in given:
        assert columns(Job.objects.get(pk=item.id)) == columns(row_of(item))


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("together", [True, False], ids=["together", "alone"])
def test_far_rows_are_those_rows_and_far(together):
    given = items()
    for batch in [given] if together else [[item] for item in given]:
        rows.insert(batch, far=True)
    for item in given:
        assert columns(Job.objects.get(pk=item.id)) == {**columns(row_of(item)), "far": True}


@pytest.mark.django_db(transaction=True)
def test_a_far_row_with_a_key_is_such_a_row_too():
    for item in items():
        if not item.key:
            continue
        item.key += str(item.id)
        assert far_rows.contest(item, 3_600_000, far=True) is None
        found = columns(Job.objects.get(pk=item.id))
        assert found.pop("far_key") == far_key("orders", item.key)
        assert found == {name: value for name, value in {**columns(row_of(item)), "far": True}.items() if name != "far_key"}


def test_a_follow_up_is_the_same_job_later():
    for item in items():
        if item.payload.startswith(b"["):
            later = unpacked(json.loads(json.dumps(packed(item))), "seed", 1)
            assert packed(later) == packed(item)
            assert (later.band, later.durable, later.encode()) == (item.band, True, item.encode())


@pytest.mark.django_db(transaction=True)
def test_the_stored_texts_are_those_of_model_instances():
    """The stored values of the columns, not only the values read from them, in the form of each database."""
    item = next(item for item in items() if b"Gr" in item.payload)
    rows.insert([item])
    with connection.cursor() as cursor:
        quote = connection.ops.quote_name
        names = ", ".join(quote(field.column) for field in Job._meta.concrete_fields if field.attname != "created_at")
        cursor.execute(f"SELECT {names} FROM delayq_job")
        lean = cursor.fetchall()
        Job.objects.all().delete()
        row_of(item).save(force_insert=True)
        cursor.execute(f"SELECT {names} FROM delayq_job")
        assert lean == cursor.fetchall()


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("count", [1, 3, rows.COPIED], ids=["alone", "a few", "many"])
@pytest.mark.parametrize("skew", [timedelta(minutes=-10), timedelta(hours=1)], ids=["behind", "ahead"])
def test_when_a_row_was_written_and_when_its_delay_ends_says_the_database(count, skew, monkeypatch):
    if connection.vendor == "sqlite":
        pytest.skip("SQLite's clock is that of the host")
    before = database.now()
    monkeypatch.setattr(clock, "now", lambda: datetime.now(UTC) + skew)
    monkeypatch.setattr(clock, "wall_ms", lambda: clock.to_ms(datetime.now(UTC) + skew))
    given = [replace(items()[0], id=ids.new(), delay_ms=90_000) for _ in range(count)]
    rows.insert(given)
    after = database.now()
    for row in Job.objects.all():
        assert before <= row.created_at <= after
        assert abs(row.run_at - row.created_at - timedelta(seconds=90)) < timedelta(milliseconds=5)
    assert Job.objects.count() == count


def test_no_column_is_forgotten():
    """A new column must be given a value here too."""
    assert {*rows.GIVEN, *rows.FAR, rows.FAR_KEY, *rows.RARE, "awaited"} == {field.column for field in Job._meta.concrete_fields}


@pytest.mark.django_db(transaction=True)
def test_a_database_of_another_kind_gets_model_instances(monkeypatch):
    monkeypatch.setattr(rows, "VENDORS", ())
    given = items()
    far = [replace(items()[0], id=ids.new())]
    with transaction.atomic():
        rows.insert(given)
        rows.insert(far, far=True)
    assert {row.id: row.far for row in Job.objects.all()} == {item.id: item in far for item in given + far}


@pytest.mark.django_db(transaction=True)
def test_a_batch_that_fails_is_an_error_of_django_and_leaves_nothing():
    """COPY passes by much of what Django does for statements."""
    given = items()
    rows.insert(given[:1])
    with pytest.raises(IntegrityError), transaction.atomic():
        rows.insert(given[1:] + given[:1])
    assert Job.objects.count() == 1


@pytest.mark.django_db(transaction=True)
def test_those_who_watch_statements_see_the_insert():
    seen = []

    def watch(execute, sql, params, many, context):
        seen.append(sql)
        return execute(sql, params, many, context)

    given = items()
    with connection.execute_wrapper(watch), transaction.atomic():
        rows.insert(given)
    assert any(sql.startswith("INSERT INTO") for sql in seen)
    assert {columns(job)["id"]: job.args for job in Job.objects.all()} == {item.id: rows.arguments(item)[0] for item in given}


@pytest.mark.django_db(transaction=True)
def test_a_delay_counts_from_now_where_the_database_keeps_another_time_zone(monkeypatch):
    """DATABASES["default"]["TIME_ZONE"]: the columns hold the local time."""
    if connection.vendor == "postgresql":
        pytest.skip("PostgreSQL has one type for points in time")
    zone = ZoneInfo("Asia/Tokyo")
    wrapper = connections["default"]
    monkeypatch.setitem(wrapper.__dict__, "timezone", zone)
    monkeypatch.setitem(wrapper.__dict__, "timezone_name", zone.key)
    began = datetime.now(UTC)
    rows.insert([replace(items()[0], due_ms=None, delay_ms=60_000)])
    job = Job.objects.get()
    assert abs(job.created_at - began) < timedelta(minutes=10)
    assert job.run_at - job.created_at == timedelta(minutes=1)


@pytest.mark.django_db(transaction=True)
def test_row_level_security_is_obeyed():
    """COPY is refused under it; an INSERT is not."""
    if connection.vendor != "postgresql":
        pytest.skip("of PostgreSQL alone")
    given = items()
    with connection.cursor() as cursor, transaction.atomic():
        cursor.execute("CREATE ROLE guarded")
        cursor.execute("GRANT INSERT, SELECT ON delayq_job TO guarded")
        cursor.execute("ALTER TABLE delayq_job ENABLE ROW LEVEL SECURITY")
        cursor.execute("CREATE POLICY guarded_all ON delayq_job FOR ALL TO guarded USING (true)")
        cursor.execute("SET LOCAL ROLE guarded")
        rows.insert(given)
        cursor.execute("RESET ROLE")
        assert Job.objects.count() == len(given)
        transaction.set_rollback(True)
