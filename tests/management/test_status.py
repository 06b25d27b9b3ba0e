"""`delayq status`."""

from __future__ import annotations

import pytest

from django_delayq import clock
from django_delayq.models import Job
from django_delayq.store.scripts import decode
from tests.management.conftest import beat, lose_redis, without_database


def row(answer, queue: str = "orders"):
    return next(found for found in answer.json["queues"] if found["queue"] == queue)


@pytest.fixture
def busy(orders) -> None:
    """One running, one failed, one retrying, one due, two later."""
    orders.settle(orders.claim_one(), "retry", delay=3_600_000)
    orders.ended("fail")
    orders.running()
    orders.scheduled(2)
    orders.scheduled(delay=0)


def test_status_counts_each_queue(run, busy):
    answer = run("status")
    assert answer.code == 0
    assert answer.lines[0].split() == [
        "queue",
        "scheduled",
        "due",
        "running",
        "retrying",
        "failed",
        "oldest",
        "late",
        "workers",
        "mirror",
        "behind",
    ]
    assert [line.split()[:6] for line in answer.lines[1:4]] == [
        ["default", "0", "0", "0", "0", "0"],
        ["orders", "4", "1", "1", "1", "1"],
        ["redis", "0", "0", "0", "0", "0"],
    ]


def test_status_as_json(run, busy):
    answer = run("status", "--json")
    assert answer.code == 0
    assert (answer.json["redis"], answer.json["database"], answer.json["unpublished"]) == ("", "", 0)
    wanted = {"scheduled": 4, "due": 1, "running": 1, "retrying": 1, "failed": 1, "paused_ms": 0, "workers": 0}
    assert {name: row(answer)[name] for name in wanted} == wanted
    assert "rows" not in answer.json


def test_status_says_that_no_worker_runs_and_how_to_start_one(run, orders):
    assert "No worker is running. To start one, run manage.py delayq_worker" in run("status").out


def test_status_counts_the_workers_of_each_queue(run, orders):
    beat("orders", "default")
    beat("orders", worker="host:2:w")
    answer = run("status", "--json")
    assert (row(answer)["workers"], row(answer, "default")["workers"], row(answer, "redis")["workers"]) == (2, 1, 0)
    assert [worker["id"] for worker in answer.json["workers"]] == ["host:1:w", "host:2:w"]
    assert "No worker" not in run("status").out


def test_status_leaves_out_a_worker_that_fell_silent(run, orders, monkeypatch):
    beat("orders")
    later = clock.wall_ms() + 31_000
    monkeypatch.setattr(decode, "time_ms", lambda _: later)
    assert run("status", "--json").json["workers"] == []


def test_status_shows_who_paused_a_queue_and_why(run, orders):
    orders.store.pause(actor="clerk", reason="stocktaking", now_ms=1_900_000_000_000)
    assert "paused since 2030-03-17 12:46:40-05:00 by clerk: stocktaking" in run("status").out
    assert row(run("status", "--json"))["paused_reason"] == "stocktaking"


def test_status_says_how_far_the_mirror_is_behind(run, orders):
    orders.store.pause(now_ms=clock.wall_ms() - 90_000)
    assert "1 events" in run("status").out
    assert row(run("status", "--json"))["mirror_lag_s"] >= 90


def test_status_says_how_late_the_oldest_job_is(run, orders):
    [job] = orders.scheduled()
    orders.store.reschedule(job.id, due_ms=clock.wall_ms() - 3_600_000)
    assert run("status").lines[2].split()[6].startswith("1h")


def test_status_tells_of_committed_jobs_that_redis_lacks(run, orders, monkeypatch):
    orders.unpublished(monkeypatch, age=60)
    orders.unpublished(monkeypatch, age=1)
    assert "Committed jobs that are not in Redis yet: 1. The relay will publish them." in run("status").out
    assert run("status", "--json").json["unpublished"] == 1
    orders.unpublished(monkeypatch, age=60)
    assert "Committed jobs that are not in Redis yet: 2. The relay will publish them." in run("status").out


def test_status_without_redis_gives_what_the_database_knows(run, busy, settings):
    lose_redis(settings)
    answer = run("status")
    assert answer.code == 1
    assert answer.lines[0].startswith("Redis at unix:/nowhere/delayq.sock, db 0 is not available")
    assert answer.lines[1] == "From the database:"
    assert answer.lines[2].split() == ["queue", "scheduled", "running", "succeeded", "failed", "cancelled"]
    assert answer.lines[4].split() == ["orders", "4", "1", "0", "1", "0"]


def test_status_without_redis_gives_programs_the_same(run, busy, settings):
    lose_redis(settings)
    answer = run("status", "--json")
    assert answer.code == 1
    assert "is not available" in answer.json["redis"]
    assert answer.json["queues"] == []
    assert answer.json["rows"]["orders"] == {"scheduled": 4, "running": 1, "failed": 1, "cancelled": 0, "succeeded": 0}


def test_status_counts_rows_up_to_a_limit_only(run, busy, settings, monkeypatch):
    monkeypatch.setattr("django_delayq.console.overview.MOST_COUNTED", 2)
    lose_redis(settings)
    assert run("status").lines[4].split()[:3] == ["orders", "2+", "1"]
    assert Job.objects.filter(state="scheduled").count() == 4


def test_status_without_the_database_gives_what_redis_knows(run, busy, settings, monkeypatch):
    without_database(settings, monkeypatch)
    answer = run("status")
    assert answer.code == 1
    assert answer.lines[2].split()[:2] == ["orders", "4"]
    assert answer.lines[-1].startswith("The database cannot be read: ")
    as_json = run("status", "--json")
    assert as_json.code == 1
    assert row(as_json)["scheduled"] == 4
    assert as_json.json["unpublished"] is None
