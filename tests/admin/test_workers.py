"""The page of workers: the jobs that they run, and the workers that are gone. The actions quiet and stop."""

from __future__ import annotations

import json
import re

import pytest
from django.contrib.admin.models import LogEntry

from django_delayq import clock, conf, ids
from django_delayq.models import Event
from django_delayq.producer.stores import stores
from django_delayq.store.keys import Keys
from django_delayq.store.scripts.worker_registry import WorkerRegistry
from tests.admin.conftest import QUEUES, WORKERS, beat, lose_redis, said, sent_live

NASTY = "<script>alert(1)</script>"


def registry() -> WorkerRegistry:
    return WorkerRegistry(stores.link, prefix=conf.get().prefix)


def test_what_a_worker_runs_is_shown_with_its_age(orders, staff):
    job = orders.running()
    told = {"id": ids.short(job.id), "task": "shop.close", "queue": "orders", "attempt": 1}
    registry().beat(
        "host:1:a",
        {"queues": ["orders"], "processes": 1, "threads": 8, "busy": 1, "jobs": [{**told, "started": clock.wall_ms() - 95_000}]},
    )
    text = staff().get(WORKERS).content.decode()
    assert f'/admin/delayq/job/{job.id}/change/">shop.<wbr>close</a>' in text
    assert "orders, attempt 1, 1m3" in text
    assert re.search(r'<meter[^>]* max="8" value="1"', text)
    assert f"{job.id}" not in staff("view_worker").get(WORKERS).content.decode()


@pytest.mark.parametrize("act", ["quiet", "stop"])
def test_a_worker_is_asked_and_the_page_says_asked(orders, staff, act):
    beat("orders", worker="host:1:a")
    client = staff()
    response = client.post(f"{WORKERS}host:1:a/{act}/", {"reason": "a deploy"}, follow=True)
    assert said(response)[0].startswith("The worker host:1:a was asked to")
    assert registry().asked("host:1:a") == (act, "admin:clerk0: a deploy")
    assert f"asked to {'be ' if act == 'quiet' else ''}{act}" in response.content.decode()
    entry = LogEntry.objects.get()
    assert (entry.object_id, entry.change_message) == ("host:1:a", f"{act}: a deploy")
    event = Event.objects.get()
    assert (event.job, event.queue, event.kind, event.detail) == (None, "", f"worker_{act}", {"worker": "host:1:a"})
    assert (event.actor, event.reason) == ("admin:clerk0", "a deploy")
    assert client.get(entry.get_admin_url(), follow=True).redirect_chain == [(WORKERS, 302)]


@pytest.mark.parametrize("act", ["quiet", "stop"])
def test_each_request_is_posted_by_who_may(orders, staff, act):
    beat("orders", worker="a")
    other = "stop" if act == "quiet" else "quiet"
    client = staff("view_worker", f"{other}_worker")
    assert client.post(f"{WORKERS}a/{act}/").status_code == 403
    assert client.get(f"{WORKERS}a/{act}/").status_code == 405
    text = client.get(WORKERS).content.decode()
    assert f"/{act}/" not in text
    assert f"/{other}/" in text
    assert staff(f"{act}_worker").post(f"{WORKERS}a/{act}/").status_code == 403  # without the page
    assert registry().asked("a") is None
    assert not LogEntry.objects.exists()
    assert not Event.objects.exists()


def test_a_worker_that_is_gone_is_shown_as_such_and_not_asked(orders, staff):
    stores.link.execute("HSET", "delayq:{workers}", "host:3:c", json.dumps({"beat": clock.wall_ms() - 120_000}))
    client = staff()
    text = client.get(WORKERS).content.decode()
    assert 'delayq-bad">gone<' in text
    assert "no report for 2m" in text
    assert "/stop/" not in text
    assert "No request was sent" in said(client.post(f"{WORKERS}host:3:c/stop/", follow=True))[0]
    assert not LogEntry.objects.exists()


