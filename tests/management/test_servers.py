"""What commands say of queues on several servers."""

from __future__ import annotations

import pytest

import django_delayq as delayq
from django_delayq.producer.stores import stores
from tests.management.conftest import beat
from tests.tasks_for_tests import close_order


@pytest.fixture
def own(orders, own_redis, settings):
    """The server of `redis`; that of the others keeps what it is told, too."""
    server, shared = own_redis(appendonly="yes"), own_redis(appendonly="yes")
    queues = {**settings.DELAYQ["QUEUES"], "redis": {"DURABILITY": "redis", "REDIS": server.url}}
    settings.DELAYQ = {**settings.DELAYQ, "REDIS": shared.url, "QUEUES": queues}
    beat("default", "orders", "redis")
    return server


def test_status_says_which_queues_it_lacks(run, own):
    delayq.schedule(close_order, 1, delay="1h")
    assert run("status").code == 0
    own.kill()
    answer = run("status", "--json")
    assert answer.code == 1
    assert [queue["queue"] for queue in answer.json["queues"]] == ["default", "orders"]
    assert list(answer.json["missing"]) == ["redis"]
    assert "redis is left out: Redis at unix:" in run("status").out


def test_inspect_finds_a_job_while_another_server_is_away(run, own):
    job = delayq.schedule(close_order, 1, delay="1h", durability="redis", queue="orders")
    own.kill()
    answer = run("inspect", job.short_id)
    assert "scheduled" in answer.out


def test_doctor_judges_each_server(run, own):
    assert run("doctor", "--json").json == {"ok": True, "findings": []}
    stores.queue("redis", 0).link.execute("CONFIG", "SET", "appendonly", "no")
    assert [found["code"] for found in run("doctor", "--json").json["findings"]] == ["W010"]
    own.kill()
    [found] = run("doctor", "--json").json["findings"]
    assert (found["code"], found["hint"]) == ("D007", "Check REDIS of the queue 'redis', and that the server runs.")


def test_doctor_finds_what_a_queue_that_has_moved_left_behind(run, own, settings):
    moved = settings.DELAYQ
    settings.DELAYQ = {**moved, "QUEUES": {**moved["QUEUES"], "redis": {"DURABILITY": "redis"}}}
    delayq.schedule(close_order, 1, delay="1h", queue="redis")
    settings.DELAYQ = moved
    [found] = run("doctor", "--json").json["findings"]
    assert found["code"] == "D025"
    assert "1 of its jobs" in found["message"]
