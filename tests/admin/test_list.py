"""The list of jobs."""

from __future__ import annotations

import re
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import translation

import django_delayq as delayq
from django_delayq import clock, ids
from django_delayq.admin import JobAdmin
from django_delayq.console import keyset, overview, search_parser, why_not_yet
from django_delayq.console.search_fields import WORDS
from django_delayq.models import Job
from django_delayq.producer.stores import stores
from tests.admin.conftest import JOBS, act, choose, lose_redis, page
from tests.admin.test_job_page import moments, why, works
from tests.tasks_for_tests import ask_bank, close_order


def rows(response) -> list[Job]:
    return list(response.context["cl"].result_list)


def test_each_suggestion_of_the_search_field_is_a_search(orders, staff):
    [offered] = re.findall('<datalist id="delayq-completions">(.*?)</datalist>', staff().get(JOBS).content.decode())
    suggested = re.findall('<option value="(.*?)">', offered)
    assert {one.partition(":")[0] for one in suggested} == set(WORDS)
    assert {"state:parked", "queue:orders", f"task:{close_order.name}", "is:crashed", "after:"} <= set(suggested)
    assert [one for one in suggested if not one.endswith(":") and search_parser.parse(one, clock.now()).complaints] == []


def test_every_column_says_what_it_should(orders, staff):
    [job] = orders.scheduled(key="close-order:1")
    text = staff().get(JOBS).content.decode()
    assert "tests.<wbr>tasks_<wbr>for_<wbr>tests.<wbr>close_<wbr>order" in text  # where a line may end
    text = text.replace("<wbr>", "")
    for part in ("scheduled", "tests.tasks_for_tests.close_order", "close-order:1", "orders", "0/10", page(job)):
        assert part in text


def test_a_failed_job_shows_its_attempts_and_the_first_line_of_its_error(orders, staff):
    orders.ended(detail=b'{"c":"ValueError","m":"no such order\\nsecond line"}', max_attempts=1)
    text = staff().get(JOBS).content.decode()
    assert "ValueError: no such order" in text
    assert "second line" not in text
    assert "1/1" in text


@pytest.mark.parametrize(
    ("state", "found"),
    [("scheduled", 2), ("running", 1), ("failed", 1), ("succeeded", 1), ("cancelled", 0), ("due", 0), ("retrying", 0)],
)
def test_it_is_filtered_by_state(orders, staff, state, found):
    orders.ended("fail")
    orders.ended("ack")
    orders.running()
    orders.scheduled(2)
    assert len(rows(staff().get(JOBS, {"state": state}))) == found


def test_it_is_filtered_by_derived_state_by_queue_and_by_task(orders, staff, monkeypatch):
    orders.unpublished(monkeypatch)
    orders.running()
    client = staff()
    assert len(rows(client.get(JOBS, {"state": "unpublished"}))) == 1
    assert len(rows(client.get(JOBS, {"queue": "orders"}))) == 2
    assert len(rows(client.get(JOBS, {"queue": "default"}))) == 0
    assert len(rows(client.get(JOBS, {"task": "tests.tasks_for_tests.close_order"}))) == 2


def test_it_is_searched_by_both_forms_of_the_id_by_key_by_its_beginning_and_by_task(orders, staff):
    one, two = orders.scheduled(key="close-order:1")[0], orders.scheduled(key="refund:1")[0]
    client = staff()
    for term in (str(one.id), ids.short(one.id), "close-order:1", "close-o"):
        assert [row.pk for row in rows(client.get(JOBS, {"q": term}))] == [one.id], term
    assert {row.pk for row in rows(client.get(JOBS, {"q": "TASKS_for"}))} == {one.id, two.id}
    assert {row.pk for row in rows(client.get(JOBS, {"q": "task:TASKS_for"}))} == {one.id, two.id}
    assert rows(client.get(JOBS, {"q": "nothing of that kind"})) == []


