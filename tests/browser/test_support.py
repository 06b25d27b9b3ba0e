"""Tasks of support staff among about 4,500 jobs, each from the start page of the admin. With -s, pytest prints the clicks and the
seconds of each task.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from django.utils import timezone

from tests.browser.chromium import expect, shoot
from tests.browser.desk.load import (
    ANGRY,
    ANGRY_MAILS,
    COUNTS,
    CUSTOMER,
    DECLINED,
    FAILED_BY_PARTNER,
    GONE,
    GONE_JOBS,
    MISSPELLED,
    MOVED,
    ORDER,
    REFUSED,
    REMINDERS,
    RIGHT,
    count,
    load,
    wait_for,
)
from tests.browser.pages import job_row, look_until, moment, queue_row, told
from tests.stage import eventually

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

pytestmark = pytest.mark.browser
PAY_WITHIN = 3600
ENVIRONMENT = {"DJANGO_SETTINGS_MODULE": "tests.browser.desk.settings"}
MOST_CLICKS = 3
LINES: list[str] = []  # what was measured
ERASE = "from django.core.management import call_command\ncall_command('delayq', 'erase', '--search', {search!r}, '--yes')"


class Hand:
    """Uses a page with a mouse and a keyboard. Counts clicks, and texts that were typed and sent with Enter."""

    def __init__(self, page: Page, task: str) -> None:
        self.page, self.task = page, task
        self.clicks = self.typed = 0
        page.goto("/admin/")
        self.began = time.monotonic()

    def click(self, what: Locator) -> None:
        what.click()
        self.clicks += 1

    def send(self, field: Locator, text: str) -> None:
        """The keyboard reaches the field without a click: `/` goes to the search field, Tab to the next field."""
        field.focus()
        field.fill(text)
        field.press("Enter")
        self.typed += 1

    def link(self, name: str, *, within: str = "#content, #nav-sidebar") -> None:
        self.click(self.page.locator(within).get_by_role("link", name=name, exact=True).first)

    def search(self, text: str) -> None:
        """Searches in the list of jobs."""
        self.link("Jobs")
        self.page.locator("#result_list, .paginator").first.wait_for()
        self.send(self.page.locator("#searchbar"), text)
        self.page.wait_for_url(lambda address: "q=" in address)

    def done(self, *, most: int = MOST_CLICKS) -> None:
        """Ends the task: the answer is on the page."""
        LINES.append(f"{self.task:<68}{self.clicks:>7}{self.typed:>7}{time.monotonic() - self.began:>7.1f} s")
        shoot(self.page, f"support-{self.task.replace(' ', '-')}")
        assert self.clicks <= most, self.task


@pytest.fixture(scope="module")
def day(example) -> Iterator[dict[str, Any]]:
    yield load(example)
    print("\n".join(["", f"{'task':<68}{'clicks':>7}{'typed':>7}{'time':>9}", *LINES]))


@pytest.fixture
def hand(admin, day, request) -> Hand:
    return Hand(admin, request.node.name.removeprefix("test_").replace("_", " "))


def open_result(hand: Hand, key: str) -> None:
    hand.click(job_row(hand.page, key).get_by_role("link").first)
    expect(hand.page.get_by_role("heading", name="Timeline")).to_be_visible()


def test_find_the_job_of_an_order(hand):
    hand.search(str(ORDER))
    open_result(hand, f"partner:{ORDER}")
    expect(hand.page.get_by_role("heading", level=1)).to_contain_text("tell_partner")
    expect(hand.page.locator("#content")).to_contain_text(f"partner:{ORDER}")
    hand.done()


def test_say_why_a_customer_got_no_mail(hand):
    hand.search(REFUSED)
    rows = hand.page.locator("#result_list tbody tr")
    expect(rows).to_have_count(1)
    hand.click(rows.first.get_by_role("link").first)
    expect(hand.page.locator(".delayq-last")).to_contain_text("550 5.1.1")
    expect(hand.page.locator(".delayq-last")).to_contain_text("mailbox unavailable")
    hand.done()


def test_requeue_what_failed_since_a_time_because_of_one_error(hand, example):
    since = timezone.now() - timedelta(hours=3)
    hand.search(f'state:failed error:PartnerDown after:"{since:%Y-%m-%d %H:%M}"')
    hand.click(hand.page.locator("#delayq-all").get_by_role("link", name="Requeue"))
    expect(hand.page.locator(".delayq-meant")).to_contain_text("PartnerDown")
    hand.click(hand.page.get_by_role("button", name="Requeue"))
    page = hand.page
    expect(page.get_by_role("heading", level=1).locator(".delayq-state")).to_have_text("finished")
    done = int(page.locator(".delayq-operation dl dd").first.inner_text())
    hand.done()
    assert 30 < done < FAILED_BY_PARTNER
    wait_for(example, FAILED_BY_PARTNER - done, state="failed", error__contains="PartnerDown")


def test_see_what_is_slow(hand):
    hand.link("Queues")
    hand.link("Trends")
    slowest = hand.page.locator("#trends-tasks tbody tr").filter(has_text="report")
    expect(slowest).to_contain_text("p95")
    hand.click(slowest.get_by_role("link").first)
    expect(hand.page.locator("#slowest-runs tbody tr").first).to_contain_text("6m")
    hand.done()


def test_stop_the_jobs_of_one_customer(hand, example):
    hand.search(f"arg:customer={CUSTOMER} state:scheduled")
    hand.click(hand.page.locator("#delayq-all").get_by_role("link", name="Cancel"))
    expect(hand.page.locator("#content")).to_contain_text(f"remind:{CUSTOMER}:")
    hand.click(hand.page.locator(".submit-row input"))
    expect(hand.page.get_by_role("heading", level=1).locator(".delayq-state")).to_have_text("finished")
    expect(hand.page.locator(".delayq-operation dl dd").first).to_have_text(str(REMINDERS))
    hand.done()
    wait_for(example, REMINDERS, state="cancelled", key__startswith=f"remind:{CUSTOMER}:")


def test_see_which_jobs_run_and_since_when(hand):
    hand.link("Jobs")
    hand.click(hand.page.locator(".delayq-tabs").get_by_role("link", name="Running"))
    row = job_row(hand.page, "report:2024")
    expect(row).to_contain_text("web-2:4711:reports/1")
    expect(row).to_contain_text("30")
    expect(hand.page.locator("#result_list tbody tr")).to_have_count(2)
    hand.done()


def test_say_what_waits_because_its_queue_is_paused(hand):
    hand.link("Queues")
    row = queue_row(hand.page, "partners")
    expect(row).to_contain_text("the partner moves house until noon")
    expect(row).to_contain_text("ines")
    hand.click(row.locator("[data-label=Due] a"))
    open_result(hand, "partner:5400")
    expect(hand.page.locator(".delayq-why")).to_contain_text("the partner moves house until noon")
    hand.done()


def test_say_what_waits_because_of_a_name(hand):
    hand.link("Queues")
    row = queue_row(hand.page, "orders")
    expect(row).to_contain_text("1 waiting for a name")
    hand.click(row.locator("[data-label=Due] a"))
    open_result(hand, "pack:5301:second")
    expect(hand.page.locator(".delayq-why")).to_contain_text("order:5301")
    hand.done()


def test_read_what_the_last_attempt_said(hand):
    hand.search("key:partner:5300")
    open_result(hand, "partner:5300")
    expect(hand.page.locator(".delayq-last")).to_contain_text("503 Service Unavailable for /orders/5300")
    expect(hand.page.locator(".delayq-timeline")).to_contain_text("raise PartnerDown(answer)")
    hand.done()


def test_move_a_job_to_another_date(hand, example):
    hand.search(f"remind:77:{MOVED}")
    open_result(hand, f"remind:77:{MOVED}")
    hand.click(hand.page.locator("#reschedule > summary"))
    hand.send(hand.page.get_by_label("Delay from now"), "3d")
    expect(told(hand.page)).to_have_text("1 rescheduled.")
    expect(hand.page.locator(".delayq-why")).to_contain_text(" in 2d")
    hand.done()
    wanted = timezone.now() + timedelta(days=2, hours=23)
    wait_for(example, 1, key=f"remind:77:{MOVED}", run_at__gt=wanted.isoformat())


def test_take_away_the_failures_of_a_night(hand):
    now = timezone.now()
    begin, end = (f"{now - timedelta(hours=hours):%Y-%m-%d %H:%M}" for hours in (9, 3))
    hand.search(f'state:failed after:"{begin}" before:"{end}"')
    hand.link("Export …")
    with hand.page.expect_download() as download:
        hand.click(hand.page.get_by_role("button", name="CSV"))
    lines = download.value.path().read_text().splitlines()
    hand.done()
    assert len(lines) > 50
    assert all("failed" in line for line in lines[1:])


# The next tasks were written down before anybody tried them.


def test_stop_all_mails_to_an_address(hand, example):
    """ "Anna calls. She wants no more mails from us." All that is known is her address."""
    hand.search(ANGRY)
    hand.click(hand.page.locator("#delayq-all").get_by_role("link", name="Cancel"))
    expect(hand.page.locator(".delayq-meant")).to_contain_text(f"{ANGRY_MAILS} matching jobs")
    hand.click(hand.page.locator(".submit-row input"))
    expect(hand.page.get_by_role("heading", level=1).locator(".delayq-state")).to_have_text("finished")
    hand.done()
    wait_for(example, ANGRY_MAILS, state="cancelled", task="shop.mail.send_mail")


def test_see_which_jobs_the_dead_worker_held(hand):
    """ "A worker died. What did it do at that time, and is it done now?" """
    hand.link("Workers")
    hand.click(hand.page.get_by_role("link", name="jobs that it held"))
    rows = hand.page.locator("#result_list tbody tr")
    expect(rows).to_have_count(COUNTS)
    expect(rows.filter(has_text="succeeded")).to_have_count(COUNTS)
    open_result(hand, "stock:0")
    expect(hand.page.locator(".delayq-timeline")).to_contain_text("The whole worker died")
    hand.done()


def test_say_what_failed_yesterday_before_noon_and_why(hand):
    """ "What failed yesterday between ten and noon, and why?" """
    day = timezone.now() - timedelta(days=1)
    hand.link("Jobs")
    hand.link("Failures by cause")
    hand.page.get_by_label("Since").fill(f"{day:%Y-%m-%d} 10:00")
    hand.send(hand.page.get_by_label("Until"), f"{day:%Y-%m-%d} 12:00")
    row = hand.page.locator("#failures tbody tr").filter(has_text="CardDeclined")
    expect(row).to_contain_text("the bank says no")
    expect(row.locator("[data-label=Failed]")).to_have_text(str(DECLINED))
    hand.click(row.locator("[data-label=Failed] a"))
    expect(hand.page.locator("#result_list tbody tr")).to_have_count(DECLINED)
    hand.done()


def test_compare_today_with_a_week_ago(hand):
    """ "Are the reports slower than a week ago?" """
    hand.link("Queues")
    hand.link("Trends")
    hand.link("1 day")
    hand.link("a week earlier")
    row = hand.page.locator("#trends-tasks tbody tr").filter(has_text="report")
    expect(row.locator("[data-label='Run time']")).to_contain_text("5m")
    expect(row.locator("xpath=following-sibling::tr[1]")).to_contain_text("a week earlier")
    expect(row.locator("xpath=following-sibling::tr[1]").locator("[data-label='Run time']")).to_contain_text("1m")
    hand.done(most=4)


def test_requeue_all_that_failed_for_one_cause_over_twenty_minutes(hand, example):
    """ "The mail server is back. Send what failed again, but slowly." """
    hand.link("Jobs")
    hand.link("Failures by cause")
    row = hand.page.locator("#failures tbody tr").filter(has_text="no answer from mail.example")
    hand.click(row.get_by_role("link", name="Requeue all …"))
    hand.page.get_by_label("Spread over").fill("20m")
    hand.send(hand.page.get_by_label("Reason"), "mail.example is back")
    expect(hand.page.locator("#content")).to_contain_text("20m")
    expect(hand.page.get_by_role("heading", level=1).locator(".delayq-state")).to_be_visible()
    hand.done()
    eventually(lambda: count(example, state="failed", error__contains="TimeoutError") < 41, "the first job of the operation")


def test_list_what_is_due_in_an_hour_of_the_forecast(hand):
    """ "Which jobs become due in that hour?" """
    hand.link("Queues")
    section = hand.page.locator("[aria-labelledby=ahead-hours]")
    bar = section.locator("svg a").nth(3)
    said = bar.locator("title").text_content()
    hand.click(bar)
    hand.page.wait_for_url("**/delayq/job/?*")
    expect(hand.page.locator("#result_list tbody tr").first).to_contain_text("scheduled")
    hand.done()
    assert int(said.split()[-1]) > 0


def test_resume_a_queue_and_see_who_paused_it(hand):
    """ "Why do no letters go out? Paper is here again." """
    hand.link("Queues")
    hand.link("letters")
    expect(hand.page.locator("#content-main")).to_contain_text("ines")
    expect(hand.page.locator("#content-main")).to_contain_text("no paper")
    hand.click(hand.page.get_by_role("button", name="Resume"))
    expect(hand.page.get_by_role("button", name="Resume")).to_have_count(0)
    expect(hand.page.get_by_role("heading", level=1)).to_have_text("letters")
    hand.done()


def test_say_who_cancelled_a_job(hand):
    """ "Who has cancelled the reminder of order 5378, and why?" """
    hand.search("5378")
    open_result(hand, "remind:88:5378")
    row = moment(hand.page, "cancelled")
    expect(row).to_contain_text("ines")
    expect(row).to_contain_text("paid at the counter")
    hand.done()


def test_say_why_a_job_has_not_run_again_yet(hand):
    """ "Paper was ordered hours ago. Why is it not here?" """
    hand.search("paper:80")
    open_result(hand, "paper:80")
    expect(hand.page.locator(".delayq-why")).to_contain_text(" in ")
    expect(hand.page.locator("#content")).to_contain_text("paper.example is closed today")
    expect(hand.page.locator(".delayq-timeline .delayq-ahead").first).to_be_visible()
    hand.done()


def test_correct_an_address_and_run_the_job_again(hand, example):
    """ "Ben's address was misspelled." """
    hand.search(MISSPELLED)
    open_result(hand, "mail:ben")
    hand.click(hand.page.get_by_role("link", name="Edit and requeue"))
    hand.send(hand.page.locator("#id_value-to"), RIGHT)
    expect(hand.page.locator(".delayq-diff")).to_contain_text(RIGHT)
    hand.click(hand.page.locator(".submit-row .default"))
    look_until(hand.page, hand.page.get_by_role("heading", level=1).get_by_text("succeeded"))
    hand.done(most=4)
    wait_for(example, 1, key="mail:ben", state="succeeded")


def test_export_all_data_about_a_customer(hand):
    """ "Customer 4711 wants a copy of all data." """
    hand.search(f"customer:{GONE}")
    expect(hand.page.locator("#result_list tbody tr")).to_have_count(GONE_JOBS)
    hand.link("Export …")
    with hand.page.expect_download() as download:
        hand.click(hand.page.get_by_role("button", name="JSON"))
    found = [json.loads(line) for line in download.value.path().read_text().splitlines()]
    hand.done()
    assert len(found) == GONE_JOBS
    assert all(job["task"] == "shop.mail.remind" for job in found)


def test_erase_all_jobs_about_a_customer(hand, example):
    """ "Customer 4711 has left. Delete everything." The list says how many there are, the command deletes them."""
    hand.search("6000")
    hand.click(hand.page.locator("#result_list .field-customer_shown a").first)
    expect(hand.page.locator("#result_list tbody tr")).to_have_count(GONE_JOBS)
    assert f"Erased jobs: {GONE_JOBS}." in example.run(ERASE.format(search=f"customer:{GONE}"))
    hand.page.reload()
    expect(hand.page.locator("#content")).to_contain_text("No job matches.")
    hand.done()
