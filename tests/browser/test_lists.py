"""The list of jobs in daily work: what a phone shows first, and what the keyboard does."""

from __future__ import annotations

import json

import pytest

from tests.browser.chromium import expect, shoot, sideways
from tests.browser.conftest import log_in
from tests.browser.filled import fill
from tests.browser.pages import JOBS

pytestmark = pytest.mark.browser
PAY_WITHIN = 3600
ENVIRONMENT = {"DJANGO_SETTINGS_MODULE": "tests.browser.dressed"}
VIEWS = ("", "scheduled", "running", "failed", "cancelled", "succeeded")


@pytest.fixture(scope="module")
def jobs(example) -> dict[str, str]:
    return fill(example)


@pytest.mark.parametrize(("locale", "scheme"), [("", "light"), ("", "dark"), ("de", "light"), ("zh-CN", "light")])
def test_no_view_is_wider_than_the_window(tabs, jobs, locale, scheme):
    for narrow in (False, True):
        page = tabs.open("admin", narrow=narrow, locale=locale)
        page.emulate_media(color_scheme=scheme)
        for view in VIEWS:
            page.goto(f"{JOBS}?state={view}")
            shoot(page, f"lists-{locale}{scheme}-{'narrow' if narrow else 'wide'}-{view or 'all'}")
            assert sideways(page) == 0
            box = page.locator(".results")
            assert box.evaluate("(node) => node.scrollWidth - node.clientWidth") == 0, (narrow, view)


def test_on_a_phone_the_first_job_is_seen_without_scrolling(tabs, jobs):
    page = tabs.open("admin", narrow=True)
    page.set_viewport_size({"width": 390, "height": 844})
    for view in VIEWS:
        page.goto(f"{JOBS}?state={view}")
        shoot(page, f"lists-phone-{view or 'all'}", whole=False)
        link = page.locator("#result_list tbody tr th a").first
        box = link.bounding_box() if link.count() else None
        if box is not None:
            assert box["y"] + box["height"] < 844, view


@pytest.mark.parametrize("locale", ["", "de", "zh-CN"])
def test_on_a_phone_fifty_jobs_take_at_most_4000_pixels(tabs, jobs, locale):
    page = tabs.open("admin", locale=locale)
    page.set_viewport_size({"width": 375, "height": 812})
    for view in ("", "scheduled"):
        page.goto(f"{JOBS}?state={view}")
        assert page.locator("#result_list tbody tr").count() == 50
        assert page.evaluate("document.documentElement.scrollHeight") <= 4000, view


def focused(page) -> str:
    """Returns the address or the id of the element with the keyboard focus."""
    return page.evaluate("document.activeElement.getAttribute('href') || document.activeElement.id")


def test_the_keyboard_goes_from_job_to_job_opens_and_searches(tabs, jobs):
    page = tabs.open("admin")
    page.goto(f"{JOBS}?state=failed")
    links = page.locator("#result_list tbody th a").evaluate_all("(all) => all.map((link) => link.getAttribute('href'))")
    for key, place in (("j", 0), ("j", 1), ("j", 2), ("k", 1), ("k", 0), ("k", 0)):
        page.keyboard.press(key)
        assert focused(page) == links[place]
    page.keyboard.press("/")
    assert focused(page) == "searchbar"
    page.keyboard.type("jkor?/")  # in that field they are letters
    assert page.locator("#searchbar").input_value() == "jkor?/"
    expect(page.locator("#delayq-keys")).not_to_be_visible()
    page.locator("#searchbar").fill("")
    page.locator("#searchbar").blur()
    page.keyboard.press("Control+j")
    assert focused(page) not in links
    page.keyboard.press("j")
    first = page.locator("#result_list tbody tr").first.locator("input.action-select")
    for checked in (True, False):
        page.keyboard.press("x")
        assert first.is_checked() is checked
    page.keyboard.press("o")
    page.wait_for_url(f"**{links[0].partition('?')[0]}*")


def test_the_keys_are_listed_and_can_be_turned_off(tabs, jobs):
    page = tabs.open("admin")
    page.goto(f"{JOBS}?state=failed")
    page.keyboard.press("?")
    shown = page.locator("#delayq-keys")
    expect(shown).to_be_visible()
    shoot(page, "lists-keys", whole=False)
    page.keyboard.press("j")
    assert page.evaluate("document.activeElement.closest('#delayq-keys') !== null")  # the elements below cannot be reached
    page.get_by_label("Enable these keys").uncheck()
    page.keyboard.press("Escape")
    expect(shown).not_to_be_visible()
    page.reload()
    page.keyboard.press("j")
    assert focused(page) == ""
    page.get_by_role("button", name="Keys").click()
    page.get_by_label("Enable these keys").check()
    page.get_by_role("button", name="Close").click()
    page.keyboard.press("j")
    assert focused(page) != ""


def test_r_asks_for_the_page_again(tabs, jobs):
    page = tabs.open("admin")
    page.goto(f"{JOBS}?state=failed")
    page.evaluate("window.before = true")
    with page.expect_navigation():
        page.keyboard.press("r")
    assert page.evaluate("window.before") is None


def test_without_scripts_there_is_no_word_of_keys(tabs, jobs):
    page = tabs.open(javascript=False)
    log_in(page, "admin")
    page.goto(JOBS)
    expect(page.locator("#result_list")).to_be_visible()
    expect(page.get_by_role("button", name="Keys")).to_have_count(0)
    expect(page.locator("#delayq-keys")).not_to_be_visible()


def test_the_keyboard_meets_filters_before_jobs_and_each_job_once(tabs, jobs):
    page = tabs.open("admin")
    page.goto(f"{JOBS}?state=failed")
    stops = page.evaluate(
        """() => [...document.querySelectorAll("#changelist a[href], #changelist summary, #changelist input, #changelist select")]
          .filter((node) => node.checkVisibility() && node.type !== "hidden")
          .map((node) => node.closest(".delayq-filter") ? "filter" : node.closest("#result_list tbody th") ? "job" : "")"""
    )
    assert stops.index("filter") < stops.index("job")
    assert "filter" not in stops[stops.index("job") :]
    assert stops.count("job") == page.locator("#result_list tbody tr").count()


def test_a_click_on_a_head_orders_and_stays_through_the_pages(tabs, jobs):
    page = tabs.open("admin")
    page.goto(f"{JOBS}?state=failed")
    page.locator("#result_list thead").get_by_role("link", name="Attempts").click()
    page.wait_for_url("**o=*")
    found = page.locator("#result_list .field-attempts_made").all_inner_texts()
    numbers = [int(text.partition("/")[0]) for text in found]
    assert numbers == sorted(numbers)
    page.locator("#result_list thead").get_by_role("link", name="Attempts", exact=True).click()
    page.wait_for_url("**o=-*")
    found = page.locator("#result_list .field-attempts_made").all_inner_texts()
    assert [int(text.partition("/")[0]) for text in found] == sorted(numbers, reverse=True)


def test_a_list_is_taken_away_as_a_file(tabs, jobs):
    page = tabs.open("admin")
    page.goto(f"{JOBS}?state=failed")
    page.get_by_role("link", name="Export …").click()
    expect(page.locator("#content").get_by_text("matching jobs: state:failed")).to_be_visible()
    shoot(page, "lists-export")
    with page.expect_download() as taken:
        page.get_by_role("button", name="JSON").click()
    lines = taken.value.path().read_text().splitlines()
    assert {json.loads(line)["state"] for line in lines} == {"failed"}
    assert taken.value.suggested_filename.endswith(".jsonl")
