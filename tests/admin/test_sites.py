"""Several admin sites: each keeps to itself, and a subclass changes what it names."""

from __future__ import annotations

import re

import pytest

import django_delayq as delayq
from tests.admin.conftest import beat, said
from tests.tasks_for_tests import close_order

pytestmark = pytest.mark.urls("tests.admin.sites")


def addresses(text: str) -> set[str]:
    """Where the page leads and where it posts to, without files."""
    found = re.findall(r'(?:href|action|formaction)="(/[^"#?]*)', text)
    return {address for address in found if not address.startswith("/static/")}


@pytest.fixture
def pages(orders) -> list[str]:
    job = orders.ended("fail")
    orders.scheduled()
    beat("orders")
    return [
        "", "delayq/", "delayq/job/", "delayq/queue/", "delayq/worker/", "delayq/operation/", "delayq/queue/remedies/",
        "delayq/queue/?live=1", "delayq/worker/?live=1", f"delayq/job/{job.id}/change/", f"delayq/job/{job.id}/history/",
    ]  # fmt: skip


@pytest.mark.parametrize("site", ["admin", "support"])
def test_every_address_on_a_page_is_of_the_same_site(pages, staff, site):
    client = staff()
    for page in pages:
        response = client.get(f"/{site}/{page}")
        assert response.status_code == 200, page
        strange = {address for address in addresses(response.content.decode()) if not address.startswith(f"/{site}/")}
        assert strange <= {"/"}, page


def test_actions_lead_back_to_the_site_they_came_from(orders, staff):
    client = staff()
    beat("orders", worker="a")
    job = delayq.schedule(close_order, 1, delay="1h")
    orders.fold()
    for address, back in {
        "/support/delayq/queue/orders/pause/": "/support/delayq/queue/",
        "/support/delayq/queue/orders/resume/": "/support/delayq/queue/",
        "/support/delayq/worker/a/quiet/": "/support/delayq/worker/",
        f"/support/delayq/job/{job.id}/cancel/": f"/support/delayq/job/{job.id}/change/",
    }.items():
        assert client.post(address)["Location"] == back


def test_a_subclass_decides_who_may_and_what_is_shown(orders, staff):
    viewer = staff("view_queue")
    assert viewer.post("/admin/delayq/queue/orders/pause/").status_code == 403
    response = viewer.post("/desk/delayq/queue/orders/pause/", {"reason": "x"}, follow=True)
    assert said(response) == ["Paused: orders. Nothing more is claimed."]
    text = response.content.decode()
    assert "/desk/delayq/queue/orders/resume/" in text
    assert "<h1>Queues of the desk</h1>" in text


def test_a_site_with_queues_alone_does_without_the_other_pages(orders, staff):
    orders.ended("fail")
    response = staff().get("/desk/delayq/queue/")
    assert response.status_code == 200
    assert not re.search(r"/delayq/(job|worker|operation)/", response.content.decode())


def test_one_site_needs_the_login_of_its_own(client, db):
    assert client.get("/support/delayq/queue/")["Location"].startswith("/support/login/")