@pytest.mark.parametrize("key", ["0b6f8a4e-52a5-4d52-9c0e-3f0d3f6f2a11", "1234567890123456789012"])
def test_a_key_that_looks_like_an_id_is_found_too(orders, staff, key):
    [job] = orders.scheduled(key=key)
    orders.scheduled()
    assert [row.pk for row in rows(staff().get(JOBS, {"q": key}))] == [job.id]


def test_what_redis_knows_comes_before_what_the_mirror_has_not_folded_yet(orders, staff):
    orders.scheduled(1, delay=0)
    [_] = orders.claim()  # not folded
    text = staff().get(JOBS).content.decode()
    assert "delayq-runs" in text
    assert Job.objects.get().state == "scheduled"


def counts(response) -> dict[str, str | None]:
    return {str(tab["label"]): tab["count"] for tab in response.context["cl"].tabs}


def test_every_view_has_a_tab_with_its_count(orders, staff):
    orders.ended("fail")
    orders.ended("ack")
    orders.running()
    orders.scheduled(2)
    found = counts(staff().get(JOBS, {"state": "failed"}))
    assert found == {
        "All": "5",
        "Due": "0",
        "Scheduled": "2",
        "Running": "1",
        "Retrying": "0",
        "Failed": "1",
        "Cancelled": "0",
        "Succeeded": "1",
    }
    assert counts(staff().get(JOBS, {"queue": "default"}))["All"] == "0"


def test_counts_end_at_a_limit_and_one_statement_makes_them_all(orders, staff, monkeypatch):
    monkeypatch.setattr(overview, "MOST_COUNTED", 5)
    orders.scheduled(8)
    client = staff()
    with CaptureQueriesContext(connection) as queries:
        response = client.get(JOBS)
    assert counts(response)["All"] == "5+"
    made = [query["sql"] for query in queries if "COUNT(" in query["sql"].upper()]
    assert len(made) == 1
    assert made[0].count("LIMIT 6") == made[0].upper().count("COUNT(")


def test_where_counting_has_ended_no_number_is_said_to_be_all(orders, staff, monkeypatch):
    monkeypatch.setattr(JobAdmin, "list_per_page", 3)
    orders.scheduled(8)
    client, address = staff(), f"{JOBS}?state=scheduled"
    assert "8 results" in client.get(address).content.decode()
    assert "Select all 8 jobs" in client.get(address).content.decode()
    monkeypatch.setattr(overview, "MOST_COUNTED", 5)
    for query in ("", "?state=scheduled", "?q=task:close_order", "?q=queue:orders+task:close_order"):
        text = client.get(JOBS + query).content.decode()
        assert re.findall(r"\d+ results?\b|Select all \d+", text) == [], query


def test_thousands_are_set_apart_as_the_language_does():
    assert [overview.count_shown(n) for n in (7, 5001, 10_001)] == ["7", "5,001", "10,000+"]
    with translation.override("de"):
        assert [overview.count_shown(n) for n in (7, 5001, 10_001)] == ["7", "5.001", "10.000+"]


def test_back_from_an_action_leads_to_the_same_list(orders, staff):
    [job] = orders.scheduled()
    asked = choose(staff(), "cancel", [job], query="?state=scheduled&q=task:close_order")
    assert f'<a href="{JOBS}?state=scheduled&amp;q=task:close_order" class="closelink">' in asked.content.decode()


def test_a_list_of_everything_does_not_offer_to_show_all(orders, staff):
    orders.scheduled(2)
    assert "Show all" not in staff().get(JOBS).content.decode()
    assert "Show all" in staff().get(JOBS, {"q": "task:close_order"}).content.decode()


@pytest.mark.parametrize(
    ("query", "complaint"),
    [
        ("?state=faild", "state:faild – possible states: scheduled, running"),
        ("?state=faild&q=key:1", "state:faild – possible states: scheduled, running"),
        ("?state=%E2%80%AEdeliaf", "state:\\u202edeliaf – possible states"),
        ("?state=failed&state=running", "state: can be used only once"),
        ("?queue=orders&queue=default", "queue: can be used only once"),
    ],
)
def test_a_view_that_is_none_is_said_and_finds_nothing(orders, staff, query, complaint):
    orders.scheduled(2)
    client = staff()
    response = client.get(JOBS + query)
    assert complaint in response.content.decode()
    assert rows(response) == []
    assert response.context["cl"].result_count == 0
    assert response.context["for_all"] == []
    part = client.get(f"{JOBS}{query}&live=1")
    assert complaint in part.content.decode()
    if query == "?state=faild":
        assert not any(tab["chosen"] for tab in response.context["cl"].tabs)
        assert len(rows(client.get(JOBS + response.context["cl"].tabs[0]["address"]))) == 2


