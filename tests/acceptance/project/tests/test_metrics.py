"""The metrics that Prometheus reads at the project's URL match the contents of the queues."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from django.conf import settings
from django.test import Client
from orders.models import Order
from orders.tasks import remind
from scraped import Scraped

from django_delayq.testing.kit import Kit

NewOrder = Callable[..., Order]


def scrape(client: Client) -> Scraped:
    answer = client.get("/metrics", headers={"Authorization": f"Bearer {settings.DELAYQ['METRICS_TOKEN']}"})
    assert answer.status_code == 200, answer.content
    return Scraped(answer.content.decode())


def test_jobs_are_counted_by_where_they_are(client: Client, delayq: Kit, new_order: NewOrder) -> None:
    client.post("/orders/", {"total": 7})  # a reminder in 20 minutes, the close in 30
    told = scrape(client)
    assert told.of("delayq_jobs_delayed", queue="orders") == told.of("delayq_jobs", queue="orders", state="scheduled") == 2
    assert told.of("delayq_jobs_due") == told.of("delayq_oldest_late_seconds") == 0

    remind.using(max_attempts=1).schedule(new_order(email="").pk)
    told = scrape(client)
    assert (told.of("delayq_jobs_due", queue="orders"), told.of("delayq_jobs_delayed", queue="orders")) == (1, 2)

    delayq.run_due()
    told = scrape(client)
    assert told.of("delayq_jobs", queue="orders", state="failed") == 1
    assert told.of("delayq_jobs_due") == 0


def test_jobs_that_wait_for_another_try_are_told(client: Client, delayq: Kit, new_order: NewOrder) -> None:
    remind.schedule(new_order(email="").pk)
    delayq.run_due()
    told = scrape(client)
    assert told.of("delayq_jobs_retrying", queue="orders") == told.of("delayq_jobs_delayed", queue="orders") == 1


def test_each_queue_of_the_settings_is_told_of(client: Client, delayq: Kit) -> None:
    told = scrape(client)
    assert {has["queue"] for name, has, _ in told.samples if name == "delayq_jobs_due"} == set(settings.DELAYQ["QUEUES"])
    assert [told.of("delayq_up", part=part) for part in ("redis", "database")] == [1, 1]


def test_without_redis_that_is_told(client: Client, delayq: Kit) -> None:
    with delayq.redis_down():
        told = scrape(client)
    assert [told.of("delayq_up", part=part) for part in ("redis", "database")] == [0, 1]
    assert told.of("delayq_jobs_due") is None


@pytest.mark.parametrize("sent", [{}, {"Authorization": "Bearer of-another-shop"}])
def test_who_shows_no_token_reads_nothing(client: Client, delayq: Kit, sent: dict[str, str]) -> None:
    answer = client.get("/metrics", headers=sent)
    assert (answer.status_code, b"delayq_" in answer.content) == (401, False)


def test_a_load_balancer_is_told_whether_orders_are_kept(client: Client, delayq: Kit) -> None:
    assert client.get("/health/ready").status_code == 200
    with delayq.redis_down():
        assert client.get("/health/ready").status_code == 200, "durable jobs wait as rows"
