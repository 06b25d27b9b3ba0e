"""The mirror's own statements write the rows that model instances would have made: arrays on PostgreSQL, else value by value."""

from __future__ import annotations

from dataclasses import fields, replace
from datetime import timedelta

import pytest
from django.db import DatabaseError, connection

import django_delayq as delayq
from django_delayq import clock, ids
from django_delayq.mirror import bulk_arrays, bulk_values, mirror_loop
from django_delayq.mirror.mirror_loop import ATTEMPT_COLUMNS, ATTEMPT_FIELDS, JOB_COLUMNS, JOB_FIELDS
from django_delayq.models import Attempt, Job, JSONText
from django_delayq.producer.outbox import rows
from django_delayq.producer.outbox.rows import KNOWN, WHOLE, JobRow, RunRow
from django_delayq.store.scripts.record import JobRecord
from tests.tasks_for_tests import close_order, ping

NASTY = 'quote " \' back \\ \\" {a,b} NULL %s % \n\t ü 你好 🙂'


@pytest.fixture(params=[bulk_arrays, bulk_values], ids=["arrays", "values"])
def writer(request, transactional_db):
    if request.param is bulk_arrays and connection.vendor not in mirror_loop.ARRAYS:
        pytest.skip("of PostgreSQL alone")
    return request.param


def job_row(**given) -> JobRow:
    now = clock.now()
    some = {
        "task": NASTY[:40],
        "args": [NASTY, None, 2**70, {"a": "\x00"}],
        "kwargs": {"x": NASTY},
        "options": JSONText('{"meta":{}}'),
        "key": NASTY,
        "priority": -7,
        "created_at": now - timedelta(days=40_000),
        "started_at": now,
        "worker": "NULL",
        "error": NASTY,
        "result": [NASTY],
        "cancel_requested": True,
        "last_event": "1-2",
        "attempts": 2**31 - 1,
    }
    return JobRow(**{"id": ids.new(), "queue": "orders", "run_at": now, **some, **given})


def shown(row: object, columns=JOB_COLUMNS) -> dict[str, object]:
    json = ("args", "kwargs", "options")
    found = {name: getattr(row, name) for name in columns}
    return {name: Job._meta.get_field(name).get_prep_value(value) if name in json else value for name, value in found.items()}


def test_no_column_is_forgotten():
    """A new column must be known here, too."""
    assert {one.name for one in fields(JobRow)} - {"known"} == set(JOB_COLUMNS) - {"partition"}  # which the id says
    assert {*KNOWN} >= {"id", *JOB_FIELDS}
    assert tuple(one.name for one in fields(RunRow)) == ATTEMPT_COLUMNS
    assert set(ATTEMPT_COLUMNS) == {field.attname for field in Attempt._meta.concrete_fields} - {"id"}
    for model, names in ((Job, JOB_COLUMNS), (Attempt, ATTEMPT_COLUMNS)):
        for name in names:
            bulk_arrays._column(model, name)


@pytest.mark.parametrize("count", [1, 3], ids=["one", "three"])
def test_jobs_are_those_of_model_instances(writer, count):
    """Rows that are inserted, found, inserted again and updated: equal ones and different ones."""
    made = [job_row(**({"key": f"{NASTY} {n}", "result": None, "error": ""} if n else {})) for n in range(count)]
    writer.upsert(Job, JOB_COLUMNS, made, ("id",), JOB_FIELDS, connection)
    for row in made:
        assert shown(Job.objects.get(pk=row.id)) == shown(row)
    found = writer.found(Job, KNOWN, "id", [row.id for row in made], "TRUE", connection)
    assert sorted(found) == sorted(tuple(getattr(row, name) for name in KNOWN) for row in made)
    over = [replace(row, state="running", queue="other", worker=f"w{n}") for n, row in enumerate(made)]
    writer.upsert(Job, JOB_COLUMNS, over, ("id",), JOB_FIELDS, connection)
    for row in over:
        assert shown(Job.objects.get(pk=row.id)) == shown(replace(row, queue="orders"))


def test_an_update_makes_no_row(writer):
    if writer is bulk_values:
        pytest.skip("of arrays alone")
    made = [job_row(key=f"{n}") for n in range(3)]
    bulk_arrays.upsert(Job, JOB_COLUMNS, made, ("id",), JOB_FIELDS, connection)
    later = [replace(row, state="failed", queue="other", error=NASTY, result={"n": n}) for n, row in enumerate(made)]
    bulk_arrays.update(Job, JOB_FIELDS, [*later, job_row()], "id", connection)
    assert Job.objects.count() == len(made)
    for row in later:
        assert shown(Job.objects.get(pk=row.id)) == shown(replace(row, queue="orders"))