VIEWS = ("", "due", "scheduled", "retrying", "failed", "cancelled", "succeeded", "unpublished")


@pytest.mark.parametrize("view", VIEWS)
def test_page_after_page_shows_every_row_once_and_leads_back(orders, staff, monkeypatch, view):
    monkeypatch.setattr(JobAdmin, "list_per_page", 3)
    same, other = clock.now() - timedelta(hours=1), clock.now() - timedelta(hours=2)
    stored = {"due": "scheduled", "retrying": "scheduled", "unpublished": "scheduled", "": "failed"}.get(view, view)
    published = None if view == "unpublished" else same
    for number in range(10):  # many have the same date: the id decides their order
        Job.objects.create(
            queue="orders",
            task="t",
            state=stored,
            run_at=same if number % 3 else other,
            created_at=same,
            attempts=1 + number % 2,
            published=published,
        )
    client, address, pages = staff(), f"{JOBS}?state={view}", []
    for _ in range(10):
        cl = client.get(address).context["cl"]
        pages.append([job.pk for job in cl.result_list])
        if not cl.later:
            break
        address = JOBS + cl.later
    assert [len(page) for page in pages] == [3, 3, 3, 1]
    assert {pk for page in pages for pk in page} == set(Job.objects.values_list("pk", flat=True))
    for earlier in reversed(pages[:-1]):
        cl = client.get(JOBS + cl.earlier).context["cl"]
        assert [job.pk for job in cl.result_list] == earlier
    assert not cl.earlier


def test_pages_are_read_by_keyset(orders, staff, monkeypatch):
    monkeypatch.setattr(JobAdmin, "list_per_page", 3)
    orders.scheduled(8)
    client = staff()
    later = client.get(JOBS, {"state": "scheduled"}).context["cl"].later
    with CaptureQueriesContext(connection) as queries:
        client.get(JOBS + later)
    assert not [query["sql"] for query in queries if "OFFSET" in query["sql"]]


@pytest.mark.parametrize("place", ["nonsense", "1.2.3", "9" * 40 + "." + "0" * 22, "1." + "~" * 22])
def test_a_place_that_is_none_leads_to_the_beginning(orders, staff, place):
    orders.scheduled(1)
    response = staff().get(JOBS, {"state": "scheduled", "behind": place}, follow=True)
    assert response.status_code == 200
    assert response.redirect_chain or len(rows(response)) == 1


def test_what_no_index_finds_is_read_through_in_stretches(orders, staff, monkeypatch):
    monkeypatch.setattr(keyset, "WINDOW", 4)
    jobs = orders.scheduled(11)
    Job.objects.filter(pk=jobs[0].id).update(error="ValueError: far away")
    client, address, found, steps = staff(), f"{JOBS}?q=error:far", [], 0
    while address:
        response = client.get(address)
        cl = response.context["cl"]
        found += [job.pk for job in cl.result_list]
        steps += 1
        address = JOBS + cl.later if cl.later else ""
        assert ("Continue searching" in response.content.decode()) == bool(address)
    assert found == [jobs[0].id]
    assert steps == 3


