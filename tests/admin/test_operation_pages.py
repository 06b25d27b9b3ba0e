"""Operations as people start and steer them."""

from __future__ import annotations

import pytest
from django.contrib.admin.models import LogEntry

from django_delayq.models import Operation
from django_delayq.operations import OperationLoop
from tests.admin.conftest import JOBS, OPERATIONS, said
from tests.admin.test_operations import begin, work

Stage = Operation.Stage
START = f"{OPERATIONS}start/"


def test_a_preview_says_how_many_and_shows_a_sample(orders, staff):
    orders.scheduled(23)
    client = staff()
    text = client.get(f"{START}cancel/?state=scheduled&queue=orders").content.decode()
    assert "23 jobs match:" in text
    assert "state:scheduled queue:orders" in text
    assert text.count("tests.tasks_for_tests.close_order</a>") == 20
    assert not Operation.objects.exists()


def test_what_is_started_is_carried_out_by_a_worker_and_told(orders, staff):
    orders.scheduled(3)
    client = staff()
    answer = client.post(f"{START}cancel/?state=scheduled", {"reason": "stock", "over": ""}, follow=True)
    assert said(answer) == ["Started. A worker carries it out; you may leave this page."]
    operation = Operation.objects.get()
    assert operation.selection["view"] == "scheduled"
    assert (operation.actor, operation.reason, operation.permission) == ("admin:kim0", "stock", "delayq.cancel_job")
    assert "waits for a worker" in answer.content.decode()
    work()
    text = client.get(f"{OPERATIONS}{operation.pk}/change/").content.decode()
    assert "3 / 3" in text
    assert "finished" in text
    assert "<dt>done</dt><dd>3</dd>" in text
    said_of_it = [entry.change_message for entry in LogEntry.objects.filter(object_id=str(operation.pk))]
    assert said_of_it == ["Cancel: state:scheduled: stock"]


def test_an_operation_with_a_date_asks_for_it(orders, staff):
    orders.scheduled(1)
    client = staff()
    address = f"{START}reschedule/?state=scheduled"
    assert client.post(address, {"over": "20m"}).status_code == 400
    assert client.post(address, {"over": "soon", "delay": "1h"}).status_code == 400
    assert client.post(address, {"over": "60d", "delay": "1h"}).status_code == 400
    client.post(address, {"delay": "+10m", "over": "20m"})
    client.post(address, {"run_at": "2031-01-31T18:00"})
    first, second = Operation.objects.order_by("id")
    assert (first.options, first.seconds) == ({"delay": 600.0}, 1200)
    assert second.options["run_at"].startswith("2031-01-31T")
    work()
    second.refresh_from_db()
    assert second.counts == {"done": 1}


@pytest.mark.parametrize("query", ["q=stat:failed", "q=state:nowhere"])
def test_nothing_is_started_by_a_search_that_is_not_understood(orders, staff, query):
    orders.scheduled(1)
    client = staff()
    assert "errornote" in client.get(f"{START}cancel/?{query}").content.decode()
    client.post(f"{START}cancel/?{query}", {"reason": ""})
    assert not Operation.objects.exists()


@pytest.mark.parametrize("missing", ["view_job", "start_operation", "cancel_job"])
def test_starting_needs_all_three_permissions(orders, staff, missing):
    names = {"view_job", "start_operation", "cancel_job"} - {missing}
    client = staff(*names)
    assert client.get(f"{START}cancel/?state=scheduled").status_code == 403
    assert client.post(f"{START}cancel/?state=scheduled", {}).status_code == 403
    assert not Operation.objects.exists()


def test_the_list_offers_what_one_may_do_to_all_of_it(orders, staff):
    orders.scheduled(1)
    client = staff()

    def offered(query: str, client=client) -> list[str]:
        return [verb.name for verb, _ in client.get(JOBS + query).context["for_all"]]

    assert offered("?state=scheduled") == ["cancel", "run_now", "reschedule"]
    assert offered("?state=failed&queue=orders") == ["requeue"]
    assert offered("?q=state:failed") == ["requeue"]
    assert offered("?q=stat:failed") == []
    assert offered("?state=scheduled&priority=1") == []  # an operation would not know of that filter
    assert offered("?state=failed", staff("view_job", "requeue_job")) == []


def test_it_is_paused_resumed_and_cancelled_with_a_reason(orders, staff):
    orders.scheduled(1)
    operation, client = begin(), staff()
    address = f"{OPERATIONS}{operation.pk}"
    for act, stage in (("pause", Stage.PAUSED), ("resume", Stage.RUNNING), ("cancel", Stage.CANCELLED)):
        client.post(f"{address}/{act}/", {"reason": "lunch"}, follow=True)
        operation.refresh_from_db()
        assert operation.stage == stage
    assert said(client.post(f"{address}/pause/", follow=True)) == ["Nothing changed: it is cancelled already."]
    assert LogEntry.objects.filter(object_id=str(operation.pk)).count() == 3
    assert operation.finished_at


def test_steering_is_posted_by_who_may(orders, staff):
    operation = begin()
    viewer = staff("view_operation")
    address = f"{OPERATIONS}{operation.pk}"
    assert "formaction" not in viewer.get(f"{address}/change/").content.decode()
    assert viewer.post(f"{address}/pause/").status_code == 403
    assert viewer.get(f"{address}/pause/").status_code == 405
    assert staff("view_job").get(f"{address}/change/").status_code == 403
    assert viewer.get(OPERATIONS).status_code == 200
    assert viewer.get(f"{OPERATIONS}nonsense/change/", follow=True).redirect_chain


def test_what_a_person_typed_shows_as_text(orders, staff):
    nasty = "<script>alert(1)</script>"
    operation = begin(reason=nasty, selection={"text": nasty}, actor=nasty, trouble=nasty)
    client = staff()
    for address in (OPERATIONS, f"{OPERATIONS}{operation.pk}/change/", f"{START}cancel/?q={nasty}"):
        text = client.get(address).content.decode()
        assert "&lt;script&gt;alert(1)" in text
        assert nasty not in text


def test_an_operation_from_a_page_spares_what_was_scheduled_later(orders, staff):
    orders.scheduled(2)
    client = staff()
    client.post(f"{START}cancel/?state=scheduled", {})
    orders.scheduled(1)
    OperationLoop(using="default").poll()
    assert Operation.objects.get().counts == {"done": 2}
