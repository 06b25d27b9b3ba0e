"""The dashboard and the page of workers as a person uses them: fresh without a reload, paused while somebody types, readable on a
phone.
"""

from __future__ import annotations

import json
import re

import pytest

from tests.browser.chromium import expect, shoot, sideways
from tests.browser.pages import QUEUES, WORKERS, depth, pause, place_order, post_by_hand, queue_row, resume, told

pytestmark = pytest.mark.browser
PAY_WITHIN = 3600
HOSTILE = '<img src=x onerror="document.title=1"><script>document.title=2</script>'
EVERY = "#delayq-every"

BEAT = """
import json, django
from django_delayq import conf
from django_delayq.store.scripts.worker_registry import WorkerRegistry
from django_delayq.producer.stores import stores
WorkerRegistry(stores.link, prefix=conf.get().prefix).beat({worker!r}, json.loads({facts!r}))
"""


def choose(page, seconds: int) -> None:
    page.locator(EVERY).select_option(str(seconds))
    page.locator(EVERY).blur()


def test_numbers_change_without_a_reload(tabs, admin):
    admin.goto(QUEUES)
    expect(admin.locator(EVERY)).to_have_value("5")
    choose(admin, 2)
    admin.evaluate("window.same = true")
    before = int(depth(admin, "orders", "Scheduled").inner_text())
    place_order(tabs.open())
    expect(depth(admin, "orders", "Scheduled")).to_have_text(str(before + 1))
    assert admin.evaluate("window.same")

    admin.reload()  # the choice is stored
    expect(admin.locator(EVERY)).to_have_value("2")
    choose(admin, 5)


def test_nothing_is_fetched_when_it_is_switched_off_and_304_when_nothing_changed(tabs, admin):
    admin.goto(QUEUES)
    asked = []
    admin.on("response", lambda response: asked.append(response.status) if "live=1" in response.url else None)
    choose(admin, 2)
    for _ in range(20):
        if 304 in asked:
            break
        admin.wait_for_timeout(500)
    assert 304 in asked
    choose(admin, 0)
    count = len(asked)
    admin.wait_for_timeout(3000)
    assert len(asked) <= count + 1  # a request may have been in progress
    choose(admin, 5)


HIDE = """
hidden => {
  Object.defineProperty(document, "hidden", {configurable: true, get: () => hidden});
  document.dispatchEvent(new Event("visibilitychange"));
}
"""


def test_nothing_is_asked_while_the_tab_is_hidden_and_at_once_when_it_is_seen_again(tabs, admin):
    admin.goto(QUEUES)
    choose(admin, 2)
    with admin.expect_response(lambda response: "live=1" in response.url):
        pass  # the request is in progress
    admin.evaluate(HIDE, True)  # a headless browser hides no tab
    before = depth(admin, "orders", "Scheduled").inner_text()
    asked = []
    admin.on("request", lambda request: asked.append(request.url) if "live=1" in request.url else None)
    place_order(tabs.open())
    admin.wait_for_timeout(3000)  # longer than an interval
    assert len(asked) <= 1  # a request may have been in progress
    expect(depth(admin, "orders", "Scheduled")).to_have_text(before)
    choose(admin, 30)
    admin.evaluate(HIDE, False)
    expect(depth(admin, "orders", "Scheduled")).to_have_text(str(int(before) + 1), timeout=25_000)
    choose(admin, 5)


def test_what_somebody_writes_is_not_taken_away(tabs, admin):
    admin.goto(QUEUES)
    choose(admin, 2)
    queue_row(admin, "orders").locator("summary").click()
    field = queue_row(admin, "orders").get_by_label("Reason")
    field.fill("a long reason")
    expect(admin.locator("#delayq-told")).to_have_text("paused while you type or select")
    before = depth(admin, "orders", "Scheduled").inner_text()
    place_order(tabs.open())
    admin.wait_for_timeout(2500)
    expect(field).to_have_value("a long reason")
    expect(depth(admin, "orders", "Scheduled")).to_have_text(before)
    field.fill("")
    queue_row(admin, "orders").locator("summary").click()
    expect(depth(admin, "orders", "Scheduled")).to_have_text(str(int(before) + 1))
    choose(admin, 5)


def test_the_keyboard_stays_where_it_was_and_tables_stay_open(tabs, admin):
    admin.goto(QUEUES)
    choose(admin, 2)
    admin.locator("#table-minutes summary").click()
    link = depth(admin, "orders", "Scheduled").get_by_role("link")
    link.focus()
    before = int(link.inner_text())
    place_order(tabs.open())
    expect(link).to_have_text(str(before + 1))
    expect(link).to_be_focused()
    expect(admin.locator("#table-minutes table")).to_be_visible()
    choose(admin, 5)


