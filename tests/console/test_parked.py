"""Parked jobs on pages and in commands."""

from __future__ import annotations

import pytest

import django_delayq as delayq
from django_delayq.models import Job
from tests.admin.conftest import JOBS, QUEUES
from tests.admin.test_dashboard import vital
from tests.tasks_for_tests import close_order


@pytest.fixture
def parked(orders) -> delayq.Job:
    delayq.schedule(close_order, 1, delay="1h")
    return orders.parked("parked-task")


def test_a_parked_job_is_listed_as_parked_and_not_as_plain_scheduled(parked, staff, run):
    client = staff()
    listed = client.get(f"{JOBS}?state=parked").content.decode()
    assert parked.short_id in listed
    assert "the worker says why" in listed
    assert Job.objects.get(pk=parked.id).derived == "parked"
    assert parked.short_id in client.get(f"{JOBS}?q=state:parked").content.decode()
    assert ">Parked" in client.get(JOBS).content.decode()
    [row] = run("list", "--state", "parked", "--json").json
    assert (row["id"], row["derived"]) == (parked.short_id, "parked")


def test_the_dashboard_and_status_count_it_and_lead_to_the_list(parked, staff, run):
    text = staff().get(QUEUES).content.decode()
    assert vital(text, "parked") == ("late", "1")
    assert "state=parked" in text
    assert run("status", "--json").json["parked"] == 1
    assert "1 job is parked. For the reason, run manage.py delayq doctor." in run("status").out


def test_where_none_is_parked_neither_the_sign_nor_the_view_is_shown(orders, staff, run):
    client = staff()
    assert "parked" not in client.get(QUEUES).content.decode()
    assert ">Parked" not in client.get(JOBS).content.decode()
    assert run("status", "--json").json["parked"] == 0


def test_a_job_that_runs_again_is_no_longer_parked(parked, orders, run):
    delayq.reschedule(parked, delay="0s")
    orders.claim()
    orders.fold()
    row = Job.objects.get(pk=parked.id)
    assert (row.derived, row.fingerprint, row.error) == ("running", "", "")
