"""Periodic jobs: a report each night in the shop's time zone, and a count every ten minutes."""

from __future__ import annotations

import html
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from io import StringIO
from urllib.parse import urljoin
from zoneinfo import ZoneInfo

import pytest
from deployment import Deployment, until
from django.core.management import call_command
from django.test import Client
from orders.models import Order, Report
from orders.tasks import charge, count_open_orders, nightly_report

from django_delayq.testing.kit import Kit

NewOrder = Callable[..., Order]
BERLIN = ZoneInfo("Europe/Berlin")


def figures(subject: str) -> list[tuple[datetime, int]]:
    return list(Report.objects.filter(subject=subject).order_by("at").values_list("at", "figure"))


def test_the_report_of_a_night_counts_what_was_paid_before_it(delayq: Kit, new_order: NewOrder) -> None:
    delayq.follow(nightly_report)
    first, second = delayq.upcoming(nightly_report, 2)
    charge.schedule(new_order(total=7).pk)
    charge.using(run_at=first + timedelta(hours=1)).schedule(new_order(total=5).pk)
    delayq.advance(second - delayq.now)
    assert figures("paid") == [(first, 7), (second, 12)]


def test_a_night_is_one_in_berlin_also_when_the_clock_is_changed(delayq: Kit) -> None:
    delayq.travel(datetime(2031, 3, 28, 12, tzinfo=UTC))
    dates = delayq.upcoming(nightly_report, 3)
    assert [date.astimezone(BERLIN).hour for date in dates] == [3, 3, 3]
    assert [date.astimezone(UTC).hour for date in dates] == [2, 1, 1]


def test_of_nights_without_a_worker_the_one_written_ahead_comes_late_and_of_the_others_the_newest(delayq: Kit, db: None) -> None:
    delayq.follow(nightly_report)
    first, *_, newest = delayq.upcoming(nightly_report, 4)
    delayq.travel(newest + timedelta(hours=1))
    delayq.run_due()
    assert [at for at, _ in figures("paid")] == [first, newest]


def test_open_orders_are_counted_every_ten_minutes(client: Client, delayq: Kit) -> None:
    delayq.follow("orders.tasks.count_open_orders")
    for total in (7, 8):
        client.post("/orders/", {"total": total})
    delayq.advance("1h")
    told = figures("open")
    assert [at.minute % 10 for at, _ in told] == [0] * 6
    assert (told[0][1], told[-1][1]) == (2, 0), "both are closed after half an hour"


def test_by_hand_it_counts_until_now(delayq: Kit, new_order: NewOrder) -> None:
    new_order()
    delayq.perform(count_open_orders)
    assert [figure for _, figure in figures("open")] == [1]


def test_people_give_it_another_hour_in_the_admin(staff: Client, delayq: Kit) -> None:
    delayq.follow(nightly_report)
    delayq.run_due()  # a worker has seen it
    page = clicked(staff, "/admin/delayq/periodic/", "orders.tasks.nightly_report")
    form = clicked(staff, page, "Override dates …")
    staff.post(form, {"cron": "30 5 * * *", "timezone": "Europe/Berlin", "reason": "the bank is late this week"})
    (night,) = delayq.upcoming(nightly_report)
    assert night.astimezone(BERLIN).strftime("%H:%M") == "05:30"
    shown = staff.get(page).content.decode()
    assert "30 5 * * *" in shown
    assert "0 3 * * *" in shown, "what the code says stands beside it"
    assert "the bank is late this week" in shown
    delayq.advance(night - delayq.now)
    assert [at for at, _ in figures("paid")] == [night]


def test_people_run_it_now_and_turn_it_off(staff: Client, delayq: Kit) -> None:
    delayq.follow(nightly_report)
    delayq.run_due()
    call_command("delayq", "periodic", "orders.tasks.nightly_report", "--run-now", stdout=StringIO())
    assert [run.task for run in delayq.run_due()] == ["orders.tasks.nightly_report"]
    call_command("delayq", "periodic", "orders.tasks.nightly_report", "--off", "--reason", "holidays", stdout=StringIO())
    assert delayq.advance("2d") == []
    assert "holidays" in staff.get(clicked(staff, "/admin/delayq/periodic/", "orders.tasks.nightly_report")).content.decode()


def clicked(client: Client, page: str, text: str) -> str:
    """Returns the address of the link with this text."""
    shown = client.get(page).content.decode()
    links = re.findall(r'<a [^>]*?href="([^"]+)"[^>]*>(.*?)</a>', shown, re.DOTALL)
    found = [address for address, words in links if re.sub("<[^>]*>", "", words).strip() == text]
    assert len(found) == 1, [words for _, words in links]
    return urljoin(page, html.unescape(found[0]))


def test_nobody_who_does_not_ask_is_disturbed(delayq: Kit, db: None) -> None:
    assert delayq.advance("2d") == []


@pytest.mark.live
def test_a_worker_keeps_the_dates_and_counts_what_they_bring(site: Deployment) -> None:
    def counted() -> set[datetime]:
        return {datetime.fromisoformat(at) for at in site.get("/reports/open/")}

    until(lambda: len(counted()) > 2, "no ticks")
    before = counted()
    assert {at.microsecond for at in before} == {0}, "each is a second of the calendar, once"
    runs = until(lambda: ran(site, "succeeded") if ran(site, "succeeded") >= len(before) else None, "runs are not counted")
    assert len(before) <= runs <= len(counted())


def ran(site: Deployment, outcome: str) -> float:
    return site.worker_metrics().of("delayq_worker_runs_total", task="orders.tasks.count_open_orders", outcome=outcome) or 0.0
