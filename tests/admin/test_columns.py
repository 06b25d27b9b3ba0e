"""The columns that the list of jobs shows in each view, and the order of the rows."""

from __future__ import annotations

import re
from datetime import timedelta
from types import SimpleNamespace

import pytest
from django.db import connection

import django_delayq as delayq
from django_delayq import clock
from django_delayq.admin import JobAdmin, listing
from django_delayq.admin.listing import title
from django_delayq.console import keyset
from django_delayq.console.selection import VIEWS, Selection, customer_of
from django_delayq.console.wording import relative
from django_delayq.models import Job
from tests.admin.conftest import JOBS
from tests.tasks_for_tests import close_order

HEAD = re.compile(r'class="[^"]*column-(\w+)')
CELL = r'class="field-{}[^"]*">(.*?)</t[dh]>'


def heads(response) -> list[str]:
    return HEAD.findall(response.content.decode())


def cell(response, name: str) -> str:
    """Returns the text of that column in the first row."""
    found = re.search(CELL.format(name), response.content.decode(), re.DOTALL)
    assert found, name
    return re.sub(r"<[^>]*>", "", found[1])


def ended(**fields) -> Job:
    then = clock.now() - timedelta(hours=2)
    common = {
        "queue": "orders",
        "task": "tests.tasks_for_tests.close_order",
        "state": "failed",
        "run_at": then,
        "created_at": then,
        "started_at": then,
        "finished_at": then + timedelta(seconds=90),
        "attempts": 1,
        "published": then,
    }
    return Job.objects.create(**common | fields)


@pytest.mark.parametrize(
    ("view", "own"),
    [
        ("running", {"running_for", "progress_shown", "worker_shown"}),
        ("scheduled", {"run_at_and_late"}),
        ("failed", {"finished_shown", "took_shown", "last_error"}),
        ("succeeded", {"finished_shown", "took_shown"}),
    ],
)
def test_each_view_has_columns_of_its_own(orders, staff, view, own):
    client = staff()
    orders.running() if view == "running" else ended(state=view, started_at=None)  # Redis knows the running jobs
    found = heads(client.get(JOBS, {"state": view}))
    assert own <= set(found)
    assert heads(client.get(JOBS, {"q": f"state:{view}"})) == found  # said as a word it is the same view
    assert {"state_now", "task_shown", "arguments_shown", "key_shown", "queue_shown"} <= set(found)
    assert set(listing.COLUMNS) == set(VIEWS)


def test_a_subclass_that_names_its_own_columns_has_them_on_every_view(orders, staff, monkeypatch):
    monkeypatch.setattr(JobAdmin, "list_display", ("task_shown", "key_shown"))
    ended()
    client = staff()
    for view in ("", "failed"):
        assert heads(client.get(JOBS, {"state": view})) == ["task_shown", "key_shown"]


def test_a_running_job_tells_for_how_long_how_far_and_where(orders, staff):
    job = orders.running()
    Job.objects.filter(pk=job.id).update(started_at=clock.now() - timedelta(minutes=3))
    response = staff().get(JOBS, {"state": "running"})
    assert cell(response, "running_for").startswith("3m")
    assert cell(response, "worker_shown") == "host:1:w"
    assert cell(response, "progress_shown") == "-"


def test_what_has_ended_tells_when_and_how_long_it_took(orders, staff):
    ended(error="ValueError: no such order")
    response = staff().get(JOBS, {"state": "failed"})
    assert cell(response, "finished_shown").endswith("1h58m ago")
    assert cell(response, "took_shown") == "1m30s"
    assert "datetime=" in response.content.decode()
    assert re.search(r">\d{4}-\d\d-\d\d [\d:]{8}<wbr>[+-]\d\d:\d\d</time>", response.content.decode())


def test_one_that_expired_while_it_waited_took_no_time(orders, staff):
    ended(ending="expired")
    assert cell(staff().get(JOBS, {"state": "failed"}), "took_shown") == "-"


def test_arguments_are_told_by_name_short_and_masked(orders, staff, more_tasks):
    more_tasks("pay", lambda card, amount, *, pin=0: None, sensitive=["card", "pin"])
    ended(task="pay", args=["4111", 7], kwargs={"pin": 1234})
    assert cell(staff("view_job").get(JOBS), "arguments_shown") == "card=&quot;***&quot;, amount=7, pin=&quot;***&quot;"
    assert "4111" not in staff("view_job").get(JOBS).content.decode()
    permitted = staff("view_job", "view_sensitive").get(JOBS)
    assert cell(permitted, "arguments_shown") == "card=&quot;4111&quot;, amount=7, pin=1234", "one rule for all pages"


CUSTOMER = {"meta": {"delayq.carried": {"customer": 7}}}


