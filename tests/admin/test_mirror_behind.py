"""What the pages show while the rows are behind: the running workers, what Redis holds, and the queue that no process mirrors."""

from __future__ import annotations

import django_delayq as delayq
from django_delayq import clock, conf
from django_delayq.console import overview
from django_delayq.models import Job
from django_delayq.producer.stores import stores
from django_delayq.store.scripts.worker_registry import WorkerRegistry
from tests.admin.conftest import JOBS, QUEUES, lose_redis
from tests.tasks_for_tests import close_order

RUNNING = f"{JOBS}?state=running"


def listed(client, address: str) -> list:
    return [job.pk for job in client.get(address).context["cl"].result_list]


def tab(client, address: str, label: str) -> str | None:
    return next(tab["count"] for tab in client.get(address).context["cl"].tabs if str(tab["label"]) == label)


def test_a_job_that_runs_is_listed_though_the_mirror_has_not_heard_of_it(orders, staff, settings):
    client, ended = staff(), orders.running()
    job = delayq.schedule(close_order, 8)
    orders.fold()
    [claimed] = orders.claim()
    orders.settle(claimed, "ack")  # its row is still scheduled, but it no longer runs
    assert listed(client, RUNNING) == [ended.id]
    other = delayq.schedule(close_order, 9)
    orders.fold()
    orders.claim()
    assert Job.objects.get(pk=other.id).state == "scheduled"
    assert listed(client, RUNNING) == [other.id, ended.id]
    assert listed(client, f"{RUNNING}&queue=orders&task={close_order.name}") == [other.id, ended.id]
    assert listed(client, f"{RUNNING}&queue=default") == []
    assert listed(client, f"{RUNNING}&q=key:nothing") == []
    assert tab(client, JOBS, "Running") == "2"
    assert job.id not in listed(client, RUNNING)
    lose_redis(settings)
    assert listed(client, RUNNING) == [ended.id]  # what the database knows


def test_jobs_that_run_and_have_no_row_are_counted(orders, staff):
    job = orders.running()
    Job.objects.filter(pk=job.id).delete()
    assert "1 more job is running but has no row yet" in staff().get(RUNNING).content.decode()


def test_rows_that_redis_has_are_not_said_to_be_missing_there(orders, staff, monkeypatch):
    there = orders.scheduled()[0]
    Job.objects.filter(pk=there.id).update(published=None, created_at=clock.from_ms(clock.wall_ms() - 60_000))
    assert (overview.count_unpublished(), overview.count_absent()) == (1, 0)
    assert "not in Redis yet" not in staff().get(QUEUES).content.decode()
    orders.unpublished(monkeypatch)
    assert (overview.count_unpublished(), overview.count_absent()) == (2, 1)
    assert "1 committed job is not in Redis yet" in staff().get(QUEUES).content.decode()
    monkeypatch.setattr(overview, "MOST_ASKED", 1)
    assert overview.count_absent() == 1


def test_a_queue_without_a_mirror_is_named_by_sign_and_page(orders, staff):
    registry = WorkerRegistry(stores.link, prefix=conf.get().prefix)
    served = list(conf.get().queues)
    registry.beat(
        "host:1:a", {"queues": served, "processes": 1, "threads": 1, "records": [name for name in served if name != "orders"]}
    )
    answer = staff().get(QUEUES)
    (sign,) = (vital for vital in answer.context["vitals"] if vital.name == "mirror")
    assert (sign.level, sign.value) == ("late", "none, no mirror for orders")
    assert "No worker has the role mirror for orders" in answer.content.decode()
    registry.beat("host:1:b", {"queues": [], "sides": ["records"], "records": ["orders"]})
    assert "No worker has the role mirror" not in staff().get(QUEUES).content.decode()


def test_the_badge_names_the_queue_whose_mirror_is_behind(orders, staff, monkeypatch):
    monkeypatch.setattr(overview, "mirror_lags", lambda: {"orders": overview.Lag(3, 12.4), "default": overview.Lag(1, 2.0)})
    text = staff().get(JOBS).content.decode()
    assert "mirror of orders is 12 s late, 3 events, and that of 1 more queue" in " ".join(text.split())
