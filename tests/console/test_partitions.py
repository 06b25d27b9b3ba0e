"""How people see a queue with several partitions."""

from __future__ import annotations

import io
import json

import pytest
from django.core.management import call_command
from django.urls import reverse

import django_delayq as delayq
from django_delayq import conf, ids
from django_delayq.admin import effective_settings
from django_delayq.console import overview
from django_delayq.models import Checkpoint, Job
from django_delayq.producer.stores import stores
from tests.management.conftest import lose_redis
from tests.partitioned import claim, divide, fold
from tests.tasks_for_tests import close_order

__all__ = ["divide"]
pytestmark = pytest.mark.django_db(transaction=True)


def said(*words: str) -> str:
    out = io.StringIO()
    try:
        call_command("delayq", *words, stdout=out)
    except SystemExit:
        pass
    return out.getvalue()


def findings() -> dict[str, str]:
    return {one["code"]: one["message"] for one in json.loads(said("doctor", "--json"))["findings"]}


def test_the_overview_has_sums_and_each_partition(divide):
    divide(3)
    jobs = [delayq.schedule(close_order, n, delay="1h") for n in range(30)]
    queue = next(queue for queue in overview.look().queues if queue.name == "orders")
    assert queue.depth.scheduled == 30
    assert [queue.parts[n].scheduled for n in range(3)] == [sum(ids.partition(job.id) == n for job in jobs) for n in range(3)]


def test_status_has_a_line_per_partition(divide):
    divide(3)
    delayq.schedule_many(close_order.using(delay="1h").bind(n) for n in range(600))
    lines = [line.split()[:2] for line in said("status").splitlines()]
    assert [line for line in lines if line and line[0].startswith("orders")] == [
        ["orders", "600"],
        ["orders/0", "200"],
        ["orders/1", "200"],
        ["orders/2", "200"],
    ]
    [row] = [row for row in json.loads(said("status", "--json"))["queues"] if row["queue"] == "orders"]
    assert [(part["partition"], part["scheduled"]) for part in row["partitions"]] == [(0, 200), (1, 200), (2, 200)]
    divide(1)
    [row] = [row for row in json.loads(said("status", "--json"))["queues"] if row["queue"] == "orders"]
    assert "partitions" not in row


def test_inspect_and_the_job_page_say_the_partition(divide, admin_client):
    divide(16)
    job = delayq.schedule(close_order, 1, delay="1h", key="o:7")
    home = conf.get().queue("orders").homes("o:7")[0]
    found = json.loads(said("inspect", job.short_id, "--json"))
    assert found["job"]["partition"] == found["redis"]["partition"] == home
    page = admin_client.get(reverse("admin:delayq_job_change", args=[job.id])).content.decode()
    assert f"<dt>partition</dt><dd>{home} <span" in page
    assert found["job"]["place"] == found["redis"]["place"] == stores.link.where in page
    divide(1)
    other = delayq.schedule(close_order, 1, delay="1h")
    assert "<dt>partition</dt>" not in admin_client.get(reverse("admin:delayq_job_change", args=[other.id])).content.decode()


def test_the_page_of_the_queue_has_a_table_of_its_partitions(divide, admin_client):
    divide(3)
    stores.queue("orders", 1).pause(reason="x")
    page = admin_client.get(reverse("admin:delayq_queue_change", args=["orders"])).content.decode()
    assert page.count('<th scope="row">') >= 3
    assert '<details id="partitions"' in page
    divide(1)
    page = admin_client.get(reverse("admin:delayq_queue_change", args=["orders"])).content.decode()
    assert '<details id="partitions"' not in page


def test_why_it_has_not_run_yet_says_that_its_partition_is_paused(divide):
    divide(3)
    jobs = [delayq.schedule(close_order, n) for n in range(30)]
    fold()
    stores.queue("orders", 1).pause(actor="ann", reason="x")
    told = {ids.partition(job.id): "has been paused" in said("inspect", job.short_id) for job in jobs}
    assert told == {0: False, 1: True, 2: False}


