"""Cron monitors of Sentry for schedules."""

from __future__ import annotations

import re
from datetime import UTC, datetime

import pytest
from django.db import DatabaseError

from django_delayq.models import Periodic
from django_delayq.periodic.dates import Dates
from django_delayq.periodic.declarations import tick_meta
from django_delayq.producer.options import NONE
from django_delayq.producer.schedule import put_in
from tests.contrib import shipping

pytest.importorskip("sentry_sdk", reason="sentry_sdk is not installed")
AT = datetime(2026, 5, 4, 3, 0, tzinfo=UTC)
CRON = {"cron": "0 3 * * *", "timezone": "Europe/Berlin"}


def tick(task, *args, by_hand=False, **fields):
    """Returns a job of that tick of a schedule, as the schedule loop writes it."""
    row = Periodic.objects.create(
        name="shop.tasks.nightly_report",
        task=task.name,
        owner="code",
        decided_to=AT,
        created_at=AT,
        **(fields or CRON),
    )
    return put_in(task, NONE, args, {}, tick=tick_meta(row, AT, by_hand=by_hand))


def told(sent):
    return [(one["status"], one["check_in_id"]) for one in sent.of("check_in")]


def test_a_tick_checks_in_when_it_begins_and_when_it_has_succeeded(delayq, db, sentry):
    sent = sentry({"monitor_periodic": True})
    job = tick(shipping.ship, 1, **CRON, jitter_ms=90_000)
    delayq.run_due()
    first, last = sent.of("check_in")
    assert told(sent) == [("in_progress", job.id.hex), ("ok", job.id.hex)]
    assert first["monitor_slug"] == last["monitor_slug"] == "shop-tasks-nightly_report"
    assert first["monitor_config"] == {
        "schedule": {"type": "crontab", "value": "0 3 * * *"},
        "timezone": "Europe/Berlin",
        "checkin_margin": 3,
    }
    assert last["duration"] >= 0
    assert first["contexts"]["trace"]["trace_id"] == sent.transactions[0]["contexts"]["trace"]["trace_id"]


def test_all_attempts_are_one_check_in_that_ends_with_the_last(delayq, db, sentry):
    sent = sentry({"monitor_periodic": True})
    job = tick(shipping.lose, 1)
    delayq.run_due()
    assert told(sent) == [("in_progress", job.id.hex)]
    delayq.advance("2h")
    assert told(sent) == [("in_progress", job.id.hex)] * 2 + [("error", job.id.hex)]


@pytest.mark.parametrize(
    ("task", "end"), [(shipping.snooze, None), (shipping.retry, None), (shipping.fail, "error"), (shipping.give_up, "error")]
)
def test_each_end_is_told_as_what_it_is(delayq, db, sentry, task, end):
    sent = sentry({"monitor_periodic": True})
    tick(task)
    delayq.run_due()
    assert [status for status, _ in told(sent)] == ["in_progress", *([end] if end else [])]


def test_a_run_that_the_policy_leaves_out_is_no_error(delayq, db, sentry, monkeypatch):
    from django_delayq import exceptions

    sent = sentry({"monitor_periodic": True})
    delayq.fail_next(exceptions.Skip("skipped: another one was running"))
    tick(shipping.ship, 1)
    delayq.run_due()
    assert [status for status, _ in told(sent)] == ["in_progress", "ok"]


@pytest.mark.parametrize("options", [{}, {"monitor_periodic": False}])
def test_only_who_wants_monitors_has_them(delayq, db, sentry, options):
    sent = sentry(options)
    tick(shipping.ship, 1)
    delayq.run_due()
    assert told(sent) == []


def test_other_jobs_and_runs_by_hand_check_in_nowhere(delayq, db, sentry):
    sent = sentry({"monitor_periodic": True})
    shipping.ship.schedule(1)
    tick(shipping.ship, 2, by_hand=True)
    put_in(shipping.ship, NONE, (3,), {}, tick={"name": 7})
    put_in(shipping.ship, NONE, (4,), {}, tick="x")
    delayq.run_due()
    assert len(sent.transactions) == 4
    assert told(sent) == []


def test_dates_that_people_have_given_are_those_of_the_monitor(delayq, db, sentry):
    sent = sentry({"monitor_periodic": True})
    tick(shipping.ship, 1, **CRON, override_every_ms=7_200_000, override_timezone="UTC")
    delayq.run_due()
    assert sent.of("check_in")[0]["monitor_config"]["schedule"] == {"type": "interval", "value": 2, "unit": "hour"}


def test_where_the_dates_cannot_be_asked_for_the_monitor_keeps_its_own(delayq, db, sentry, monkeypatch):
    def away(*_, **__):
        raise DatabaseError("away")

    sent = sentry({"monitor_periodic": True})
    tick(shipping.ship, 1)
    monkeypatch.setattr(Periodic.objects, "filter", away)
    delayq.run_due()
    assert [status for status, _ in told(sent)] == ["in_progress", "ok"]
    assert all("monitor_config" not in one for one in sent.of("check_in"))


def test_a_period_that_sentry_cannot_express_has_no_monitor(delayq, db, sentry):
    sent = sentry({"monitor_periodic": True})
    tick(shipping.ship, 1, every_ms=90_000)
    delayq.run_due()
    assert told(sent) == []


@pytest.mark.parametrize(
    ("every", "schedule"),
    [
        (60_000, {"value": 1, "unit": "minute"}),
        (5_400_000, {"value": 90, "unit": "minute"}),
        (3_600_000, {"value": 1, "unit": "hour"}),
        (172_800_000, {"value": 2, "unit": "day"}),
    ],
)
def test_periods_are_told_in_the_largest_unit(every, schedule):
    from django_delayq.contrib import sentry

    assert sentry.config_of(Dates("", every, "UTC", 0)) == {"schedule": {"type": "interval", **schedule}, "checkin_margin": 1}


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("shop.tasks.nightly", "shop-tasks-nightly"),
        ("shop_2.tasks.nightly_report", "shop_2-tasks-nightly_report"),
        ("Weekly EU", "weekly-eu-0d8c0dc1"),
        ("42", "schedule-42-73475cb4"),
    ],
)
def test_slugs_are_such_as_sentry_takes(name, wanted):
    from django_delayq.contrib import sentry

    assert sentry.slug(name) == wanted


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("shop." * 30 + "one", "shop." * 30 + "other"),
        ("日報", "週報"),
        ("日報-eu", "週報-eu"),
        ("weekly.eu", "weekly-eu"),
        ("shop.tasks.nightly", "Shop.Tasks.Nightly"),
        ("schedule.42", "42"),
    ],
)
def test_names_of_which_a_slug_lacks_something_stay_apart(one, other):
    from django_delayq.contrib import sentry

    found = {sentry.slug(one), sentry.slug(other)}
    assert len(found) == 2
    assert all(re.fullmatch(r"[a-z0-9_-]{1,50}", slug) for slug in found)
