"""The steps of people in the shop and in the admin, named in their words."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from tests.browser.chromium import PATIENCE_MS, expect

if TYPE_CHECKING:
    from playwright.sync_api import APIResponse, Locator, Page

JOBS, QUEUES, WORKERS = "/admin/delayq/job/", "/admin/delayq/queue/", "/admin/delayq/worker/"
TARGETS, TOKENS = "/admin/delayq/target/", "/admin/delayq_gateway/token/"
OPERATIONS, SET_ASIDE, SCHEDULES = "/admin/delayq/operation/", "/admin/delayq/setaside/", "/admin/delayq/periodic/"


def place_order(page: Page) -> int:
    """Orders the first item of the catalogue. The page is then the page of the order."""
    page.goto("/")
    page.get_by_role("button", name="Order").first.click()
    page.wait_for_url("**/orders/*/")
    return int(page.url.rstrip("/").rsplit("/", 1)[1])


def order_state(page: Page) -> Locator:
    return page.locator("#order .state")


def ledger(page: Page) -> list[str]:
    """Returns the history of the order, one entry per line, without the times."""
    return [text.split(" ", 1)[1] for text in page.locator(".ledger li").all_inner_texts()]


def close_key(order: int) -> str:
    return f"close-order:{order}"


def search_jobs(page: Page, term: str) -> None:
    """Uses the field of the list."""
    page.goto(JOBS)
    page.locator("#searchbar").fill(term)
    page.get_by_role("button", name="Search").click()
    page.wait_for_url(lambda address: "q=" in address)


def job_row(page: Page, key: str) -> Locator:
    """Returns the row of the list of jobs with that key."""
    return page.locator("#result_list tbody tr").filter(has=page.get_by_role("cell", name=key, exact=True))


def open_job(page: Page, key: str) -> None:
    page.goto(f"{JOBS}?{urlencode({'q': key})}")
    job_row(page, key).get_by_role("link").first.click()
    expect(page.get_by_role("heading", name="Timeline")).to_be_visible()


def queue_row(page: Page, queue: str) -> Locator:
    return page.locator("#queues tbody tr").filter(has=page.get_by_role("link", name=queue, exact=True))


def depth(page: Page, queue: str, what: str) -> Locator:
    """Returns the cell of that queue in that column."""
    column = page.locator("#queues thead th").all_inner_texts()
    place = [text.lower() for text in column].index(what.lower())
    return queue_row(page, queue).locator("th, td").nth(place)


def pause(page: Page, queue: str, reason: str) -> None:
    page.goto(QUEUES)
    queue_row(page, queue).locator("summary").click()
    queue_row(page, queue).get_by_label("Reason").fill(reason)
    queue_row(page, queue).get_by_role("button", name="Pause", exact=True).click()
    expect(queue_row(page, queue).get_by_role("button", name="Resume")).to_be_visible()


def resume(page: Page, queue: str) -> None:
    page.goto(QUEUES)
    queue_row(page, queue).get_by_role("button", name="Resume").click()
    expect(queue_row(page, queue).locator("details.delayq-ask summary")).to_be_visible()


def told(page: Page) -> Locator:
    """Returns the messages at the top of an admin page."""
    return page.locator(".messagelist")


def moment(page: Page, what: str) -> Locator:
    """Returns the lines of a job's timeline with that event."""
    return page.locator(".delayq-timeline tbody tr").filter(has=page.get_by_role("cell", name=what, exact=True))


def look_until(page: Page, found: Locator) -> None:
    """Reloads the page until it shows the text. Admin pages do not change by themselves."""
    deadline = time.monotonic() + PATIENCE_MS / 1000
    while not found.first.is_visible():
        assert time.monotonic() < deadline, f"never came: {found}\n{page.locator('body').inner_text()}"
        page.wait_for_timeout(200)
        page.reload()


def post_by_hand(page: Page, address: str, **fields: str) -> APIResponse:
    """Sends a POST as the page's own forms would send it, without a form. Does not follow redirects."""
    token = next(cookie["value"] for cookie in page.context.cookies() if cookie["name"] == "csrftoken")
    return page.request.post(address, form={"csrfmiddlewaretoken": token, **fields}, max_redirects=0)
