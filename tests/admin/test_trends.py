"""Trends, the page of a queue, the page of a task."""

from __future__ import annotations

import re
from datetime import timedelta
from html import unescape
from typing import Any

import pytest
from django.contrib.admin.utils import quote
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

import django_delayq as delayq
from django_delayq import clock, conf
from django_delayq.admin.charts import bars, scale
from django_delayq.console import trends
from django_delayq.ladder import Ladder
from django_delayq.models import Attempt, Event, Job
from django_delayq.producer import queues
from django_delayq.producer.stores import stores
from django_delayq.states import MESSAGE
from django_delayq.store.keys import Keys
from django_delayq.store.scripts.worker_registry import WorkerRegistry
from tests.admin.conftest import JOBS, QUEUES, beat, lose_redis
from tests.tasks_for_tests import bill, close_order

TASK = "tests.tasks_for_tests.close_order"
PAGE = f"{QUEUES}orders/change/"
TRENDS = f"{QUEUES}trends/"
OF_TASK = f"{JOBS}task/{TASK}/"


def plain(client: Client, address: str) -> str:
    """Returns the text of the page without tags."""
    response = client.get(address)
    assert response.status_code == 200, address
    text = response.content.decode().partition('id="content-main"')[2].replace("<wbr>", "")
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", text)).split())


def ended(
    state: str = "succeeded",
    *,
    minutes: float = 10,
    late: float = 1,
    ran: float = 2,
    attempts: int = 1,
    task: str = TASK,
    **fields: Any,
) -> Job:
    """Creates a row with its attempts. The last attempt ended that many minutes ago; the earlier attempts were retried."""
    end = clock.now() - timedelta(minutes=minutes)
    start = end - timedelta(seconds=ran)
    common = {"queue": "orders", "task": task, "state": state, "attempts": attempts, "max_attempts": 9, "worker": "host:1:w"}
    dates = {
        "run_at": start - timedelta(seconds=late),
        "created_at": start,
        "started_at": start,
        "finished_at": end,
        "published": start,
    }
    job = Job.objects.create(**common | dates | fields)
    for number in range(1, attempts + 1):
        last = number == attempts
        Attempt.objects.create(
            job=job,
            number=number,
            fence=f"f{number}",
            worker="host:1:w",
            started_at=start - timedelta(seconds=attempts - number),
            finished_at=end - timedelta(seconds=attempts - number),
            outcome=("failed" if state == "failed" else "succeeded") if last else "retried",
            error_class="" if last and state == "succeeded" else "TimeoutError",
            message="" if last and state == "succeeded" else f"no answer, try {number}",
        )
    return job


def charts(client: Client, address: str) -> dict[str, Any]:
    return {chart["name"]: chart for chart in client.get(address).context["charts"]}


def total(chart: Any, column: int = 0) -> int:
    return sum(int(cells[column]) for _, cells in chart["rows"])


def test_a_queue_has_a_page_with_what_it_has_done(orders, staff):
    for outcome in ("ack", "ack", "fail"):
        orders.ended(outcome)
    client = staff()
    for span, steps in (("1h", 60), ("1d", 96), ("7d", 84)):
        found = charts(client, f"{PAGE}?span={span}")
        assert len(found["well"]["rows"]) == steps
        assert total(found["well"]) == 2
        assert total(found["unwell"], found["unwell"]["heads"].index("failed")) == 1
        assert not found["late"]["nothing"]
    beat("orders", processes=2, threads=3, sides=["mirror"], records=["orders"])
    text = plain(client, PAGE)
    assert "host:1:w working move, mirror 6" in text
    assert "LEASE 30s" in text
    assert "Normal priority 0" in text


def test_the_page_of_a_queue_tells_who_holds_a_name_and_how_many_wait(orders, staff):
    jobs = [delayq.schedule(close_order, number, serial="tenant:<9>") for number in range(4)]
    delayq.schedule(close_order, 9)
    assert "Shared names" not in plain(staff(), PAGE)
    orders.claim()
    text = plain(staff(), PAGE)
    assert f"Shared names Name Held by Waiting tenant:<9> {jobs[0].short_id} 3" in text
    assert f"{JOBS}{jobs[0].id}/change/" in staff().get(PAGE).content.decode()


