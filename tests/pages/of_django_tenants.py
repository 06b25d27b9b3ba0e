"""Tests the statements of docs/howto/django-tenants.md, in the project that the page builds. `django_tenants` is a stand-in."""

import pytest
from django.db import connection
from django_tenants.utils import schema_context
from orders import closing, tasks

from django_delayq import get


@pytest.fixture
def seen(monkeypatch):
    """Collects each run with its schema."""
    from orders import tenants

    runs, wrap = [], tenants.TenantCarrier.wrap

    def noted(self, packed):
        runs.append(packed)
        return wrap(self, packed)

    monkeypatch.setattr(tenants.TenantCarrier, "wrap", noted)
    return runs


def test_a_job_runs_in_the_schema_that_scheduled_it(delayq, seen):
    for schema in ("bikes", "boats"):
        with schema_context(schema):
            tasks.close_order.schedule(1)
    delayq.run_due()
    assert sorted(seen) == ["bikes", "boats"]
    assert connection.schema_name == "public"


def test_orders_of_two_tenants_with_one_number_do_not_collide(delayq):
    with schema_context("bikes"):
        assert closing.close_later(7).created
    with schema_context("boats"):
        assert closing.close_later(7).created
        closing.keep_open(7)
    assert [job.key for job in delayq.scheduled()] == ["close-order:7"]
    assert get(key="close-order:7", queue="default") is None
    assert get(key="close-order:7", queue="default", scope="bikes").scope == "bikes"


def test_a_schedule_has_a_job_for_each_tenant(delayq, seen):
    delayq.follow(tasks.clean_up_all)
    delayq.advance(delayq.upcoming(tasks.clean_up_all)[0] - delayq.now)
    assert sorted(map(str, seen)) == ["None", "bikes", "boats"]


def test_customers_of_a_tenant_are_synchronized(delayq):
    with schema_context("bikes"):
        tasks.synchronize.schedule(7)
    assert [run.outcome for run in delayq.run_due()] == ["ack"]
