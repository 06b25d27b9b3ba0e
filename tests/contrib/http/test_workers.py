"""Deliveries by real workers: what is sent once, and what is sent again."""

from __future__ import annotations

import time
from typing import Any

import pytest

from django_delayq import codec
from tests.contrib.http.conftest import SECRET
from tests.contrib.http.receivers import Exchange, answer, drop
from tests.worker.conftest import Shop, eventually, shop

__all__ = ["shop"]


def put(shop: Shop, *urls: str, **arguments: Any) -> list[str]:
    """Puts deliveries in; returns their ids."""
    now = int(time.time() * 1000)
    made = [
        shop.put(
            "django_delayq.deliver",
            payload=codec.encode_payload(
                (), {"url": url, "body": str(n), "since": now, **arguments}, None, limit=65536, task="deliver"
            ),
        )
        for n, url in enumerate(urls)
    ]
    return made


@pytest.fixture
def deliveries(shop: Shop) -> Shop:
    """The project delivers."""
    shop.settings["HTTP"] = {"ALLOW": ["127.0.0.0/8"], "SECRETS": {"partner": SECRET}, "BREAKER": None}
    return shop


def test_threads_of_a_worker_deliver_side_by_side_and_each_job_once(deliveries, host):
    partner = host(answer(200, "thanks"))
    ids = put(deliveries, *[partner.url()] * 60, secret="partner")
    assert deliveries.work("--burst", "--threads", "8", "--processes", "1").wait() == 0
    assert sorted(int(request.body) for request in partner.requests) == list(range(60))
    assert sorted(request.headers["webhook-id"] for request in partner.requests) == sorted(ids)
    assert partner.connections <= 8
    result = deliveries.detail(ids[0], "succeeded")["r"]
    assert (result["status"], result["answer"]) == (200, "thanks")


def test_a_delivery_whose_worker_was_killed_before_the_answer_is_sent_again_under_its_id(deliveries, host):
    def kill(exchange: Exchange) -> str:
        deliveries.workers[0].kill_tree()
        return drop(exchange)

    partner = host(kill, answer(200))
    deliveries.settings["LEASE"] = 5
    (id,) = put(deliveries, partner.url(), secret="partner")
    deliveries.work()
    eventually(lambda: partner.requests, "the first request")
    assert deliveries.workers[0].wait() != 0
    deliveries.work()
    eventually(lambda: "succeeded" in deliveries.happened(id), "the second attempt")
    assert [request.headers["webhook-id"] for request in partner.requests] == [id, id]


def test_what_was_answered_is_not_sent_again_when_its_worker_is_killed_behind_that(deliveries, host):
    partner = host(answer(200))
    (id,) = put(deliveries, partner.url())
    deliveries.work()
    eventually(lambda: "succeeded" in deliveries.happened(id))
    deliveries.workers[0].kill_tree()
    assert deliveries.work("--burst").wait() == 0
    assert len(partner.requests) == 1


def test_a_secret_is_in_no_log_of_a_worker_and_in_no_event(deliveries, host):
    deliveries.settings["HTTP"]["SECRETS"]["token"] = "very-secret-token"
    partner = host(answer(500, "very-secret-token"))
    headers = {"Authorization": {"secret": "token", "prefix": "Bearer "}}
    (id,) = put(deliveries, partner.url(), secret="partner", headers=headers)
    worker = deliveries.work("--verbosity", "2")
    eventually(lambda: "retried" in deliveries.happened(id))
    worker.kill_tree()
    assert partner.requests[0].headers["authorization"] == "Bearer very-secret-token"
    everything = worker.log.read_text() + str(deliveries.events())
    assert "answered 500" in str(deliveries.detail(id, "retried"))
    for secret in ("very-secret-token", SECRET.removeprefix("whsec_")):
        assert secret not in everything
