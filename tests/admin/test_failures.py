"""Failed jobs, grouped by their cause."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import translation

import django_delayq as delayq
from django_delayq import clock
from django_delayq.admin import failures
from django_delayq.models import Job
from django_delayq.templatetags import delayq as filters
from tests.admin.conftest import JOBS
from tests.admin.test_job_page import TRACE
from tests.tasks_for_tests import close_order

FAILURES = f"{JOBS}failures/"


def detail(kind: str, message: str, fingerprint: str = "", trace: str = "") -> bytes:
    return json.dumps({"c": kind, "m": message, "p": fingerprint, "t": trace}).encode()


def test_failed_jobs_of_one_cause_stand_together(orders, staff):
    for number in range(3):
        last = orders.ended("fail", detail=detail("TimeoutError", f"no answer {number}", "slow", TRACE))
    orders.ended("fail", detail=detail("ValueError", "no", "wrong"))
    orders.ended("ack")
    response = staff().get(FAILURES)
    slow, wrong = response.context["groups"]
    assert (slow.count, slow.tasks, slow.queues) == (3, {"tests.tasks_for_tests.close_order": 3}, {"orders": 3})
    assert slow.sample.pk == last.id
    assert slow.first < slow.last
    assert wrong.count == 1
    text = response.content.decode().replace("<wbr>", "")
    assert "TimeoutError: no answer 2" in text
    assert "/srv/shop/models.py:99 check" in text
    assert "state=failed&amp;q=fingerprint%3Aslow" in text


def test_the_links_of_a_group_lead_to_its_jobs(orders, staff):
    jobs = {orders.ended("fail", detail=detail("E", "m", "slow")).id for _ in range(2)}
    orders.ended("fail", detail=detail("E", "m", "other"))
    client = staff()
    group = client.get(FAILURES).context["groups"][0]
    found = client.get(f"{JOBS}?{group.failed_query}").context["cl"]
    assert {job.pk for job in found.result_list} == jobs


def test_jobs_that_wait_to_fail_so_once_more_are_counted_beside_it(orders, staff):
    orders.ended("fail", detail=detail("E", "m", "slow"))
    delayq.schedule(close_order, 1)
    [claimed] = orders.claim()
    orders.settle(claimed, "retry", delay=60_000, detail=detail("E", "m", "slow"))
    orders.fold()
    client = staff()
    [group] = client.get(FAILURES).context["groups"]
    assert group.retrying == 1
    assert len(client.get(f"{JOBS}?{group.retrying_query}").context["cl"].result_list) == 1


def retried(orders, fingerprint: str, trace: str = "") -> delayq.Job:
    job = delayq.schedule(close_order, 1)
    [claimed] = orders.claim()
    orders.settle(claimed, "retry", delay=60_000, detail=detail("E", "m", fingerprint, trace))
    orders.fold()
    return job


def test_a_cause_of_which_no_job_has_failed_yet_is_there_as_well(orders, staff):
    orders.ended("fail", detail=detail("E", "m", "other"))
    first, last = retried(orders, "slow", TRACE), retried(orders, "slow", TRACE)
    client = staff()
    response = client.get(FAILURES)
    slow, other = response.context["groups"]
    assert (slow.fingerprint, slow.count, slow.retrying, slow.queues) == ("slow", 0, 2, {"orders": 2})
    assert (other.count, other.retrying) == (1, 0)
    assert slow.sample.pk in (first.id, last.id)
    assert slow.first <= slow.last
    text = response.content.decode().replace("<wbr>", "")
    assert "/srv/shop/models.py:99 check" in text
    assert text.count("start/requeue/") == 1  # the other group has nothing to requeue
    found = client.get(f"{JOBS}?{slow.retrying_query}").context["cl"].result_list
    assert {job.pk for job in found} == {first.id, last.id}


def test_only_those_that_retry_most_are_looked_at_and_that_is_said(orders, staff, monkeypatch):
    monkeypatch.setattr(failures, "WINDOW", 2)
    for fingerprint in ("a", "b", "c"):
        retried(orders, fingerprint)
    response = staff().get(FAILURES)
    assert sum(group.retrying for group in response.context["groups"]) == 2
    assert "only the 2 retrying jobs with the most attempts" in response.content.decode()


def test_each_group_has_a_sample_when_thousands_failed_at_one_moment(orders, staff, monkeypatch):
    monkeypatch.setattr(failures, "SHOWN", 2)
    for fingerprint in ("b", *"a" * 25):
        orders.ended("fail", detail=detail("E", "m", fingerprint))
    Job.objects.update(run_at=clock.now())
    groups = staff().get(FAILURES).context["groups"]
    assert [group.sample and group.sample.fingerprint for group in groups] == ["a", "b"]


def test_messages_that_differ_stand_inside_of_their_group(orders, staff):
    for said in ("no answer 1", "no answer 2", "refused by ann@example.com", "refused by <b>bob</b>", "no answer 3"):
        orders.ended("fail", detail=detail("E", said, "slow"))
    orders.ended("fail", detail=detail("E", "alone", "other"))
    retried(orders, "waits")
    response = staff().get(FAILURES)
    slow, *others = response.context["groups"]
    assert slow.headline == "E: no answer 3"
    assert slow.others == {"E: refused by <b>bob</b>": 1, "E: refused by ann@example.com": 1}
    assert [group.others for group in others] == [{}, {}]
    text = response.content.decode().replace("<wbr>", "")
    assert "2 other messages" in text
    assert "E: refused by &lt;b&gt;bob&lt;/b&gt;" in text


def test_only_the_latest_messages_of_a_group_are_compared(orders, staff, monkeypatch):
    monkeypatch.setattr(failures, "HEARD", 2)
    for said in ("first", "second", "third"):
        orders.ended("fail", detail=detail("E", said, "slow"))
    [group] = staff().get(FAILURES).context["groups"]
    assert (group.headline, group.others) == ("E: third", {"E: second": 1})


def test_an_error_without_a_fingerprint_is_grouped_by_its_text(orders, staff):
    for number in range(2):
        orders.ended("fail", detail=detail("Crash", f"worker host:{number}:ab vanished"))
    orders.ended("fail", detail=detail("Crash", "something else"))
    client = staff()
    assert [group.count for group in client.get(FAILURES).context["groups"]] == [2, 1]
    Job.objects.update(fingerprint="")
    [group] = client.get(FAILURES).context["groups"]
    assert len(client.get(f"{JOBS}?{group.failed_query}").context["cl"].result_list) == 3


def test_only_the_latest_are_looked_at_and_that_is_said(orders, staff, monkeypatch):
    monkeypatch.setattr(failures, "WINDOW", 2)
    for fingerprint in ("a", "b", "b", "c"):
        orders.ended("fail", detail=detail("E", "m", fingerprint))
    response = staff().get(FAILURES)
    assert sum(group.count for group in response.context["groups"]) == 2
    assert "the latest 2 failed jobs" in response.content.decode()


def test_small_groups_are_counted_and_not_listed(orders, staff, monkeypatch):
    monkeypatch.setattr(failures, "SHOWN", 1)
    for fingerprint in ("a", "b", "b"):
        orders.ended("fail", detail=detail("E", "m", fingerprint))
    text = staff().get(FAILURES).content.decode()
    assert "and 1 smaller group" in text


def test_the_number_of_queries_does_not_grow_with_the_groups(orders, staff):
    client = staff()
    for n in range(12):
        orders.ended("fail", detail=detail("E", "m", f"f{n}"))
    with CaptureQueriesContext(connection) as queries:
        client.get(FAILURES)
    assert len(queries) <= 12


@pytest.mark.parametrize(
    ("names", "offered"),
    [
        (("view_job",), set()),
        (("view_job", "requeue_job"), set()),
        (("view_job", "requeue_job", "start_operation"), {"requeue"}),
        (("view_job", "cancel_job", "start_operation"), {"cancel"}),
        (("view_job", "run_now_job", "start_operation"), {"run_now"}),
    ],
)
def test_only_what_one_may_is_offered(orders, staff, names, offered):
    orders.ended("fail", detail=detail("E", "m", "slow"))
    delayq.schedule(close_order, 1)
    [claimed] = orders.claim()
    orders.settle(claimed, "retry", delay=60_000, detail=detail("E", "m", "slow"))
    orders.fold()
    text = staff(*names).get(FAILURES).content.decode()
    assert {verb for verb in ("requeue", "cancel", "run_now") if f"start/{verb}/" in text} == offered


def test_nothing_has_failed(orders, staff):
    assert "No job has failed." in staff().get(FAILURES).content.decode()
    assert staff("view_queue").get(FAILURES).status_code == 403


def test_errors_show_as_text(orders, staff):
    nasty = "<script>alert(1)</script>"
    orders.ended("fail", detail=detail(nasty, nasty, nasty, TRACE.replace("order_id", nasty)))
    text = staff().get(FAILURES).content.decode()
    assert nasty not in text
    assert "&lt;script&gt;" in text


@pytest.mark.parametrize("language", ["en", "he"])
def test_a_long_error_is_cut_alike_in_every_language(orders, staff, language):
    orders.ended("fail", detail=detail("E", "x" * 500, "long"))
    with translation.override(language):
        text = staff().get(FAILURES).content.decode()
    assert f">E: {'x' * 156}…</a>" in text
    assert "u202e" not in text
    assert "\u202e" not in text


@pytest.mark.parametrize("absent", [None, ""])
def test_a_group_without_a_date_has_none_on_its_page(absent):
    dated, moment = filters.register.filters["dated"], filters.register.filters["moment"]
    assert (dated(absent), moment(absent)) == ("", "")


def test_a_period_leaves_only_what_failed_in_it(orders, staff):
    for number, minutes in enumerate((5, 90, 3000)):
        job = orders.ended("fail", detail=detail("E", f"no {number}", "slow"))
        Job.objects.filter(pk=job.id).update(finished_at=clock.now() - timedelta(minutes=minutes))
    delayq.schedule(close_order, 1)
    [claimed] = orders.claim()
    orders.settle(claimed, "retry", delay=60_000, detail=detail("E", "m", "slow"))
    orders.fold()
    Job.objects.filter(state="scheduled").update(started_at=clock.now() - timedelta(minutes=90))
    client = staff()
    for query, failed, retrying in (
        ("", 3, 1),
        ("?since=-1h", 1, 0),
        ("?since=-2h", 2, 1),
        ("?until=-1h", 2, 1),
        ("?since=-2h&until=-1h", 1, 1),
        ("?since=2000-01-01+10:00&until=%2B1h", 3, 1),
    ):
        [group] = client.get(f"{FAILURES}{query}").context["groups"]
        assert (group.count, group.retrying) == (failed, retrying), query
        assert client.get(f"{JOBS}?{group.failed_query}").context["cl"].result_count == failed
        assert client.get(f"{JOBS}?{group.retrying_query}").context["cl"].result_count == retrying
    assert "No job failed in this period." in client.get(f"{FAILURES}?since=-1m").content.decode()


def test_a_period_that_is_none_is_refused(orders, staff):
    orders.ended("fail", detail=detail("E", "m", "slow"))
    response = staff().get(f"{FAILURES}?since=monday")
    assert response.status_code == 400
    assert response.context["groups"] == []
    assert "monday is not a valid date" in response.content.decode()
