"""The job page, Queues and Workers."""

from __future__ import annotations

import json
import re
from datetime import timedelta

import pytest
from django.contrib.admin.models import LogEntry

import django_delayq as delayq
from django_delayq import clock, conf, ids
from django_delayq.console import wording
from django_delayq.console.overview import look
from django_delayq.models import Event, Job, Operation
from django_delayq.producer.stores import stores
from django_delayq.store.scripts.worker_registry import WorkerRegistry
from tests.admin.conftest import JOBS, OPERATIONS, QUEUES, WORKERS, act, beat, choose, lose_redis, page, said
from tests.admin.test_operations import begin
from tests.tasks_for_tests import close_order

NASTY = "<script>alert(1)</script><img src=x onerror=alert(2)>"


def test_the_job_page_tells_the_whole_story(orders, staff):
    job = delayq.schedule(close_order, 7, note="fragile", key="close-order:7", meta={"customer": 9})
    [claimed] = orders.claim()
    orders.settle(claimed, "retry", detail=b'{"c":"TimeoutError","m":"no answer","t":"Traceback: line 1"}')
    [claimed] = orders.claim()
    orders.settle(claimed, "fail", detail=b'{"c":"ValueError","m":"no such order","t":"Traceback: line 2"}')
    orders.fold()
    text = staff().get(page(job)).content.decode()
    for part in (
        "close_order",
        "failed",
        "close-order:7",
        "&quot;fragile&quot;",
        "customer",
        "2 / 10",
        "attempt 1",
        "attempt 2",
        "TimeoutError: no answer",
        "ValueError: no such order",
        "Traceback: line 1",
        "Traceback: line 2",
        "host:1:w",
    ):
        assert part in text, part
    assert text.index("Traceback: line 1") < text.index("Traceback: line 2")


def test_only_the_buttons_that_make_sense_are_there(orders, staff):
    client = staff()

    def buttons(job: delayq.Job) -> set[str]:
        return set(re.findall(r'ction="\.\./(\w+)/"', client.get(page(job)).content.decode()))

    assert buttons(orders.ended("ack")) == set()
    assert buttons(orders.ended("fail")) == {"requeue"}
    assert buttons(orders.running()) == {"cancel"}
    assert buttons(orders.scheduled()[0]) == {"cancel", "run_now", "reschedule"}


def test_nothing_that_a_job_carries_reaches_the_browser_as_html(orders, staff):
    detail = json.dumps({"c": "E", "m": NASTY, "t": NASTY}).encode()
    job = delayq.schedule(close_order, NASTY, note=NASTY, key=NASTY, meta={NASTY: NASTY})
    [claimed] = orders.claim()
    orders.settle(claimed, "fail", detail=detail)
    orders.fold()
    client = staff()
    client.post(act(job, "requeue"), {"reason": NASTY})
    delayq.pause("orders", actor=NASTY, reason=NASTY)
    beat("orders", worker=NASTY)
    orders.fold()
    for address in (page(job), JOBS, QUEUES, WORKERS):
        text = client.get(address).content.decode()
        assert "alert(1)" in text or "alert(2)" in text, address
        assert "<script>alert" not in text
        assert "<img src=x" not in text


def test_no_page_lets_hidden_characters_turn_what_stands_around_them(orders, staff):
    turned, running, client = "pay\u202egnol\u2066", orders.running(), staff()
    failed, waiting = orders.ended("fail", detail=b'{"c":"E","p":"abc"}', max_attempts=1), orders.scheduled()[0]
    Job.objects.filter(pk__in=[running.id, failed.id, waiting.id]).update(task=turned, key=turned, worker=turned, error=turned)
    stores.link.execute("HSET", "delayq:{orders}:progress", ids.short(running.id), turned)
    operation = begin(actor=turned, reason=turned, options={turned: turned}, counts={turned: 1}, selection={"text": turned})
    asked = {"action": "cancel", "_selected_action": [str(waiting.id)], "index": "0"}
    pages = [
        client.post(JOBS, asked),
        client.post(f"{JOBS}{waiting.id}/cancel/", {"reason": turned}),
        client.post(f"{JOBS}{waiting.id}/cancel/", {"reason": turned, "confirmed": "1"}, follow=True),
        *(client.get(page(job)) for job in (running, failed, waiting)),
        *(
            client.get(address)
            for address in (
                JOBS,
                f"{JOBS}failures/",
                f"{JOBS}{failed.id}/edit/",
                QUEUES,
                OPERATIONS,
                f"{OPERATIONS}{operation.pk}/change/",
                f"{OPERATIONS}start/requeue/?state=failed",
            )
        ),
    ]
    for answer in pages:
        text = answer.content.decode()
        place = answer.request["PATH_INFO"]
        assert answer.status_code == 200, place
        assert not re.search("[\u202a-\u202e\u2066-\u2069]", text), place
        assert "pay\\u202egnol\\u2066" in text, place


