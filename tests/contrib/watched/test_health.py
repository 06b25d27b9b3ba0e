"""The health of the queues as load balancers and people see it."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client

from django_delayq.models import Periodic
from django_delayq.periodic import schedules
from django_delayq.producer.stores import stores
from tests.contrib.watched.conftest import Staff, waiting
from tests.management.conftest import Shop, beat, lose_redis, without_database
from tests.tasks_for_tests import close_order

pytestmark = pytest.mark.usefixtures("watched")


def got(client: Client, path: str) -> tuple[int, Any]:
    answer = client.get(path)
    assert "no-store" in answer["Cache-Control"]
    return answer.status_code, answer.json()


def levels(client: Client) -> tuple[int, dict[str, str]]:
    status, said = got(client, "/health/")
    assert said["well"] == (status == 200)
    return status, {sign["name"]: sign["level"] for sign in said["signs"]}


def test_a_process_that_answers_lives_whatever_else_is_away(settings, monkeypatch, delayq_redis, transactional_db) -> None:
    lose_redis(settings)
    without_database(settings, monkeypatch)
    assert got(Client(), "/health/live") == (200, {"live": True})


def test_who_keeps_what_it_schedules_is_ready(orders: Shop, settings, monkeypatch) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "QUEUES": {"orders": {}}}
    assert got(Client(), "/health/ready") == (200, {"ready": True, "database": True, "redis": True})
    lose_redis(settings)
    assert got(Client(), "/health/ready") == (200, {"ready": True, "database": True, "redis": False}), "rows wait for Redis"
    without_database(settings, monkeypatch)
    assert got(Client(), "/health/ready") == (503, {"ready": False, "database": False, "redis": False})


def test_jobs_that_are_in_redis_alone_need_it(orders: Shop, settings) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "QUEUES": {"orders": {}, "fast": {"DURABILITY": "redis"}}}
    assert got(Client(), "/health/ready")[0] == 200
    lose_redis(settings)
    assert got(Client(), "/health/ready") == (503, {"ready": False, "database": True, "redis": False})


@pytest.mark.parametrize("gone", ["shared", "own"])
def test_who_puts_jobs_into_redis_alone_needs_the_server_of_their_queue(orders: Shop, settings, own_redis, gone: str) -> None:
    servers = {"shared": own_redis(), "own": own_redis()}
    fast = {"DURABILITY": "redis", "REDIS": servers["own"].url}
    settings.DELAYQ = {**settings.DELAYQ, "REDIS": servers["shared"].url, "QUEUES": {"orders": {}, "fast": fast}}
    assert got(Client(), "/health/ready")[0] == 200
    servers[gone].terminate()
    assert got(Client(), "/health/ready")[0] == (503 if gone == "own" else 200)


def test_where_all_jobs_are_in_redis_alone_no_database_is_needed(orders: Shop, settings, monkeypatch) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "QUEUES": {"fast": {"DURABILITY": "redis"}}}
    without_database(settings, monkeypatch)
    assert got(Client(), "/health/ready") == (200, {"ready": True, "database": False, "redis": True})


@pytest.mark.slow
def test_a_database_that_hangs_is_none_and_holds_up_no_answer(delayq_redis, hanging_database, watcher: Client) -> None:
    assert got(Client(), "/health/ready") == (503, {"ready": False, "database": False, "redis": True})
    status, signs = levels(watcher)
    assert waiting(), "it hangs still"
    assert (status, signs["database"]) == (503, "bad")


@pytest.mark.slow
def test_a_redis_that_hangs_is_none_and_holds_up_no_answer(hanging, own_redis, transactional_db, settings, watcher: Client) -> None:
    server = own_redis()
    settings.DELAYQ = {**settings.DELAYQ, "REDIS": server.url}
    stores.reset()
    server.pause()
    assert got(Client(), "/health/ready")[1]["redis"] is False
    status, signs = levels(watcher)
    assert (status, signs["redis"]) == (503, "bad")
    server.resume()
    stores.reset()


def test_the_signs_are_those_of_the_dashboard(orders: Shop, watcher: Client, monkeypatch) -> None:
    status, signs = levels(watcher)
    assert (status, signs["workers"]) == (503, "bad"), "nobody works"
    beat("orders", "default", "redis")
    status, signs = levels(watcher)
    assert (status, signs["workers"], signs["outbox"]) == (200, "well", "well")
    orders.unpublished(monkeypatch, age=120)
    status, signs = levels(watcher)
    assert (status, signs["outbox"]) == (200, "late"), "a warning takes nobody out"
    assert "schedules" not in signs
    schedules.create("nightly", close_order.name, cron="0 3 * * *", args=[1], actor="test")
    Periodic.objects.update(problem={"code": "task_unknown", "fields": {"name": "gone"}})
    status, signs = levels(watcher)
    assert (status, signs["schedules"]) == (503, "bad")


def test_without_the_database_only_that_is_bad(orders: Shop, watcher: Client, settings, monkeypatch) -> None:
    beat("orders", "default", "redis")
    without_database(settings, monkeypatch)
    status, signs = levels(watcher)
    assert status == 503
    assert {name for name, level in signs.items() if level == "bad"} == {"database"}


def test_the_signs_are_for_watchers_and_the_others_for_all(orders: Shop, staff: Staff) -> None:
    assert Client().get("/health/").status_code == 401
    assert staff("view_job").get("/health/").status_code == 403
    assert staff("view_queue").get("/health/").status_code in (200, 503)
    assert Client().get("/health/live").status_code == Client().get("/health/ready").status_code == 200
    assert Client().post("/health/ready").status_code == 405
