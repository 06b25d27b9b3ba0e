"""Deliveries and offers that programs request: the targets that a token may name, and the results."""

from __future__ import annotations

from typing import Any

import pytest

from django_delayq import conf
from django_delayq.contrib.gateway import openapi, tokens
from django_delayq.contrib.http import verify
from django_delayq.exceptions import ConfigError
from django_delayq.models import Job
from django_delayq.producer.stores import stores
from django_delayq.producer.task import registry
from django_delayq.targets import delivery
from tests.contrib.gateway.conftest import refused
from tests.targets import conftest as deliveries
from tests.targets.offers.conftest import TARGETS
from tests.targets.offers.conftest import TASK as OFFERS
from tests.targets.receivers import answer

SECRET = deliveries.SECRET
backend, host, http = deliveries.backend, deliveries.host, deliveries.http  # its fixtures
SITE = "https://partner.example"
NOWHERE = f"{SITE}/hook"


@pytest.fixture(autouse=True)
def targets(backend: None, settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry._tasks, OFFERS.name, OFFERS)
    settings.DELAYQ = {**settings.DELAYQ, "TARGETS": TARGETS}


def test_a_delivery_is_sent_and_signed_with_what_the_token_may_send_there(delayq, make, host):
    partner = host(answer(200, "thanks"))
    caller = make(secrets=[f"partner={partner.url()}"])
    body = {"url": partner.url("/hook"), "json": {"order": 7}, "secret": "partner", "headers": {"X-Shop": "1"}, "key": "o:7"}
    told = caller.post("deliveries", body, key="one")
    assert told.status_code == 201, told.content
    assert caller.post("deliveries", body, key="one").json() == told.json()
    (ran,) = delayq.advance("1s")
    assert ran.outcome == "ack"
    (request,) = partner.requests
    assert (request.line, request.json, request.headers["x-shop"]) == ("POST /hook HTTP/1.1", {"order": 7}, "1")
    assert verify(request.headers, SECRET, body=request.body).id == told.json()["id"]
    row = Job.objects.get()
    assert (row.state, row.key, row.meta["scheduled_by"]) == ("succeeded", "o:7", "token:partner")


def test_a_secret_goes_into_a_header_of_the_host_for_which_the_token_has_it(delayq, make, host, http):
    http(SECRETS={"key": "open sesame"})
    partner, thief = host(answer(200)), host(answer(200))
    caller = make(secrets=[f"key={partner.url()}"])
    headers = {"Authorization": {"secret": "key", "prefix": "Bearer "}}
    refused(caller.post("deliveries", {"url": thief.url(), "headers": headers}), 403, "secret_denied", "/headers/Authorization/secret")
    assert caller.post("deliveries", {"url": partner.url(), "headers": headers}).status_code == 201
    delayq.advance("1s")
    assert partner.requests[0].headers["authorization"] == "Bearer open sesame"
    assert thief.requests == []


@pytest.mark.parametrize("body", [{"text": "é"}, {"base64": "AP8="}, {"json": None}, {}], ids=str)
def test_the_body_arrives_as_it_was_given(delayq, make, host, body):
    partner = host(answer(200))
    assert make().post("deliveries", {"url": partner.url(), "method": "PUT", **body}).status_code == 201
    delayq.advance("1s")
    expected = {"text": "é".encode(), "base64": b"\x00\xff", "json": b"null", "": b""}
    assert partner.requests[0].body == expected[next(iter(body), "")]


def test_the_guard_holds_for_deliveries_of_programs_too(delayq, make, host, http):
    http(ALLOW=[])
    partner = host(answer(200))
    assert make().post("deliveries", {"url": partner.url()}).status_code == 201
    delayq.advance("1s")
    assert partner.requests == []
    assert Job.objects.get().state == "failed"


@pytest.mark.parametrize(
    ("lists", "named"),
    [
        ([], "partner"),
        (["partner=https://other.example"], "partner"),
        (["partner=http://partner.example"], "partner"),
        (["partner=https://partner.example:8443"], "partner"),
        ([f"partner={SITE}"], "other"),
        ([f"partner={SITE}"], "*"),
        ([f"partner={SITE}"], f"partner={SITE}"),
    ],
    ids=str,
)
def test_a_secret_that_the_token_does_not_list_for_this_host_is_403(caller, make, lists, named):
    token = make("other", secrets=lists)
    refused(token.post("deliveries", {"url": NOWHERE, "secret": named}), 403, "secret_denied", "/secret")
    header = {"url": NOWHERE, "headers": {"X-Key": {"secret": named}}}
    refused(token.post("deliveries", header), 403, "secret_denied", "/headers/X-Key/secret")
    assert not Job.objects.exists()


def test_a_secret_that_the_project_has_no_more_tells_nothing_of_the_others(make, http):
    token = make(secrets=[f"partner={SITE}"])
    http(SECRETS={"partners": SECRET})
    told = refused(token.post("deliveries", {"url": NOWHERE, "secret": "partner"}), 403, "secret_denied", "/secret")
    assert "partners" not in str(told)