def test_a_worker_that_is_known_to_be_dead_is_shown_as_such_at_once_and_nobody_worries(orders, staff):
    beat("orders", worker="host:1:a")
    registry().beat("host:2:b", {"queues": list(conf.get().queues), "processes": 1, "threads": 1})
    registry().died("host:1:a")
    registry().died("host:9:z")  # no worker has that name
    client = staff()
    text = client.get(WORKERS).content.decode()
    assert 'delayq-plain">died<' in text
    assert '/job/?q=is%3Acrashed%20worker%3A%22host%3A1%3Aa%22"' in text
    assert "/job/?q=" not in staff("view_worker").get(WORKERS).content.decode()
    assert "it hangs" not in text
    assert "No request was sent" in said(client.post(f"{WORKERS}host:1:a/stop/", follow=True))[0]
    board = client.get(QUEUES).context
    (sign,) = (vital for vital in board["vitals"] if vital.name == "workers")
    assert (sign.level, sign.value) == ("well", "1 alive, 1 died")
    assert {row["queue"].name: row["queue"].workers for row in board["queues"]}["orders"] == 1
    beat("orders", worker="host:1:a")  # a worker that gives a sign of life is alive
    assert 'delayq-plain">died<' not in client.get(WORKERS).content.decode()


def test_a_worker_that_is_gone_is_dismissed_by_who_may_stop_workers(orders, staff):
    beat("orders", worker="host:1:a")
    beat("orders", worker="host:2:b")
    registry().died("host:1:a")
    viewer = staff("view_worker", "quiet_worker")
    assert "/dismiss/" not in viewer.get(WORKERS).content.decode()
    assert viewer.post(f"{WORKERS}host:1:a/dismiss/").status_code == 403
    client = staff("view_worker", "stop_worker")
    assert client.get(f"{WORKERS}host:1:a/dismiss/").status_code == 405
    assert said(client.post(f"{WORKERS}host:1:a/dismiss/", follow=True)) == ["host:1:a is no longer in the list."]
    assert "was not removed" in said(client.post(f"{WORKERS}host:2:b/dismiss/", follow=True))[0]
    assert [worker["id"] for worker in registry().all()] == ["host:2:b"]
    entry, event = LogEntry.objects.get(), Event.objects.get()
    assert (entry.object_id, entry.change_message) == ("host:1:a", "dismiss")
    assert (event.kind, event.detail) == ("worker_dismiss", {"worker": "host:1:a"})


def test_what_stands_in_redis_is_shown_as_text_and_breaks_nothing(orders, staff):
    key, now_ms = Keys(conf.get().prefix, "workers")["workers"], clock.wall_ms()
    for id, facts in {
        NASTY: {"beat": now_ms, "host": NASTY, "queues": [NASTY, 7], "state": NASTY, "version": NASTY, "sides": [NASTY]},
        "": {"beat": now_ms},
        "../../../": {"beat": now_ms, "jobs": "no list"},
        "line\nend\u202e": {"beat": now_ms, "jobs": [None, 7, {"id": 9}, {"id": "x"}, {"id": "0" * 22, "task": NASTY, "started": -1}]},
        "numbers": {"beat": now_ms, "busy": "many", "processes": -1, "threads": 1e308, "done": None, "memory": [], "started": "x"},
    }.items():
        stores.link.execute("HSET", key, id, json.dumps(facts))
    response = staff().get(WORKERS)
    text = response.content.decode()
    assert response.status_code == 200
    assert NASTY not in text
    assert "&lt;script&gt;alert(1)" in text
    assert "\u202e" not in text
    assert client_can_ask(staff, NASTY)


def client_can_ask(staff, worker: str) -> bool:
    """Returns whether the form of that worker leads to it, whatever its id contains."""
    client = staff()
    addresses = re.findall(r'formaction="([^"]+)"', client.get(WORKERS).content.decode())
    for address in addresses:
        client.post(address)
    return registry().asked(worker) == ("stop", "admin:" + client.get(WORKERS).wsgi_request.user.get_username())


def test_workers_are_not_asked_while_redis_is_away(orders, staff, settings):
    client = staff()
    lose_redis(settings)
    assert "Redis" in said(client.post(f"{WORKERS}a/stop/", follow=True))[0]
    assert not LogEntry.objects.exists()


def test_only_what_changes_is_sent_live(orders, staff):
    beat("orders")
    part, again = sent_live(staff(), WORKERS)
    assert "<html" not in part.content.decode()
    assert again.status_code == 304
