"""Tenant, language and request travel with the job, through retries and into the jobs that it schedules."""

from collections.abc import Callable

import pytest
from django.test import Client
from django.utils import translation
from orders.models import Letter, Order
from orders.provider import Declined
from orders.surroundings import request_id, tenant
from orders.tasks import thank

from django_delayq.testing.kit import Kit

NewOrder = Callable[..., Order]
HEADERS = {"X-Tenant": "bikes", "X-Request-Id": "r-17", "Accept-Language": "de"}
OTHERS = {"X-Tenant": "books", "Accept-Language": "fr"}


def written() -> list[tuple[str, str, str, str]]:
    return list(Letter.objects.order_by("pk").values_list("subject", "tenant", "language", "request_id"))


def test_each_job_runs_in_the_surroundings_in_which_it_was_scheduled(client: Client, delayq: Kit) -> None:
    client.post("/orders/", {"total": 7}, headers=HEADERS)
    client.post("/orders/", {"total": 8}, headers=OTHERS)
    delayq.fail_next(ConnectionError)
    delayq.advance("22m")
    assert sorted(written()) == [("reminder", "bikes", "de", "r-17"), ("reminder", "books", "fr", "")]
    assert (tenant.get(), request_id.get(), translation.get_language()) == ("", "", "en-us")


def test_an_async_task_runs_in_them_too(client: Client, delayq: Kit, new_order: NewOrder) -> None:
    before = tenant.set("bikes")
    with translation.override("zh-hans"):
        job = thank.schedule(new_order().pk)
    tenant.reset(before)
    delayq.run_due()
    assert job.result() == {"tenant": "bikes", "language": "zh-hans", "request": ""}


def test_they_go_on_to_the_job_behind_a_failed_one(client: Client, delayq: Kit, answers: list[str | Exception]) -> None:
    answers.append(Declined())
    order = client.post("/orders/", {"total": 7}, headers=HEADERS).json()["order"]
    client.post(f"/orders/{order}/pay/", headers=HEADERS)
    delayq.advance("1m")
    assert written() == [("sorry", "bikes", "de", "r-17")]


def test_a_job_without_a_request_has_nothing_to_unpack(delayq: Kit, new_order: NewOrder) -> None:
    order = new_order()
    assert delayq.perform(thank, order.pk) == {"tenant": "", "language": "en-us", "request": ""}


@pytest.fixture(autouse=True)
def nothing_is_left() -> None:
    assert tenant.get() == ""
