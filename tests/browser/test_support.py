"""Ten tasks of support staff among about 4,500 jobs, each from the start page of the admin in at most three clicks."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from django.utils import timezone

from tests.browser.chromium import expect, shoot
from tests.browser.desk.load import CUSTOMER, FAILED_BY_PARTNER, MOVED, ORDER, REFUSED, REMINDERS, load
from tests.browser.pages import job_row, queue_row, told

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

pytestmark = pytest.mark.browser
PAY_WITHIN = 3600
ENVIRONMENT = {"DJANGO_SETTINGS_MODULE": "tests.browser.desk.settings"}
MOST_CLICKS = 3
COUNTED = "from django_delayq.models import Job\nprint(Job.objects.filter(**{fields!r}).count())"


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

    def done(self) -> None:
        """Ends the task: the answer is on the page."""
        seconds = time.monotonic() - self.began
        print(f"\n{self.task}: {self.clicks} clicks, {self.typed} typed, {seconds:.1f} s")
        shoot(self.page, f"support-{self.task.replace(' ', '-')}")
        assert self.clicks <= MOST_CLICKS, self.task


@pytest.fixture(scope="module")
def day(example) -> dict[str, Any]:
    return load(example)


@pytest.fixture
def hand(admin, day, request) -> Hand:
    return Hand(admin, request.node.name.removeprefix("test_").replace("_", " "))


def count(example, **fields: Any) -> int:
    """Returns the number of rows with these values."""
    return int(example.run(COUNTED.format(fields=fields)).splitlines()[-1])


def counted_until(example, wanted: int, **fields: Any) -> None:
    """Waits for the count: the rows change a moment later."""
    deadline = time.monotonic() + 60
    while (found := count(example, **fields)) != wanted:
        assert time.monotonic() < deadline, f"{found} and not {wanted} rows say {fields}"
        time.sleep(0.2)


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
    counted_until(example, FAILED_BY_PARTNER - done, state="failed", error__contains="PartnerDown")


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
    counted_until(example, REMINDERS, state="cancelled", task="shop.mail.remind")


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
    counted_until(example, 1, key=f"remind:77:{MOVED}", run_at__gt=wanted.isoformat())


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
