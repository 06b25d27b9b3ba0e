"""Deliveries by real workers: which are sent once, and which are sent again."""

from __future__ import annotations

import signal
import time
from typing import Any

import pytest

from django_delayq import codec
from django_delayq.console import target_figures
from django_delayq.store.scripts.worker_registry import WorkerRegistry
from tests.targets.conftest import SECRET
from tests.targets.receivers import Exchange, Says, answer, drop, half, hang
from tests.worker.conftest import Shop, eventually, shop

__all__ = ["shop"]


def put(shop: Shop, *urls: str, **arguments: Any) -> list[str]:
    """Schedules deliveries, and returns their ids."""
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
    """Turns deliveries on in the project."""
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


@pytest.mark.slow
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


@pytest.mark.slow
def test_what_was_answered_is_not_sent_again_when_its_worker_is_killed_behind_that(deliveries, host):
    partner = host(answer(200))
    (id,) = put(deliveries, partner.url())
    deliveries.work()
    eventually(lambda: "succeeded" in deliveries.happened(id))
    deliveries.workers[0].kill_tree()
    assert deliveries.work("--burst").wait() == 0
    assert len(partner.requests) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dies", "sent"),
    [
        pytest.param("settler.settle=kill@1", 2, id="killed before it was settled"),
        pytest.param("settler.settled=kill@1", 1, id="killed behind that"),
        pytest.param("settler.settled=lose@1", 1, id="the reply is lost"),
    ],
)
def test_a_2xx_is_sent_again_only_if_its_worker_dies_before_it_is_settled(deliveries, host, dies, sent):
    partner = host(answer(200))
    deliveries.environment["DELAYQ_FAILPOINTS_ONCE"] = str(deliveries.folder / "once")
    (id,) = put(deliveries, partner.url(), secret="partner")
    deliveries.work("--processes", "1", failpoints=dies)
    eventually((deliveries.folder / "once").exists, "the failpoint")
    eventually(lambda: deliveries.left() == 0)
    assert deliveries.happened(id)[-1] == "succeeded"
    assert [request.headers["webhook-id"] for request in partner.requests] == [id] * sent


@pytest.mark.slow
def test_a_worker_that_is_frozen_in_a_delivery_changes_nothing_when_it_thaws(deliveries, host):
    def freeze(exchange: Exchange) -> None:
        deliveries.workers[0].signal_tree(signal.SIGSTOP)
        answer(500)(exchange)

    partner = host(freeze, answer(200, "thanks"))
    deliveries.settings["LEASE"] = 5
    (id,) = put(deliveries, partner.url(), secret="partner")
    frozen = deliveries.work("--processes", "1")
    eventually(lambda: partner.requests, "the first request")
    deliveries.work()
    eventually(lambda: "succeeded" in deliveries.happened(id), "the second attempt")
    frozen.signal_tree(signal.SIGCONT)
    frozen.signal(signal.SIGTERM)
    assert frozen.wait() == 0
    assert deliveries.happened(id)[-1] == "succeeded"
    assert deliveries.detail(id, "succeeded")["r"]["answer"] == "thanks"
    assert [request.headers["webhook-id"] for request in partner.requests] == [id, id]


def begun(text: bytes) -> Says:
    """Sends a part of an answer, and then keeps the connection open."""

    def say(exchange: Exchange) -> str:
        half(text)(exchange)
        return hang(exchange)

    return say


def test_a_delivery_ends_before_the_timeout_of_its_queue_and_a_2xx_that_hangs_then_is_not_repeated(deliveries, host):
    taken, silent = host(begun(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nyes")), host(hang)
    deliveries.settings["TIMEOUT"] = "4s"  # READ, 15 s, is longer
    one, other = put(deliveries, taken.url(), silent.url())
    deliveries.work("--processes", "1", "--threads", "2")
    eventually(lambda: "succeeded" in deliveries.happened(one), "the one that was taken")
    eventually(lambda: "retried" in deliveries.happened(other), "the one that was not")
    assert deliveries.detail(one, "succeeded")["r"]["answer"] == "yes"
    assert deliveries.detail(other, "retried")["c"].endswith("DeliveryFailed")
    assert len(taken.requests) == 1


@pytest.mark.slow
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


def test_the_beat_tells_of_open_circuits_until_they_close_and_of_targets(deliveries, host):
    deliveries.settings["HTTP"] |= {"BREAKER": 2, "PAUSE": 1}
    deliveries.settings["TARGETS"] = {"shipping": {"KEY": "shipping-out", "KIND": "stream", "MAXLEN": 10}}
    partner = host(drop, drop, answer(200))
    put(deliveries, partner.url(), partner.url())
    deliveries.work("--processes", "1")
    registry = WorkerRegistry(deliveries.link, prefix="delayq")
    (said,) = eventually(lambda: [facts for facts in registry.all() if facts.get("circuits")], "the circuit is told")
    (circuit,) = target_figures.open_circuits([said])
    assert (circuit.host, circuit.worker) == ("127.0.0.1", said["id"])
    assert circuit.failures >= 2
    assert circuit.until_ms > 0
    assert said["targets"] == ["shipping"]
    eventually(lambda: [facts for facts in registry.all() if "circuits" not in facts], "it is told no more")