@pytest.mark.parametrize("query", ["q=key:many*", "q=many", "q=key:many*&state=scheduled"])
def test_pages_of_keys_that_begin_alike_follow_one_another(orders, staff, monkeypatch, query):
    monkeypatch.setattr(JobAdmin, "list_per_page", 3)
    for number in range(7):
        delayq.schedule(close_order, number, key=f"many:{number}", delay="1h")
    orders.scheduled(2, key="")
    orders.fold()
    client, address, pages = staff(), f"{JOBS}?{query}", []
    while address:
        cl = client.get(address).context["cl"]
        pages.append([job.pk for job in cl.result_list])
        address = JOBS + cl.later if cl.later else ""
    assert [len(each) for each in pages] == [3, 3, 1]
    assert len({pk for each in pages for pk in each}) == 7
    back = client.get(JOBS + cl.earlier).context["cl"]
    assert [job.pk for job in back.result_list] == pages[1]
    monkeypatch.setattr(keyset, "WINDOW", 4)
    assert "More than 10,000 keys match" in client.get(f"{JOBS}?{query}").content.decode()


def test_no_page_of_the_list_needs_many_queries(orders, staff):
    orders.scheduled(3)
    client = staff()
    for query in (
        "",
        "?state=failed",
        "?queue=orders",
        "?q=error:x+queue:orders",
        "?q=key:a*",
        "?state=retrying&task=t",
    ):
        with CaptureQueriesContext(connection) as queries:
            client.get(JOBS + query)
        assert len(queries) <= 12, query


def test_the_number_of_queries_does_not_grow_with_the_rows(orders, staff):
    client = staff()

    def queries() -> int:
        with CaptureQueriesContext(connection) as found:
            client.get(JOBS)
        return len(found)

    orders.scheduled(1)
    queries()
    few = queries()
    orders.scheduled(30)
    assert queries() == few


def test_without_redis_the_list_shows_what_the_database_knows(orders, staff, settings):
    orders.scheduled(3)
    client = staff()
    lose_redis(settings)
    response = client.get(JOBS)
    assert response.status_code == 200
    assert "Redis cannot be reached" in response.content.decode()
    assert len(rows(response)) == 3


def test_who_may_not_view_jobs_sees_none(orders, staff):
    orders.scheduled()
    assert staff("view_queue").get(JOBS).status_code == 403


def test_nobody_adds_edits_or_deletes_jobs(orders, admin_client):
    [job] = orders.scheduled()
    assert admin_client.get(f"{JOBS}add/").status_code == 403
    assert admin_client.post(f"{JOBS}{job.id}/delete/", {"post": "yes"}).status_code == 403
    admin_client.post(page(job), {"queue": "default"})
    assert Job.objects.get().queue == "orders"


def test_characters_that_pretend_are_spelled_out(orders, staff):
    orders.ended(detail='{"c":"E","m":"paid \u202e detnuocsid"}'.encode(), key="a\u202eb")
    text = staff().get(JOBS).content.decode()
    assert "\u202e" not in text
    assert "\\u202e" in text


# fresh without a reload


def test_the_part_that_changes_is_sent_alone_and_no_link_in_it_asks_for_parts(orders, staff):
    orders.scheduled(2, delay="90m30s")  # "in 1h30m", also a moment later
    answer = staff().get(f"{JOBS}?state=scheduled&live=1")
    text = answer.content.decode()
    assert "result_list" in text
    assert not [part for part in ("<html", "csrfmiddlewaretoken", "live=1") if part in text]
    whole = staff().get(f"{JOBS}?state=scheduled").content.decode()
    assert text.strip() in whole


def test_nothing_is_sent_while_no_job_has_changed(orders, staff):
    client = staff()
    first = client.get(f"{JOBS}?live=1")
    again = client.get(f"{JOBS}?live=1", headers={"If-None-Match": first["ETag"]})
    assert (again.status_code, again.content) == (304, b"")
    orders.scheduled(1)
    changed = client.get(f"{JOBS}?live=1", headers={"If-None-Match": first["ETag"]})
    assert changed.status_code == 200
    assert changed["ETag"] != first["ETag"]


def test_what_was_answered_to_an_action_waits_for_a_whole_page(orders, staff):
    client = staff()
    [job] = orders.scheduled()
    client.post(act(job, "cancel"), {"reason": "", "confirmed": "1"})
    assert "1 cancelled." not in client.get(f"{JOBS}?live=1").content.decode()
    assert "1 cancelled." in client.get(JOBS).content.decode()