def test_no_page_needs_inline_style_or_script(orders, staff):
    job, client = orders.scheduled()[0], staff()
    for address in (page(job), JOBS, QUEUES, WORKERS):
        text = client.get(address).content.decode()
        assert not re.search(r"<style|\sstyle=|\son\w+=|javascript:", text), address
        assert all("src=" in tag for tag in re.findall(r"<script[^>]*>", text) if "application/json" not in tag)


def test_sensitive_arguments_are_masked(orders, staff, settings):
    settings.DELAYQ = {**settings.DELAYQ, "SENSITIVE": ["order_id", "card", "note"]}
    job = delayq.schedule(close_order, {"card": "4111 1111"}, note="secret-note")
    other = delayq.schedule(close_order, 7)
    text = "".join(staff().get(page(each)).content.decode() for each in (job, other))
    assert "4111 1111" not in text
    assert "secret-note" not in text
    assert "***" in text


def test_redis_word_and_the_rows_are_told_apart_while_the_mirror_is_behind(orders, staff):
    job = delayq.schedule(close_order, 7)
    orders.fold()
    [claimed] = orders.claim()
    client = staff()
    text = client.get(page(job)).content.decode()
    assert "delayq-runs" in text
    assert "Redis already has newer data" in text
    orders.settle(claimed, "ack")
    assert "Redis already has newer data" in client.get(page(job)).content.decode()
    orders.fold()
    assert "Redis already has newer data" not in client.get(page(job)).content.decode()


def test_a_row_that_redis_does_not_have_is_explained(orders, staff, monkeypatch):
    job = orders.unpublished(monkeypatch)
    assert "The job is saved in the database" in staff().get(page(job)).content.decode()


def test_a_job_that_nobody_knows_leads_back_to_the_list(orders, staff):
    response = staff().get(f"{JOBS}00000000-0000-7000-8000-000000000000/change/", follow=True)
    assert response.status_code == 200
    assert "exist" in said(response)[0]


def test_the_job_page_works_without_redis(orders, staff, settings):
    [job] = orders.scheduled()
    client = staff()
    lose_redis(settings)
    response = client.get(page(job))
    assert response.status_code == 200
    assert "Redis cannot be reached" in response.content.decode()


# Queues


