"""A queue with several partitions on a Cluster with one master down."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from unittest.mock import Mock

import pytest
from django.core.management import call_command
from django.db import InterfaceError
from django.test import RequestFactory
from django.urls import reverse

import django_delayq as delayq
from django_delayq import clock, conf, ids
from django_delayq.contrib.health import urls as health_urls
from django_delayq.exceptions import StoreUnavailable
from django_delayq.mirror.bring_in import BringInLoop
from django_delayq.models import Job, UncheckedKey
from django_delayq.producer.outbox import jobs
from django_delayq.producer.queues import purge
from django_delayq.producer.stores import stores
from django_delayq.store.connection.cluster import slot_of
from django_delayq.store.keys import tag
from tests.depths import queue_depth
from tests.partitioned import fold, restores
from tests.tasks_for_tests import close_order
from tests.topologies import ClusterServers

pytestmark = [pytest.mark.slow, pytest.mark.django_db(transaction=True)]
PARTITIONS = 16


@pytest.fixture
def cluster(settings) -> Iterator[ClusterServers]:
    with ClusterServers(cluster_require_full_coverage="no", cluster_node_timeout="60000") as cluster:
        queues = {"orders": {"PARTITIONS": PARTITIONS}}
        settings.DELAYQ = {**settings.DELAYQ, "REDIS": cluster.root_url, "QUEUES": queues}
        yield cluster
        stores.reset()


def lose(cluster: ClusterServers, number: int = 0) -> list[int]:
    """Kills the master of that partition. Returns all jobs that it had."""
    gone = cluster.serving(slot_of(f"{{{tag('orders', number)}}}"))
    lost = [n for n in range(PARTITIONS) if cluster.serving(slot_of(f"{{{tag('orders', n)}}}")) is gone]
    gone.kill()
    return lost


def test_the_page_of_the_queue_says_what_is_away_and_not_that_all_is(cluster, admin_client):
    assert cluster.serving(slot_of("{workers}")) is cluster.serving(slot_of("{orders}")), "the workers are away with it"
    lost = lose(cluster)
    page = admin_client.get(reverse("admin:delayq_queue_change", args=["orders"])).content.decode()
    assert f"{len(lost)} of {PARTITIONS} partitions cannot be reached." in page
    assert "this page shows what the database knows" not in page
    assert "No worker serves this queue." not in page
    assert '<p class="delayq-hint delayq-none">cannot be reached</p>' in page


def test_the_clock_is_that_of_another_partition_then_that_of_the_database_and_at_last_that_of_this_host(cluster, monkeypatch):
    lose(cluster)
    monkeypatch.setattr(clock, "wall_ms", lambda: 7)
    monkeypatch.setattr(jobs, "now_ms", lambda: 8)
    assert stores.now_ms("orders") > 8
    for node in cluster.masters:
        node.kill()
    assert stores.now_ms("orders") > 8, "it is known for a minute"
    stores.forget_clock()
    assert stores.now_ms("orders") == 8
    monkeypatch.setattr(jobs, "now_ms", Mock(side_effect=InterfaceError("closed")))
    stores.forget_clock()
    assert stores.now_ms("orders") == 7


def test_a_process_is_ready_when_all_partitions_take_jobs_of_redis_durability(cluster, settings):
    def ready() -> int:
        return health_urls.ready(RequestFactory().get("/")).status_code

    assert ready() == 200
    assert 0 not in lose(cluster, 4)
    assert ready() == 200, "these jobs have rows"
    orders = {"PARTITIONS": PARTITIONS, "DURABILITY": "redis"}
    settings.DELAYQ = {**settings.DELAYQ, "QUEUES": {"orders": orders}}
    assert ready() == 503
    settings.DELAYQ = {**settings.DELAYQ, "QUEUES": {"orders": {**orders, "PARTITIONS": 1}}}
    assert ready() == 200, "the first one is there"


def test_far_jobs_of_the_partitions_that_answer_are_brought_in_and_their_keys_asked_about(cluster, settings):
    settings.DELAYQ = {**settings.DELAYQ, "QUEUES": {"orders": {"PARTITIONS": PARTITIONS, "HORIZON": "1h"}}}
    loop = BringInLoop(stores.places, conf.get().queue("orders"), prefix="delayq", young=-3600)
    loop.poll()
    lost = lose(cluster)
    assert 0 in lost, "the first one is away"
    jobs = [delayq.schedule(close_order, n, delay="2h", key=f"o:{n}" if n % 2 else "") for n in range(4 * PARTITIONS)]
    away = {job.id for job in jobs if ids.partition(job.id) in lost}
    assert Job.objects.filter(far=True).count() == len(jobs)
    assert 0 < len(away) < len(jobs)
    keyed = {job.id for job in jobs[1::2]}
    UncheckedKey.objects.bulk_create([UncheckedKey(job_id=id, queue="orders") for id in keyed], ignore_conflicts=True)
    Job.objects.update(run_at=clock.now() + timedelta(minutes=30))
    loop.poll()
    assert set(Job.objects.filter(far=True).values_list("id", flat=True)) == away
    assert set(UncheckedKey.objects.values_list("job_id", flat=True)) == away & keyed


def test_rows_that_redis_does_not_have_are_purged_but_for_those_whose_master_is_away(cluster):
    jobs = [delayq.schedule(close_order, n, delay="2h") for n in range(4 * PARTITIONS)]
    for node in cluster.masters:
        node.call("FLUSHALL")
    Job.objects.update(published=None)
    lost = lose(cluster)
    with pytest.raises(StoreUnavailable):
        sum(purge("orders"))
    left = {job.id for job in jobs if ids.partition(job.id) in lost}
    assert 0 < len(left) < len(jobs)
    assert set(Job.objects.filter(state="scheduled").values_list("id", flat=True)) == left
    assert Job.objects.filter(state="cancelled").count() == len(jobs) - len(left)


def test_doctor_goes_on_with_the_masters_that_answer(cluster, settings):
    def findings() -> dict[str, list[str]]:
        out, found = io.StringIO(), dict[str, list[str]]()
        with suppress(SystemExit):
            call_command("delayq", "doctor", "--json", stdout=out)
        for one in json.loads(out.getvalue())["findings"]:
            found.setdefault(one["code"], []).append(one["message"])
        return found

    orders = {"PARTITIONS": PARTITIONS, "FORMER_PARTITIONS": [4]}
    settings.DELAYQ = {**settings.DELAYQ, "QUEUES": {"orders": orders}}
    delayq.pause("orders", actor="kim", reason="x")
    assert "D027" in findings()
    lose(cluster)
    found = findings()
    assert len(found["D007"]) == 1
    assert found["D005"][0].startswith("The queue 'orders' is paused")
    assert "D027" not in found, "nobody knows what is where nobody answers"
    for node in cluster.masters:
        node.kill()
    assert "D005" not in findings()


def test_restore_brings_back_what_answers_and_the_rest_when_that_is_there_again(cluster, run):
    jobs = [delayq.schedule(close_order, n, delay="1h", queue="orders") for n in range(64)]
    fold()
    for node in cluster.masters:
        assert node.call("FLUSHALL").startswith("+OK")
    for loop in restores():
        loop.auto = False
        loop.poll()
    gone = cluster.serving(slot_of("{orders}"))
    lost = lose(cluster)
    there = [job for job in jobs if ids.partition(job.id) not in lost]
    answer = run("restore", "--yes", "--json")
    assert (answer.code, answer.json["rows"], answer.json["back"]) == (1, len(there), len(there))
    assert sorted(answer.json["missing"]) == sorted(f"orders/{number}" for number in lost)
    assert answer.json["resumed"] == ["orders"], "as far as it is back"
    stores.forget()
    depth, _ = stores.from_each(["orders"], lambda reach: queue_depth("orders", stores.inspector(reach)))
    assert (depth.scheduled, depth.paused) == (len(there), False)
    gone.start()
    stores.reset()
    for loop in restores():
        loop.auto = False
        loop.poll()
    answer = run("restore", "--yes", "--json")
    assert (answer.code, answer.json["back"], answer.json["missing"]) == (0, len(jobs) - len(there), {})
    [depths] = stores.inspector().by_partition(["orders"])
    assert (sum(depth.scheduled for depth in depths), any(depth.paused for depth in depths)) == (64, False)