@pytest.mark.parametrize(
    ("body", "code", "place"),
    [
        ({"url": "ftp://partner.example"}, "url_refused", "/url"),
        ({"url": "https://me:you@partner.example"}, "url_refused", "/url"),
        ({"url": "https://a b"}, "url_refused", "/url"),
        ({"url": NOWHERE, "json": 1, "text": "x"}, "field_value", "/text"),
        ({"url": NOWHERE, "base64": "!"}, "field_value", "/base64"),
        ({"url": NOWHERE, "method": "TRACE"}, "field_value", "/method"),
        ({"url": NOWHERE, "redirects": 11}, "field_value", "/redirects"),
        ({"url": NOWHERE, "timeout": "x"}, "field_value", "/timeout"),
        ({"url": NOWHERE, "timeout": 0}, "options", ""),
        ({"url": NOWHERE, "headers": {"X-A": 5}}, "field_type", "/headers/X-A"),
        ({"url": NOWHERE, "headers": {"X-A": {}}}, "field_missing", "/headers/X-A/secret"),
        ({"url": NOWHERE, "headers": {"X-A": {"secret": "a", "x": 1}}}, "field_unknown", "/headers/X-A/x"),
        ({"url": NOWHERE, "headers": {"Authorization": "Bearer abc"}}, "options", ""),
        ({"url": NOWHERE, "headers": {"a b": "c"}}, "options", ""),
        ({"url": NOWHERE, "queue": "nowhere"}, "queue_unlisted", "/queue"),
        ({"url": NOWHERE, "delay": "x"}, "field_value", "/delay"),
        ({}, "field_missing", "/url"),
    ],
    ids=str,
)
def test_a_delivery_that_cannot_be_is_422_with_its_place(caller, body, code, place):
    refused(caller.post("deliveries", body), 422, code, place)
    assert not Job.objects.exists()


def test_a_delivery_that_is_too_large_is_413(caller):
    refused(caller.post("deliveries", {"url": NOWHERE, "text": "x" * 70_000}), 413, "payload_size", "")


def test_without_http_in_the_settings_there_are_no_deliveries(caller, settings):
    settings.DELAYQ = {name: value for name, value in settings.DELAYQ.items() if name != "HTTP"}
    refused(caller.post("deliveries", {"url": NOWHERE}), 409, "no_deliveries")


def test_deliveries_and_offers_go_into_queues_of_the_token_only(make):
    outsider = make(queues=["orders"], targets=["*"])
    refused(outsider.post("deliveries", {"url": NOWHERE}), 403, "queue_denied", "/queue")
    refused(outsider.post("offers", {"to": "shipping", "message": 1}), 403, "queue_denied", "/queue")
    assert outsider.post("deliveries", {"url": NOWHERE, "queue": "orders"}).status_code == 201
    assert outsider.post("offers", {"to": "shipping", "message": 1, "queue": "orders"}).status_code == 201
    assert set(Job.objects.values_list("queue", flat=True)) == {"orders"}


def test_an_offer_arrives_at_a_target_that_the_token_lists(delayq, make):
    caller = make(targets=["shipping"])
    told = caller.post("offers", {"to": "shipping", "message": {"order": 7}, "delay": "10m"})
    assert told.status_code == 201, told.content
    refused(caller.post("offers", {"to": "invoices", "message": 1}), 403, "target_denied", "/to")
    refused(make("none").post("offers", {"to": "shipping", "message": 1}), 403, "target_denied", "/to")
    delayq.advance("10m")
    assert Job.objects.get().state == "succeeded"
    ((_, entry),) = stores.link.execute("XRANGE", conf.get().targets["shipping"].key, "-", "+")
    assert told.json()["id"].encode() in entry


def test_an_offer_to_what_is_listed_nowhere_is_422_and_tells_no_other_target(make):
    told = refused(make(targets=["*"]).post("offers", {"to": "shippin", "message": 1}), 422, "target_unlisted", "/to")
    assert "shipping" not in str(told)


@pytest.mark.parametrize(
    "wrong",
    [
        {"secrets": ["partner"]},
        {"secrets": ["partner="]},
        {"secrets": ["=https://partner.example"]},
        {"secrets": ["partner=partner.example"]},
        {"secrets": ["partner=https://me:you@partner.example"]},
        {"secrets": ["nobody=https://partner.example"]},
        {"targets": ["nowhere"]},
    ],
    ids=str,
)
def test_a_token_with_secrets_or_targets_that_cannot_be_is_not_made(make, wrong):
    with pytest.raises(ConfigError):
        make(**wrong)


def test_a_rotation_keeps_secrets_and_targets(make):
    make(secrets=[f"partner={NOWHERE}"], targets=["shipping"])
    fresh, _ = tokens.rotate("partner")
    assert (fresh.secrets, fresh.targets) == ([f"partner={SITE}"], ["shipping"])


def test_a_token_of_the_release_before_names_no_secret_and_no_target(caller):
    tokens.Token.objects.update(secrets=None, targets=None)
    refused(caller.post("deliveries", {"url": NOWHERE, "secret": "partner"}), 403, "secret_denied", "/secret")
    refused(caller.post("offers", {"to": "shipping", "message": 1}), 403, "target_denied", "/to")


def test_the_schema_says_what_deliver_takes():
    assert delivery.METHODS == openapi.METHODS
    assert delivery.MOST_REDIRECTS == openapi.MOST_REDIRECTS
