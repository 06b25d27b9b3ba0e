"""A delivery from `deliver` to a host that accepts or rejects it."""

from __future__ import annotations

import io
import socket
from typing import Any

import pytest
from django.core.management import call_command

import django_delayq
from django_delayq import ConfigError
from django_delayq.contrib.http import verify
from django_delayq.models import Attempt, Job
from django_delayq.producer.task import Task, make_task, registry
from tests.targets.conftest import SECRET
from tests.targets.receivers import Host, answer, drop

pytestmark = pytest.mark.django_db

deliver = django_delayq.deliver
NOTED: list[str] = []


def _note(job_id: str) -> None:
    NOTED.append(job_id)


note = make_task(Task, _note, where="these tests", name="tests.note")


@pytest.fixture(autouse=True)
def registered(backend, monkeypatch):
    monkeypatch.setitem(registry._tasks, note.name, note)
    NOTED.clear()


def attempts(job) -> list[Attempt]:
    return list(Attempt.objects.filter(job_id=job.id).order_by("number"))


def test_a_delivery_is_sent_at_its_date_and_succeeds_by_2xx(delayq, host):
    partner = host(answer(202, "thanks"))
    job = deliver(partner.url("/hook;a=1"), json={"order": 7, "name": "Zoë"}, delay="10m", key="order:7")
    assert delayq.advance("9m") == []
    (ran,) = delayq.advance("1m")
    assert (ran.outcome, job.state) == ("ack", "succeeded")
    (request,) = partner.requests
    assert request.line == "POST /hook;a=1 HTTP/1.1"
    assert request.json == {"order": 7, "name": "Zoë"}
    assert request.headers["content-type"] == "application/json"
    assert request.headers["host"] == f"127.0.0.1:{partner.port}"
    result = Job.objects.get(pk=job.id).result
    assert (result["status"], result["size"], result["answer"], result["complete"]) == (202, 6, "thanks", True)
    assert result["ms"] >= 0


def test_every_attempt_of_a_delivery_has_its_id_and_a_signature_of_its_own_time(delayq, host):
    partner = host(answer(500), answer(200))
    job = deliver(partner.url(), json={"order": 7}, secret="partner", backoff="10m")
    delayq.advance("10m")
    first, second = partner.requests
    assert job.state == "succeeded"
    assert first.headers["webhook-id"] == second.headers["webhook-id"] == Job.objects.get(pk=job.id).short_id
    assert first.headers["webhook-timestamp"] != second.headers["webhook-timestamp"]
    told = verify(second.headers, SECRET, body=second.body)
    assert told.id == first.headers["webhook-id"]


@pytest.mark.parametrize("status", [301, 302, 303, 307, 400, 404, 429, 500, 503])
def test_any_other_answer_is_a_failed_attempt_that_shows_what_was_said(delayq, host, status):
    partner = host(answer(status, "not today"), answer(200))
    job = deliver(partner.url(), json=1, backoff="3m")
    delayq.run_due()
    (first,) = attempts(job)
    assert first.outcome == "retried"
    assert f"answered {status}" in first.message
    if status == 500:
        assert "not today" in first.message
    delayq.advance("3m")
    assert job.state == "succeeded"


def test_410_ends_it_at_once(delayq, host):
    partner = host(answer(410, "no such hook"))
    job = deliver(partner.url(), json=1)
    assert [ran.outcome for ran in delayq.run_due()] == ["fail"]
    (only,) = attempts(job)
    assert (only.outcome, job.state) == ("failed", "failed")
    assert "answered 410" in only.message
    assert "no such hook" in only.message


def test_an_address_that_is_not_allowed_ends_it_at_once_and_nobody_is_asked(delayq, host, http):
    http(ALLOW=[])
    partner = host()
    job = deliver(partner.url(), json=1)
    assert [ran.outcome for ran in delayq.run_due()] == ["fail"]
    (only,) = attempts(job)
    assert "127.0.0.1 (loopback)" in only.message
    assert partner.connections == 0
    assert job.state == "failed"


def test_failed_deliveries_to_one_host_are_found_and_requeued_together(delayq, host):
    partner, other = host(answer(410), answer(200)), host(answer(410))
    found = deliver(partner.url(host="localhost"), json=1)
    beside = deliver(other.url(), json=2)
    delayq.run_due()
    call_command(
        "delayq", "requeue", "--search", "state:failed task:django_delayq.deliver arg:host=localhost", "--yes", stdout=io.StringIO()
    )
    delayq.run_due()
    assert (found.state, beside.state) == ("succeeded", "failed")


def test_a_delivery_that_has_failed_for_good_is_followed_by_the_task_that_it_names(delayq, host):
    partner = host(answer(410), answer(410), answer(200))
    failed = deliver(partner.url(), json=1, on_failure=note)
    deliver(partner.url(), json=2)
    deliver(partner.url(), json=3, on_failure=note)
    delayq.drain()
    assert [str(failed.id)] == NOTED


def test_what_follows_a_delivery_must_be_a_task_that_takes_an_id(delayq):
    for wrong in (print, "note", lambda id: id):
        with pytest.raises(ConfigError, match="on_failure"):
            deliver("https://partner.example/", json=1, on_failure=wrong)


def test_an_attempt_keeps_what_the_host_has_said_and_for_how_long_it_asked_to_be_left_alone(delayq, host):
    partner = host(answer(503, "closed", Retry_After="600"))
    deliver(partner.url(), json=1)
    delayq.run_due()
    problem = Attempt.objects.get().problem
    assert (problem["code"], problem["wait_ms"]) == ("answer", 600_000)
    assert (problem["fields"]["status"], problem["fields"]["answer"]) == (503, "closed")


class FirstUnread(Host):
    """A host that closes its first connection before it reads anything."""

    def _serve(self, connection: socket.socket) -> None:
        if self.connections == 1:
            connection.close()
        else:
            super()._serve(connection)


class Receiver:
    """Books one order for each new id."""

    def __init__(self) -> None:
        self.booked: list[str] = []

    def take(self, host: Host) -> None:
        for request in host.requests:
            id = verify(request.headers, SECRET, body=request.body, tolerance="2d").id
            if id not in self.booked:
                self.booked.append(id)


def delivered(delayq: Any, host: Host) -> str:
    job = django_delayq.deliver(host.url(), json=1, secret="partner", backoff="3m")
    assert [ran.outcome for ran in delayq.run_due()] == ["retry"]
    assert [ran.outcome for ran in delayq.advance("3m")] == ["ack"]
    assert [ran.outcome for ran in delayq.advance("1d")] == [], "what was answered 2xx is not sent again"
    return job.short_id


def test_the_first_request_is_lost(delayq):
    host = FirstUnread([answer(200)])
    try:
        id = delivered(delayq, host)
        receiver = Receiver()
        receiver.take(host)
        assert (receiver.booked, len(host.requests)) == ([id], 1)
    finally:
        host.close()


def test_the_first_answer_is_lost(delayq, host):
    partner = host(drop, answer(200))
    id = delivered(delayq, partner)
    receiver = Receiver()
    receiver.take(partner)
    assert (receiver.booked, len(partner.requests)) == ([id], 2)


def test_the_repeat_comes_after_the_receiver_has_acted(delayq, host):
    receiver = Receiver()

    def act_and_drop(exchange: Any) -> str:
        receiver.take(partner)
        return drop(exchange)

    partner = host(act_and_drop, answer(200))
    id = delivered(delayq, partner)
    assert receiver.booked == [id]
    receiver.take(partner)
    assert receiver.booked == [id]
