"""A list of jobs as a file, from the admin."""

from __future__ import annotations

import csv
import io
import json
from urllib.parse import urlsplit

import pytest
from asgiref.sync import async_to_sync
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission, User
from django.db import connection
from django.test import AsyncClient
from django.test.utils import CaptureQueriesContext

import django_delayq as delayq
from django_delayq.admin import JobAdmin
from django_delayq.console import export
from django_delayq.models import Job
from tests.admin.conftest import JOBS
from tests.admin.test_columns import ended
from tests.tasks_for_tests import close_order

EXPORT = f"{JOBS}export/"


def taken(client, query: str = "", kind: str = "json"):
    return client.post(EXPORT + query, {"kind": kind})


def documents(response) -> list[dict]:
    return [json.loads(line) for line in response.getvalue().splitlines()]


def test_the_list_leads_to_the_page_of_the_same_selection(orders, staff):
    ended(error="ValueError: 1")
    ended(state="succeeded")
    client = staff()
    for query in ("?state=failed", "?state=failed&o=-7", "?q=error%3AValueError"):
        address = client.get(JOBS + query).context["export"]
        assert urlsplit(address).path == EXPORT
        shown = client.get(address)
        assert [job["state"] for job in documents(client.post(address, {"kind": "json"}))] == ["failed"]
        assert shown.context["back"].partition("?")[0] == JOBS


def test_the_page_says_how_many_there_will_be(orders, staff, monkeypatch):
    for _ in range(3):
        ended()
    client = staff()
    assert "3 matching jobs" in client.get(f"{EXPORT}?state=failed").content.decode()
    monkeypatch.setattr(export, "MOST", 2)
    text = client.get(f"{EXPORT}?state=failed").content.decode()
    assert "More than 2 matching jobs" in text
    assert "the first 2 jobs" in text
    assert "unknown until" in client.get(f"{EXPORT}?q=error:x").content.decode()


def test_a_file_has_the_order_of_the_list_and_all_its_pages(orders, staff, monkeypatch):
    monkeypatch.setattr(JobAdmin, "list_per_page", 2)
    for attempts in (3, 1, 2, 5, 4):
        ended(attempts=attempts)
    client = staff()
    number = 1 + list(JobAdmin(Job, None).get_list_display(client.get(JOBS, {"state": "failed"}).wsgi_request)).index("attempts_made")
    later = client.get(f"{JOBS}?state=failed&o={number}").context["cl"].later
    for query in (f"?state=failed&o={number}", later):  # also from a later page: all of them
        assert [job["attempts"] for job in documents(taken(client, query))] == [1, 2, 3, 4, 5]


def test_csv_comes_as_a_file_with_a_name(orders, staff):
    job = ended(key="=1+1")
    response = taken(staff(), "?state=failed", "csv")
    assert response["Content-Type"] == "text/csv; charset=utf-8"
    assert response["Content-Disposition"].startswith('attachment; filename="jobs-failed-2')
    assert response["Content-Disposition"].endswith('.csv"')
    text = response.getvalue().decode("utf-8-sig")
    [row] = csv.DictReader(io.StringIO(text, newline=""))
    assert (row["id"], row["key"]) == (job.short_id, "'=1+1")


def test_it_is_logged_who_took_what(orders, staff):
    ended()
    client = staff()
    assert LogEntry.objects.count() == 0
    client.get(f"{EXPORT}?state=failed")
    assert LogEntry.objects.count() == 0  # viewing the page exports nothing
    taken(client, "?state=failed&queue=orders&q=attempt", "csv")
    entry = LogEntry.objects.get()
    assert (entry.object_repr, entry.change_message) == (
        "state:failed queue:orders attempt",
        "Exported as csv: state:failed queue:orders attempt",
    )
    assert entry.user.username == "clerk0"
    assert client.get("/admin/").status_code == 200  # Django shows the latest actions there


@pytest.mark.parametrize("missing", ["view_job", "export_job"])
def test_it_takes_a_permission_of_its_own(orders, staff, missing):
    ended()
    client = staff(*{"view_job", "export_job"} - {missing})
    assert client.get(EXPORT).status_code == taken(client).status_code == 403
    if missing == "export_job":
        assert EXPORT not in client.get(JOBS).content.decode()
    assert LogEntry.objects.count() == 0


