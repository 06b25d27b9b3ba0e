"""The queues' metrics at a URL of the project, compared with the real state, and the access to them."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest
from django.contrib.auth.models import User
from django.test import Client

import django_delayq as delayq
from django_delayq import conf
from django_delayq.contrib.prometheus import urls as metrics_urls
from django_delayq.contrib.prometheus.metrics import OF_QUEUES
from django_delayq.models import Periodic
from django_delayq.periodic import schedules
from django_delayq.producer.stores import stores
from django_delayq.worker.hanging_calls import MOST_HANGING
from tests.contrib.watched.conftest import TOKEN, Staff, waiting
from tests.contrib.watched.scraped import OF_DIVIDED, Scraped
from tests.depths import queue_depth
from tests.management.conftest import Shop, beat, lose_redis, without_database
from tests.tasks_for_tests import close_order
from tests.worker.conftest import eventually

pytestmark = pytest.mark.usefixtures("watched")


def scraped(client: Client) -> Scraped:
    answer = client.get("/metrics")
    assert answer.status_code == 200, answer.content
    assert answer["Content-Type"].startswith("text/plain; version=0.0.4")
    return Scraped(answer.content.decode())


def test_the_queues_are_told_as_they_are(orders: Shop, watcher: Client) -> None:
    for _ in range(3):
        orders.ended("ack")
    orders.ended("fail")
    orders.scheduled(5)
    orders.scheduled(2, delay=0)
    seen = scraped(watcher)
    of = {"queue": "orders"}
    assert seen.of("delayq_up", part="redis") == seen.of("delayq_up", part="database") == 1
    scheduled, due, running, failed = (
        seen.of("delayq_jobs", **of, state="scheduled"),
        seen.of("delayq_jobs_due", **of),
        seen.of("delayq_jobs", **of, state="running"),
        seen.of("delayq_jobs", **of, state="failed"),
    )
    assert (scheduled, running, failed, due) == (7, 0, 1, 2)
    assert seen.of("delayq_jobs_delayed", **of) == 5
    assert seen.of("delayq_jobs_behind", **of) == 0
    assert seen.of("delayq_jobs_failed_lately", **of, within="1h") == seen.of("delayq_jobs_failed_lately", **of, within="1d") == 1
    assert seen.of("delayq_tombstones", **of) == 3
    assert seen.of("delayq_mirror_lag_events", **of) == 0
    assert seen.of("delayq_queue_paused", **of) == 0
    assert seen.of("delayq_redis_evicts") == 0
    assert {family.name for family in seen.families.values()} == set(OF_QUEUES) - OF_DIVIDED


def depth():
    return queue_depth("orders")


def test_lateness_pauses_retries_and_what_the_mirror_has_not_folded_are_told(orders: Shop, watcher: Client) -> None:
    orders.ended("retry")
    delayq.pause("orders", reason="stocktaking")
    delayq.schedule(close_order, 7, delay="1h")
    seen = scraped(watcher)
    of = {"queue": "orders"}
    assert seen.of("delayq_queue_paused", **of) == 1
    assert seen.of("delayq_jobs_retrying", **of) == depth().retrying == 1
    assert (seen.of("delayq_mirror_lag_events", **of) or 0) >= 2
    assert (seen.of("delayq_mirror_lag_jobs", **of) or 0) >= 1
    assert seen.of("delayq_queue_paused", queue="default") == 0


def test_workers_and_their_slots_are_told(orders: Shop, watcher: Client) -> None:
    beat("orders")
    seen = scraped(watcher)
    assert seen.of("delayq_workers", state="working") == 1
    assert seen.of("delayq_queue_workers", queue="orders") == 1
    assert seen.of("delayq_queue_workers", queue="default") == 0


def test_rows_that_redis_does_not_have_are_told_with_the_age_of_the_oldest(orders: Shop, watcher: Client, monkeypatch) -> None:
    assert scraped(watcher).of("delayq_outbox_rows", queue="orders") == 0
    for _ in range(2):
        orders.unpublished(monkeypatch, age=120)
    seen = scraped(watcher)
    assert seen.of("delayq_outbox_rows", queue="orders") == 2
    assert seen.of("delayq_outbox_rows", queue="default") == 0
    assert (seen.of("delayq_outbox_oldest_seconds") or 0) >= 120


def test_no_more_rows_are_counted_than_the_bound(orders: Shop, watcher: Client, monkeypatch) -> None:
    monkeypatch.setattr("django_delayq.console.health.MOST_COUNTED", 2)
    for _ in range(5):
        orders.unpublished(monkeypatch, age=120)
    assert scraped(watcher).of("delayq_outbox_rows", queue="orders") == 3


def test_schedules_that_make_no_jobs_are_told(orders: Shop, watcher: Client) -> None:
    def told() -> list[float]:
        seen = scraped(watcher)
        return [seen.of("delayq_schedules_wrong", why=why) for why in ("trouble", "late", "retired")]

    row = schedules.create("nightly", close_order.name, cron="0 3 * * *", args=[1], actor="test")
    assert told() == [0, 0, 0]
    Periodic.objects.update(write_at=row.write_at - timedelta(days=2))
    assert told() == [0, 1, 0]
    Periodic.objects.update(problem={"code": "task_unknown", "fields": {"name": "gone"}})
    assert told() == [1, 0, 0]
    Periodic.objects.update(retired_at=row.created_at)
    assert told() == [0, 0, 1]


def test_without_redis_what_the_database_knows_is_told(orders: Shop, watcher: Client, settings, monkeypatch) -> None:
    orders.unpublished(monkeypatch, age=120)
    lose_redis(settings)
    seen = scraped(watcher)
    assert (seen.of("delayq_up", part="redis"), seen.of("delayq_up", part="database")) == (0, 1)
    assert seen.of("delayq_outbox_rows", queue="orders") == 1
    assert "delayq_jobs" not in seen.families


def test_without_the_database_what_redis_knows_is_told(orders: Shop, watcher: Client, settings, monkeypatch) -> None:
    orders.scheduled(2)
    without_database(settings, monkeypatch)
    seen = scraped(watcher)
    assert (seen.of("delayq_up", part="redis"), seen.of("delayq_up", part="database")) == (1, 0)
    assert seen.of("delayq_jobs", queue="orders", state="scheduled") == 2
    assert "delayq_outbox_rows" not in seen.families


@pytest.mark.slow
def test_a_database_that_hangs_holds_up_no_answer(delayq_redis, watcher: Client, hanging_database) -> None:
    seen = scraped(watcher)
    assert waiting(), "it hangs still"
    assert (seen.of("delayq_up", part="redis"), seen.of("delayq_up", part="database")) == (1, 0)


def test_many_questions_that_hang_are_not_asked_again_and_again(delayq_redis, watcher: Client, hanging_database, monkeypatch) -> None:
    monkeypatch.setattr(metrics_urls, "TIMEOUT", 0.05)
    for _ in range(MOST_HANGING + 2):
        assert scraped(watcher).of("delayq_up", part="database") == 0
    assert eventually(lambda: scraped(watcher).of("delayq_up", part="redis")) == 1, "nor do they hold up others"
    eventually(lambda: len(waiting()) == MOST_HANGING)


@pytest.mark.slow
def test_a_redis_that_hangs_holds_up_no_answer(hanging, own_redis, transactional_db, watcher: Client, settings) -> None:
    server = own_redis()
    settings.DELAYQ = {**settings.DELAYQ, "REDIS": server.url}
    stores.reset()
    assert scraped(watcher).of("delayq_up", part="redis") == 1
    server.pause()
    seen = scraped(watcher)
    assert (seen.of("delayq_up", part="redis"), seen.of("delayq_up", part="database")) == (0, 1)
    server.resume()
    stores.reset()


# who may read the metrics


def test_who_says_nothing_is_asked_for_the_token(delayq_redis, transactional_db) -> None:
    answer = Client().get("/metrics")
    assert (answer.status_code, answer["WWW-Authenticate"]) == (401, "Bearer")
    assert b"METRICS_TOKEN" in answer.content


@pytest.mark.parametrize("given", [f"Bearer {TOKEN}x", f"bearer {TOKEN[:-1]}", "Bearer", "Bearer ", "BEARER None", "Bearer schlüssel"])
def test_a_wrong_token_is_refused(delayq_redis, transactional_db, given: str) -> None:
    answer = Client().get("/metrics", headers={"authorization": given})
    assert answer.status_code == 401
    assert TOKEN.encode() not in answer.content
    assert "invalid_token" in answer["WWW-Authenticate"]


@pytest.mark.parametrize("given", ["Basic c2FtOmRvZw==", f"Basic {TOKEN}", TOKEN, 'Digest username="sam"'])
def test_what_a_proxy_in_front_is_sent_is_no_token(orders: Shop, staff: Staff, given: str) -> None:
    for address in ("/metrics", "/health/"):
        answer = Client().get(address, headers={"authorization": given})
        assert (answer.status_code, answer["WWW-Authenticate"]) == (401, "Bearer")
        browser = staff("view_queue")
        usual = browser.get(address).status_code
        assert usual == {"/metrics": 200, "/health/": 503}[address], "no worker is there"
        assert browser.get(address, headers={"authorization": given}).status_code == usual
        assert browser.get(address, headers={"authorization": f"Bearer {TOKEN}x"}).status_code == 401


def test_where_no_token_is_set_none_is_right(delayq_redis, transactional_db, settings) -> None:
    settings.DELAYQ = {name: value for name, value in settings.DELAYQ.items() if name != "METRICS_TOKEN"}
    for given in ("Bearer None", "Bearer", f"Bearer {TOKEN}"):
        assert Client().get("/metrics", headers={"authorization": given}).status_code == 401


def test_staff_who_may_see_queues_may_read_them_and_others_may_not(orders: Shop, staff: Staff) -> None:
    assert staff("view_queue").get("/metrics").status_code == 200
    other = staff("view_job").get("/metrics")
    assert other.status_code == 403
    assert b"delayq.view_queue" in other.content
    customer = Client()
    customer.force_login(User.objects.create_user("customer", password="p", is_superuser=True))
    assert customer.get("/metrics").status_code == 403


def test_a_token_needs_neither_a_session_nor_a_database(delayq_redis, transactional_db, settings, monkeypatch, watcher) -> None:
    settings.MIDDLEWARE = []
    without_database(settings, monkeypatch)
    assert scraped(watcher).of("delayq_up", part="redis") == 1
    assert Client().get("/metrics").status_code == 401


def test_a_project_that_asks_for_logins_lets_the_token_in(orders: Shop, settings, watcher) -> None:
    settings.MIDDLEWARE = [*settings.MIDDLEWARE, "django.contrib.auth.middleware.LoginRequiredMiddleware"]
    assert watcher.get("/metrics").status_code == 200


def test_nobody_keeps_a_copy_and_nothing_but_reading_is_allowed(orders: Shop, watcher: Client) -> None:
    assert "no-store" in watcher.get("/metrics")["Cache-Control"]
    assert watcher.post("/metrics").status_code == 405
    assert watcher.head("/metrics").content == b""


def test_the_token_is_shown_nowhere(orders: Shop) -> None:
    assert TOKEN not in repr(conf.get())


@pytest.mark.parametrize("given", ["short", "", 7, "with spaces in the middle", ["a" * 20]])
def test_a_token_that_cannot_be_one_is_a_mistake_in_the_settings(settings, given) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "METRICS_TOKEN": given}
    (problem,) = conf.problems()
    assert (problem.code, problem.where) == ("E002", 'DELAYQ["METRICS_TOKEN"]')
    assert "at least 16 letters" in problem.message
    assert not re.search(r"with spaces in|aaaa", str(problem))