def test_doctor_says_when_former_partitions_are_still_needed_and_when_they_may_go(divide):
    divide(4)
    jobs = [delayq.schedule(close_order, n, delay="1h", key=f"o:{n}") for n in range(40)]
    fold()
    divide(2, 4)
    assert "still needed" in findings()["D028"]
    divide(2)
    assert "Jobs of 'orders' in partitions" in findings()["D026"]
    divide(2, 4)
    assert [job.cancel() for job in jobs] == ["done"] * 40
    assert "You can remove FORMER_PARTITIONS" in findings()["D027"]
    divide(2)
    assert not {"D026", "D027", "D028"} & findings().keys()


@pytest.mark.parametrize("bound", [{"key": "o:1"}, {"serial": "o:1"}, {}], ids=["key", "name", "neither"])
def test_doctor_says_that_former_partitions_are_needed_by_jobs_that_only_the_database_has(divide, bound, settings):
    divide(8)
    assert conf.get().queue("orders").homes("o:1") == (4,)
    redis = settings.DELAYQ["REDIS"]
    lose_redis(settings)
    jobs = [delayq.schedule(close_order, n, delay="1h", **bound) for n in range(1 if bound else 30)]
    settings.DELAYQ = {**settings.DELAYQ, "REDIS": redis}
    divide(4, 8)
    apart = sum(ids.partition(job.id) >= 4 for job in jobs)
    assert f"Unpublished and far jobs that go to former partitions: {apart}." in findings()["D028"]
    assert "D027" not in findings()
    Job.objects.filter(partition__gte=4).update(state="cancelled")
    assert "You can remove FORMER_PARTITIONS" in findings()["D027"]


@pytest.mark.parametrize("wiped", [False, True])
def test_doctor_finds_jobs_that_are_left_by_their_rows_and_by_redis(divide, redis_server, wiped):
    divide(4)
    jobs = [delayq.schedule(close_order, n, delay="1h") for n in range(40)]
    left = sum(ids.partition(job.id) > 0 for job in jobs)
    fold()
    if wiped:
        redis_server.link.execute("FLUSHALL")
    else:
        Checkpoint.objects.filter(partition__gt=0).delete()  # as without a mirror
    divide(1)
    assert f"FORMER_PARTITIONS do not include: {left}." in findings()["D026"]


def test_records_of_all_partitions_are_restored_by_the_command(divide, redis_server):
    divide(3)
    delayq.schedule_many(close_order.using(delay="1h").bind(n) for n in range(600))
    fold()
    said("restore", "--yes")
    redis_server.link.execute("FLUSHALL")
    said("restore", "--yes")
    assert [depth.scheduled for depth in stores.inspector().by_partition(["orders"])[0]] == [200, 200, 200]
    assert claim() == []


@pytest.mark.parametrize(
    "own", [{}, {"REDIS": "redis+cluster://ann:s3cret@n1:1,n2:1"}, {"REDIS": {"URL": "redis://ann:s3cret@n1:1/0"}}]
)
def test_settings_in_force_tell_no_password(settings, own):
    settings.DELAYQ = {**settings.DELAYQ, "REDIS": "redis://bob:s3cret@n0:1/3", "QUEUES": {"orders": own}}
    told = {setting.name: setting.value for setting in effective_settings.of_queue(conf.get().queue("orders"))}
    assert "s3cret" not in str(told)
    assert ("n1:1" if own else "n0:1, db 3") in told["REDIS"]


@pytest.mark.parametrize("redis", ["embedded", {"EMBEDDED": "/nowhere"}])
def test_settings_in_force_of_an_embedded_server(settings, redis):
    settings.DELAYQ = {**settings.DELAYQ, "REDIS": redis, "QUEUES": {"orders": {}}}
    assert ("REDIS", "embedded", "") in effective_settings.of_queue(conf.get().queue("orders"))
