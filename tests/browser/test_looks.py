"""How the console looks and reads: with a screen reader, from right to left, under a theme for the admin."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import pytest

from tests.browser.chromium import expect, shoot, sideways
from tests.browser.filled import addresses, fill
from tests.browser.pages import JOBS, QUEUES, SET_ASIDE
from tests.conftest import missing

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.browser
PAY_WITHIN = 3600
ENVIRONMENT = {"DJANGO_SETTINGS_MODULE": "tests.browser.dressed"}
TELLING = (
    "queues",
    "jobs",
    "job-worst",
    "job-delivery",
    "failures",
    "workers",
    "targets",
)  # in colours and layout, the others add nothing
THEMES = ("unfold", "jazzmin", "grappelli")

# Violations that axe finds in Django's own admin, on the pages of every app: (rule, selector, reason that it is not ours).
DJANGOS = (
    ("link-in-text-block", ".breadcrumbs", "the colours of Django's breadcrumbs"),
    ("label-title-only", "#searchbar", "Django's field of a search has a picture for a label"),
)
BY_COLOUR = ["color-contrast", "link-in-text-block"]  # the rules whose result may differ in the dark theme
ASK_AXE = """
async ([rules, known]) => {
  const options = {resultTypes: ["violations"], ...(rules.length ? {runOnly: {type: "rule", values: rules}} : {})};
  const found = (await axe.run(document, options)).violations;
  const within = (node, place) => document.querySelector(node.target[0])?.closest(place);
  const djangos = (rule, node) => known.some(([name, place]) => name === rule && within(node, place));
  return found.flatMap((rule) => rule.nodes.filter((node) => !djangos(rule.id, node)).map(
    (node) => `${rule.id}: ${node.html.slice(0, 200)} (${node.failureSummary.slice(0, 300)})`));
}
"""
# Elements that reach over the left edge, where no scroll bar leads. Elements in a scrolling box are excluded.
CUT_OFF = """
() => [...document.querySelectorAll("#content *")]
  .filter((node) => node.checkVisibility() && !node.closest(".delayq-wide, .results, .visually-hidden, pre"))
  .filter((node) => node.getBoundingClientRect().width && node.getBoundingClientRect().left < -1)
  .map((node) => node.outerHTML.slice(0, 100))
