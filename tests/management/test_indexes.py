"""`delayq indexes`: indexes without far rows."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from django.db import connection, transaction

from django_delayq import clock, conf, ids
from django_delayq.console.selection import Selection
from django_delayq.management.indexes_command import SMALL, left_to_do
from django_delayq.mirror.outbox import DatabaseOutbox
from django_delayq.mirror.relay import RelayLoop
from django_delayq.models import FAR, UNPUBLISHED, Job
from django_delayq.producer.stores import stores
from django_delayq.store.queue import MOST

ALL = [index.name for index in SMALL]
WANTED = ALL if connection.vendor == "postgresql" else ALL[:1]


@pytest.fixture
def indexes(transactional_db):
    """Whatever the test makes of the indexes, they are afterwards as the migrations have made them."""
    yield
    with connection.schema_editor() as editor:
        for index in Job._meta.indexes:
            if index.name in WANTED:
                editor.remove_index(Job, index)
                editor.add_index(Job, index)


def left() -> list[str]:
    return [index.name for index in left_to_do(connection)]


@pytest.mark.usefixtures("indexes")
def test_they_are_made_anew_once(run):
    assert left() == WANTED
    assert run("indexes", "--dry-run", "--json").json == {"indexes": WANTED, "changed": False}
    assert left() == WANTED
    assert run("indexes", "--yes", "--json").json == {"indexes": WANTED, "changed": True}
    assert left() == []
    assert run("indexes", "--yes").out == "In these indexes far rows take as little room as they can already.\n"


@pytest.mark.skipif(connection.vendor != "postgresql", reason="others make one of them alone")
@pytest.mark.usefixtures("indexes")
def test_what_a_release_before_or_a_call_that_was_broken_off_has_left_is_made_anew(run):
    run("indexes", "--yes")
    with connection.cursor() as cursor:
        cursor.execute("DROP INDEX delayq_job_retrying")
        cursor.execute("CREATE INDEX delayq_job_key_near ON delayq_job (id)")
        cursor.execute("ALTER INDEX delayq_job_key RENAME TO old_key")
    assert left() == ["delayq_job_retrying", "delayq_job_key"]
    run("indexes", "--yes")
    assert left() == []
    with connection.cursor() as cursor:
        cursor.execute("DROP INDEX old_key")


@pytest.mark.usefixtures("indexes")
def test_it_asks_first(run):
    assert run("indexes", typed="n").error == "Nothing was changed."
    assert left() == WANTED


@pytest.mark.skipif(connection.vendor != "sqlite", reason="others choose by how many rows there are")
@pytest.mark.usefixtures("indexes")
def test_the_look_of_a_relay_uses_it(run):
    run("indexes", "--yes")
    assert "delayq_job_unpublished" in Job.objects.filter(UNPUBLISHED).order_by("id").explain()


QUERIES = {
    "retrying": ("retrying", lambda: rows(view="retrying")),
    "failed by attempts": ("retrying", lambda: rows(view="failed", by="-attempts")),
    "running by attempts": ("retrying", lambda: rows(view="running", by="attempts")),
    "a cause": ("fingerprint", lambda: rows(text="fingerprint:abc")),
    "failed of a cause": ("fingerprint", lambda: rows(view="failed", text="fingerprint:abc")),
    "a key": ("key", lambda: rows(text="key:order:7")),
    "the beginning of a key": ("key", lambda: rows(text="key:order:*")),
    "a text that stands alone": ("key", lambda: Job.objects.filter(Selection(text="order").search.terms[0].named)),
    "of the job's key": ("key", lambda: Job.objects.filter(queue="orders", key="a").order_by("-pk")),
    "what is brought in": (
        "far",
        lambda: Job.objects.filter(far=True, queue="orders", run_at__lt=clock.now()).order_by("run_at")[:1000],
    ),
    "what is purged": ("far", lambda: Job.objects.filter(FAR, queue="orders").order_by("run_at")[:1000]),
    "the look of a relay": ("unpublished", lambda: Job.objects.filter(UNPUBLISHED, queue="orders").order_by("id")[:200]),
}


def rows(**chosen: str):
    selection = Selection(**chosen)
    [road] = selection.roads
    return Job.objects.filter(road.rows).order_by(*(() if road.by_key else selection.order))


def plan_with(index: str, sql: str, values: Sequence[object]) -> str:
    """What PostgreSQL would do if the table had no other index, and were too large to be read through."""
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET LOCAL enable_seqscan = off")
        cursor.execute("ALTER TABLE delayq_job DROP CONSTRAINT delayq_job_pkey")
        for other in Job._meta.indexes:
            if other.name != index:
                cursor.execute(f"DROP INDEX {other.name}")
        cursor.execute(f"EXPLAIN {sql}", values)
        found = "\n".join(line for (line,) in cursor.fetchall())
        transaction.set_rollback(True)
    return found


@pytest.mark.skipif(connection.vendor != "postgresql", reason="others make one of them alone")
@pytest.mark.usefixtures("indexes")
@pytest.mark.parametrize("what", QUERIES)
def test_what_they_are_there_for_is_read_off_them(run, what):
    run("indexes", "--yes")
    index, query = QUERIES[what]
    assert f"delayq_job_{index} " in plan_with(f"delayq_job_{index}", *query().query.sql_with_params())


@pytest.mark.skipif(connection.vendor != "postgresql", reason="others make one of them alone")
@pytest.mark.usefixtures("indexes")
def test_rows_of_two_hundred_keys_are_read_off_them(run, orders):
    run("indexes", "--yes")
    asked: list[tuple[str, tuple[object, ...]]] = []
    keys = [f"order:{number}" for number in range(MOST)]
    loop = RelayLoop(stores.link, conf.get().queue("orders"), prefix="delayq", using="default")
    with connection.execute_wrapper(lambda execute, sql, values, *rest: asked.append((sql, values)) or execute(sql, values, *rest)):
        DatabaseOutbox().waiting("orders", keys, "default")
        loop._with_siblings([(ids.new(), key) for key in keys])
    assert len(asked) == 2
    for sql, values in asked:
        assert "delayq_job_key " in plan_with("delayq_job_key", sql, values)
