"""What people do with pauses, rates, fair words and keys that last for a period, in the shop and in the admin."""

from __future__ import annotations

import pytest

from tests.browser.chromium import expect, shoot, sideways
from tests.browser.example import Example
from tests.browser.pages import ledger, look_until, order_state, pause, place_order, resume, told

pytestmark = pytest.mark.browser
PAY_WITHIN = 3600
PAUSES, RATES = "/admin/delayq/queue/pauses/", "/admin/delayq/queue/rates/"
LATER = """
from datetime import timedelta
from django.db.models import F
from django_delayq.models import Job, PeriodKey
past = timedelta(days={days})
Job.objects.update(created_at=F("created_at") - past, finished_at=F("finished_at") - past)
PeriodKey.objects.update(at=F("at") - past, until=F("until") - past)
"""

STARTED = """
from django_delayq.models import Job
jobs = Job.objects.filter(queue="payouts", started_at__isnull=False).order_by("started_at")
print(*(job.meta["merchant"] for job in jobs), sep=chr(10))
"""


def days_pass(example: Example, days: int) -> None:
    """Moves the dates of ended jobs and of keys into the past, because the clocks of the servers cannot be moved."""
    example.run(LATER.format(days=days))


def webhooks(page):
    return page.locator(".ledger li").filter(has_text="webhook")


def charges(page):
    return page.locator(".jobs li").filter(has_text="charges the transfer")


def test_a_webhook_that_comes_twice_charges_once_also_a_day_later(example, page):
    place_order(page)
    page.get_by_role("button", name="By bank transfer").click()
    expect(order_state(page)).to_have_text("paid")
    expect(charges(page)).to_contain_text("succeeded")
    assert ledger(page)[:4] == ["placed", "webhook", "charged", "paid"]
    shoot(page, "shop-transfer")

    for times, days in ((2, 0), (3, 1)):
        days_pass(example, days)
        page.get_by_role("button", name="Send the webhook again").click()
        expect(webhooks(page)).to_have_count(times)
        expect(charges(page)).to_have_count(1)
    assert ledger(page).count("charged") == 1
    shoot(page, "shop-webhook-again")

    days_pass(example, 7)  # the key has run out, so the event is one that the shop has never seen
    page.get_by_role("button", name="Send the webhook again").click()
    expect(webhooks(page)).to_have_count(4)
    expect(charges(page)).to_have_count(2)


def test_the_webhook_refuses_whoever_does_not_sign(page):
    order = place_order(page)
    answer = page.request.post("/webhooks/payment/", data={"id": f"transfer:{order}", "order": order})
    assert answer.status == 401
    page.reload()
    assert ledger(page) == ["placed"]


def payouts(page, provider, state):
    """The rows of the page of payouts with this provider and this state."""
    return page.locator("#payouts tbody tr").filter(has_text=provider).filter(has_text=state)


def open_payout(admin, rows):
    """Opens the page of the first one's job."""
    admin.goto(rows.first.get_by_role("link").get_attribute("href"))


def pay(page, provider):
    page.get_by_role("button", name=f"Pay all by {provider}").click()


def test_the_payouts_of_one_provider_are_paused_while_the_others_go_on(tabs, page, admin):
    page.goto("/payouts/")
    page.get_by_role("link", name="Pause").first.wait_for()
    admin.goto(PAUSES)
    admin.locator("#id_kind").select_option("name")
    admin.locator("#id_word").fill("provider:north")
    admin.get_by_label("Reason").fill("north reports errors")
    admin.get_by_role("button", name="Pause", exact=True).click()
    expect(told(admin)).to_contain_text("Paused: provider:north. Jobs that are still running: 0.")
    shoot(admin, "admin-paused-name")
    assert cut_off(admin) == 0

    pay(page, "north")
    expect(payouts(page, "north", "scheduled")).to_have_count(3)
    pay(page, "south")
    expect(payouts(page, "south", "succeeded")).to_have_count(3)
    expect(payouts(page, "north", "scheduled")).to_have_count(3)
    shoot(page, "shop-payouts-paused")
    open_payout(admin, payouts(page, "north", "scheduled"))
    look_until(admin, admin.get_by_text("north reports errors"))
    shoot(admin, "admin-held-payout")

    admin.goto(PAUSES)
    admin.locator("#pauses tbody tr").filter(has_text="provider:north").get_by_role("button", name="Resume").click()
    expect(told(admin)).to_contain_text("Resumed: provider:north.")
    expect(payouts(page, "north", "succeeded")).to_have_count(3)
    expect(payouts(page, "south", "succeeded")).to_have_count(3)


