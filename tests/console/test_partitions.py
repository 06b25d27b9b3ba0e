"""What people see of a queue with several partitions."""

from __future__ import annotations

import io
import json

import pytest
from django.core.management import call_command
from django.urls import reverse

import django_delayq as delayq
from django_delayq import conf, ids
from django_delayq.console import overview
from django_delayq.producer.stores import stores
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
    assert [part.scheduled for part in queue.parts] == [sum(ids.partition(job.id) == n for job in jobs) for n in range(3)]


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
    assert f"<dt>partition</dt><dd>{home}</dd>" in page
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
    told = {ids.partition(job.id): "is paused" in said("inspect", job.short_id) for job in jobs}
    assert told == {0: False, 1: True, 2: False}


def test_doctor_says_when_former_partitions_are_still_needed_and_when_they_may_go(divide):
    divide(4)
    jobs = [delayq.schedule(close_order, n, delay="1h", key=f"o:{n}") for n in range(40)]
    fold()
    divide(2, 4)
    assert "still needed" in findings()["D028"]
    divide(2)
    assert "jobs of 'orders' are in partitions" in findings()["D026"]
    divide(2, 4)
    assert [job.cancel() for job in jobs] == ["done"] * 40
    assert "may go" in findings()["D027"]
    divide(2)
    assert not {"D026", "D027", "D028"} & findings().keys()


def test_records_of_all_partitions_are_restored_by_the_command(divide, redis_server):
    divide(3)
    delayq.schedule_many(close_order.using(delay="1h").bind(n) for n in range(600))
    fold()
    said("restore", "--yes")
    redis_server.link.execute("FLUSHALL")
    said("restore", "--yes")
    assert [depth.scheduled for depth in stores.inspector().by_partition(["orders"])[0]] == [200, 200, 200]
    assert claim() == []
