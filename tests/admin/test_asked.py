"""How the admin shows jobs that poll and get "not yet", and jobs without a limit of attempts."""

from __future__ import annotations

from datetime import timedelta

import pytest

import django_delayq as delayq
from django_delayq import clock
from django_delayq.console import why_not_yet
from django_delayq.models import Job
from django_delayq.producer.stores import stores
from tests.admin.conftest import JOBS, page
from tests.admin.test_job_page import moments, why, works
from tests.tasks_for_tests import ask_bank, close_order


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
