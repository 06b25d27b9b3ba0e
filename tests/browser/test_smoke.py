"""Opens each page of the admin once. The other files of this folder use the pages."""

from __future__ import annotations

import pytest

from tests.browser.filled import addresses, fill

pytestmark = pytest.mark.browser
PAY_WITHIN = 3600
ENVIRONMENT = {"DJANGO_SETTINGS_MODULE": "tests.browser.dressed"}


def test_every_page_opens_and_the_browser_complains_of_none(example, tabs):
    page = tabs.open("admin")
    statuses = {}
    for name, address in addresses(fill(example)).items():
        answer = page.goto(address)
        statuses[name] = answer.status
    assert set(statuses.values()) == {200}, statuses
    assert tabs.watch(page).seen == []


def test_the_shop_takes_an_order(page):
    page.goto("/")
    page.get_by_role("button", name="Order").first.click()
    page.wait_for_url("**/orders/*/")
