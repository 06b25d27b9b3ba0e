"""Several admin sites: each links only to itself, and a subclass changes only the page that it names."""

from __future__ import annotations

import re

import pytest
from django.contrib.auth.models import User

import django_delayq as delayq
from django_delayq.models import Operation
from tests.admin.conftest import beat, said
from tests.admin.sites import parts
from tests.admin.test_operations import begin
from tests.admin.test_periodic import made
from tests.tasks_for_tests import close_order

pytestmark = pytest.mark.urls("tests.admin.sites")


def addresses(text: str) -> set[str]:
    """Returns the addresses that the page links to and posts to, without static files."""
    found = re.findall(r'(?:href|action|formaction)="(/[^"#?]*)', text)
    return {address for address in found if not address.startswith("/static/")}


@pytest.fixture
def pages(orders) -> list[str]:
    job = orders.ended("fail")
    orders.scheduled()
    beat("orders")
    row = made()
    return [
        "",
        "delayq/periodic/",
        "delayq/periodic/add/",
        *(f"delayq/periodic/{row.pk}/{what}/" for what in ("change", "history", "override", "edit", "delete")),
        "delayq/",
        "delayq/job/",
        "delayq/queue/",
        "delayq/worker/",
        "delayq/operation/",
        "delayq/queue/remedies/",
        "delayq/queue/?live=1",
        "delayq/worker/?live=1",
        f"delayq/job/{job.id}/change/",
        f"delayq/job/{job.id}/copy/",
    ]


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
        assert client.post(address, {"confirmed": "1"})["Location"] == back


def test_a_subclass_decides_who_may_and_what_is_shown(orders, staff):
    viewer = staff("view_queue")
    assert viewer.post("/admin/delayq/queue/orders/pause/").status_code == 403
    response = viewer.post("/desk/delayq/queue/orders/pause/", {"reason": "x"}, follow=True)
    assert said(response) == ["The queue orders is paused. Workers claim no more of its jobs."]
    text = response.content.decode()
    assert "/desk/delayq/queue/orders/resume/" in text
    assert "<h1>Queues of the desk</h1>" in text


def test_a_site_with_queues_alone_does_without_the_other_pages(orders, staff):
    orders.ended("fail")
    response = staff().get("/desk/delayq/queue/")
    assert response.status_code == 200
    assert not re.search(r"/delayq/(job|worker|operation)/", response.content.decode())


@pytest.mark.parametrize("name", parts)
def test_a_site_with_a_part_of_the_pages_does_without_the_others(orders, staff, name):
    job, client = orders.ended("fail", detail=b'{"c":"E","p":"abc"}'), staff()
    orders.scheduled(2)
    operation = begin("cancel", selection={"view": "failed"})
    beat("orders")
    pages = {
        "job": ["", "failures/", f"{job.id}/change/", f"{job.id}/edit/", f"{job.id}/copy/", "?state=scheduled", "?live=1"],
        "queue": ["", "remedies/", "orders/purge/", "?live=1"],
        "worker": ["", "?live=1"],
        "operation": ["", f"{operation.pk}/change/", f"{operation.pk}/change/?live=1", "start/requeue/?state=failed"],
    }
    there = "|".join(name.split("-"))
    for model in name.split("-"):
        for page in ("/", "/delayq/", *(f"/delayq/{model}/{page}" for page in pages[model])):
            response = client.get(f"/{name}{page}")
            assert response.status_code == 200, page
            found = addresses(response.content.decode()) - {"/"}
            assert all(re.match(rf"/{name}/(?!delayq/.)|/{name}/delayq/({there})/", address) for address in found), page


@pytest.mark.parametrize("name", parts)
def test_what_is_started_leads_to_a_page_that_this_site_has(orders, staff, name):
    orders.scheduled(2)
    client = staff()
    posts = {
        "queue": ("queue/orders/purge/", {"typed": "orders"}),
        "operation": ("operation/start/cancel/?state=scheduled", {}),
        "job": ("job/", {"action": "cancel", "select_across": "1", "_selected_action": ["x"], "index": "0"}),
    }
    for model in set(name.split("-")) & set(posts):
        place, fields = posts[model]
        response = client.post(f"/{name}/delayq/{place}", fields, follow=True)
        assert response.status_code == 200, place
        assert response.redirect_chain[-1][0].startswith(f"/{name}/"), place


def everything(orders) -> tuple[list[str], list[tuple[str, dict[str, str]]]]:
    """Returns the pages that a user can open, and the forms that a user can send."""
    job, other = orders.ended("fail", max_attempts=1), orders.ended("fail", max_attempts=1)
    orders.scheduled(1)
    operation = begin("cancel", selection={"view": "failed"})
    beat("orders", worker="a")
    seen = [
        "job/",
        "job/failures/",
        f"job/{job.id}/change/",
        f"job/{job.id}/edit/",
        f"job/{job.id}/copy/",
        "queue/",
        "queue/remedies/",
        "queue/orders/purge/",
        "worker/",
        "operation/",
        f"operation/{operation.pk}/change/",
        "operation/start/requeue/?state=failed",
    ]
    done = [
        (f"job/{other.id}/requeue/", {}),
        (f"job/{other.id}/reschedule/", {"delay": "1h"}),
        (f"job/{other.id}/run_now/", {"confirmed": "1"}),
        (f"job/{other.id}/cancel/", {"confirmed": "1"}),
        ("queue/orders/pause/", {}),
        ("queue/orders/resume/", {}),
        ("queue/orders/purge/", {"typed": "orders"}),
        ("worker/a/quiet/", {}),
        ("worker/a/stop/", {}),
        ("operation/start/cancel/?state=scheduled", {}),
        (f"operation/{operation.pk}/pause/", {}),
        (f"operation/{operation.pk}/cancel/", {}),
    ]
    return seen, done


def test_what_a_subclass_allows_needs_no_permission(orders, staff, settings):
    settings.DELAYQ = {**settings.DELAYQ, "SENSITIVE": ["order_id"]}
    seen, done = everything(orders)
    client = staff("none")
    assert "/open/delayq/job/" in client.get("/open/").content.decode()
    for place in seen:
        assert client.get(f"/open/delayq/{place}").status_code == 200, place
    job = next(place for place in seen if place.startswith("job/") and place.endswith("/change/"))
    assert "<pre>7</pre>" in client.get(f"/open/delayq/{job}").content.decode()
    for place, fields in done:
        assert client.post(f"/open/delayq/{place}", fields, follow=True).status_code == 200, place
    assert Operation.objects.count() == 3


def test_what_a_subclass_does_not_allow_no_permission_gives(orders, client):
    seen, done = everything(orders)
    client.force_login(User.objects.create_superuser("root"))
    assert "/shut/delayq/job/" not in client.get("/shut/").content.decode()
    for place in seen:
        assert client.get(f"/shut/delayq/{place}").status_code == 403, place
    for place, fields in done:
        assert client.post(f"/shut/delayq/{place}", fields).status_code == 403, place
    assert Operation.objects.count() == 1


def test_one_site_needs_the_login_of_its_own(client, db):
    assert client.get("/support/delayq/queue/")["Location"].startswith("/support/login/")
