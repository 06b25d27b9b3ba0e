"""Tests of docs/howto/django-tenants.md with the real package, in the project of that page: two schemas with equal primary keys."""

import pytest
from customers.models import Client
from django.db import connection, transaction
from django_tenants.utils import schema_context
from orders import closing, tasks
from orders.models import Order

from django_delayq import Change, LockTaken, cancel, get, lock, pause, reschedule, resume
from django_delayq.models import Job

KEYED = {"key": "close-order:7", "queue": "default"}


@pytest.fixture(autouse=True)
def tenants(transactional_db):
    for name in ("a", "b"):
        Client.objects.create(schema_name=name)
        with schema_context(name):
            assert connection.schema_name == name
            Order.objects.create(pk=7)
    yield
    for client in Client.objects.all():
        client.delete(force_drop=True)


def states():
    found = {}
    for name in ("a", "b"):
        with schema_context(name):
            found[name] = Order.objects.get(pk=7).state
    return found


def close_both():
    made = {}
    for name in ("a", "b"):
        with schema_context(name):
            made[name] = closing.close_later(7)
    return made


def test_each_tenant_has_a_job_for_its_order(delayq):
    made = close_both()
    assert [(job.created, job.scope) for job in made.values()] == [(True, "a"), (True, "b")]
    with schema_context("b"):
        assert not closing.close_later(7).created
        assert get(**KEYED).id == made["b"].id
    delayq.advance("1h")
    assert states() == {"a": "closed", "b": "closed"}
    assert sorted(Job.objects.values_list("scope", "key", "state")) == [
        ("a", "close-order:7", "succeeded"),
        ("b", "close-order:7", "succeeded"),
    ]


def test_a_cancel_leaves_the_order_of_the_other_tenant(delayq):
    close_both()
    with schema_context("b"):
        with transaction.atomic():
            closing.keep_open(7)
        assert get(**KEYED) is None
    delayq.advance("1h")
    assert states() == {"a": "closed", "b": "unpaid"}


def test_another_date_leaves_the_job_of_the_other_tenant(delayq):
    close_both()
    with schema_context("a"):
        assert reschedule(**KEYED, delay="3h") is Change.DONE
    delayq.advance("1h")
    assert states() == {"a": "unpaid", "b": "closed"}
    delayq.advance("3h")
    assert states() == {"a": "closed", "b": "closed"}


def test_outside_of_a_tenant_a_scope_names_it(delayq):
    close_both()
    assert get(**KEYED) is None
    assert get(**KEYED, scope="a").scope == "a"
    assert cancel(**KEYED) is Change.UNKNOWN
    assert cancel(**KEYED, scope="a") is Change.DONE
    delayq.advance("1h")
    assert states() == {"a": "unpaid", "b": "closed"}


def test_a_lock_belongs_to_a_tenant(delayq):
    with schema_context("a"), lock("order:7"):
        with schema_context("b"), lock("order:7"):
            pass
        with pytest.raises(LockTaken), lock("order:7"):
            pass


def test_a_paused_tenant_does_not_hold_the_other(delayq):
    close_both()
    pause(scope="a")
    delayq.advance("1h")
    assert states() == {"a": "unpaid", "b": "closed"}
    resume(scope="a")
    delayq.advance("1m")
    assert states() == {"a": "closed", "b": "closed"}


def test_serial_jobs_of_a_tenant_run_in_its_schema(delayq):
    for name in ("a", "b"):
        with schema_context(name):
            tasks.synchronize.schedule(7)
    assert [run.outcome for run in delayq.run_due()] == ["ack", "ack"]


def test_a_schedule_has_a_job_for_each_tenant(delayq):
    with schema_context("a"):
        Order.objects.update(state="closed")
    delayq.follow(tasks.clean_up_all)
    delayq.advance(delayq.upcoming(tasks.clean_up_all)[0] - delayq.now)
    with schema_context("a"):
        assert not Order.objects.exists()
    with schema_context("b"):
        assert Order.objects.exists()
