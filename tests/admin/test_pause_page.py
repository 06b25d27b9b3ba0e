"""The page of pauses: what is paused, and pause or resume a task or a concurrency name."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest
from django.contrib.admin.models import LogEntry
from django.urls import reverse

import django_delayq as delayq
from django_delayq import clock
from django_delayq.models import Pause
from tests.admin.conftest import JOBS, page
from tests.admin.test_job_page import why, works
from tests.admin.test_trends import plain
from tests.producer.test_scopes import tenant
from tests.tasks_for_tests import bill, close_order, pay_out

TASK = close_order.name
PAGE = "/admin/delayq/queue/pauses/"


def pause(client, kind: str = "task", word: str = TASK, **given: str):
    return client.post(PAGE, {"act": "pause", "kind": kind, "word": word, "reason": "strike", **given}, follow=True)


def test_a_task_is_paused_shown_and_resumed(orders, staff):
    client = staff("view_queue", "view_job", "pause_queue")
    assert f"Paused: {TASK}. Jobs that are still running: 0." in pause(client).content.decode()
    assert Pause.objects.get().paused_why == "strike"
    shown = plain(client, PAGE)
    assert f"Task {TASK}" in shown
    assert "strike" in shown
    assert "The task has been paused since" in plain(client, reverse("admin:delayq_job_task", args=[TASK]))
    answer = client.post(PAGE, {"act": "resume", "kind": "task", "word": TASK, "pace": "100/m"}, follow=True)
    assert f"Resumed: {TASK}." in answer.content.decode()
    assert [entry.change_message for entry in LogEntry.objects.order_by("pk")] == ["pause: strike", "resume"]


def test_a_scope_and_its_serial_name_are_shown_and_resumed(orders, staff):
    client = staff("view_queue", "view_job", "pause_queue")
    assert "Paused: a. Jobs that are still running: 0." in pause(client, "scope", "a").content.decode()
    delayq.pause(name="order:7", scope="a")
    assert all(text in plain(client, PAGE) for text in ("Scope a ", "Concurrency name a/order:7 "))
    assert "Scope a : paused since" in plain(client, "/admin/delayq/queue/")
    for word in re.findall('name="word" value="([^"]+)"', client.get(PAGE).content.decode()):
        kind = "name" if "order" in word else "scope"
        answer = client.post(PAGE, {"act": "resume", "kind": kind, "word": word}, follow=True)
        assert f"Resumed: {'a/order:7' if kind == 'name' else 'a'}." in answer.content.decode()
    assert not Pause.objects.filter(paused_at__isnull=False).exists()


def test_without_the_permission_there_is_no_form_and_nothing_is_paused(orders, staff):
    client = staff("view_queue")
    assert "Pause jobs" not in plain(client, PAGE)
    assert pause(client).status_code == 403
    assert not Pause.objects.exists()


def test_names_are_shown_only_to_users_who_may_view_jobs(orders, staff):
    delayq.pause(name="customer:ada")
    assert "customer:ada" not in plain(staff("view_queue", "pause_queue"), PAGE)
    assert "customer:ada" in plain(staff("view_queue", "view_job"), PAGE)


@pytest.mark.parametrize(
    ("given", "message"),
    [({"word": "tests.tasks_for_tests.close_oder"}, "no task is named"), ({"until": "2020-01-01"}, "Enter a date in the future.")],
)
def test_a_mistake_is_shown_beside_the_form(orders, staff, given, message):
    answer = pause(staff("view_queue", "view_job", "pause_queue"), **given)
    assert (answer.status_code, message in answer.content.decode()) == (400, True)


def test_a_wrong_pace_changes_nothing(orders, staff):
    client = staff("view_queue", "view_job", "pause_queue")
    pause(client)
    answer = client.post(PAGE, {"act": "resume", "kind": "task", "word": TASK, "pace": "fast"}, follow=True)
    assert "must be a number and a unit" in answer.content.decode().replace("&#x27;", "'")
    assert Pause.objects.filter(paused_at__isnull=False).exists()


def test_a_job_says_who_has_paused_its_task_or_its_name(orders, staff):
    works()
    first = delayq.schedule(close_order, 1)
    second = delayq.schedule(close_order.using(serial="order:{order_id}"), 2)
    delayq.pause(name="order:2")
    orders.fold()
    assert why(staff(), second).startswith("The name order:2 has been paused since ")
    delayq.pause(task=close_order, actor="ann", reason="strike")
    assert why(staff(), first).startswith(f"The task {TASK} has been paused by ann since ")
    assert why(staff(), first).endswith("Reason: strike")


def test_a_job_says_who_has_paused_its_scope(orders, staff, settings):
    settings.DELAYQ = {**settings.DELAYQ, "SCOPE": "tests.producer.test_scopes.current"}
    works()
    with tenant("a"):
        job = delayq.schedule(close_order.using(serial="order:{order_id}"), 2)
    delayq.pause(name="order:2", scope="a")
    orders.fold()
    assert why(staff(), job).startswith("The name a/order:2 has been paused since ")
    delayq.pause(scope="a", actor="ann")
    assert why(staff(), job).startswith("The scope a has been paused by ann since ")


def test_a_job_that_returns_after_the_end_of_a_pause_says_so(orders, staff):
    works()
    job = delayq.schedule(close_order, 1)
    delayq.pause(task=close_order, until=clock.now() + timedelta(hours=1))
    assert orders.claim() == []
    orders.fold()
    assert "The pause ends at " in why(staff(), job)
    Pause.objects.update(until=clock.now())
    assert why(staff(), job) == f"The pause of {TASK} has ended. The jobs that it held return gradually."


def rated(orders) -> None:
    """Takes the token of bank 7."""
    delayq.schedule(pay_out, 7, 1)
    orders.claim()


HOLDS = {
    "paused": (
        lambda orders: delayq.pause("orders"),
        lambda orders: delayq.pause(task=pay_out),
        lambda orders: delayq.pause(name="bank:7"),
    ),
    "waits for its rate": (rated,),
}


@pytest.mark.parametrize(("held_by", "hold"), [(held_by, hold) for held_by, holds in HOLDS.items() for hold in holds])
def test_a_job_that_a_pause_or_a_rate_holds_is_not_late_and_nobody_knows_when_it_starts(orders, staff, held_by, hold):
    works()
    hold(orders)
    job = delayq.schedule(pay_out.using(serial="bank:{bank}", run_at=clock.now() - timedelta(hours=1)), 7, 2)
    orders.claim()
    orders.fold()
    client = staff()
    context = client.get(page(job)).context
    assert (context["late"], context["held_by"]) == ("", held_by)
    assert next((moment.text, moment.about) for moment in context["moments"] if moment.ahead) == (held_by, None)
    assert {moment.about for moment in context["moments"]} == {None}
    assert f" {held_by} 0/10" in plain(client, f"{JOBS}?q=id:{job.short_id}")
    assert f" {held_by} attempts 0 / 10" in plain(client, page(job))


def test_a_due_job_that_waits_for_its_turn_is_not_late_and_says_so(orders, staff):
    works()
    hour = timedelta(hours=1)
    _first, second, later = [
        delayq.schedule(bill.using(run_at=clock.now() + wait), "a", number) for number, wait in enumerate((-hour, -hour, hour))
    ]
    orders.fold()
    client = staff()
    context = client.get(page(second)).context
    assert (context["late"], context["held_by"]) == ("", "waits for its turn")
    assert next((moment.text, moment.about) for moment in context["moments"] if moment.ahead) == ("waits for its turn", None)
    word = "The job is due and is waiting for the turn of its fair word tenant:a."
    assert why(client, second) == f"{word} Jobs of this word before it: 1."
    context = client.get(page(later)).context
    assert context["held_by"] == ""
    assert any(moment.about for moment in context["moments"])


def test_a_job_that_nothing_holds_is_late(orders, staff):
    delayq.pause(name="bank:8")
    job = delayq.schedule(pay_out.using(run_at=clock.now() - timedelta(hours=1)), 7)
    context = staff().get(page(job)).context
    assert (context["late"][:2], context["held_by"]) == ("1h", "")
    assert any(moment.about for moment in context["moments"])