def test_what_is_read_value_by_value_is_written_again_as_it_was(transactional_db):
    made = job_row()
    bulk_values.upsert(Job, JOB_COLUMNS, [made], ("id",), JOB_FIELDS, connection)
    [row] = bulk_values.found(Job, WHOLE, "id", [made.id], "TRUE", connection)
    Job.objects.all().delete()
    bulk_values.upsert(Job, JOB_COLUMNS, [JobRow(*row)], ("id",), JOB_FIELDS, connection)
    assert shown(Job.objects.get(pk=made.id)) == shown(made)


@pytest.mark.parametrize(
    "given",
    [[True, 1, 1.0], [0, False, -0.0], [{"n": 1}, {"n": True}], [[1], [1.0]], [None, None], ["same", "same"], [7, 7]],
    ids=str,
)
def test_what_python_calls_equal_is_not_written_as_the_same(writer, given):
    made = [job_row(result=value, args=[value]) for value in given]
    writer.upsert(Job, JOB_COLUMNS, made, ("id",), JOB_FIELDS, connection)
    assert [repr(Job.objects.get(pk=row.id).result) for row in made] == [repr(value) for value in given]
    assert [repr(Job.objects.get(pk=row.id).args) for row in made] == [repr([value]) for value in given]


def test_runs_are_those_of_model_instances(writer):
    now = clock.now()
    made = [RunRow(ids.new(), f"f{n}", n, NASTY, now, message=NASTY) for n in (1, 2)]
    writer.upsert(Attempt, ATTEMPT_COLUMNS, made, ("job_id", "fence"), ATTEMPT_FIELDS, connection)
    made[1].finished_at, made[1].outcome = now, "succeeded"
    writer.upsert(Attempt, ATTEMPT_COLUMNS, made, ("job_id", "fence"), ATTEMPT_FIELDS, connection)
    for run in made:
        assert shown(Attempt.objects.get(job_id=run.job_id), ATTEMPT_COLUMNS) == shown(run, ATTEMPT_COLUMNS)
    open_ones = writer.found(Attempt, ATTEMPT_COLUMNS, "job_id", [run.job_id for run in made], "finished_at IS NULL", connection)
    assert [RunRow(*row).job_id for row in open_ones] == [made[0].job_id]


def test_what_is_too_long_is_refused_and_not_cut(writer):
    if connection.vendor == "sqlite":
        pytest.skip("SQLite has no lengths")
    with pytest.raises(DatabaseError):
        writer.upsert(Job, JOB_COLUMNS, [job_row(fingerprint="x" * 65)], ("id",), JOB_FIELDS, connection)


@pytest.mark.parametrize("payload", [b"[[1,]]", b"[[1],[2]]", b"[[NaN]]"])
def test_a_payload_that_only_looks_like_one_is_not_kept_as_it_is(delayq_redis, transactional_db, payload):
    """Somebody else may have written it into Redis: a row with it could not be read."""
    record = JobRecord(id=ids.new(), task="tests.ping", durable=False, payload=payload)
    assert rows.texts(record)[0] == payload[1:-1].decode()
    row = rows.new_row(record, "orders", clock.now())
    assert (row.args, row.error[:18]) == ([], "unreadable payload")


def test_rows_are_the_same_value_by_value(orders, monkeypatch):
    """A life, folded in the way of databases without arrays."""
    monkeypatch.setattr(mirror_loop, "ARRAYS", ())
    durable = delayq.schedule(close_order, 7, note=NASTY)
    other = delayq.schedule(ping.using(queue="orders", durability="redis"), [NASTY])
    orders.fold()
    claimed = orders.claim()
    orders.fold()
    for job in claimed:
        orders.settle(job, "ack", detail=b'{"r":{"closed":7}}')
    orders.fold()
    by_value = {job.id: shown(job) for job in Job.objects.all()}
    assert by_value[other.id]["args"] == Job._meta.get_field("args").get_prep_value([[NASTY]])
    assert {(by_value[one]["state"], str(by_value[one]["result"])) for one in (durable.id, other.id)} == {
        ("succeeded", "{'closed': 7}")
    }