def test_names_that_jobs_share_are_for_those_who_may_see_jobs(orders, staff):
    delayq.schedule(close_order, 1, serial="tenant:9")
    orders.claim()
    assert "tenant:9" in plain(staff("view_queue", "view_job"), PAGE)
    assert "tenant:9" not in plain(staff("view_queue"), PAGE)


def test_the_page_of_a_queue_lists_fair_words_for_those_who_may_see_jobs(orders, staff):
    for number in range(3):
        delayq.schedule(bill, "<9>", number)
    delayq.schedule(bill, "a", 1)
    text = plain(staff(), PAGE)
    assert "Fair words Word Earliest date Waiting tenant:<9> " in text
    assert re.search(r"tenant:<9> \S+ \S+ 3 tenant:a \S+ \S+ 1 Due jobs", text)
    assert "tenant:" not in plain(staff("view_queue"), PAGE)
    assert "2 waiting for a turn" in plain(staff(), QUEUES)


def test_a_worker_that_has_died_is_so_on_the_page_of_its_queue_too(orders, staff):
    beat("orders", processes=2, threads=3)
    WorkerRegistry(stores.link, prefix=conf.get().prefix).died("host:1:w")
    assert "host:1:w died move 0" in plain(staff(), PAGE)


def test_the_bars_of_a_queue_stand_where_its_counters_say(orders, staff):
    minute = clock.wall_ms() // 60_000
    key = Keys(conf.get().prefix, "orders")["stats"]
    for ago, kind, count in (
        (3, "succeeded", 5),
        (3, "failed", 1),
        (400, "retried", 7),
        (3 * 1440, "succeeded", 11),
        (9 * 1440, "failed", 99),
    ):
        stores.link.execute("HSET", key, f"{minute - ago}:{kind}", count)
    client = staff()
    sums = {}
    for span in ("1h", "1d", "7d"):
        found = charts(client, f"{PAGE}?span={span}")
        sums[span] = (total(found["well"]), *(total(found["unwell"], column) for column in (0, 1)))
        assert found["unwell"]["heads"] == ["retried", "failed"]
    assert sums == {"1h": (5, 0, 1), "1d": (5, 7, 1), "7d": (16, 7, 1)}
    hour = [int(cells[0]) for _, cells in charts(client, f"{PAGE}?span=1h")["well"]["rows"]]
    assert 5 in (hour[-4], hour[-5])  # a minute may have begun meanwhile
    whole = client.get(f"{PAGE}?span=7d").context["whole"]
    assert (whole["succeeded"], whole["failed"], whole["share"]) == (16, 1, "5.8%")


def test_garbage_among_the_counters_breaks_no_page(orders, staff, redis_server):
    keys = Keys(conf.get().prefix, "orders")
    redis_server.link.execute("SET", keys["stats"], "no hash")
    redis_server.link.execute("HSET", keys["spread"], "no", "string")
    assert charts(staff(), PAGE)["well"]["nothing"]


def test_a_span_that_is_none_is_the_usual_one(orders, staff):
    assert len(charts(staff(), f"{PAGE}?span=9y")["well"]["rows"]) == 60


def test_without_redis_a_queue_is_told_by_its_rows_and_the_page_says_so(orders, staff, settings):
    queues.pause("orders", actor="admin:ann", reason="stock taking")
    ended(minutes=5, late=3, ran=8)
    ended("failed", minutes=6, late=3, ran=8)
    ended(queue="default")
    client = staff()
    lose_redis(settings)
    for address in (PAGE, f"{PAGE}?span=7d"):
        found = charts(client, address)
        assert (total(found["well"]), total(found["unwell"])) == (1, 1)
        assert {cells for _, cells in found["ran"]["rows"]} == {("–", "–"), ("8.0s", "8.0s")}
    text = plain(client, PAGE)
    assert "Redis cannot be reached" in text
    assert "Based on the latest 4,000 rows." in text
    assert "The queue has been paused since" in text
    assert "by admin:ann" in text
    assert client.get(TRENDS).status_code == client.get(OF_TASK).status_code == 200


