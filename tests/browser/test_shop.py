"""The shop as its customers see it, and the same orders as a user of the admin sees them."""

from __future__ import annotations

import re

import pytest

from tests.browser.chromium import expect, shoot, sideways
from tests.browser.pages import (
    close_key,
    job_row,
    ledger,
    look_until,
    moment,
    open_job,
    order_state,
    pause,
    place_order,
    post_by_hand,
    resume,
    search_jobs,
    told,
)

pytestmark = pytest.mark.browser
PAY_WITHIN = 4
OTHERS = True
POLICY = "default-src 'self'"


def test_an_unpaid_order_counts_down_and_closes_by_itself_also_without_javascript(tabs, page):
    place_order(page)
    plain = tabs.open(javascript=False)
    plain.goto(page.url)
    expect(order_state(page)).to_have_text("unpaid")
    left = page.locator("#left")
    first = int(left.inner_text())
    assert 0 < first <= PAY_WITHIN
    expect(left).not_to_have_text(str(first))
    assert int(left.inner_text()) < first
    shoot(page, "shop-unpaid")

    expect(order_state(page)).to_have_text("closed")
    expect(order_state(plain)).to_have_text("closed")
    expect(page.get_by_text("This order was not paid in time and has been closed.")).to_be_visible()
    expect(page.get_by_role("button")).to_have_count(0)
    assert ledger(page) == ["placed", "closed"]
    shoot(page, "shop-closed")

    post_by_hand(page, f"{page.url}pay/")
    page.reload()
    expect(page.locator(".messages")).to_have_text("Too late: this order has been closed, and nothing was charged.")
    assert ledger(page) == ["placed", "closed"]


def test_a_paid_order_stays_paid_is_packed_and_the_partner_hears_of_it_after_retries(tabs, page):
    order = place_order(page)
    page.get_by_role("button", name="Pay").click()
    expect(order_state(page)).to_have_text("paid")
    expect(page.locator(".messages")).to_have_text("Thank you, your payment has arrived.")
    unpaid = tabs.open()
    place_order(unpaid)  # its deadline is after that of the first
    expect(page.get_by_text("Our partner knows and will send it.")).to_be_visible()
    expect(page.locator(".ledger li")).to_have_count(4)
    shoot(page, "shop-paid")

    admin = tabs.open("admin")
    search_jobs(admin, close_key(order))
    expect(admin.locator("#result_list tbody tr")).to_have_count(1)
    look_until(admin, job_row(admin, close_key(order)).get_by_text("cancelled", exact=True))
    open_job(admin, close_key(order))
    expect(moment(admin, "cancelled")).to_contain_text(["paid"])
    expect(moment(admin, "cancelled").get_by_role("cell", name="shop", exact=True)).to_be_visible()

    open_job(admin, f"notify-partner:{order}")
    look_until(admin, moment(admin, re.compile("attempt . succeeded")))
    for retried in (moment(admin, "attempt 1 retried"), moment(admin, "attempt 2 retried")):
        expect(retried).to_contain_text("503")
    shoot(admin, "admin-job-retried")

    expect(order_state(unpaid)).to_have_text("closed")
    page.reload()
    expect(order_state(page)).to_have_text("paid")
    assert ledger(page)[:2] == ["placed", "paid"]
    assert sorted(ledger(page)[2:]) == ["packed", "partner told"]


def test_the_page_of_an_order_leads_to_its_job_its_delivery_and_its_message_in_the_admin(tabs):
    admin = tabs.open("admin")
    order = place_order(admin)
    admin.get_by_role("button", name="Pay").click()
    expect(admin.locator(".ledger li")).to_have_count(4)
    address = admin.url
    for purpose, key in (
        ("closes the order, unless it is paid", close_key(order)),
        ("delivery: tells the partner, signed", f"notify-partner:{order}"),
        ("message: asks the warehouse to pack it", f"pack:{order}"),
    ):
        admin.goto(address)
        admin.get_by_role("link", name=purpose).click()
        expect(admin.get_by_role("heading", name="Timeline")).to_be_visible()
        expect(admin.locator("#content")).to_contain_text(key)


def test_a_refund_goes_through_once_the_provider_is_ready(tabs, page):
    order = place_order(page)
    page.get_by_role("button", name="Pay").click()
    page.get_by_role("button", name="Ask for a refund").click()
    expect(order_state(page)).to_have_text("refunding")
    expect(page.locator("#polls")).to_have_text("2")  # counted without a reload
    expect(order_state(page)).to_have_text("refunded")
    # The partner was not told; whether the warehouse was faster is not up to us.
    assert [line for line in ledger(page) if line != "packed"] == ["placed", "paid", "refund asked", "refunded"]
    shoot(page, "shop-refunded")

    admin = tabs.open("admin")
    open_job(admin, f"refund:{order}")
    look_until(admin, moment(admin, re.compile("attempt . succeeded")))
    expect(moment(admin, re.compile("attempt . snoozed"))).to_have_count(2)


