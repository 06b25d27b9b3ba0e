"""The page of rates: what is set; set and reset the rate of a name."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest
from django.contrib.admin.models import LogEntry

import django_delayq as delayq
from django_delayq import clock
from django_delayq.models import Pause
from tests.admin.conftest import QUEUES, lose_redis
from tests.admin.test_job_page import why, works
from tests.admin.test_trends import plain
from tests.tasks_for_tests import pay_out

PAGE = "/admin/delayq/queue/rates/"


def send(client, **given: str):
    return client.post(PAGE, {"name": "bank:7", "rate": "50/m", "reason": "slower", **given}, follow=True)


def test_a_rate_is_set_shown_and_reset(orders, staff):
    client = staff("view_queue", "view_job", "set_rate")
    assert "The reason is kept in the history." in plain(client, PAGE)
    assert "The rate of bank:7 is 50/m. Waiting jobs: 0." in send(client, burst="3").content.decode()
    shown = plain(client, PAGE)
    assert "bank:7 50/m 3 0 – " in shown
    assert "slower" in shown
    assert "The rate of bank:7 is reset." in client.post(PAGE, {"name": "bank:7", "reset": "on"}, follow=True).content.decode()
    assert not Pause.objects.exists()
    assert [entry.change_message for entry in LogEntry.objects.order_by("pk")] == ["rate 50/m: slower", "rate reset"]


def test_without_the_permission_there_is_no_form_and_nothing_is_set(orders, staff):
    client = staff("view_queue", "pause_queue")
    assert "Set a rate" not in plain(client, PAGE)
    assert send(client).status_code == 403
    assert not Pause.objects.exists()


def test_names_are_shown_only_to_users_who_may_view_jobs(orders, staff):
    delayq.set_rate("customer:ada", "1/s")
    assert "customer:ada" not in plain(staff("view_queue", "set_rate"), PAGE)
    assert "customer:ada" in plain(staff("view_queue", "view_job"), PAGE)


def test_rates_for_which_jobs_wait_are_listed_although_nobody_has_set_them(orders, staff):
    for number in range(3):
        delayq.schedule(pay_out.using(run_at=clock.now() - timedelta(hours=number)), 7, number)
    orders.claim()
    client = staff("view_queue", "view_job", "set_rate")
    assert "bank:7 – – 2 20" in plain(client, PAGE), "the number of jobs, and the date of the oldest"
    assert client.get(PAGE).content.decode().count("Reset") == 0
    assert "Rate bank:7 · 2 jobs wait, the oldest due since 20" in plain(client, QUEUES)
    delayq.set_rate("bank:7", "5/h", actor="ann")
    delayq.set_rate("bank:8", "1/s", actor="ann")
    shown = plain(client, QUEUES)
    assert re.search(
        r"Rate bank:7 : 5/h since \S+ \S+ by ann · 2 jobs wait, the oldest due since \S+ \S+ Rate bank:8 : 1/s since", shown
    ), shown
    assert "bank:7" not in plain(staff("view_queue"), QUEUES)


def test_the_dashboard_shows_few_rates_and_counts_the_others(orders, staff):
    for number in range(7):
        delayq.set_rate(f"bank:{number}", "1/s")
    shown = plain(staff("view_queue", "view_job"), QUEUES)
    assert (shown.count("Rate bank:"), "and 2 more" in shown) == (5, True)


def test_a_page_shows_what_is_set_while_redis_is_away(orders, staff, settings):
    delayq.set_rate("bank:7", "5/h")
    lose_redis(settings)
    assert "bank:7 5/h 1 0 –" in plain(staff("view_queue", "view_job"), PAGE)


@pytest.mark.parametrize("given", [{"rate": "fast"}, {"burst": "0"}, {"name": ""}])
def test_a_mistake_is_shown_beside_the_form(orders, staff, given):
    assert send(staff("view_queue", "view_job", "set_rate"), **given).status_code == 400
    assert not Pause.objects.exists()


def test_a_job_says_that_it_waits_for_its_rate(orders, staff):
    works()
    delayq.schedule(pay_out, 7, 1)
    second = delayq.schedule(pay_out, 7, 2)
    orders.claim()
    orders.fold()
    said = why(staff(), second)
    assert said.startswith("The job is due and is waiting for the rate bank:7. The next start is at ")
    assert said.endswith("Waiting jobs: 1.")