def test_pauses_are_told_by_whom_and_why_for_this_queue_alone(orders, staff):
    client = staff()
    assert "The latest 1,000 queue events include no pauses." in plain(client, PAGE)
    client.post(f"{QUEUES}orders/pause/", {"reason": "stock taking"})
    client.post(f"{QUEUES}orders/resume/", {"reason": "done"})
    orders.fold()
    Event.objects.create(queue="default", at=clock.now(), kind="paused", actor="admin:bob", reason="another queue", stream_id="1-0")
    told = client.get(PAGE).context["pauses"]
    assert [(who, why) for _, _, who, why in told] == [("admin:clerk0", "done"), ("admin:clerk0", "stock taking")]
    assert "another queue" not in plain(client, PAGE)


def test_who_keeps_no_records_of_a_queue_is_said(orders, staff):
    beat("orders", processes=1, threads=1, sides=["records"], records=["default"])
    client = staff()
    assert "No running worker has the role mirror for this queue" in plain(client, PAGE)
    assert "move 1" in plain(client, PAGE)
    beat("orders", processes=1, threads=1, sides=["records"], records=["orders"])
    assert "keeps the records" not in plain(client, PAGE)


def test_what_differs_from_the_general_settings_is_marked(orders, staff, settings):
    settings.DELAYQ = {**settings.DELAYQ, "QUEUES": {"orders": {"LEASE": "90s", "HORIZON": "1d"}, "default": {}}}
    found = {name: (value, by) for name, value, by in staff().get(PAGE).context["settings"]}
    assert found["LEASE"] == ("1m30s", "this queue")
    assert found["HORIZON"] == ("1d", "this queue")
    assert found["TIMEOUT"] == ("–", "")
    assert set(conf.PER_QUEUE) < set(found)


def test_consumers_of_a_pulled_queue_are_named(settings, delayq_redis, transactional_db, staff):
    settings.DELAYQ = {**settings.DELAYQ, "QUEUES": {"mail": {"CONSUMER": "pull"}, "default": {}}}
    client = staff()
    assert "No consumer pulls from this queue." in plain(client, f"{QUEUES}mail/change/")
    delayq.push("mail", {"to": "a"})
    delayq.push("mail", {"to": "b"})
    assert len(delayq.pull("mail", 2)) == 2
    [(name, at, holds)] = client.get(f"{QUEUES}mail/change/").context["consumers"]
    assert (bool(name), at is not None, holds) == (True, True, 2)


def test_a_queue_that_is_none_leads_to_the_list_and_who_may_not_see_queues_sees_none(orders, staff):
    assert staff().get(f"{QUEUES}gone/change/").status_code == 302
    for address in (PAGE, TRENDS):
        assert staff("view_job").get(address).status_code == 403
    assert staff("view_queue").get(OF_TASK).status_code == 403
    for address in (PAGE, TRENDS):
        assert "/delayq/job/" not in plain_html(staff("view_queue"), address)


def plain_html(client: Client, address: str) -> str:
    return client.get(address).content.decode().partition('id="content-main"')[2]


def test_trends_tell_of_queues_and_of_tasks(orders, staff):
    for outcome in ("ack", "fail"):
        orders.ended(outcome)
    ended("failed", task="shop.other", queue="default", ran=4)
    client = staff()
    context = client.get(f"{TRENDS}?span=1d").context
    queues = {line["name"]: line for line in context["queues"]}
    assert (queues["orders"]["succeeded"], queues["orders"]["share"]) == (1, "50%")
    tasks = {line["name"]: line for line in context["tasks"]}
    assert (tasks["shop.other"]["share"], tasks["shop.other"]["ran"], tasks[TASK]["failed"]) == ("100%", ("4.0s", "4.0s"), 1)
    text = plain_html(client, TRENDS)
    assert f'href="{JOBS}task/{quote(TASK)}/"' in text
    assert f'href="{QUEUES}{quote("orders")}/change/"' in text
    assert [line["name"] for line in client.get(f"{TRENDS}?queue=default").context["tasks"]] == ["shop.other"]