def test_the_customer_is_a_column_if_a_carrier_packs_it(orders, staff, settings):
    ended(options=CUSTOMER)
    client = staff()
    assert "customer_shown" not in heads(client.get(JOBS))
    settings.DELAYQ = {**settings.DELAYQ, "CARRIERS": ["tests.carriers.Customer"]}
    assert all("queue_shown" in listing.COLUMNS[view] for view in VIEWS)  # before which it stands
    response = client.get(JOBS)
    assert heads(response)[3:6] == ["key_shown", "customer_shown", "queue_shown"]
    assert cell(response, "customer_shown") == "7"
    assert '<a href="?q=customer%3A7">7</a>' in response.content.decode()
    assert f'<a href="{JOBS}?q=customer%3A7">7</a>' in client.get(f"{JOBS}{Job.objects.get().pk}/change/").content.decode()


def test_the_scope_is_a_column_with_a_link_to_its_jobs(orders, staff, settings):
    mine, other = ended(scope="bikes"), ended(scope="boats")
    client = staff()
    assert "scope_shown" not in heads(client.get(JOBS))
    settings.DELAYQ = {**settings.DELAYQ, "CARRIERS": ["tests.carriers.Tenant"], "SCOPE": "Tenant"}
    assert '<a href="?q=scope%3Abikes">bikes</a>' in client.get(JOBS).content.decode()
    found = client.get(JOBS, {"q": "scope:bikes"}).context["cl"].result_list
    assert [job.pk for job in found] == [mine.pk]
    assert f'<a href="{JOBS}?q=scope%3Aboats">boats</a>' in client.get(f"{JOBS}{other.pk}/change/").content.decode()


@pytest.mark.parametrize(
    ("meta", "text", "words"),
    [
        ({"customer": "a b"}, "a b", 'customer:"a b"'),
        ({"customer": 8, **CUSTOMER["meta"]}, "8", "customer:8"),  # the call knows better than the carrier
        ({"customer": 'a"b'}, 'a"b', ""),
        ({"customer": ["a"]}, '["a"]', ""),
        ({"customer": ""}, "", ""),
        ({"delayq.carried": "?"}, "", ""),
        ({}, "", ""),
    ],
)
def test_a_customer_is_a_link_if_a_search_can_find_it(orders, meta, text, words):
    job = ended(options={"meta": meta})
    assert customer_of(job.meta) == (text, words)
    if words:
        assert [found.pk for found in keyset.page(Selection(text=words), Job.objects.all(), 9).jobs] == [job.pk]


def test_a_masked_customer_is_neither_shown_nor_found(orders, staff, settings):
    settings.DELAYQ = {**settings.DELAYQ, "CARRIERS": ["tests.carriers.Customer"], "SENSITIVE": ["customer"]}
    ended(options=CUSTOMER)
    client = staff()
    assert cell(client.get(JOBS), "customer_shown") == "***"
    assert client.get(JOBS, {"q": "customer:7"}).context["cl"].result_list == []
    assert cell(staff("view_job", "view_sensitive").get(JOBS), "customer_shown") == "7"


def test_arguments_of_a_task_that_is_not_here_have_no_names(orders, staff):
    ended(task="gone.task", args=[1, "two"], kwargs={"three": 3})
    assert cell(staff().get(JOBS), "arguments_shown") == "1, &quot;two&quot;, three=3"


def test_long_arguments_are_cut_and_longer_ones_not_fetched(orders, staff):
    ended(args=["x" * 3000])
    text = cell(staff().get(JOBS), "arguments_shown")
    assert text == "order_id=&quot;" + "x" * (listing.VALUE_SHOWN - 2) + "…"
    Job.objects.update(args=["x" * 65_000])
    response = staff().get(JOBS)
    assert cell(response, "arguments_shown") == "65 KB"
    assert "x" * 100 not in response.content.decode()


def test_long_names_are_cut_and_stand_whole_where_the_mouse_rests(orders, staff):
    name = "name-" * 40
    ended(task=name, key=name)
    response = staff().get(JOBS)
    for column in ("task_shown", "key_shown"):
        assert cell(response, column).replace("<wbr>", "").replace("\u200b", "") == name[: listing.NAME_SHOWN - 1] + "…"
    assert response.content.decode().count(f'title="{name}"') == 2


def test_a_line_has_one_link_to_its_job(orders, staff):
    job = ended()
    text = staff().get(JOBS).content.decode()
    assert text.count(f'href="{JOBS}{job.pk}/change/') == 1


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "now"),
        (4, "in 4s"),
        (245, "in 4m5s"),
        (-245, "4m5s ago"),
        (3725, "in 1h2m"),
        (-90_000, "1d1h ago"),
        (8 * 86_400 + 7, "in 8d"),
    ],
)
def test_a_moment_is_told_in_two_units_at_most(monkeypatch, seconds, text):
    now = clock.now()
    monkeypatch.setattr(clock, "now", lambda: now)
    assert relative(now + timedelta(seconds=seconds)) == text


@pytest.mark.parametrize(
    ("parts", "text"),
    [
        ({}, "Jobs"),
        ({"view": "failed"}, "Failed jobs"),
        ({"view": "failed", "task": "send_mail"}, "Failed send_mail jobs"),
        ({"text": "state:failed task:gone.mail"}, "Failed gone.mail jobs · state:failed task:gone.mail"),
        ({"task": "send_mail", "queue": "orders"}, "send_mail jobs · orders"),
    ],
)
def test_a_list_is_called_by_what_it_shows(parts, text):
    assert title(Selection(**parts)) == text