def test_a_stranger_and_a_bad_address_get_no_part(orders, staff, client):
    assert client.get(f"{JOBS}?live=1").status_code == 302
    assert staff("view_queue").get(f"{JOBS}?live=1").status_code == 403
    assert staff().get(f"{JOBS}?live=1&nonsense=1").status_code == 400


PROJECT = """
import django
from django.conf import settings
from django.template import engines

settings.configure(
    INSTALLED_APPS=["django.contrib.contenttypes", "django.contrib.auth", "django_delayq"],
    TEMPLATES=[{"BACKEND": "django.template.backends.django.DjangoTemplates", "APP_DIRS": True}],
)
django.setup()
template = "{% load delayq %}{{ task|task_name|breakable }} {{ text|visible }} {{ number|grouped }} {{ date|moment }}"
print(engines["django"].from_string(template).render({"task": "shop.tasks", "text": "<b>", "number": 7, "date": None}))
"""


def test_templates_that_use_the_tags_render_without_the_admin():
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", PROJECT], cwd=root, capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout.strip(), done.returncode) == ("shop.<wbr>tasks &lt;b&gt; 7", 0), done.stderr


def ask(orders, job: delayq.Job, times: int, delay: int) -> None:
    for number in range(times):
        [run] = orders.claim()
        orders.settle(run, "ask", delay=delay if number == times - 1 else 0, detail=b'{"d":"the bank has not booked it"}')
    orders.fold()


@pytest.fixture
def asking(orders):
    """A job that has polled two of three times, and polls again in ten minutes."""
    job = delayq.schedule(ask_bank, 7, delay=0)
    ask(orders, job, 2, 600_000)
    return job


def test_page_and_list_say_how_often_it_has_asked_and_when_it_does_again(orders, staff, asking):
    works()
    text = staff().get(page(asking)).content.decode()
    assert "polled 2 of 3, next in" in text
    assert "0/10, polled 2 of 3" in staff().get(JOBS).content.decode()
    assert why(staff(), asking).startswith("The condition was not met yet (polled 2 of 3). The next check is in ")


def test_the_timeline_has_each_time_it_asked_and_what_comes_if_the_answer_is_still_not_yet(orders, staff, asking):
    seen = moments(staff(), asking)
    assert seen.count("attempt 1 the bank has not booked it") == 2
    assert "polled if the condition is still not met" in seen
    Job.objects.filter(pk=asking.id).update(run_at=clock.now())
    asking.run_now()
    ask(orders, asking, 1, 600_000)
    assert "failed if the condition is still not met" in moments(staff(), asking)


def test_without_redis_or_its_task_the_page_says_what_is_known(orders, asking):
    row = Job.objects.get(pk=asking.id)
    assert why_not_yet.poll_progress(row, None).startswith("polled 2 of 3, next in ")
    row.task = "shop.gone"
    assert why_not_yet.poll_count(row) == "polled 2 times"
    row.asked = 1
    assert why_not_yet.poll_count(row) == "polled once"
    row.asked = None
    assert why_not_yet.poll_progress(row, None) == ""


def test_of_a_job_that_runs_or_has_ended_no_next_date_is_told(orders, asking):
    asking.run_now()
    [run] = orders.claim()
    orders.fold()
    view = stores.inspector().job("orders", asking.id)
    assert why_not_yet.poll_progress(Job.objects.get(pk=asking.id), view) == "polled 2 of 3"
    orders.settle(run, "ack")
    orders.fold()
    assert why_not_yet.poll_progress(Job.objects.get(pk=asking.id), stores.inspector().job("orders", asking.id)) == "polled 2 of 3"


def test_a_job_without_a_limit_of_attempts_is_tried_until_it_expires(orders, staff):
    job = delayq.schedule(close_order, 7, max_attempts=0, expires=timedelta(hours=2), delay="1h")
    orders.fold()
    text = staff().get(page(job)).content.decode()
    assert "0 / ∞" in text
    assert "99999999" not in text
    assert "0/∞" in staff().get(JOBS).content.decode()
    assert moments(staff(), job)[-1].startswith("failed retried until it expires, at ")
