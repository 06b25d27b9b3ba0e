"""How people start and control operations."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from urllib.parse import quote_plus

import pytest
from django.contrib.admin.models import LogEntry
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import translation
from django.utils.html import escape

import django_delayq as delayq
from django_delayq import clock, ids
from django_delayq.admin import JobAdmin, readonly
from django_delayq.console.operation_loop import OperationLoop
from django_delayq.models import Event, Job, Operation
from django_delayq.producer.task import registry
from tests.admin.conftest import JOBS, OPERATIONS, QUEUES, lose_redis, said, sent_live
from tests.admin.test_operations import begin, work
from tests.tasks_for_tests import close_order

Stage = Operation.Stage
START = f"{OPERATIONS}start/"


def test_a_preview_says_how_many_and_shows_a_sample(orders, staff):
    orders.scheduled(23)
    client = staff()
    text = client.get(f"{START}cancel/?state=scheduled&queue=orders").content.decode()
    assert "23 matching jobs:" in text
    assert "state:scheduled queue:orders" in text
    assert text.count("tests.tasks_for_tests.close_order</a>") == 20
    assert not Operation.objects.exists()


def test_what_is_started_is_carried_out_by_a_worker_and_told(orders, staff):
    orders.scheduled(3)
    client = staff()
    answer = client.post(f"{START}cancel/?state=scheduled", {"reason": "stock", "over": ""}, follow=True)
    assert said(answer) == ["The operation has started. A worker carries it out, so you can leave this page."]
    operation = Operation.objects.get()
    assert operation.selection["view"] == "scheduled"
    assert (operation.actor, operation.reason, operation.permission) == ("admin:clerk0", "stock", "delayq.cancel_job")
    assert "Waiting for a worker" in answer.content.decode()
    work()
    text = client.get(f"{OPERATIONS}{operation.pk}/change/").content.decode()
    assert "3 / 3" in text
    assert "finished" in text
    assert "<dt>done</dt><dd>3</dd>" in text
    said_of_it = [entry.change_message for entry in LogEntry.objects.filter(object_id=str(operation.pk))]
    assert said_of_it == ["Cancel: state:scheduled: stock"]


def three_that_run(orders) -> tuple[delayq.Job, delayq.Job, delayq.Job]:
    """Three jobs: one has ended but its row is running, one runs but its row is scheduled, and one may run later."""
    ended = delayq.schedule(close_order, 0)
    [claimed] = orders.claim()
    starts = delayq.schedule(close_order, 1)
    orders.claim()
    later = delayq.schedule(close_order, 2)
    orders.fold()
    orders.settle(claimed, "ack")
    Job.objects.filter(pk=starts.id).update(state="scheduled", started_at=None)  # as if its row were not updated yet
    return ended, starts, later


def test_from_the_list_of_what_runs_an_operation_is_about_the_jobs_of_the_list_and_no_others(orders, staff):
    ended, starts, later = three_that_run(orders)
    client = staff()
    assert [job.pk for job in client.get(f"{JOBS}?state=running").context["cl"].result_list] == [starts.id]
    shown = client.get(f"{START}cancel/?state=running")
    text = shown.content.decode()
    assert "1 matching job:" in text
    assert "Jobs that match later are not." in text
    assert [example["job"].pk for example in shown.context["examples"]] == [starts.id]
    orders.claim()  # the third begins after the page was opened
    answer = client.post(f"{START}cancel/?state=running", {"preview": shown.context["preview"]}, follow=True)
    operation = Operation.objects.get()
    assert (operation.frozen, operation.selection.get("only")) == ([starts.short_id], None)
    assert "the 1 job that matched when the operation was confirmed" in answer.content.decode()
    assert "q=state" not in answer.content.decode()  # a list of the jobs that run now would show other jobs
    work()
    operation.refresh_from_db()
    assert (operation.expected, operation.counts) == (1, {"running": 1})
    orders.fold()
    asked = dict(Job.objects.values_list("pk", "cancel_requested"))
    assert asked == {ended.id: False, starts.id: True, later.id: False}


def test_a_search_narrows_down_what_runs_in_the_list_and_in_the_operation_alike(orders, staff):
    starts = three_that_run(orders)[1]
    client = staff()
    for text, wanted in (("arg:order_id=1", [starts.id]), ("arg:order_id=2", []), ("queue:orders not key:x", [starts.id])):
        query = f"?state=running&q={quote_plus(text)}"
        assert [job.pk for job in client.get(JOBS + query).context["cl"].result_list] == wanted
        shown = client.get(f"{START}cancel/{query}")
        assert [example["job"].pk for example in shown.context["examples"]] == wanted
        assert shown.context["count"] == len(wanted)


def test_without_redis_it_says_that_it_goes_by_rows(orders, staff, settings):
    three_that_run(orders)
    client = staff()
    lose_redis(settings)
    text = client.get(f"{START}cancel/?state=running").content.decode()
    assert "the database shows as running" in text
    assert "those of the list" not in text


@pytest.mark.parametrize("only", ["", "nonsense", "x" * 22, ",".join(["0351mwlhF1evujssuwn1yy"] * 1001)])
def test_what_came_back_with_no_jobs_that_may_have_run_starts_nothing(orders, staff, only):
    three_that_run(orders)
    client = staff()
    at, upto, digest, _ = client.get(f"{START}cancel/?state=running").context["preview"].split(".")
    answer = client.post(f"{START}cancel/?state=running", {"preview": f"{at}.{upto}.{digest}.{only}"})
    assert "The matching jobs have changed in the meantime" in answer.content.decode()
    some = client.post(f"{START}cancel/?state=scheduled", {"preview": f"{at}.{upto}.{digest}.0351mwlhF1evujssuwn1yy"})
    assert "The matching jobs have changed in the meantime" in some.content.decode()
    assert not Operation.objects.exists()


def test_a_page_that_keeps_itself_fresh_takes_no_message_away(orders, staff):
    orders.scheduled(1)
    client = staff()
    answer = client.post(f"{START}cancel/?state=scheduled", {"reason": "", "over": ""})
    said_so = "The operation has started."
    part = client.get(f"{answer['Location']}?live=1").content.decode()
    assert said_so not in part
    assert "<h1><span>Operation: Cancel</span>" in part
    assert "<html" not in part
    assert said_so in client.get(answer["Location"]).content.decode()


def test_an_operation_with_a_date_asks_for_it(orders, staff):
    orders.scheduled(1)
    client = staff()
    address = f"{START}reschedule/?state=scheduled"
    assert client.post(address, {"over": "20m"}).status_code == 400
    assert client.post(address, {"over": "soon", "delay": "1h"}).status_code == 400
    assert client.post(address, {"over": "60d", "delay": "1h"}).status_code == 400
    client.post(address, {"delay": "+10m", "over": "20m"})
    client.post(address, {"run_at": "2031-01-31T18:00"})
    first, second = Operation.objects.order_by("id")
    assert (first.options, first.seconds) == ({"delay": 600.0}, 1200)
    assert second.options["run_at"].startswith("2031-01-31T")
    work()
    second.refresh_from_db()
    assert second.counts == {"done": 1}


@pytest.mark.parametrize(
    "query",
    [
        "q=stat:failed",
        "q=state:nowhere",
        "state=faild",
        "state=scheduled&priority=1",
        "Queue=a",
        "queue=orders&queue=other",
    ],
)
def test_nothing_is_started_by_a_search_that_is_not_understood(orders, staff, query):
    orders.scheduled(1)
    client = staff()
    text = client.get(f"{START}cancel/?{query}").content.decode()
    assert "errornote" in text
    assert "close_order" not in text
    assert "every job there is" not in text
    client.post(f"{START}cancel/?{query}", {"reason": ""})
    assert not Operation.objects.exists()


@pytest.mark.parametrize(
    ("may", "place"),
    [(("view_operation",), rf"{OPERATIONS}[0-9a-f-]+/change/"), ((), rf"{JOBS}\?state=scheduled")],
    ids=["who may see operations", "who may not"],
)
def test_what_was_started_leads_to_where_one_may_go(orders, staff, may, place):
    orders.scheduled(1)
    client = staff("view_job", "start_operation", "cancel_job", *may)
    answer = client.post(f"{START}cancel/?state=scheduled", {}, follow=True)
    assert answer.status_code == 200
    assert re.fullmatch(place, answer.redirect_chain[0][0])
    assert said(answer) == ["The operation has started. A worker carries it out, so you can leave this page."]


@pytest.mark.parametrize("missing", ["view_job", "start_operation", "cancel_job"])
def test_starting_needs_all_three_permissions(orders, staff, missing):
    names = {"view_job", "start_operation", "cancel_job"} - {missing}
    client = staff(*names)
    assert client.get(f"{START}cancel/?state=scheduled").status_code == 403
    assert client.post(f"{START}cancel/?state=scheduled", {}).status_code == 403
    assert not Operation.objects.exists()


def test_the_list_offers_what_one_may_do_to_all_of_it(orders, staff):
    orders.scheduled(1)
    orders.ended("fail", max_attempts=1)
    client = staff()

    def offered(query: str, client=client) -> list[str]:
        return [verb.name for verb, _ in client.get(JOBS + query).context["for_all"]]

    assert offered("?state=scheduled") == ["cancel", "run_now", "reschedule"]
    assert offered("?state=failed&queue=orders") == ["requeue"]
    assert offered("?q=state:failed") == ["requeue"]
    assert offered("?q=stat:failed") == []
    assert offered("?state=cancelled") == offered("?q=key:nowhere") == []  # no job to apply it to
    assert offered("?state=failed", staff("view_job", "requeue_job")) == []


def test_nothing_is_offered_where_a_filter_is_in_use_that_no_operation_knows(orders, staff, monkeypatch):
    monkeypatch.setattr(JobAdmin, "list_filter", (*JobAdmin.list_filter, "priority"))
    orders.scheduled(1)
    answer = staff().get(f"{JOBS}?state=scheduled&priority=0")
    assert len(answer.context["cl"].result_list) == 1
    assert answer.context["for_all"] == []


def preview(client, address: str) -> str:
    return client.get(address).context["preview"]


def test_it_is_about_nothing_that_came_after_its_preview(orders, staff):
    orders.scheduled(2)
    client, address = staff(), f"{START}cancel/?state=scheduled"
    seen = preview(client, address)
    orders.scheduled(1)
    client.post(address, {"preview": seen})
    work()
    assert Operation.objects.get().counts == {"done": 2}


@pytest.mark.parametrize("minutes", [10, -10], ids=["ahead", "behind"])
def test_what_came_before_its_preview_does_not_depend_on_the_clock_of_a_web_host(orders, staff, monkeypatch, minutes):
    """This holds for the jobs of that host and for those of other hosts."""
    client, address, real = staff(), f"{START}cancel/?state=scheduled", clock.wall_ms

    def wrong_host() -> None:
        drawn = [ids.derived(str(n), real() + minutes * 60_000) for n in range(2)]
        with monkeypatch.context() as patch:
            patch.setattr(ids, "new", drawn.pop)
            orders.scheduled(2)

    wrong_host()
    orders.scheduled(1)
    seen = preview(client, address)
    clock.sleep(0.002)
    wrong_host()
    orders.scheduled(1)
    client.post(address, {"preview": seen})
    work()
    assert Operation.objects.get().counts == {"done": 3}


def test_of_a_preview_that_is_no_longer_true_nothing_is_started(orders, staff, more_tasks):
    orders.scheduled(2)
    client, address = staff(), f"{START}cancel/?q=task:order"
    seen = preview(client, address)
    assert preview(client, address).rsplit(".")[2] == seen.rsplit(".")[2]
    more_tasks("order_refunds")
    for given in (seen, "nonsense", "1.2.3", f"{2**60}.{seen.split('.', 1)[1]}"):
        answer = client.post(address, {"preview": given})
        assert answer.status_code == 400, given
        assert "have changed in the meantime" in answer.content.decode()
    assert not Operation.objects.exists()
    client.post(address, {"preview": preview(client, address)})
    assert Operation.objects.get().selection["tasks"] == ["order_refunds", "tests.tasks_for_tests.close_order"]


def test_it_is_about_the_tasks_of_its_preview_whatever_comes_with_a_deploy(orders, staff, more_tasks):
    orders.scheduled(2)
    client = staff()
    client.post(f"{START}cancel/?q=task:order", {})
    client.post(f"{START}cancel/?q=task:refunds", {})
    more_tasks("order_refunds")
    delayq.schedule(registry.get("order_refunds"), delay="1h", queue="orders")
    orders.fold()
    Operation.objects.update(upto=ids.new())  # as if the deploy had been before the start, only on the worker's host
    work()
    first, second = Operation.objects.order_by("id")
    assert (first.counts, second.counts) == ({"done": 2}, {})


def test_it_is_paused_resumed_and_cancelled_with_a_reason(orders, staff):
    orders.scheduled(1)
    operation, client = begin(), staff()
    address = f"{OPERATIONS}{operation.pk}"
    for act, stage in (("pause", Stage.PAUSED), ("resume", Stage.RUNNING), ("cancel", Stage.CANCELLED)):
        client.post(f"{address}/{act}/", {"reason": "lunch"}, follow=True)
        operation.refresh_from_db()
        assert operation.stage == stage
    assert said(client.post(f"{address}/pause/", follow=True)) == ["Nothing was changed: the stage is already “cancelled”."]
    assert LogEntry.objects.filter(object_id=str(operation.pk)).count() == 3
    assert operation.finished_at


def test_steering_is_posted_by_who_may(orders, staff):
    operation = begin()
    viewer = staff("view_operation")
    address = f"{OPERATIONS}{operation.pk}"
    assert "formaction" not in viewer.get(f"{address}/change/").content.decode()
    assert viewer.post(f"{address}/pause/").status_code == 403
    assert viewer.get(f"{address}/pause/").status_code == 405
    assert staff("view_job").get(f"{address}/change/").status_code == 403
    assert viewer.get(OPERATIONS).status_code == 200
    assert viewer.get(f"{OPERATIONS}nonsense/change/", follow=True).redirect_chain


def test_what_a_person_typed_shows_as_text(orders, staff):
    nasty = "<script>alert(1)</script>"
    problem = {"code": "unexpected", "fields": {"kind": nasty, "cause": nasty}}
    operation = begin(reason=nasty, selection={"text": nasty}, actor=nasty, problem=problem)
    client = staff()
    for address in (OPERATIONS, f"{OPERATIONS}{operation.pk}/change/", f"{START}cancel/?q={nasty}"):
        text = client.get(address).content.decode()
        assert "&lt;script&gt;alert(1)" in text
        assert nasty not in text


def test_why_it_does_not_go_on_is_told_in_the_language_of_the_page(orders, staff):
    """This includes a code that a newer release wrote. Text that a worker of the previous release noted is shown unchanged."""
    gone = {"actor": "admin:clerk", "permission": "delayq.cancel_job"}
    for noted, told in (
        ({"problem": {"code": "permission_gone", "fields": gone}}, "hat die Berechtigung delayq.cancel_job nicht mehr"),
        ({"problem": {"code": "moon", "fields": {"phase": "new"}}}, "moon {&#x27;phase&#x27;: &#x27;new&#x27;}"),
        ({"problem": {"code": "permission_gone", "fields": {}}}, "permission_gone {}"),
    ):
        operation = begin(stage=Stage.PAUSED, **noted)
        with translation.override("de"):
            assert told in staff().get(f"{OPERATIONS}{operation.pk}/change/").content.decode()
    Operation.objects.update(stage=Stage.FINISHED)
    assert "a worker said so" not in staff().get(f"{OPERATIONS}{operation.pk}/change/").content.decode()


@pytest.mark.parametrize("selection", [{"colour": "red"}, {"view": "failed", "colour": "red"}, {"text": ["red"]}, ["red"], "red", 7])
def test_an_operation_of_a_newer_version_is_shown_as_it_is_stored(orders, staff, selection):
    operation, client = begin("paint", selection=selection), staff()
    work()
    for address in (OPERATIONS, f"{OPERATIONS}{operation.pk}/change/"):
        text = client.get(address).content.decode()
        assert escape(json.dumps(selection)) in text
        assert "paint" in text
        assert "Purge" not in text
        assert f"{JOBS}?q=" not in text


def test_each_step_of_a_person_is_an_event(orders, staff):
    orders.scheduled(1)
    client = staff()
    client.post(f"{START}cancel/?state=scheduled", {"reason": "stock"})
    operation = Operation.objects.get()
    for act in ("pause", "resume", "cancel", "cancel"):  # the last one comes too late
        client.post(f"{OPERATIONS}{operation.pk}/{act}/", {"reason": f"to {act}"})
    client.post(f"{QUEUES}orders/purge/", {"typed": "orders", "reason": "a loop"})
    told = Event.objects.filter(job=None, queue="").order_by("id")
    assert [(event.kind, event.actor, event.reason) for event in told] == [
        ("operation_started", "admin:clerk0", "stock"),
        ("operation_paused", "admin:clerk0", "to pause"),
        ("operation_resumed", "admin:clerk0", "to resume"),
        ("operation_cancelled", "admin:clerk0", "to cancel"),
        ("operation_started", "admin:clerk0", "a loop"),
    ]
    assert told[0].detail == {"operation": str(operation.pk), "verb": "cancel", "jobs": "state:scheduled"}
    assert told[4].detail["verb"] == "purge"


def test_the_list_counts_no_more_than_it_shows(orders, staff, monkeypatch):
    monkeypatch.setattr(readonly, "MOST_LISTED", 60)
    all_of_them = [begin().pk for _ in range(70)]
    client = staff()
    with CaptureQueriesContext(connection) as queries:
        response = client.get(f"{OPERATIONS}?p=2")
    assert [operation.pk for operation in response.context["cl"].result_list] == all_of_them[10:20][::-1]
    assert response.context["cl"].result_count == 60
    counts = [query["sql"] for query in queries.captured_queries if "COUNT(" in query["sql"]]
    assert counts
    assert all("LIMIT 60" in sql for sql in counts)
    assert client.get(f"{OPERATIONS}?p=3", follow=True).redirect_chain


def test_an_operation_from_a_page_spares_what_was_scheduled_later(orders, staff):
    orders.scheduled(2)
    client = staff()
    client.post(f"{START}cancel/?state=scheduled", {})
    orders.scheduled(1)
    OperationLoop().poll()
    assert Operation.objects.get().counts == {"done": 2}


def test_its_page_keeps_itself_fresh_until_it_is_over(orders, staff):
    orders.scheduled(1)
    operation, client = begin(), staff()
    address = f"{OPERATIONS}{operation.pk}/change/"
    text = client.get(address).content.decode()
    assert "delayq/refresh.js" in text
    assert "data-ended" not in text
    part, again = sent_live(client, address)
    assert "data-ended" not in part.content.decode()
    assert again.status_code == 304
    work()
    changed = client.get(f"{address}?live=1", headers={"If-None-Match": part["ETag"]})
    assert changed.status_code == 200
    assert "data-ended" in changed.content.decode()
    assert "delayq/refresh.js" not in client.get(address).content.decode()


def test_the_list_says_when_an_operation_was_created_as_all_pages_write_dates(orders, staff, settings):
    settings.TIME_ZONE = "Asia/Kolkata"
    Operation.objects.create(verb="cancel", selection={}, stage="paused", actor="admin:boss", expected=500, seen=123)
    Operation.objects.update(created_at=datetime(2026, 5, 1, 12, 30, 15, tzinfo=UTC))
    text = staff().get(OPERATIONS).content.decode()
    assert "2026-05-01 18:00:15" in text
    assert "<bdi>123 / 500</bdi>" in text  # also from right to left


def test_the_list_shows_progress_reason_and_jobs_to_click_at_and_follows_by_itself(orders, staff):
    begin(
        selection={"text": "fingerprint:48ab10e1f73b state:failed"},
        reason="the bank is back",
        seen=1_203,
        expected=5_000,
        stage="paused",
    )
    begin(selection={}, reason="", seen=7)
    client = staff()
    text = client.get(OPERATIONS).content.decode()
    assert '<progress max="5000" value="1203" aria-label="progress"></progress> <bdi>1,203 / 5,000</bdi>' in text
    assert "the bank is back" in text
    assert (
        f'<a href="{JOBS}?q=fingerprint%3A48ab10e1f73b+state%3Afailed"><code>failed with the same cause state:<wbr>failed</code></a>'
        in text
    )
    part, again = sent_live(client, OPERATIONS)
    assert "<html" not in part.content.decode()
    assert "live=" not in part.content.decode()
    assert again.status_code == 304


def test_its_page_says_what_is_left_for_later_and_why(orders, staff):
    problem = {"code": "redis_away", "fields": {"where": "127.0.0.1:6379", "cause": "it does not answer"}}
    operation = begin(stage="running", problem=problem, passed_over=[{"parts": [["orders", 0], ["mail", 3]], "last": None}])
    page = staff("view_operation").get(f"/admin/delayq/operation/{operation.pk}/change/").content.decode()
    assert "Postponed because their server cannot be reached: mail, orders." in page
    assert "it does not answer" in page
    Operation.objects.update(stage="finished")
    page = staff("view_operation").get(f"/admin/delayq/operation/{operation.pk}/change/").content.decode()
    assert "Left for later" not in page