def test_the_title_stands_in_the_tab_of_the_browser(orders, staff):
    job = ended()
    client = staff()
    assert "<title>Failed jobs |" in client.get(JOBS, {"state": "failed"}).content.decode()
    assert f"<title>Failed · {job.task} · {job.short_id} |" in client.get(f"{JOBS}{job.pk}/change/").content.decode()


# order


def order_of(response) -> list[int]:
    return [job.attempts for job in response.context["cl"].result_list]


def test_a_click_on_a_head_puts_the_list_in_that_order_page_by_page(orders, staff, monkeypatch):
    monkeypatch.setattr(JobAdmin, "list_per_page", 2)
    now = clock.now()
    for attempts, finished in ((3, 5), (1, 1), (2, 3), (5, 2), (4, 4)):
        ended(attempts=attempts, finished_at=now - timedelta(minutes=finished))
    client = staff()
    shown = client.get(JOBS, {"state": "failed"})
    number = {name: n for n, name in enumerate(heads(shown), 1)}
    for column, rising in {"attempts_made": [1, 2, 3, 4, 5], "finished_shown": [3, 4, 2, 5, 1]}.items():
        for sign, wanted in (("", rising), ("-", rising[::-1])):
            address, found, pages = f"{JOBS}?state=failed&o={sign}{number[column]}", [], []
            while address:
                cl = client.get(address).context["cl"]
                pages.append([job.attempts for job in cl.result_list])
                found += pages[-1]
                address = JOBS + cl.later if cl.later else ""
            assert found == wanted, (column, sign)
            back = client.get(JOBS + cl.earlier).context["cl"]
            assert [job.attempts for job in back.result_list] == pages[1]
            assert cl.get_ordering_field_columns() == {number[column]: "desc" if sign else "asc"}


@pytest.mark.parametrize("given", ["99", "-", "x", "1", "2.3", "-0", "9" * 5000, "²"])
def test_an_order_that_no_index_holds_is_the_usual_one(orders, staff, given):
    for attempts in (1, 2, 3):
        ended(attempts=attempts, run_at=clock.now() - timedelta(hours=attempts))
    assert order_of(staff().get(JOBS, {"state": "failed", "o": given})) == [1, 2, 3]


def test_only_columns_whose_order_an_index_holds_can_be_clicked():
    for parts, wanted in (
        ({}, ()),
        ({"view": "failed"}, ("run_at", "attempts", "finished_at")),
        ({"view": "failed", "queue": "orders"}, ("run_at",)),
        ({"view": "failed", "text": "error:x"}, ("run_at",)),
        ({"view": "scheduled"}, ("run_at",)),
        ({"view": "running"}, ("run_at", "attempts")),
        ({"view": "due"}, ("run_at",)),
        ({"view": "retrying"}, ("attempts",)),
        ({"view": "unpublished"}, ()),
        ({"view": "failed", "text": "fingerprint:abc"}, ()),
    ):
        assert Selection(**parts).sorts == wanted, parts
        assert Selection(**parts, by="key").order == Selection(**parts).order


def test_every_order_is_read_off_an_index(orders):
    """The database does not sort the rows of a view. If an index does not have the id after the date, the database sorts only rows
    with equal dates.
    """
    ended()
    if connection.vendor != "sqlite":
        pytest.skip("a small table is sorted at once by planners that count rows")
    for view in ("scheduled", "running", "failed", "cancelled", "succeeded", "due", "retrying", "parked", "far"):
        for field in Selection(view=view).sorts:
            for sign in ("", "-"):
                selection = Selection(view=view, by=sign + field)
                plan = selection.rows(Job.objects.all()).order_by(*selection.order).explain()
                assert "USING INDEX" in plan or "USING COVERING INDEX" in plan, (view, field, plan)
                sorted_whole = "USE TEMP B-TREE FOR ORDER BY" in plan
                assert not sorted_whole, (view, field, plan)


def test_an_operation_takes_the_jobs_whatever_their_order(orders, staff):
    ended()
    response = staff().get(JOBS, {"state": "failed", "o": "-6"})
    addresses = [address for _, address in response.context["for_all"]]
    assert addresses
    assert all("o=" not in address for address in addresses)
    assert "by" not in Selection(view="failed", by="-attempts").parts()
    assert all("o=" not in tab["address"] for tab in response.context["cl"].tabs)


@pytest.mark.parametrize(
    ("told", "shown"),
    [
        ("3/10", '<progress max="10" value="3" aria-label="progress"></progress> 3/10'),
        ("half\u202e done", "half\\u202e done"),
        ("", "-"),
    ],
)
def test_progress_is_a_bar_where_it_has_a_total(told, shown):
    job = Job(state="running")
    job.live = SimpleNamespace(progress=told)
    assert listing.JobColumns().progress_shown(job) == shown


def test_arguments_given_by_place_bear_their_names(orders, staff):
    delayq.schedule(close_order, 1, delay="1h")
    orders.fold()
    assert cell(staff().get(JOBS), "arguments_shown") == "order_id=1"