def test_pause_with_a_reason_and_resume_by_keyboard_alone(admin):
    admin.goto(QUEUES)
    queue_row(admin, "partners").locator("summary").focus()
    admin.keyboard.press("Enter")
    admin.keyboard.press("Tab")
    admin.keyboard.type("by hand")
    admin.keyboard.press("Enter")
    expect(told(admin)).to_contain_text("The queue partners is paused.")
    expect(queue_row(admin, "partners")).to_contain_text("by admin:admin by hand")
    queue_row(admin, "partners").get_by_role("button", name="Resume").focus()
    admin.keyboard.press("Enter")
    expect(told(admin)).to_contain_text("The queue partners was resumed.")


def test_after_a_refresh_the_forms_still_work(tabs, admin):
    admin.goto(QUEUES)
    choose(admin, 2)
    before = int(depth(admin, "orders", "Scheduled").inner_text())
    place_order(tabs.open())
    expect(depth(admin, "orders", "Scheduled")).to_have_text(str(before + 1))
    pause_row = queue_row(admin, "partners")
    pause_row.locator("summary").click()
    pause_row.get_by_role("button", name="Pause", exact=True).click()
    expect(told(admin)).to_contain_text("The queue partners is paused.")
    resume(admin, "partners")


def test_the_page_works_without_javascript(tabs, example):
    page = tabs.open(javascript=False)
    page.goto("/admin/")
    page.get_by_label("Username").fill("admin")
    page.get_by_label("Password").fill("the admin's password")
    page.get_by_role("button", name="Log in").click()
    page.goto(QUEUES)
    expect(page.locator(EVERY)).to_be_hidden()
    page.get_by_role("link", name="Refresh").click()
    pause(page, "partners", "without a script")
    expect(queue_row(page, "partners")).to_contain_text("without a script")
    resume(page, "partners")


def test_who_was_logged_out_is_led_to_the_login(tabs):
    page = tabs.open()
    page.goto("/admin/")
    page.get_by_label("Username").fill("viewer")
    page.get_by_label("Password").fill("the viewer's password")
    page.get_by_role("button", name="Log in").click()
    page.goto(QUEUES)
    choose(page, 2)
    page.context.clear_cookies()
    expect(page.get_by_label("Username")).to_be_visible()


def test_every_sign_leads_to_its_remedy(admin):
    admin.goto(QUEUES)
    admin.locator(".delayq-vital").filter(has_text="On disk").get_by_role("link").click()
    expect(admin.locator("section#persistence")).to_be_in_viewport()
    shoot(admin, "admin-remedies")


def test_a_hostile_worker_is_shown_as_text(example, admin):
    facts = {"host": HOSTILE, "queues": [HOSTILE], "state": HOSTILE, "version": HOSTILE, "sides": [HOSTILE]}
    example.run(BEAT.format(worker=HOSTILE, facts=json.dumps(facts)))
    admin.goto(WORKERS)
    expect(admin.locator("#workers").get_by_text(HOSTILE).first).to_be_visible()
    assert not re.fullmatch("[12]", admin.title())
    expect(admin.locator("#content img, #content-main script")).to_have_count(0)
    shoot(admin, "admin-workers-hostile")


def test_a_viewer_may_not_ask_workers_anything(tabs, admin):
    admin.goto(WORKERS)
    address = admin.locator("form[action$='/quiet/']").first.get_attribute("action")
    viewer = tabs.open("viewer")
    viewer.goto(WORKERS)
    expect(viewer.locator("#workers tbody tr").first).to_be_visible()
    expect(viewer.locator("#content-main details.delayq-ask")).to_have_count(0)
    assert post_by_hand(viewer, address).status == 403


def test_neither_page_scrolls_sideways_on_a_phone(tabs):
    phone = tabs.open("admin", narrow=True)
    for name, address in {"queues": QUEUES, "workers": WORKERS, "remedies": QUEUES + "remedies/"}.items():
        phone.goto(address)
        shoot(phone, f"phone-dashboard-{name}")
        assert sideways(phone) == 0, name


def test_a_worker_is_asked_to_be_quiet_and_says_when_it_is(admin):
    admin.goto(WORKERS)
    choose(admin, 2)
    row = admin.locator("#workers tbody tr").filter(has_text="default, orders, partners")
    row.locator("details.delayq-ask summary").click()
    row.get_by_label("Reason").fill("a deploy")
    row.get_by_role("button", name="Quiet").click()
    expect(told(admin)).to_contain_text("was asked to claim no more jobs")
    expect(row.locator(".delayq-state")).to_have_text("quiet", timeout=15_000)
    shoot(admin, "admin-worker-quiet")
    choose(admin, 5)
