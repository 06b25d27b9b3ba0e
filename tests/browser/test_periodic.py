"""Schedules as an administrator manages them: created, changed, disabled and enabled, run by hand, deleted. A real worker follows
them.
"""

from __future__ import annotations

import re

import pytest

from tests.browser.chromium import expect, shoot, sideways
from tests.browser.filled import addresses, fill
from tests.browser.pages import SCHEDULES, look_until, told

pytestmark = pytest.mark.browser
PAY_WITHIN = 3600

PREPARE = """
from django_delayq.periodic import schedules
schedules.create("nightly", "shop.tasks.close_order", cron="0 3 * * *", timezone="Europe/Berlin", args=[1], actor="admin:admin")
print(schedules.get("nightly").pk)
"""


@pytest.fixture(scope="module")
def nightly(example) -> str:
    key = example.run(PREPARE).splitlines()[-1]
    example.worker.restart()  # a loop that has found no schedule looks for the first one once a minute
    return f"{SCHEDULES}{key}/change/"


@pytest.fixture(scope="module")
def worst(example, nightly) -> dict[str, str]:
    return addresses(fill(example))


def heading(page):
    return page.get_by_role("heading", level=1)


def table(page, title: str):
    """Returns the rows below that heading."""
    return page.locator(".module").filter(has=page.get_by_role("heading", name=title, exact=True)).locator("tbody tr")


def press(page, name: str, reason: str = "") -> None:
    page.get_by_label("Reason").fill(reason)
    page.get_by_role("button", name=name, exact=True).click()


def test_a_worker_writes_the_tick_of_what_was_made_in_the_admin(admin, nightly):
    admin.goto(nightly)
    expect(heading(admin)).to_contain_text("nightly")
    expect(table(admin, "Next dates")).to_have_count(10)
    look_until(admin, table(admin, "Ticks").filter(has_text="scheduled"))
    shoot(admin, "schedule")


def test_it_is_turned_off_and_on(admin, nightly):
    admin.goto(nightly)
    press(admin, "Turn off", "stock taking")
    expect(told(admin)).to_contain_text("The schedule is off")
    expect(heading(admin).locator(".delayq-state")).to_have_text("off")
    expect(table(admin, "Next dates")).to_have_text("There are no upcoming dates.")
    look_until(admin, table(admin, "Ticks").filter(has_text="withdrawn"))
    expect(table(admin, "Changes").first).to_contain_text("stock taking")
    press(admin, "Turn on")
    expect(heading(admin).locator(".delayq-state")).to_have_text("on")


def test_other_dates_are_looked_at_first_and_taken_back_later(tabs, admin, nightly):
    admin.goto(nightly)
    admin.get_by_role("link", name="Override dates …").click()
    admin.get_by_label("Cron").fill("30 2 * * *")
    admin.get_by_role("button", name="Show the dates").click()
    expect(table(admin, "Next dates")).to_have_count(10)
    expect(table(admin, "Next dates").first).to_contain_text("02:30:00")
    expect(admin.get_by_label("Cron")).to_have_value("30 2 * * *")
    admin.get_by_label("Time zone").fill("Europe/Nowhere")
    admin.get_by_role("button", name="Save").click()
    expect(admin.locator(".errorlist")).to_contain_text("is not a time zone")
    shoot(admin, "schedule-refused")
    tabs.watch(admin).forgive("400")
    admin.get_by_label("Time zone").fill("Europe/Berlin")
    admin.get_by_label("Reason").fill("summer")
    admin.get_by_role("button", name="Save").click()
    expect(heading(admin)).to_contain_text("dates overridden")
    expect(admin.locator(".delayq-facts del")).to_contain_text("0 3 * * *")
    press(admin, "Remove the override")
    expect(heading(admin)).not_to_contain_text("dates overridden")


def test_one_run_by_hand_has_its_job_at_once(admin, nightly):
    admin.goto(nightly)
    press(admin, "Run now", "the bank asked")
    look_until(admin, table(admin, "Ticks").filter(has_text=re.compile("by hand admin:admin")))
    line = table(admin, "Ticks").filter(has_text="by hand").first
    line.get_by_role("link").click()
    expect(admin.get_by_role("heading", name="Timeline")).to_be_visible()
    admin.locator(".delayq-facts").get_by_role("link", name="nightly").click()
    expect(heading(admin)).to_contain_text("nightly")


def test_a_schedule_is_made_and_deleted_with_the_keyboard_alone(admin, nightly):
    admin.goto(SCHEDULES)
    admin.get_by_role("link", name="Add schedule").focus()
    admin.keyboard.press("Enter")
    admin.get_by_label("Name:", exact=True).focus()
    admin.keyboard.type("by keyboard")
    admin.keyboard.press("Tab")
    admin.keyboard.type("shop.tasks.close")
    for text in ("[7]", "{}", "", "", "10m"):  # arguments by place and by name, cron, zone, period
        admin.keyboard.press("Tab")
        admin.keyboard.press("Control+A")
        admin.keyboard.type(text)
    admin.keyboard.press("Enter")
    expect(told(admin)).to_contain_text("The schedule was added and is on.")
    expect(admin.locator(".delayq-facts").first).to_contain_text("every 10m")
    admin.get_by_role("link", name="Delete …").focus()
    admin.keyboard.press("Enter")
    admin.get_by_label("Reason").focus()
    admin.keyboard.type("over")
    admin.keyboard.press("Enter")
    expect(told(admin)).to_contain_text("The schedule was deleted.")
    expect(admin.locator("#result_list tbody tr").filter(has_text="by keyboard")).to_have_count(0)


def test_without_javascript_all_is_there(tabs, nightly):
    page = tabs.open("admin", locale="en-US")
    cookies = page.context.cookies()
    bare = tabs.open(javascript=False)
    bare.context.add_cookies(cookies)
    bare.goto(nightly)
    press(bare, "Turn off")
    expect(heading(bare)).to_contain_text("off")
    press(bare, "Turn on")


def test_who_may_only_look_sees_no_button(tabs, example, nightly):
    example.run(
        "from django.contrib.auth.models import Permission, User\n"
        "User.objects.get(username='viewer').user_permissions.add(Permission.objects.get(codename='view_periodic'))"
    )
    page = tabs.open("viewer")
    page.goto(nightly)
    expect(heading(page)).to_contain_text("nightly")
    expect(page.get_by_role("heading", name="Actions")).to_have_count(0)
    page.goto(SCHEDULES)
    expect(page.get_by_role("link", name="Add schedule")).to_have_count(0)


def test_no_page_is_wider_than_its_window_whatever_the_rows_carry(tabs, worst):
    for narrow in (False, True):
        page, wider = tabs.open("admin", narrow=narrow), {}
        for name, address in worst.items():
            if name.startswith("schedule"):
                assert page.goto(address).status == 200
                shoot(page, f"{'narrow' if narrow else 'wide'}-{name}")
                wider[name] = sideways(page)
        assert wider == dict.fromkeys(wider, 0)


def test_what_is_written_into_a_form_stays_while_the_page_is_fetched_anew(admin, nightly):
    admin.goto(nightly)
    admin.get_by_label("Reason").fill("half a sentence")
    admin.locator("#delayq-every").select_option("2")
    expect(admin.locator("#delayq-told")).to_contain_text("paused while you type or select")
    expect(admin.get_by_label("Reason")).to_have_value("half a sentence")
