"""The reason that a job which ends outside has not run yet: on the page, in the command and in its JSON."""

from __future__ import annotations

from typing import Any

import pytest

import django_delayq as delayq
from django_delayq import clock, codec
from django_delayq.models import Job
from django_delayq.states import DELIVERY, OFFER
from tests.admin.test_job_page import why, works
from tests.conftest import Run
from tests.tasks_for_tests import close_order


@pytest.fixture
def outside(orders):
    """A job of another task with these arguments, in Redis and in its row. After `said` it waits for ten minutes."""

    def make(task: str, said: dict[str, Any] | None = None, kind: str = "snooze", **kwargs: Any) -> delayq.Job:
        job = delayq.schedule(close_order, 7)
        if said is not None:
            [claimed] = orders.claim()
            orders.settle(claimed, kind, delay=600_000, detail=codec.dumps(said))
        orders.fold()
        Job.objects.filter(pk=job.id).update(task=task, kwargs=kwargs)
        return job

    return make


@pytest.fixture
def open_for():
    """A worker reports that the circuit of a host is open for that many seconds."""

    def say(seconds: int, target: str = "partner.example:443", **facts: Any) -> None:
        circuit = {"target": target, "failures": 5, "until": clock.wall_ms() + seconds * 1000}
        works("web-1:7:ab", circuits=[circuit], targets=["shipping"], **facts)

    return say


def test_a_host_that_is_left_alone_is_named_with_who_says_so_and_until_when(outside, open_for, staff):
    job = outside(DELIVERY, {"d": "it is left alone"}, host="partner.example")
    open_for(60)
    said = why(staff(), job)
    assert "the circuit of partner.example:443 is open until " in said
    assert said.endswith(". The delivery waits and uses no attempt.")
    assert "has postponed it" not in said
    open_for(-1)
    assert why(staff(), job).endswith(". The next delivery is the probe.")


def test_a_delivery_that_is_due_waits_for_the_same_host_and_others_do_not(outside, open_for, staff):
    due, other = outside(DELIVERY, host="partner.example"), outside(DELIVERY, host="other.example")
    open_for(60)
    assert why(staff(), due).startswith("Worker web-1:7:ab reports that the circuit of partner.example:443 is open until ")
    assert why(staff(), other) == "The job is due. A worker will claim it at any moment."
    open_for(60, target="[::1]:80")
    assert why(staff(), outside(DELIVERY, host="::1")).startswith("Worker web-1:7:ab reports that the circuit of [::1]:80 is open")


def test_a_circuit_says_nothing_of_a_delivery_whose_date_lies_ahead(orders, open_for, staff):
    job = delayq.schedule(close_order, 7, delay="1d")
    orders.fold()
    Job.objects.filter(pk=job.id).update(task=DELIVERY, kwargs={"host": "partner.example"})
    open_for(60)
    assert "circuit" not in why(staff(), job)


def test_what_workers_of_other_queues_or_silent_ones_say_does_not_count(outside, open_for, staff):
    job = outside(DELIVERY, host="partner.example")
    works()
    open_for(60, queues=["default"])
    assert why(staff(), job) == "The job is due. A worker will claim it at any moment."


def test_a_host_that_has_asked_to_be_left_alone(outside, staff):
    works()
    told = {"c": "DeliveryFailed", "m": "503", "k": "answer", "v": {"target": "partner.example:443", "status": 503}, "w": 600_000}
    job = outside(DELIVERY, told, "retry", host="partner.example")
    said = why(staff(), job)
    assert said.startswith("Attempt 2 is due in ")
    assert said.endswith("partner.example:443 asked to wait for 10m.")
    job = outside("shop.tasks.other", {"m": "later", "w": 600_000}, "retry")
    assert why(staff(), job).endswith("The task asked to be retried after 10m.")


def test_a_target_that_no_worker_lists(outside, open_for, staff):
    job = outside(OFFER, to="invoices")
    listed = outside(OFFER, to="shipping")
    works("old:1:w")  # from a release that does not report it
    open_for(60)
    assert why(staff(), job) == "The job is due. A worker will claim it at any moment."
    works("old:1:w", targets=["other"])
    assert why(staff(), job).startswith("The target invoices is not in TARGETS of the workers that serve the queue")
    assert why(staff(), listed) == "The job is due. A worker will claim it at any moment."


def test_a_masked_place_is_not_told(outside, open_for, staff, settings):
    settings.DELAYQ = {**settings.DELAYQ, "SENSITIVE": ["host"]}
    job = outside(DELIVERY, host="partner.example")
    open_for(60)
    assert "partner.example" not in why(staff(), job)


def test_the_command_says_it_in_words_and_in_codes(outside, open_for, run: Run):
    job = outside(DELIVERY, {"d": "it is left alone"}, host="partner.example")
    open_for(60)
    text = run("inspect", job.id).out
    assert "why has it not run yet?\n  The job is due in " in text
    assert "Worker web-1:7:ab reports" in text
    later, circuit = run("inspect", job.id, "--json").json["waits_for"]
    assert later["code"] == "later"
    assert 500 < later["fields"]["duration"] <= 600
    assert circuit["code"] == "circuit_open"
    assert circuit["fields"]["target"] == "partner.example:443"
    assert circuit["fields"]["date"].endswith("+00:00")
    [done] = [run("inspect", delayq.get(job.id).id, "--json").json for _ in range(1)]
    assert done["attempts"][0]["problem"] is None


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("parked-task", "The job is parked: worker host:1:w does not know its task. It fails one day after it was first parked."),
        ("parked-arguments", "The job is parked: its task accepts different arguments in worker host:1:w."),
        (
            "parked-version",
            "The job is parked: worker host:1:w does not understand the version of the task",
        ),
        ("parked-carriers", "The job is parked: worker host:1:w does not have a carrier that the job needs."),
        ("parked-signature", "The job is parked: worker host:1:w does not have the key that signed it."),
    ],
)
def test_a_parked_job_says_so_and_no_longer_when_it_was_claimed_again(outside, orders, staff, code, told):
    works("web-1:7:ab")
    job = outside("shop.tasks.charge", {"e": "parked", "p": code, "d": "charge(x) cannot be called with these arguments"})
    assert told in why(staff(), job)
    row = Job.objects.get(pk=job.id)
    assert (row.state, row.fingerprint, row.attempts) == ("scheduled", code, 0)
    assert row.error == "charge(x) cannot be called with these arguments"
    delayq.reschedule(job, delay="0s")
    [claimed] = orders.claim()
    orders.settle(claimed, "snooze", delay=600_000, detail=codec.dumps({"d": "the partner sleeps"}))
    orders.fold()
    assert "host:1:w has postponed it: the partner sleeps" in why(staff(), job)
    row.refresh_from_db()
    assert (row.fingerprint, row.error) == ("", "")
