"""The page of targets: hosts of deliveries, targets of offers, and the actions on their jobs."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from django.contrib.auth.models import Permission
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_delayq import clock, conf
from django_delayq.console import target_figures
from django_delayq.models import Attempt, Job, Operation
from django_delayq.producer.stores import stores
from django_delayq.states import DELIVERY, OFFER
from django_delayq.store.connection.error_replies import StoreError
from django_delayq.store.reads import queue_depth
from django_delayq.store.scripts.worker_registry import WorkerRegistry
from tests.admin.conftest import lose_redis, page, sent_live
from tests.admin.test_operations import work
from tests.links import opened

TARGETS = "/admin/delayq/target/"
LISTED = {
    "shipping": {"KEY": "shipping-out", "KIND": "stream", "MAXLEN": 100},
    "invoices": {"KEY": "invoices-out", "KIND": "list", "MAXLEN": None},
}


def works(worker: str = "host:1:w", **facts: Any) -> None:
    facts = {"queues": ["orders"], "processes": 1, "threads": 2, "busy": 0, "state": "working", **facts}
    WorkerRegistry(stores.link, prefix=conf.get().prefix).beat(worker, facts)


def delivery(host: str, state: str = "failed", *, minutes: int = 10, **fields: Any) -> Job:
    then = clock.now() - timedelta(minutes=minutes)
    kwargs = {"url": f"https://{host}/hook", "body": '{"host":"decoy.example"}', "since": 1, "host": host}
    common = {"queue": "orders", "task": DELIVERY, "kwargs": kwargs, "run_at": then, "created_at": then, "published": then}
    ended = {} if state == "scheduled" else {"started_at": then, "finished_at": then}
    return Job.objects.create(**common | ended | {"state": state} | fields)


def offered(to: str, state: str = "succeeded", **fields: Any) -> Job:
    return delivery("none", state, **{"task": OFFER, "args": [1], "kwargs": {"to": to}, **fields})


def rows(client: Any, table: str) -> dict[str, list[str]]:
    """Returns the cells of each row by column name, without the actions."""
    text = client.get(TARGETS).content.decode()
    [body] = re.findall(rf'<table id="{table}".*?<tbody>(.*?)</tbody>', text, re.S)
    found = {}
    for row in re.findall(r"<tr>(.*?)</tr>", body, re.S):
        cells = re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", re.sub(r'<div class="delayq-deeds">.*?</div>', "", row, flags=re.S), re.S)
        plain = [" ".join(re.sub(r"<[^>]+>", "", cell).split()) for cell in cells]
        found[plain[0].split(" ")[0]] = plain[1:]
    return found


@pytest.fixture
def targets(settings):
    settings.DELAYQ = {**settings.DELAYQ, "TARGETS": LISTED}


def test_hosts_are_counted_with_their_last_answer_and_how_long_they_took(orders, staff):
    failed = delivery("bad.example", minutes=5, error="DeliveryFailed: bad.example:443 answered 503 after 12 ms: no")
    problem = {"code": "answer", "fields": {"target": "bad.example:443", "status": 503, "ms": 12, "answer": "no"}}
    for number, outcome, told in ((1, "retried", None), (2, "failed", problem), (3, "snoozed", None)):
        Attempt.objects.create(
            job=failed, number=number, fence=str(number), worker="w", started_at=failed.run_at, outcome=outcome, problem=told
        )
    delivery("bad.example", "scheduled", attempts=2, error="x", started_at=failed.run_at - timedelta(hours=1))
    delivery("bad.example", "scheduled")
    for ms in (10, 30, 20):
        delivery("good.example", "succeeded", minutes=ms, result={"status": 202, "ms": ms, "answer": "", "complete": True})
    delivery("other.example", "failed", error="DeliveryFailed: other.example:80 could not be reached: refused.")
    seen = rows(staff(), "hosts")
    assert list(seen) == ["bad.example", "other.example", "good.example"]
    assert seen["bad.example"][:5] == ["closed", "1", "1", "1", "0"]
    assert seen["bad.example"][5].startswith("503 20")
    assert seen["good.example"][1:5] == ["0", "0", "0", "3"]
    assert seen["good.example"][5].startswith("202 ")
    assert seen["good.example"][7] == "20ms"
    assert seen["other.example"][5].startswith("DeliveryFailed: other.example:80 could not be reached")
    assert "decoy.example" not in seen


def test_a_host_is_found_wherever_it_stands_in_the_arguments(orders, staff):
    delivery("x", kwargs={"host": "edited.example", "url": "https://edited.example/"})
    delivery("x", kwargs={"url": "https://gone.example/"})
    assert list(rows(staff(), "hosts")) == ["edited.example"]


def test_who_says_that_a_circuit_is_open_is_named(orders, staff):
    delivery("bad.example", "succeeded")
    delivery("worst.example")
    now = clock.wall_ms()
    works(circuits=[{"target": "bad.example:8443", "failures": 7, "until": now + 90_500}])
    works("host:2:w", circuits=[{"target": "bad.example:8443", "failures": 5, "until": now - 1000}, {"target": 7}, "x"])
    seen = rows(staff(), "hosts")
    assert list(seen) == ["bad.example", "worst.example"]
    circuit = seen["bad.example"][0]
    assert re.search(
        r"open until [-\d]+ [:\d]+ ?[-+]\d\d:\d\d, 1m(30|29)s left bad.example:8443, 7 failures in a row, reported by host:1:w", circuit
    )
    assert "the next delivery is the probe bad.example:8443, 5 failures in a row, reported by host:2:w" in circuit


@pytest.mark.parametrize("told", [7, {"a": 1}, [[]], [{"target": "a:1", "until": "soon"}], [{"target": "a:1", "until": -5}]])
def test_what_is_no_circuit_breaks_no_page(orders, staff, told):
    works(circuits=told, targets=told)
    assert staff().get(TARGETS).status_code == 200


def test_targets_are_shown_with_their_lengths_and_their_readers(orders, staff, targets, redis_server):
    reader = opened(redis_server.url)
    for number in range(3):
        reader.execute("XADD", "shipping-out", "*", "id", number)
    reader.execute("RPUSH", "invoices-out", "a")
    offered("shipping")
    offered("shipping", "failed", error="OfferFailed: no")
    offered("shipping", "scheduled")
    offered("removed", "failed")
    works(targets=["shipping"])
    seen = rows(staff(), "offers")
    assert list(seen) == ["invoices", "removed", "shipping"]
    assert seen["shipping"][0] == "shipping-out stream"
    assert seen["shipping"][3:7] == ["1", "0", "1", "1"]
    assert seen["removed"][0] == "–"
    text = staff().get(TARGETS).content.decode()
    assert "not listed in TARGETS here" in text
    assert "not in TARGETS of host:1:w" in text
    reader.execute("DEL", "shipping-out", "invoices-out")


def test_lengths_and_groups_are_those_of_redis(targets, own_redis, settings):
    server = own_redis()
    link = opened(server.url)
    for number in range(3):
        link.execute("XADD", "shipping-out", f"{number + 1}-0", "id", number)
    link.execute("XGROUP", "CREATE", "shipping-out", "warehouse", "0")
    link.execute("XREADGROUP", "GROUP", "warehouse", "one", "COUNT", 1, "STREAMS", "shipping-out", ">")
    link.execute("SET", "invoices-out", "x")
    settings.DELAYQ = {**settings.DELAYQ, "REDIS": server.url}
    stream, wrong = queue_depth.target_lengths(link, [conf.get().targets[name] for name in ("shipping", "invoices")])
    assert (stream.length, stream.fault, wrong.length, wrong.fault) == (3, "", None, "type")
    [group] = stream.groups
    assert (group.name, group.consumers, group.pending) == ("warehouse", 1, 1)
    assert group.lag in (2, None)  # Redis counts it from version 7 on
    link.execute("DEL", "shipping-out")
    assert queue_depth.target_lengths(link, [conf.get().targets["shipping"]])[0].groups == []
    with pytest.raises(StoreError):
        link.execute("XINFO", "GROUPS", "shipping-out")


def test_what_the_user_of_redis_may_not_ask_is_told(orders, staff, settings):
    elsewhere = {"KEY": "elsewhere-out", "KIND": "list", "MAXLEN": None}
    settings.DELAYQ = {**settings.DELAYQ, "TARGETS": {**LISTED, "elsewhere": elsewhere}}
    seen = rows(staff(), "offers")
    assert "the Redis user is not allowed to read this" in seen["elsewhere"][1]
    assert seen["shipping"][1:3] == ["0 of 100", "no permission (XINFO GROUPS)"]


def links(client: Any, name: str) -> dict[str, str]:
    text = client.get(TARGETS).content.decode()
    found = re.findall(rf'href="([^"]+)" aria-label="([^"]*) {name}"', text)
    return {label: address.replace("&amp;", "&") for address, label in found}


def test_the_failed_of_a_host_are_requeued_through_an_operation(orders, staff, more_tasks):
    more_tasks(DELIVERY, lambda **kwargs: None)
    mine = [orders.ended("fail", max_attempts=1) for _ in range(2)]
    for job, host in zip(mine, ("bad.example", "other.example"), strict=True):
        Job.objects.filter(pk=job.id).update(task=DELIVERY, kwargs={"url": "x", "host": host}, error="x")
    client = staff()
    address = links(client, "bad.example")["Requeue failed jobs …"]
    assert parse_qs(urlsplit(address).query) == {"state": ["failed"], "q": ["host:bad.example"]}
    assert "host:bad.example" in client.get(address).content.decode()
    client.post(address, {"reason": "it is well again", "over": ""})
    operation = Operation.objects.get()
    assert operation.reason == "it is well again"
    work()
    operation.refresh_from_db()
    assert (operation.counts, operation.seen) == ({"done": 1}, 1)


def test_who_may_not_start_operations_sees_no_deed_and_who_may_not_see_jobs_no_link(orders, staff):
    delivery("bad.example")
    viewer = staff("view_target")
    assert list(rows(viewer, "hosts")) == ["bad.example"]
    assert links(viewer, "bad.example") == {}
    assert "/delayq/job/" not in viewer.get(TARGETS).content.decode()
    assert links(staff("view_target", "view_job", "requeue_job"), "bad.example") == {}
    some = staff("view_target", "view_job", "requeue_job", "start_operation")
    assert list(links(some, "bad.example")) == ["Requeue failed jobs …"]
    assert staff("view_job").get(TARGETS).status_code == 403


def test_masked_names_are_listed_only_for_who_may_see_them(orders, staff, settings):
    settings.DELAYQ = {**settings.DELAYQ, "SENSITIVE": ["host"]}
    delivery("bad.example")
    works(circuits=[{"target": "bad.example:443", "failures": 5, "until": clock.wall_ms() + 60_000}])
    text = staff("view_target").get(TARGETS).content.decode()
    assert "bad.example" not in text
    assert "are masked" in text
    assert Permission.objects.filter(codename="view_target").exists()
    assert list(rows(staff("view_target", "view_sensitive"), "hosts")) == ["bad.example"]


def test_without_redis_the_page_shows_what_the_rows_say(orders, staff, settings, targets):
    delivery("bad.example")
    client = staff()
    lose_redis(settings)
    answer = client.get(TARGETS)
    assert answer.status_code == 200
    assert "Redis cannot be reached" in answer.content.decode()
    assert list(rows(client, "hosts")) == ["bad.example"]


def test_what_is_looked_at_is_bounded_and_what_is_not_is_said(orders, staff, monkeypatch):
    monkeypatch.setattr(target_figures, "NEWEST", 2)
    monkeypatch.setattr(target_figures, "MOST_HOSTS", 1)
    for number in range(3):
        delivery("bad.example", minutes=number)
    delivery("good.example", "succeeded")
    client = staff()
    seen = rows(client, "hosts")
    assert seen["bad.example"][3] == "2+"
    assert "good.example" not in seen
    assert "and 1 more host" in client.get(TARGETS).content.decode()
    with CaptureQueriesContext(
        connection,
    ) as queries:
        client.get(TARGETS)
    assert len(queries) <= 14


def test_a_part_of_the_page_is_fetched_anew(orders, staff):
    delivery("bad.example")
    part, again = sent_live(staff(), TARGETS)
    assert "<html" not in part.content.decode()
    assert again.status_code == 304


# the page of a delivery


def run_of(job: Job, number: int, outcome: str, problem: Any, **fields: Any) -> None:
    then = job.run_at + timedelta(minutes=number)
    Attempt.objects.create(
        job=job,
        number=number,
        fence=str(number),
        worker="w",
        started_at=then,
        finished_at=then,
        outcome=outcome,
        problem=problem,
        **fields,
    )


def test_attempts_show_what_the_host_has_answered(orders, staff):
    job = delivery("bad.example", "succeeded", result={"status": 200, "ms": 7, "answer": "<b>thanks</b>", "complete": True})
    fields = {"target": "bad.example:443", "status": 503, "ms": 12, "answer": "closed\nuntil ten"}
    run_of(job, 1, "retried", {"code": "answer", "fields": fields, "wait_ms": 600_000}, message="m", traceback="Traceback")
    run_of(job, 2, "retried", {"code": "connect", "fields": {"target": "bad.example:443"}}, error_class="E", message="refused")
    run_of(job, 3, "succeeded", None)
    client = staff()
    answers = [moment.answer for moment in client.get(page(job)).context["moments"] if moment.what.startswith("attempt")]
    assert [(one["status"], one["ms"], one["text"], one["wait"]) for one in answers if one] == [
        (503, 12, "closed\nuntil ten", "10m"),
        (200, 7, "<b>thanks</b>", ""),
    ]
    text = client.get(page(job)).content.decode()
    assert "asked to wait for 10m" in text
    assert "&lt;b&gt;thanks" in text
    assert "E: refused" in text
    assert text.count("<summary>Traceback") == 0


def test_the_query_of_a_url_and_what_is_hidden_in_a_body_are_masked(orders, staff, settings, more_tasks):
    more_tasks(DELIVERY, lambda **kwargs: None)
    settings.DELAYQ = {**settings.DELAYQ, "SENSITIVE": ["iban"]}
    kwargs = {"url": "https://bad.example/hook?sig=s3cret", "body": '{"iban":"DE02","a":[1]}', "host": "bad.example"}
    job = delivery("bad.example", kwargs=kwargs)
    text = staff("view_job").get(page(job)).content.decode()
    assert "https://bad.example/hook?***" in text
    assert "s3cret" not in text
    assert "DE02" not in text
    text = staff("view_job", "view_sensitive").get(page(job)).content.decode()
    assert "sig=s3cret" in text
    assert "DE02" in text
    job = delivery("bad.example", kwargs={**kwargs, "body": "no JSON {"})
    assert "no JSON {" in staff("view_job").get(page(job)).content.decode()