"""

# Words in table heads that break across lines. A break at a soft hyphen is allowed; the next letter shares its box.
BROKEN = """
() => [...document.querySelectorAll("#content thead th")].flatMap((head) => {
  const found = [], texts = document.createTreeWalker(head, NodeFilter.SHOW_TEXT);
  const line = (text, place) => {
    const range = new Range();
    range.setStart(text, place);
    range.setEnd(text, place + 1);
    return [...range.getClientRects()].at(-1)?.top;
  };
  for (let text; (text = texts.nextNode()); ) {
    for (const {0: word, index} of text.data.matchAll(/[^\\s\\u00ad]+/g)) {
      if (new Set([...word].map((_, place) => line(text, index + place))).size > 1) found.push(word);
    }
  }
  return found;
})
"""


@pytest.fixture(scope="module")
def jobs(example) -> dict[str, str]:
    return fill(example)


@pytest.fixture(scope="module")
def axe() -> str:
    if find_spec("axe_playwright_python") is None:
        missing("axe-playwright-python is not installed")
    from axe_playwright_python.base import AXE_SCRIPT

    return AXE_SCRIPT


def unfold_all(page: Page) -> None:
    page.evaluate("for (const node of document.querySelectorAll('#content details')) node.open = true")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_on_any_page(tabs, jobs, axe, scheme):
    page = tabs.open("admin")
    page.emulate_media(color_scheme=scheme)
    found: dict[str, Any] = {}

    def judge(name: str) -> None:
        unfold_all(page)
        assert tabs.watch(page).seen == []
        page.evaluate(axe)
        found[name] = page.evaluate(ASK_AXE, [BY_COLOUR if scheme == "dark" else [], [known[:2] for known in DJANGOS]])
        tabs.watch(page).seen.clear()  # axe sets styles to measure a text, and the policy forbids this

    for name, address in addresses(jobs).items():
        if scheme == "light" or name in TELLING:
            page.goto(address)
            shoot(page, f"looks-{scheme}-{name}")
            judge(name)
    page.goto(f"{JOBS}?state=scheduled")
    page.locator("input.action-select").first.check()
    page.locator("select[name=action]").select_option("reschedule")
    page.locator("button[name=index]").click()
    expect(page.get_by_label("Delay from now")).to_be_visible()
    judge("ask")
    page = tabs.open("viewer")
    page.emulate_media(color_scheme=scheme)
    page.goto(SET_ASIDE)
    expect(page.get_by_text("This action needs a permission")).to_be_visible()
    tabs.watch(page).forgive("403 (Forbidden)")
    judge("403")
    assert {name: lines for name, lines in found.items() if lines} == {}


@pytest.mark.parametrize("width", [375, 1280])
def test_every_target_has_24_pixels_or_as_much_room(tabs, jobs, axe, width):
    page, found = tabs.open("admin"), dict[str, Any]()
    page.set_viewport_size({"width": width, "height": 900})
    for name, address in addresses(jobs).items():
        page.goto(address)
        page.evaluate("for (const node of document.querySelectorAll('#content details:not(.delayq-filter)')) node.open = true")
        page.evaluate(axe)
        found[name] = page.evaluate(ASK_AXE, [["target-size"], [known[:2] for known in DJANGOS]])
        tabs.watch(page).seen.clear()  # see above
    assert {name: lines for name, lines in found.items() if lines} == {}


def test_on_a_phone_no_list_is_cut_off(tabs, jobs):
    page = tabs.open("admin", narrow=True)
    for name in ("jobs", "operations", "schedules", "set-aside", "tokens"):
        page.goto(addresses(jobs)[name])
        expect(page.locator("#result_list tbody tr").first).to_be_visible()
        assert page.locator(".results").evaluate("(node) => node.scrollWidth - node.clientWidth") == 0, name


@pytest.mark.parametrize("locale", ["de", "zh-CN"])
def test_no_word_of_a_head_is_broken_and_no_table_is_wider_than_its_place(tabs, jobs, locale):
    page = tabs.open("admin", locale=locale)
    for name in (
        "queues",
        "workers",
        "targets",
        "failures",
        "jobs",
        "operations",
        "schedules",
        "schedule",
        "schedule-override",
        "set-aside",
    ):
        page.goto(addresses(jobs)[name])
        expect(page.locator("html")).to_have_attribute("lang", {"de": "de", "zh-CN": "zh-hans"}[locale])
        assert page.evaluate(BROKEN) == []
        for box in page.locator(".delayq-wide, .results").all():
            assert box.evaluate("(node) => node.scrollWidth - node.clientWidth") == 0, name


def test_a_heading_of_many_lines_is_not_covered_by_what_stands_beside_it(tabs, jobs):
    page = tabs.open("admin")
    page.goto(addresses(jobs)["job-worst"])
    state = page.get_by_role("heading", level=1).locator(".delayq-state").bounding_box()
    link = page.get_by_role("link", name="History").bounding_box()
    assert state["y"] >= link["y"] + link["height"] or state["x"] + state["width"] <= link["x"]


def test_fields_of_one_row_stand_in_one_line(tabs, jobs):
    page = tabs.open("admin")
    page.goto(addresses(jobs)["job-waiting"])
    page.locator("#reschedule > summary").click()
    boxes = [page.locator(f"#id_{name}").bounding_box() for name in ("delay", "run_at", "reason")]
    assert len({round(box["y"] + box["height"]) for box in boxes}) == 1
    assert len({round(box["height"]) for box in boxes}) == 1


def test_breadcrumbs_look_as_on_the_pages_of_django(tabs, jobs):
    page, found = tabs.open("admin"), []
    for name in ("jobs", "queues", "job-waiting"):  # the first is Django's own page
        page.goto(addresses(jobs)[name])
        trail = page.locator(".breadcrumbs")
        look = "(node) => { const {color, backgroundColor, fontSize} = getComputedStyle(node); return {color, backgroundColor} }"
        found.append((trail.evaluate(look), trail.locator("a").first.evaluate(look)))
    assert found[1:] == [found[0]] * 2


def test_a_field_is_one_line_high_beside_a_label_of_several(tabs, jobs):
    page = tabs.open("admin", locale="de")
    page.goto(addresses(jobs)["purge"])
    typed, reason = (page.locator(f"#id_{name}").bounding_box() for name in ("typed", "reason"))
    assert typed["height"] == reason["height"]


def test_from_right_to_left_figures_stand_at_the_end_and_nothing_is_cut_off(tabs, jobs):
    for narrow in (False, True):
        page = tabs.open("admin", locale="he", narrow=narrow)
        cut_off = {}
        for name in TELLING:
            page.goto(addresses(jobs)[name])
            expect(page.locator("html")).to_have_attribute("dir", "rtl")
            shoot(page, f"rtl-{'narrow' if narrow else 'wide'}-{name}")
            cut_off[name] = page.evaluate(CUT_OFF)
            if name == "jobs":
                for number in range(2):
                    page.locator(".delayq-filter summary").nth(number).click()
                    cut_off[f"filter {number}"] = page.evaluate(CUT_OFF)
                    page.locator(".delayq-filter summary").nth(number).click()
        assert {name: nodes for name, nodes in cut_off.items() if nodes} == {}
    page = tabs.open("admin", locale="he")
    for name, parts in {
        "failures": ("#failures .delayq-time > div", "#failures th .delayq-soft"),  # a date, a path
        "operations": ("td.field-jobs_meant",),
    }.items():
        page.goto(addresses(jobs)[name])
        for part in parts:
            assert page.locator(part).first.evaluate("(node) => getComputedStyle(node).unicodeBidi") == "plaintext"
    page.goto(QUEUES)
    head = page.locator("#queues thead th").nth(1).evaluate("(node) => getComputedStyle(node).textAlign")
    assert (head, page.locator(".delayq-vital").first.evaluate("(node) => getComputedStyle(node).borderRightWidth")) == (
        "left",
        "4px",
    )


@pytest.mark.parametrize("theme", THEMES)
def test_the_console_is_usable_under_a_theme(tabs, example, jobs, theme):
    if find_spec(theme) is None:
        missing(f"django-{theme} is not installed")
    site = example.another(DRESS=theme)
    site.start()
    try:
        page = tabs.open("admin", site=site.address)
        tabs.watch(page).forgiving = True
        wider = {}
        for name in TELLING:
            assert page.goto(addresses(jobs)[name]).status == 200
            shoot(page, f"{theme}-{name}")
            wider[name] = sideways(page)
            if name == "jobs":
                wide = "(node) => node.getBoundingClientRect().width"
                room = page.locator("#delayq-live").evaluate(wide)
                assert page.locator("#result_list").evaluate(wide) > room * 0.9
        page.goto(QUEUES)
        expect(page.locator("#queues > tbody > tr")).to_have_count(5)
        page.goto(f"{JOBS}?state=failed")
        expect(page.locator(".delayq-tabs a[aria-current=page]")).to_contain_text("Failed")
        page.goto(f"{JOBS}{jobs['waiting']}/change/")
        page.locator("#reschedule > summary").click()
        page.get_by_label("Delay from now").fill("2d")
        page.get_by_role("button", name="Reschedule").click()
        expect(page.get_by_text("1 rescheduled.")).to_be_visible()
        assert wider == dict.fromkeys(wider, 0)
    finally:
        site.stop()