def test_a_task_has_a_page_with_its_attempts(orders, staff):
    for number in range(1, 5):
        ended(minutes=number, ran=number, late=10, key=f"order:{number}")
    failed = ended("failed", minutes=20, ran=0.5, attempts=3, key="order:bad")
    ended("failed", task="shop.other")
    response = staff().get(OF_TASK)
    context = response.context
    [sums] = context["sums"]
    assert (context["attempts"], sums["share"], context["retries"], context["since"]) == (7, "20%", "0.4", None)
    assert [line["ran"] for line in context["slowest"]][:4] == ["4.0s", "3.0s", "2.0s", "1.0s"]
    assert [(line["job"].pk, line["number"], line["error"]) for line in context["unwell"]] == [
        (failed.pk, number, f"TimeoutError: no answer, try {number}") for number in (3, 2, 1)
    ]
    ran, late = context["figures"]
    assert (ran[1], ran[4]) == ("2.0s", "4.0s"), "of the last runs"
    assert late[1] == "10s"
    assert [(label, cells) for label, cells in context["histograms"][1]["rows"] if cells != ["0"]] == [
        ("< 1.0s", ["1"]),
        ("< 16s", ["4"]),
    ]
    found = {chart["name"]: chart for chart in context["charts"]}
    assert (total(found["well"]), [total(found["unwell"], column) for column in range(3)]) == (4, [2, 0, 1])
    assert "Based on all 7 recorded attempts" in plain(staff(), OF_TASK)


def test_attempts_of_jobs_that_retry_are_there_too(orders, staff):
    job = ended(minutes=5, attempts=2)
    Job.objects.filter(pk=job.pk).update(state="scheduled", finished_at=None, attempts=2)
    context = staff().get(OF_TASK).context
    assert context["attempts"] == 2


def test_the_settings_of_a_task_say_who_says_them(orders, staff, more_tasks):
    def formula(attempt: int) -> int:
        raise RuntimeError("a formula that errs")

    def pay(pin: str) -> None: ...

    more_tasks("pay", pay, backoff=Ladder.formula(formula, times=3), timeout="30s", serial="pay:{pin}", atomic=True)
    more_tasks("decide", backoff=lambda attempt, error: None, poll="1m 2m")
    client = staff()
    response = client.get(f"{JOBS}task/pay/")
    found = {name: (value, by) for name, value, by in response.context["settings"]}
    assert found["timeout"] == ("30s", "this task")
    assert found["serial"] == ("pay:{pin}", "this task")
    assert found["lease"] == ("30s", "its queue")
    assert found["atomic"] == ("yes", "this task")
    assert found["backoff"] == ("<Ladder of a formula, 3 steps>", "this task")
    assert response.context["place"].startswith(__file__)
    found = {name: value for name, value, _ in client.get(f"{JOBS}task/decide/").context["settings"]}
    assert found["backoff"] == "set by a function of the task"
    assert found["poll"] == "1m 2m"


def test_tasks_that_are_not_registered_have_a_page_as_long_as_there_are_jobs(orders, staff):
    name = "a/b_c.<b>\u202e"
    client = staff()
    assert client.get(f"{JOBS}task/{quote(name)}/").status_code == 404
    ended(task=name)
    text = plain_html(client, f"{JOBS}task/{quote(name)}/")
    assert "No task with this name is registered" in text
    assert "<b>" not in text
    assert "\u202e" not in text
    ended(task=MESSAGE)
    assert "No task of this name" not in plain_html(client, f"{JOBS}task/{quote(MESSAGE)}/")


@pytest.mark.parametrize(("jobs", "attempts"), [(2, 2), (6, 3)])
def test_only_the_newest_rows_are_looked_at_and_the_page_says_since_when(orders, staff, monkeypatch, jobs, attempts):
    monkeypatch.setattr(trends, "NEWEST", 3)
    monkeypatch.setattr(trends, "JOBS", jobs)
    for minutes in range(1, 7):
        ended(minutes=minutes, ran=minutes)
    client = staff()
    context = client.get(OF_TASK).context
    assert (context["attempts"], context["short"]) == (attempts, True)
    assert max(line["ran"] for line in context["slowest"]) == f"{attempts}.0s"
    assert "There are older attempts" in plain(client, OF_TASK)
    assert "goes back only to" in plain(client, f"{PAGE}?span=7d")


