"""The look of loops that mostly have nothing to do."""

from __future__ import annotations

from datetime import timedelta

from django.db import connection

import django_delayq as delayq
from django_delayq.models import Job
from django_delayq.models.database import ExistsQuery
from tests.tasks_for_tests import close_order


def test_it_finds_what_has_come_since(orders):
    query = ExistsQuery(Job.objects.filter(queue="orders", state="scheduled", published__isnull=True, durable=True))
    asked = []

    def watch(execute, sql, params, many, context):
        asked.append(sql)
        return execute(sql, params, many, context)

    with connection.execute_wrapper(watch):
        assert not query.found()
        job = delayq.schedule(close_order, 7, delay=timedelta(hours=1))
        asked.clear()
        assert query.found()
        assert len(asked) == 1
    Job.objects.filter(pk=job.id).update(state="cancelled")
    assert not query.found()


def test_a_relay_without_work_asks_once_and_makes_no_query(orders, monkeypatch):
    """The query is the same each time, and building it costs more than running it."""
    orders.relay.poll()
    asked = []
    watched = connection.execute_wrapper(lambda execute, *given: asked.append(given[0]) or execute(*given))
    with monkeypatch.context() as patched, watched:
        patched.setattr(type(Job.objects.all().query), "get_compiler", None)
        assert orders.relay.poll() > 0
    assert len(asked) == 1