@pytest.mark.parametrize("kind", ["json", "csv"])
def test_what_is_sensitive_is_masked_for_who_may_not_see_it(orders, staff, more_tasks, kind):
    more_tasks("pay", lambda card: None, sensitive=["card"])
    job = ended(task="pay", args=["4111"], result={"card": "4111"})
    Job.objects.filter(pk=job.pk).update(options={"meta": {"card": "4111"}})
    for permissions, count in ((("view_job", "export_job"), 0), (("view_job", "export_job", "view_sensitive"), 3)):
        assert taken(staff(*permissions), kind=kind).getvalue().count(b"4111") == count


def test_a_rule_about_single_jobs_holds_in_the_file(orders, staff, monkeypatch):
    ended(key="mine")
    ended(key="theirs")
    monkeypatch.setattr(JobAdmin, "has_view_permission", lambda self, request, obj=None: obj is None or obj.key == "mine")
    assert [job["key"] for job in documents(taken(staff()))] == ["mine"]


def test_a_rule_about_rows_holds_in_the_file(orders, staff, monkeypatch):
    ended(key="mine")
    ended(key="theirs")
    inherited = JobAdmin.get_queryset
    monkeypatch.setattr(JobAdmin, "get_queryset", lambda self, request: inherited(self, request).filter(key="mine"))
    client = staff()
    assert [job["key"] for job in documents(taken(client))] == ["mine"]
    assert "1 matching job" in client.get(EXPORT).content.decode()


@pytest.mark.parametrize("query", ["?state=faild", "?state=failed&state=running", "?q=state%3Afaild", "?q=%00", "?queue=%00"])
def test_an_address_that_means_nothing_gives_no_file(orders, staff, query):
    ended()
    client = staff()
    response = taken(client, query)
    assert response.status_code == 400
    assert "errornote" in response.content.decode()
    assert LogEntry.objects.count() == 0


def test_the_history_says_why_a_list_was_exported(orders, staff):
    ended()
    client = staff()
    assert client.post(EXPORT, {"kind": "csv", "reason": "for the auditor"}).status_code == 200
    assert LogEntry.objects.get().change_message.endswith(": all: for the auditor")
    assert client.post(EXPORT, {"kind": "csv", "reason": "x" * 501}).status_code == 400
    assert LogEntry.objects.count() == 1


def test_the_file_of_those_that_run_has_what_the_list_has(orders, staff):
    job = delayq.schedule(close_order, 8)
    orders.fold()
    orders.claim()
    assert Job.objects.get(pk=job.id).state == "scheduled"  # the mirror is behind
    assert [one["id"] for one in documents(taken(staff(), "?state=running"))] == [job.short_id]


def test_an_unknown_form_and_a_strange_look_up_give_no_file(orders, staff):
    ended()
    client = staff()
    assert taken(client, kind="xlsx").status_code == 400
    assert client.get(f"{EXPORT}?kwargs__contains=1").status_code == 400
    assert LogEntry.objects.count() == 0


def test_the_page_needs_few_queries(orders, staff):
    ended()
    client = staff()
    client.get(EXPORT)
    for query in ("", "?state=failed", "?q=error:x+queue:orders", "?q=key:a*", "?state=retrying&task=t"):
        with CaptureQueriesContext(connection) as queries:
            client.get(EXPORT + query)
        assert len(queries) <= 12, query


def test_a_server_that_speaks_asgi_sends_it_part_by_part(orders, monkeypatch, recwarn):
    monkeypatch.setattr(export, "LINES", 2)
    for _ in range(5):
        ended()
    user = User.objects.create_user("asgi", is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename__in=("view_job", "export_job")))
    client = AsyncClient()
    client.force_login(user)

    async def take() -> list[bytes]:
        response = await client.post(EXPORT, {"kind": "json"})
        assert response.is_async
        return [part async for part in response.streaming_content]

    assert [part.count(b"\n") for part in async_to_sync(take)()] == [2, 2, 1]
    assert not [warning for warning in recwarn if "StreamingHttpResponse" in str(warning.message)]