def row(text: str, queue: str) -> list[str]:
    """Returns the cells of a queue's row."""
    [found] = [part for part in re.findall(r"<tr>(.*?)</tr>", text, re.S) if f">{queue}<" in part]
    cells = [" ".join(re.sub(r"<[^>]+>", " ", cell).split()) for cell in re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", found, re.S)]
    return cells


def test_the_queues_page_shows_depths_and_workers(orders, staff):
    orders.ended("fail")
    orders.running()
    orders.scheduled(3)
    delayq.schedule(close_order, 1)
    WorkerRegistry(stores.link, prefix=conf.get().prefix).beat("h:1:w", {"queues": ["orders"], "processes": 2, "threads": 4})
    text = staff().get(QUEUES).content.decode()
    assert row(text, "orders")[1:6] == ["4", "1", "1 / 8 1 / 8", "0", "1"]
    assert re.findall(r'data-label="Workers">(?:<span class="delayq-error">)?(\d)', text) == ["0", "1", "0"]


def test_a_queue_is_paused_and_resumed_with_a_reason(orders, staff):
    client = staff()
    assert said(client.post(f"{QUEUES}orders/pause/", {"reason": "stock taking"}, follow=True)) == [
        "The queue orders is paused. Workers claim no more of its jobs."
    ]
    orders.scheduled(1, delay=0)
    assert orders.claim() == []
    text = client.get(QUEUES).content.decode()
    assert "by admin:clerk0" in text
    assert "stock taking" in text
    assert said(client.post(f"{QUEUES}orders/pause/", follow=True)) == ["The queue orders was already paused."]
    client.post(f"{QUEUES}orders/resume/", {"reason": "done"})
    assert len(orders.claim()) == 1
    assert [entry.change_message for entry in LogEntry.objects.order_by("id")] == [
        "pause: stock taking",
        "resume: done",
    ]
    orders.fold()
    events = Event.objects.filter(job=None).order_by("id").values_list("kind", "actor", "reason")
    assert list(events) == [("paused", "admin:clerk0", "stock taking"), ("resumed", "admin:clerk0", "done")]
    entry = LogEntry.objects.latest("id")
    assert client.get(entry.get_admin_url()).context["name"] == "orders"


def test_a_reason_that_is_too_long_is_complained_about_and_nothing_is_done(orders, staff):
    client, operation = staff(), begin()
    beat("orders", worker="a")
    places = [f"{QUEUES}orders/pause/", f"{WORKERS}a/quiet/", f"{WORKERS}a/stop/"]
    places += [f"{OPERATIONS}{operation.pk}/{act}/" for act in ("pause", "cancel")]
    for place in places:
        assert re.fullmatch(r"Nothing was done: .* 500 .*", said(client.post(place, {"reason": "x" * 501}, follow=True))[0])
    assert not look().queues[0].paused_at
    assert not look().workers[0].get("asked")
    operation.refresh_from_db()
    assert operation.stage == "waiting"
    assert not LogEntry.objects.exists()


def test_pausing_is_posted_by_who_may(orders, staff):
    viewer = staff("view_queue")
    assert viewer.get(f"{QUEUES}orders/pause/").status_code == 405
    assert viewer.post(f"{QUEUES}orders/pause/").status_code == 403
    assert '<form method="post"' not in re.sub(r'<form id="logout.*?</form>', "", viewer.get(QUEUES).content.decode(), flags=re.S)
    assert staff().post(f"{QUEUES}nowhere/pause/").status_code == 404


def test_the_queues_page_falls_back_on_the_database(orders, staff, settings):
    orders.scheduled(3)
    orders.ended("ack")
    client = staff()
    lose_redis(settings)
    text = client.get(QUEUES).content.decode()
    assert "Redis cannot be reached" in text
    assert row(text, "orders") == ["orders", "3", "0", "1", "0", "0"]
    answer = client.post(f"{QUEUES}orders/pause/", follow=True)
    assert said(answer) == [
        "The queue orders is paused. Workers claim no more of its jobs.",
        "These partitions cannot be reached. Workers repeat this until they can: orders.",
    ]


def test_rows_that_redis_does_not_have_are_announced(orders, staff, monkeypatch):
    orders.unpublished(monkeypatch)
    client = staff()
    assert "1 committed job is not in Redis yet. The relay of a worker will publish it." in client.get(QUEUES).content.decode()
    orders.unpublished(monkeypatch)
    assert "2 committed jobs are not in Redis yet. The relay of a worker will publish them." in client.get(QUEUES).content.decode()


# Workers


def test_the_workers_page_tells_the_silent_from_the_working(orders, staff, monkeypatch):
    registry = WorkerRegistry(stores.link, prefix=conf.get().prefix)
    registry.beat("host:1:a", {"queues": ["orders"], "processes": 2, "threads": 8, "busy": 3, "state": "working", "done": 12})
    stores.link.execute("HSET", "delayq:{workers}", "host:2:b", json.dumps({"beat": 1}))
    stores.link.execute("HSET", "delayq:{workers}", "host:3:c", json.dumps({"beat": clock.wall_ms() - 60_000}))
    text = staff().get(WORKERS).content.decode()
    assert "host:1:a" in text
    assert "2 × 8" in text
    assert "host:2:b" not in text  # forgotten after a day
    assert re.search(r"host:3:c.*?gone.*?no report", text, re.S)


def test_no_worker_is_said_with_the_way_to_start_one(orders, staff):
    assert "manage.py delayq_worker" in staff().get(WORKERS).content.decode()
    assert "manage.py delayq_worker" in staff().get(QUEUES).content.decode()


@pytest.mark.parametrize("address", [JOBS, QUEUES, WORKERS])
def test_strangers_are_sent_to_the_login(client, db, address):
    assert client.get(address).status_code == 302


@pytest.mark.parametrize("address", [QUEUES, WORKERS])
def test_each_page_has_its_own_view_permission(orders, staff, address):
    assert staff("view_job").get(address).status_code == 403


def test_what_describes_a_field_is_on_the_page(orders, staff):
    """A screen reader does not read a description whose reference leads to no element."""
    [job], failed = orders.scheduled(), orders.ended("fail")
    client = staff()
    addresses = [
        JOBS,
        page(job),
        page(failed),
        f"{JOBS}{failed.id}/edit/",
        QUEUES,
        f"{QUEUES}orders/purge/",
        f"{OPERATIONS}start/reschedule/?state=scheduled",
        f"{OPERATIONS}start/requeue/?state=failed",
    ]
    texts = [client.get(address).content.decode() for address in addresses]
    texts.append(choose(client, "reschedule", [job]).content.decode())
    texts.append(client.post(f"{QUEUES}orders/purge/", {"typed": "other"}).content.decode())
    described = 0
    for text in texts:
        for names in re.findall(r'aria-describedby="([^"]*)"', text):
            for name in names.split():
                assert text.count(f' id="{name}"') == 1, name
                described += 1
    assert described > len(texts)


def test_a_name_ends_a_line_at_its_joints_and_is_escaped_part_by_part():
    assert wording.breakable("shop.tasks.close_order") == "shop.<wbr>tasks.<wbr>close_<wbr>order"
    assert wording.breakable("/srv/<b>.py:41 ...") == "/<wbr>srv/&lt;b&gt;.<wbr>py:<wbr>41 ..."
    assert wording.breakable("\u202e.x") == "\\u202e.<wbr>x"
    assert wording.breakable("") == ""


def test_a_date_says_in_which_time_zone_it_is_meant(orders, staff, settings):
    settings.TIME_ZONE = "Asia/Kolkata"
    [job] = orders.scheduled()
    client = staff()
    for address in (page(job), f"{OPERATIONS}start/reschedule/?state=scheduled"):
        described = re.search(r'id="id_run_at_helptext">([^<]*)<', client.get(address).content.decode())
        assert described, address
        assert described[1] == "2030-01-31 18:00, or 18:00 for today. Time zone: Asia/Kolkata"


# dates


FAR = re.compile(r'<time datetime="[^"]+">[-\d]+ [:\d]+<wbr>[+-]\d\d:\d\d</time> <span class="delayq-soft">([^<]+)</span>')


def test_every_page_that_tells_a_date_says_how_far_off_it_is(orders, staff):
    job, client = orders.ended("fail", max_attempts=1), staff()
    Job.objects.update(finished_at=clock.now() - timedelta(days=3, hours=1))
    delayq.pause("orders", actor="admin:clerk", reason="flood")
    orders.fold()
    operation = begin(selection={"queue": "orders"})
    Operation.objects.update(created_at=clock.now() - timedelta(days=2, minutes=1))
    pages = {
        f"{JOBS}failures/": "3d1h ago",
        f"{JOBS}?state=failed": "3d1h ago",
        page(job): "3d1h ago",
        f"{JOBS}task/{close_order.name.replace('_', '_5F')}/?span=7d": "",  # a moment ago
        f"{QUEUES}orders/change/": "",
        OPERATIONS: "2d ago",
        f"{OPERATIONS}{operation.pk}/change/": "2d ago",
        f"{OPERATIONS}start/requeue/?state=failed": "3d1h ago",
    }
    for address, far in pages.items():
        found = FAR.findall(client.get(address).content.decode())
        assert [said for said in found if said.endswith(far)], (address, found)


def test_a_paused_queue_is_resumed_on_its_own_page(orders, staff):
    client, viewer = staff(), staff("view_queue")
    page = f"{QUEUES}orders/change/"
    assert "queue/orders/resume/" not in client.get(page).content.decode()
    delayq.pause("orders", reason="stock taking")
    assert "queue/orders/resume/" in client.get(page).content.decode()
    assert "queue/orders/resume/" not in viewer.get(page).content.decode()
    answer = client.post(f"{QUEUES}orders/resume/", {"back": "queue"}, follow=True)
    assert said(answer) == ["The queue orders was resumed."]
    assert answer.redirect_chain == [(page, 302)]
    assert "queue/orders/resume/" not in answer.content.decode()