def test_attempts_are_complete_only_since_the_latest_of_the_limits(orders, staff, monkeypatch):
    monkeypatch.setattr(trends, "NEWEST", 4)
    monkeypatch.setattr(trends, "JOBS", 1)
    ended(minutes=1, ran=2, attempts=5)  # its second attempt ended 63 seconds ago
    left_out = ended(minutes=60.5 / 60, ran=2)  # and this began 62.5 seconds ago
    context = staff().get(OF_TASK).context
    assert (context["attempts"], context["since"]) == (4, left_out.started_at)


@pytest.mark.parametrize("jobs", [1, 40])
def test_no_page_asks_the_database_more_than_twelve_times(orders, staff, settings, monkeypatch, jobs):
    settings.DELAYQ = {**settings.DELAYQ, "QUEUES": {"orders": {"HORIZON": "1d"}, "default": {}}}
    monkeypatch.setattr(trends, "NEWEST", 41)
    for number in range(jobs):
        ended("failed" if number % 2 else "succeeded", attempts=1 + number % 3)
    client = staff()
    for address in (PAGE, f"{PAGE}?span=7d", TRENDS, f"{TRENDS}?span=7d", OF_TASK):
        with CaptureQueriesContext(connection) as asked:
            assert client.get(address).status_code == 200
        assert len(asked) <= 12, [query["sql"][:200] for query in asked]


def test_the_job_page_and_the_dashboard_lead_to_both(orders, staff):
    job = orders.ended("fail")
    client = staff()
    text = client.get(f"{JOBS}{job.id}/change/").content.decode()
    assert f'href="{JOBS}task/{quote(TASK)}/"' in text
    assert f'href="{PAGE}"' in text
    assert f'href="{PAGE}"' in client.get(QUEUES).content.decode()
    assert f'href="{PAGE}"' not in staff("view_job").get(f"{JOBS}{job.id}/change/").content.decode()


def test_a_chart_has_lines_for_its_scale_and_says_each_bar():
    picture = bars([("a", [1, 0]), ("b", [1.5, 0])], "x", height=100, top=5, titles=["one & two", "none"])
    assert 'd="M0 0h2M0 -50h2M0 -100h2"' in picture
    assert "<title>one &amp; two</title>" in picture
    assert 'class="b" d="M0 -20v-30h0.8v30z"' in picture
    assert "style" not in picture


@pytest.mark.parametrize(
    ("most", "top"), [(0, 1), (1, 1), (2, 2), (3, 5), (6, 10), (11, 20), (21, 50), (51, 100), (1_000_001, 2_000_000)]
)
def test_scales_are_round(most, top):
    assert scale(most) == top


def test_scales_of_durations_are_those_of_a_clock():
    assert [scale(ms, (1, 2, 4)) for ms in (0, 1, 1.5, 3, 5)] == [1, 1, 2, 4, 5]


def links(chart: Any) -> list[tuple[str, int]]:
    """Returns the URL and the number of jobs of each bar that has a link. The picture and the table have the same links."""
    found = [(re.search(r'href="([^"]+)"', label), cells) for label, cells in chart["rows"]]
    picture = str(chart.get("picture") or chart["chart"])
    addresses = [unescape(link[1]) for link, _ in found if link]
    assert [unescape(address) for address in re.findall(r'href="([^"]+)"', picture)] == addresses
    assert 'aria-hidden="true"' in picture
    return list(zip(addresses, [cells for link, cells in found if link], strict=True))


def test_a_bar_leads_to_exactly_its_jobs(orders, staff, settings):
    for minutes in (3, 3, 7, 50):
        ended(minutes=minutes)
    ended("failed", minutes=7, attempts=2)
    ended("cancelled", minutes=7)
    ended("failed", minutes=7, queue="default", task="shop.other")
    client = staff()
    lose_redis(settings)
    for address in (PAGE, OF_TASK):
        for span in ("1h", "7d"):
            found = charts(client, f"{address}?span={span}")
            for name, wanted in (("well", 4), ("unwell", 1)):
                listed = [(client.get(link).context["cl"].result_count, int(cells[-1])) for link, cells in links(found[name])]
                assert sum(count for count, _ in listed) == wanted, (address, span, name)
                assert all(count == shown for count, shown in listed)
            for name in ("late", "ran"):
                assert sum(client.get(link).context["cl"].result_count for link, _ in links(found[name])) == 5