def cut_off(page):
    """Returns by how many pixels the table is wider than its place. Its last column has the buttons."""
    return page.locator(".delayq-wide").evaluate("wide => wide.scrollWidth - wide.clientWidth")


def set_rate(page, rate):
    page.goto(RATES)
    page.locator("#id_name").fill("provider:north")
    page.locator("#id_rate").fill(rate)
    page.get_by_label("Reason").fill("north is slow")
    page.get_by_role("button", name="Set a rate").click()


def test_a_provider_that_allows_fewer_calls_gets_fewer_while_the_other_is_paid(tabs, page, admin):
    set_rate(admin, "1/d")
    expect(told(admin)).to_contain_text("The rate of provider:north is 1/d.")
    page.goto("/payouts/")
    before = payouts(page, "north", "succeeded").count(), payouts(page, "south", "succeeded").count()
    pay(page, "north")
    expect(payouts(page, "north", "scheduled")).to_have_count(2)
    expect(payouts(page, "north", "succeeded")).to_have_count(before[0] + 1)
    pay(page, "south")
    expect(payouts(page, "south", "succeeded")).to_have_count(before[1] + 3)
    expect(payouts(page, "north", "scheduled")).to_have_count(2)
    shoot(page, "shop-payouts-rate")
    open_payout(admin, payouts(page, "north", "scheduled"))
    look_until(admin, admin.get_by_text("waiting for the rate provider:north"))
    shoot(admin, "admin-waits-for-rate")

    set_rate(admin, "100/s")
    expect(told(admin)).to_contain_text("The rate of provider:north is 100/s.")
    shoot(admin, "admin-rates")
    assert cut_off(admin) == 0
    expect(payouts(page, "north", "succeeded")).to_have_count(before[0] + 3)


def pay_merchant(page, merchant, button):
    page.get_by_label("Merchant").select_option(merchant)
    page.get_by_role("button", name=button).click()


def test_a_merchant_with_one_payout_does_not_wait_for_another_with_a_thousand(example, page, admin):
    page.goto("/payouts/")
    before = len(example.run(STARTED).splitlines())
    pause(admin, "payouts", "so that all payouts wait before the first one starts")
    pay_merchant(page, "Paper Mill", "1,000 times")
    expect(payouts(page, "Paper Mill", "scheduled")).to_have_count(20)
    pay_merchant(page, "Ink Works", "Pay by south")
    expect(payouts(page, "Ink Works", "scheduled")).to_have_count(1)
    resume(admin, "payouts")
    expect(payouts(page, "Ink Works", "succeeded")).to_have_count(1)
    shoot(page, "shop-payouts-in-turns")
    assert example.run(STARTED).splitlines()[before : before + 2] == ["Paper Mill", "Ink Works"]
    open_payout(admin, payouts(page, "Paper Mill", "scheduled"))
    look_until(admin, admin.get_by_text("waiting for the turn of its fair word merchant:Paper Mill"))
    shoot(admin, "admin-waits-for-turn")


def test_the_page_of_payouts_fits_a_phone(tabs):
    phone = tabs.open(narrow=True)
    phone.goto("/payouts/")
    shoot(phone, "phone-payouts")
    assert sideways(phone) == 0