def test_a_job_cancelled_from_the_list_never_closes_its_order(tabs, admin):
    paid, order = tabs.open(), tabs.open()
    paid_id = place_order(paid)
    paid.get_by_role("button", name="Pay").click()
    expect(order_state(paid)).to_have_text("paid")

    pause(admin, "orders", "so that there is time to cancel")
    order_id = place_order(order)
    later = place_order(tabs.open())
    search_jobs(admin, "close-order:")
    for number in (paid_id, order_id):
        job_row(admin, close_key(number)).get_by_role("checkbox").check()
    admin.locator("select[name=action]").select_option(label="Cancel selected jobs")
    admin.locator("button[name=index]").click()
    expect(admin.get_by_text("Cancel these jobs?")).to_be_visible()
    for number in (paid_id, order_id):
        expect(admin.get_by_text(close_key(number), exact=True)).to_be_visible()
    shoot(admin, "admin-ask")
    admin.get_by_label("Reason").fill("the customer called")
    admin.get_by_role("button", name="Cancel").click()
    expect(told(admin)).to_have_text("2 cancelled.")  # of the paid order the shop has done so; a repeat answers the same
    shoot(admin, "admin-cancelled")

    resume(admin, "orders")
    order.goto(f"/orders/{later}/")
    expect(order_state(order)).to_have_text("closed")
    order.goto(f"/orders/{order_id}/")
    expect(order_state(order)).to_have_text("unpaid")
    expect(order.locator("#left")).to_have_text("0")
    assert ledger(order) == ["placed"]

    open_job(admin, close_key(order_id))
    look_until(admin, moment(admin, "cancelled").get_by_text("the customer called"))
    expect(moment(admin, "cancelled").get_by_role("cell", name="admin:admin")).to_be_visible()
    admin.get_by_role("link", name="History").click()
    expect(admin.get_by_role("heading", name="Timeline")).to_be_in_viewport()
    admin.get_by_role("link", name="Open the object").click()
    expect(admin.get_by_role("heading", name=f"Order {order_id}")).to_be_visible()
    admin.get_by_role("link", name="Back to the catalogue").click()
    expect(admin.get_by_role("heading", name="Catalogue")).to_be_visible()


def test_while_the_partner_is_away_the_page_says_why_and_fits_a_phone(example, tabs):
    phone = tabs.open(narrow=True)
    example.partner.kill()
    try:
        place_order(phone)
        phone.get_by_role("button", name="Pay").click()
        expect(phone.locator(".jobs small").filter(has_text="could not be reached")).to_be_visible()  # the warehouse may complain, too
        shoot(phone, "phone-retrying")
        assert sideways(phone) == 0
    finally:
        example.partner.start()
    expect(phone.get_by_text("Our partner knows and will send it.")).to_be_visible()


def test_no_page_of_the_shop_scrolls_sideways_on_a_phone(tabs):
    phone = tabs.open(narrow=True)
    wider = {}
    for name, act in {
        "catalogue": lambda: phone.goto("/"),
        "unpaid": lambda: place_order(phone),
        "paid": lambda: phone.get_by_role("button", name="Pay").click(),
        "refunding": lambda: phone.get_by_role("button", name="Ask for a refund").click(),
        "orders": lambda: phone.goto("/orders/"),
    }.items():
        act()
        phone.wait_for_load_state()
        shoot(phone, f"phone-{name}")
        wider[name] = sideways(phone)
    assert wider == dict.fromkeys(wider, 0)


def test_the_pages_of_the_shop_keep_the_strict_policy(tabs, page):
    for address in ("/", "/orders/"):
        assert page.goto(address).headers["content-security-policy"] == POLICY
    place_order(page)
    assert page.reload().headers["content-security-policy"] == POLICY

    page.evaluate("document.body.setAttribute('style', 'color: red')")  # were there a violation, it would be noted
    expect(order_state(page)).to_be_visible()
    tabs.watch(page).forgive("style")


def test_an_order_placed_while_the_worker_is_dead_closes_when_one_is_back(example, tabs, page):
    example.worker.kill()
    place_order(page)
    expect(page.locator("#left")).to_have_text("0")
    expect(order_state(page)).to_have_text("unpaid")
    example.worker.start()
    expect(order_state(page)).to_have_text("closed")
    assert ledger(page) == ["placed", "closed"]
