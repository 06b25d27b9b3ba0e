"""The pages of batches: progress, counts, the slowest members, and cancel."""

from __future__ import annotations

import pytest
from django.test import Client
from django.urls import reverse

import django_delayq as delayq
from django_delayq.mirror.batches import BatchLoop
from django_delayq.models import Batch, Job
from tests.tasks_for_tests import close_order

LIST = reverse("admin:delayq_batch_changelist")


@pytest.fixture
def batch(orders) -> delayq.JobBatch:
    """One of four members has succeeded, one has failed, and one runs."""
    with delayq.batch(close_order.bind(0), key="run:7") as batch:
        batch.schedule_many(close_order.bind(number) for number in range(1, 4))
        batch.schedule(close_order, 4, delay="1h")
    first, second, _ = orders.claim()
    orders.settle(first, "ack")
    orders.settle(second, "fail", detail=b'{"c": "Refused", "m": "no account"}')
    orders.fold()
    return batch


@pytest.fixture
def clerk(staff) -> Client:
    return staff()


def page_of(batch: delayq.JobBatch) -> str:
    return reverse("admin:delayq_batch_change", args=[batch.id])


def test_the_list_shows_how_far_each_is(clerk, batch):
    with delayq.batch() as other:
        pass
    BatchLoop().poll()
    page = clerk.get(LIST).content.decode()
    assert "run:7" in page
    assert other.short_id in page
    assert "<bdi>2 / 4</bdi>" in page
    assert "<bdi>0 / 0</bdi>" in page


def test_the_list_needs_as_many_queries_for_many_as_for_one(clerk, batch, django_assert_max_num_queries):
    for _ in range(5):
        with delayq.batch() as other:
            other.schedule(close_order, 1)
    with django_assert_max_num_queries(8):
        clerk.get(LIST)


def test_the_page_shows_counts_the_slowest_members_and_the_failed(clerk, batch):
    page = clerk.get(page_of(batch)).content.decode()
    assert "<bdi>2 / 4</bdi>" in page
    assert all(text in page for text in ("Running the longest", "Due last", "no account", "until all members have succeeded"))
    assert f"q=batch%3A{batch.short_id}+state%3Afailed" in page


def test_the_search_finds_the_members(clerk, batch):
    delayq.schedule(close_order, 99)
    page = clerk.get(reverse("admin:delayq_job_changelist"), {"q": f"batch:{batch.short_id} state:failed"})
    assert [job.args for job in page.context["cl"].result_list] == [[2]]
    page = clerk.get(reverse("admin:delayq_job_changelist"), {"q": "batch:nonsense"}).content.decode()
    assert "an id has 22 letters" in page


def test_the_page_of_a_job_leads_to_its_batch_and_to_the_next_job(clerk, batch, orders):
    member = Job.objects.filter(batch=batch.id).first()
    page = clerk.get(reverse("admin:delayq_job_change", args=[member.pk])).content.decode()
    assert page_of(batch) in page
    Job.objects.filter(pk=member.pk).update(follow_up=str(member.pk))
    page = clerk.get(reverse("admin:delayq_job_change", args=[member.pk])).content.decode()
    assert "next job" in page


def test_the_next_job_is_named_and_later_linked(clerk, orders):
    with delayq.batch(close_order.bind(0)) as batch:
        batch.schedule(close_order, 1)
    assert "close_order" in clerk.get(page_of(batch)).content.decode()
    orders.settle(orders.claim()[0], "ack")
    orders.fold()
    assert reverse("admin:delayq_job_change", args=[batch.then.id]) in clerk.get(page_of(batch)).content.decode()


def test_a_cancel_takes_the_reason_and_is_logged(clerk, batch):
    answer = clerk.post(f"{page_of(batch)[: -len('change/')]}cancel/", {"reason": "wrong month"}, follow=True)
    assert "A worker cancels the members" in answer.content.decode()
    row = Batch.objects.get()
    assert (row.cancelled_by, row.cancelled_why) == ("admin:clerk0", "wrong month")
    history = clerk.get(reverse("admin:delayq_batch_history", args=[batch.id])).content.decode()
    assert "wrong month" in history
    Batch.objects.update(over_at=row.created_at)
    answer = clerk.post(f"{page_of(batch)[: -len('change/')]}cancel/", {"reason": ""}, follow=True)
    assert "the batch is over" in answer.content.decode()


def test_a_cancel_needs_its_permission(staff, batch):
    client = staff("view_batch")
    assert "Cancel the batch" not in client.get(page_of(batch)).content.decode()
    assert client.post(f"{page_of(batch)[: -len('change/')]}cancel/").status_code == 403
    assert Batch.objects.get().cancelled_at is None
    assert staff("view_job").get(LIST).status_code == 403