def test_a_bar_of_the_forecast_leads_to_exactly_its_jobs(orders, staff):
    for delay in ("10m", "10m", "25m", "5h"):
        delayq.schedule(close_order, 1, delay=delay)
    delayq.schedule(close_order, 1)  # due already
    orders.fold()
    client = staff()
    for chart, wanted in zip(client.get(f"{QUEUES}?queue=orders").context["ahead"], (3, 4), strict=True):
        listed = [(client.get(link).context["cl"].result_count, shown) for link, shown in links(chart)]
        assert sum(count for count, _ in listed) == wanted
        assert all(count == shown for count, shown in listed)


def test_who_may_not_see_jobs_gets_pictures_without_links(orders, staff):
    orders.ended("ack")
    delayq.schedule(close_order, 1, delay="10m")
    client = staff("view_queue")
    for chart in [*client.get(PAGE).context["charts"], *client.get(QUEUES).context["ahead"]]:
        assert "href" not in str(chart)


def test_trends_compare_with_a_day_or_a_week_earlier(orders, staff, settings):
    settings.DELAYQ = {**settings.DELAYQ, "RETENTION": {"succeeded": "8d"}}
    minute = clock.wall_ms() // 60_000
    for days, count, seconds in ((0, 1, 8), (1, 2, 3), (7, 3, 5)):
        for _ in range(count):
            ended(minutes=days * 1440 + 20, ran=seconds)
            ended(minutes=days * 1440 + 200, ran=100)  # not in the hour
        stores.link.execute("HSET", Keys(conf.get().prefix, "orders")["stats"], f"{minute - days * 1440 - 20}:succeeded", count)
    client = staff()
    for query, count, ran in (("", 2, "3.0s"), ("&with=day", 2, "3.0s"), ("&with=week", 3, "5.0s")):
        context = client.get(f"{TRENDS}?span=1h{query}").context
        for line in (next(line for line in context["queues"] if line["name"] == "orders"), context["tasks"][0]):
            assert (line["succeeded"], line["ran"][0]) == (1, "8.0s")
            assert (line["before"]["succeeded"], line["before"]["ran"][0]) == (count, ran), query
    assert "a week earlier 3" in plain(client, f"{TRENDS}?span=1h&with=week")
    assert "RETENTION" not in plain(client, f"{TRENDS}?span=1h&with=week")
    week = client.get(f"{TRENDS}?span=7d")
    assert "Compare with" not in week.content.decode()
    assert week.context["comparisons"] == []


def test_an_earlier_period_whose_succeeded_jobs_are_deleted_has_no_times(orders, staff):
    minute, week = clock.wall_ms() // 60_000, 7 * 1440
    ended()
    ended("failed", minutes=week + 20)  # is kept
    for outcome in ("succeeded", "failed"):
        stores.link.execute("HSET", Keys(conf.get().prefix, "orders")["stats"], f"{minute - week - 20}:{outcome}", 1)
    client = staff()
    context = client.get(f"{TRENDS}?span=1h&with=week").context
    before = next(line["before"] for line in context["queues"] if line["name"] == "orders")
    assert (before["succeeded"], before["failed"], before["ran"]) == (1, 1, ("–", "–"))
    before = context["tasks"][0]["before"]
    assert (before["succeeded"], before["failed"], before["share"], before["ran"]) == (None, 1, "–", ("–", "–"))
    assert "have been deleted (RETENTION)" in plain(client, f"{TRENDS}?span=1h&with=week")
    assert "RETENTION" not in plain(client, f"{TRENDS}?span=1h")


def test_tasks_whose_successes_are_not_kept_have_no_share_and_no_times(orders, staff, settings):
    settings.DELAYQ = {**settings.DELAYQ, "QUEUES": {"orders": {"AUDIT": "failures"}, "default": {}}}
    ended("failed", ran=8)
    client = staff()
    for line in (client.get(f"{TRENDS}?span=1d").context["tasks"][0], client.get(OF_TASK).context["sums"][0]):
        assert (line["succeeded"], line["failed"], line["share"], line["ran"]) == (None, 1, "–", ("–", "–"))
    assert "None" not in plain(client, OF_TASK)
