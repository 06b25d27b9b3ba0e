"""The queries that the indexes of jobs are there for use them."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from django.db import connection, transaction

from django_delayq import clock, conf, ids
from django_delayq.console.selection import Selection
from django_delayq.mirror.relay import RelayLoop
from django_delayq.models import FAR, UNPUBLISHED, Job
from django_delayq.producer.outbox import jobs
from django_delayq.producer.stores import stores
from django_delayq.store.scripts.queue import MOST

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
    """The plan of PostgreSQL if the table had no other index and were too large for a sequential scan."""
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


@pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite and MariaDB choose by how many rows there are")
@pytest.mark.parametrize("what", QUERIES)
def test_what_they_are_there_for_is_read_off_them(db, what):
    index, query = QUERIES[what]
    assert f"delayq_job_{index} " in plan_with(f"delayq_job_{index}", *query().query.sql_with_params())


@pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite and MariaDB choose by how many rows there are")
def test_rows_of_two_hundred_keys_are_read_off_them(orders):
    asked: list[tuple[str, tuple[object, ...]]] = []
    keys = [f"order:{number}" for number in range(MOST)]
    loop = RelayLoop(stores.link, conf.get().queue("orders"), prefix="delayq")
    with connection.execute_wrapper(lambda execute, sql, values, *rest: asked.append((sql, values)) or execute(sql, values, *rest)):
        jobs.waiting("orders", keys)
        loop._with_siblings([(ids.new(), key) for key in keys])
    assert len(asked) == 2
    for sql, values in asked:
        assert "delayq_job_key " in plan_with("delayq_job_key", sql, values)
