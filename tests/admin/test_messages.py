"""Messages in the admin: like jobs, without a task."""

from __future__ import annotations

import pytest

import django_delayq as delayq
from django_delayq import conf
from django_delayq.mirror.mirror_loop import MirrorLoop
from django_delayq.models import Job
from django_delayq.producer.stores import stores
from tests.admin.conftest import JOBS, QUEUES, beat, page, said
from tests.admin.test_edit import give


@pytest.fixture
def client(orders, staff, settings):
    settings.DELAYQ = {**settings.DELAYQ, "QUEUES": {**settings.DELAYQ["QUEUES"], "mail": {"CONSUMER": "pull"}}}
    return staff()


def fold() -> None:
    MirrorLoop(stores.link, conf.get().queue("mail"), prefix="delayq", using="default").drain()


def test_where_a_task_would_stand_it_says_that_it_is_a_message(client):
    job = delayq.push("mail", {"to": "anna"}, delay="1h")
    for address in (page(job), JOBS):
        text = client.get(address).content.decode()
        assert "a message" in text
        assert "django_delayq.message<" not in text
    assert "anna" in client.get(page(job)).content.decode()


def test_what_it_waits_for_is_a_consumer(client):
    beat("default")
    assert client.get(page(delayq.push("mail", 1))).context["why"] == "It is due, and waits for a consumer to pull it."
    assert client.get(page(delayq.push("mail", 1, delay="1h"))).context["why"].startswith("It is due in ")
    delayq.pause("mail")
    assert "is paused" in client.get(page(delayq.push("mail", 1))).context["why"]


def test_a_queue_of_messages_lacks_no_worker(client):
    beat("default", "orders", "redis")
    text = client.get(QUEUES).content.decode()
    assert "pulled" in text
    assert "without one" not in text


def test_names_that_are_hidden_are_hidden_at_any_depth_of_a_body(client, settings):
    settings.DELAYQ = {**settings.DELAYQ, "SENSITIVE": ["iban"]}
    job = delayq.push("mail", {"who": "anna", "pay": [{"iban": "DE02"}]})
    text = client.get(page(job)).content.decode()
    assert "anna" in text
    assert "DE02" not in text


def test_a_failed_message_is_requeued_with_another_body(client):
    job = delayq.push("mail", {"to": "anna"})
    delayq.pull("mail")[0].fail("no such address")
    fold()
    assert "no such address" in client.get(page(job)).content.decode()
    done = give(client, job, [{"to": "berta"}], {}, confirmed="1")
    assert said(done) == ["Requeued with other arguments."]
    fold()
    assert Job.objects.get(pk=job.id).args == [{"to": "berta"}]
    assert delayq.pull("mail")[0].body == {"to": "berta"}


def test_a_message_keeps_one_body(client):
    job = delayq.push("mail", 1)
    delayq.pull("mail")[0].fail()
    fold()
    answer = give(client, job, [1, 2], {}, confirmed="1")
    assert answer.status_code == 400
    assert "its body, and no others" in answer.content.decode()
