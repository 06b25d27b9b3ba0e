"""Watchers hear of each call that puts jobs in, and cannot harm it."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
from asgiref.sync import async_to_sync
from django.db import transaction

import django_delayq as delayq
from django_delayq.models import Job
from django_delayq.producer import carriers
from django_delayq.producer.schedule import plan
from django_delayq.states import CARRIED
from tests.tasks_for_tests import close_order, ping

pytestmark = pytest.mark.django_db(transaction=True)


class Notebook:
    """Notes what it hears."""

    name = "notebook"

    def __init__(self) -> None:
        self.heard: list[object] = []

    def begins(self, call):
        self.heard.append(("begins", call.task, call.queue, call.many, len(call.plans)))
        return "begun"

    def pack(self) -> object:
        return {"page": len(self.heard)}

    def ends(self, call, begun, error):
        self.heard.append((begun, [plan.job.created for plan in call.plans], type(error).__name__))


class Clumsy(Notebook):
    """Fails at whatever is asked of it."""

    name = "clumsy"

    def begins(self, call):
        raise LookupError("begins")

    def pack(self) -> object:
        raise LookupError("pack")


class Forgetful(Notebook):
    name = "forgetful"

    def ends(self, call, begun, error):
        raise LookupError("ends")


@pytest.fixture
def notebook() -> Iterator[Notebook]:
    found = Notebook()
    carriers.add_watcher(found)
    yield found
    carriers.remove_watcher("notebook")


def propagated_context(job):
    return Job.objects.get(pk=job.id).options["meta"][CARRIED]


def test_a_call_is_told_of_before_and_behind(delayq_redis, notebook):
    job = delayq.schedule(close_order, 7, queue="default")
    assert notebook.heard == [
        ("begins", "tests.tasks_for_tests.close_order", "default", False, 0),
        ("begun", [True], "NoneType"),
    ]
    assert propagated_context(job) == {"notebook": {"page": 1}}


@pytest.mark.parametrize(
    "call",
    [
        lambda: close_order.schedule(1),
        lambda: close_order.using(delay="1h").schedule(1),
        lambda: async_to_sync(close_order.aschedule)(1),
        lambda: async_to_sync(delayq.aschedule)(close_order, 1),
    ],
)
def test_each_way_to_schedule_is_one_call(delayq_redis, notebook, call):
    call()
    assert notebook.heard[0] == ("begins", "tests.tasks_for_tests.close_order", "orders", False, 0)
    assert len(notebook.heard) == 2


@pytest.mark.parametrize("durable", [True, False])
def test_many_jobs_are_one_call_also_in_several_batches(delayq_redis, notebook, durable):
    task = close_order if durable else ping
    delayq.schedule_many(task.bind(n) for n in range(201))
    assert notebook.heard == [("begins", "", "", True, 0), ("begun", [True] * 201, "NoneType")]
    async_to_sync(delayq.aschedule_many)([task.bind(1)])
    assert notebook.heard[2:] == [("begins", "", "", True, 0), ("begun", [True], "NoneType")]


def test_what_is_refused_ends_by_its_error(delayq_redis, notebook):
    with pytest.raises(delayq.PayloadError):
        close_order.schedule()
    assert notebook.heard[1] == ("begun", [], "PayloadError")


def test_in_a_transaction_the_call_ends_before_the_commit(delayq_redis, notebook):
    with transaction.atomic():
        close_order.schedule(1)
        assert notebook.heard[1] == ("begun", [None], "NoneType")


def test_what_a_watcher_raises_is_logged_and_changes_nothing(delayq_redis, notebook, caplog):
    carriers.add_watcher(Clumsy())
    carriers.add_watcher(Forgetful())
    try:
        with caplog.at_level(logging.ERROR, "django_delayq.producer"):
            job = close_order.schedule(7)
    finally:
        carriers.remove_watcher("clumsy")
        carriers.remove_watcher("forgetful")
    assert job.created
    assert set(propagated_context(job)) == {"notebook", "forgetful"}
    assert len(notebook.heard) == 2
    assert [record.getMessage().partition(" ")[0] for record in caplog.records] == ["Clumsy", "Clumsy", "Forgetful"]


def test_they_pack_beside_carriers(delayq_redis, notebook, settings):
    settings.DELAYQ = {**settings.DELAYQ, "CARRIERS": ["tests.carriers.Tenant"]}
    from tests.carriers import TENANT

    token = TENANT.set("acme")
    job = close_order.schedule(7, note="x")
    TENANT.reset(token)
    assert propagated_context(job) == {"notebook": {"page": 1}, "Tenant": "acme"}


def test_a_follow_up_job_has_the_propagated_context_of_the_job_that_it_follows(delayq_redis, notebook):
    from django_delayq.producer.options import NONE

    planned = plan(close_order, NONE, (1,), {}, None, carried={"notebook": "theirs"})
    assert b"theirs" in planned.payload
    assert b"page" not in planned.payload


def test_removed_it_hears_nothing(delayq_redis, notebook):
    carriers.remove_watcher("notebook")
    carriers.remove_watcher("notebook")
    job = close_order.schedule(7)
    assert notebook.heard == []
    assert Job.objects.get(pk=job.id).options == {}
