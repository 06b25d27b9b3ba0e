"""How pages, commands and metrics show far jobs to people and machines."""

from __future__ import annotations

from datetime import timedelta

import pytest

import django_delayq as delayq
from django_delayq import clock
from django_delayq.console import health, overview
from django_delayq.models import Job
from django_delayq.producer.stores import stores
from django_delayq.store.scripts.worker_registry import WorkerRegistry
from tests.admin.conftest import JOBS, QUEUES, lose_redis, page
from tests.mirror.horizons import Horizon
from tests.tasks_for_tests import close_order


@pytest.fixture
def horizon(settings, delayq_redis, transactional_db, request):
    """The queue "orders" has a horizon of an hour."""
    settings.DELAYQ = {**settings.DELAYQ, "QUEUES": {"orders": {"HORIZON": "1h"}, "default": {}}}
    return Horizon(request.getfixturevalue("orders"))


@pytest.fixture
def far(horizon) -> delayq.Job:
    return delayq.schedule(close_order, 7, delay="3h", key="o:7")


def overdue(job: delayq.Job) -> None:
    Job.objects.filter(pk=job.id).update(run_at=clock.now() + timedelta(minutes=10))


def codes(run) -> set[str]:
    return {finding["code"] for finding in run("doctor", "--json").json["findings"]}


def test_a_far_job_stands_in_the_list_as_far_and_not_as_unpublished(far, staff):
    Job.objects.update(created_at=clock.now() - timedelta(hours=1))
    client = staff()
    listed = client.get(f"{JOBS}?state=far").content.decode()
    assert far.short_id in listed
    assert "Far" in listed
    assert far.short_id not in client.get(f"{JOBS}?state=unpublished").content.decode()
    assert far.short_id in client.get(f"{JOBS}?q=state:far").content.decode()
    assert "committed jobs are not in Redis" not in client.get(QUEUES).content.decode()


def test_its_page_says_why_it_has_not_run_yet_also_while_redis_is_away(far, staff, settings):
    client = staff()
    said = client.get(page(far)).context["why"]
    assert "waits in the database. A relay moves it into Redis 1h before that" in said
    lose_redis(settings)
    assert client.get(page(far)).context["why"] == said


def test_of_a_queue_without_a_horizon_it_says_that_it_comes_in(far, staff, settings):
    settings.DELAYQ = {**settings.DELAYQ, "QUEUES": {"orders": {}, "default": {}}}
    assert "no longer has a horizon" in staff().get(page(far)).context["why"]


def test_the_forecast_counts_far_jobs(far, staff):
    delayq.schedule(close_order, 8, delay="30m")
    minutes, hours = staff().get(QUEUES).context["ahead"]
    assert (minutes["total"], hours["total"]) == (1, 2)


def test_commands_know_far_jobs(far, run):
    assert [job["id"] for job in run("list", "--state", "far", "--json").json] == [far.short_id]
    assert run("list", "--state", "unpublished", "--json").json == []
    [queue] = run("status", "--json").json["far"]
    assert (queue["name"], queue["count"], queue["late"]) == ("orders", 1, False)
    assert "Far jobs of orders: 1." in run("status").out


def test_d022_nobody_brings_in(far, run):
    assert "D022" in codes(run)
    WorkerRegistry(stores.link, prefix="delayq").beat("host:1:w", {"queues": ["orders"], "brings_in": ["orders"]})
    assert "D022" not in codes(run)


def test_d023_far_jobs_come_in_late(far, run):
    assert "D023" not in codes(run)
    overdue(far)
    assert "D023" in codes(run)


def test_the_sign_of_health_is_bad_when_they_come_in_late(far, horizon):
    assert [sign.level for sign in health.row_signs(0) if sign.name == "far"] == ["well"]
    overdue(far)
    assert [sign.level for sign in health.row_signs(0) if sign.name == "far"] == ["bad"]


@pytest.mark.django_db
def test_there_is_no_sign_if_no_queue_has_a_horizon(orders, django_assert_num_queries):
    with django_assert_num_queries(0):
        assert overview.far_queues() == []
    assert "far" not in {sign.name for sign in health.row_signs(0)}


def test_metrics_count_them_and_say_that_they_are_late(far):
    def told(name: str) -> float:
        return next(value for metric, of, value in health.database_samples() if metric == name and of == {"queue": "orders"})

    assert (told("delayq_far_jobs"), told("delayq_far_late"), told("delayq_outbox_rows")) == (1, 0, 0)
    overdue(far)
    assert told("delayq_far_late") == 1
