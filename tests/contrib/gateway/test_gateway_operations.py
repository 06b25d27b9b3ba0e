"""Operations over HTTP: a token changes all jobs of a queue that match a search, as far as it may change each of them."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import OperationalError

import django_delayq as delayq
from django_delayq import ids
from django_delayq.console import keyset, operations
from django_delayq.console.operation_loop import OperationLoop
from django_delayq.contrib.gateway import tokens
from django_delayq.models import Event, Job, Operation
from tests.contrib.gateway.conftest import TASK, refused
from tests.tasks_for_tests import close_order, risky

BODY = {"verb": "cancel", "queue": "orders", "search": "meta:merchant=7 state:scheduled", "reason": "account closed"}
STARTED = {"stage": "waiting", "jobs": 2, "seen": 0, "counts": {}}


@pytest.fixture
def merchants(orders: Any) -> list[delayq.Job]:
    """Jobs of the merchant 7, the second one with another task, and of another merchant."""
    found = [
        task.using(delay="1h", meta={"merchant": who}).schedule(who) for task, who in ((close_order, 7), (risky, 7), (close_order, 8))
    ]
    orders.fold()
    return found


def work() -> None:
    loop = OperationLoop()
    while loop.poll() == 0:
        pass


def test_a_token_starts_an_operation_and_reads_its_progress(caller, orders, merchants):
    started = caller.post("operations", BODY)
    assert started.status_code == 202
    id = started.json()["id"]
    assert started.json() == caller.get(f"operations/{id}").json() == {"id": id, **STARTED}
    work()
    assert caller.get(f"operations/{id}").json() == {"id": id, "stage": "finished", "jobs": 2, "seen": 2, "counts": {"done": 2}}
    orders.fold()
    assert [job.state for job in merchants] == ["cancelled", "cancelled", "scheduled"]
    assert {(event.actor, event.reason) for event in Event.objects.exclude(actor="")} == {("token:partner", "account closed")}


def test_a_dry_run_counts(caller, merchants):
    answer = caller.post("operations", {**BODY, "limit": 1, "dry_run": True})
    assert (answer.status_code, answer.json()) == (200, {"id": None, **STARTED, "stage": None})
    assert not Operation.objects.exists()


def test_a_date_and_a_period(caller, merchants):
    caller.post("operations", {**BODY, "verb": "reschedule", "delay": "2h", "over": "10m"})
    operation = Operation.objects.get()
    assert (operation.options, operation.seconds) == ({"delay": 7200.0}, 600)


@pytest.mark.parametrize(
    ("body", "status", "code", "place"),
    [
        ({"limit": 1}, 409, "too_many_jobs", "/search"),
        ({"search": "merchant"}, 422, "options", ""),
        ({"search": "state:sheduled"}, 422, "options", ""),
        ({"reason": " "}, 422, "options", ""),
        ({"over": "31d"}, 422, "options", ""),
        ({"delay": "1h"}, 422, "options", ""),
        ({"verb": "reschedule"}, 422, "options", ""),
        ({"verb": "mark_failed"}, 422, "field_value", "/verb"),
        ({"limit": 0}, 422, "field_value", "/limit"),
        ({"queue": "nowhere"}, 422, "queue_unlisted", "/queue"),
    ],
)
def test_refusals(caller, merchants, body, status, code, place):
    refused(caller.post("operations", {**BODY, **body}), status, code, place)
    assert not Operation.objects.exists()


def test_the_token_needs_the_verb_of_the_change_and_the_queue(make, merchants):
    refused(make("a", verbs=["operate", "requeue"]).post("operations", BODY), 403, "verb_denied", "/verb")
    refused(make("b", verbs=["cancel"]).post("operations", BODY), 403, "verb_denied")
    refused(make("c", queues=["redis"]).post("operations", BODY), 403, "queue_denied", "/queue")
    assert not Operation.objects.exists()


def test_only_jobs_of_its_queue_and_of_its_tasks_are_changed(make, orders, merchants, monkeypatch):
    other = close_order.using(queue="default", delay="1h", meta={"merchant": 7}).schedule(7)
    orders.fold()
    caller = make(tasks=[TASK])
    answer = caller.post("operations", {**BODY, "search": "meta:merchant=7 OR queue:default"})
    assert answer.json()["jobs"] == 1
    work()
    orders.fold()
    assert [job.state for job in (*merchants, other)] == ["cancelled", "scheduled", "scheduled", "scheduled"]
    monkeypatch.setattr(keyset, "WINDOW", 1)  # the worker does not know the tasks of the token, so ids must be stored
    for number in (8, 9):
        close_order.using(delay="1h", meta={"merchant": 7}).schedule(number)
    refused(caller.post("operations", BODY), 422, "options", "")
    assert make("all").post("operations", BODY).json()["jobs"] is None


def test_a_token_of_a_scope_changes_only_jobs_of_the_scope(make, orders, settings):
    settings.DELAYQ = {**settings.DELAYQ, "CARRIERS": ["tests.carriers.Tenant"], "SCOPE": "Tenant"}
    jobs = [delayq.schedule(close_order, 7, delay="1h", scope=scope) for scope in ("a", "b")]
    orders.fold()
    caller = make(only_scope="a")
    for search in ("scope:b", "state:scheduled scope:b"):
        refused(caller.post("operations", {**BODY, "search": search}), 422, "options", "")
    assert caller.post("operations", {**BODY, "search": "after:-1d OR state:scheduled"}).json()["jobs"] == 1
    work()
    orders.fold()
    assert [job.state for job in jobs] == ["cancelled", "scheduled"]


def test_an_operation_of_another_token_is_as_if_it_was_not_there(caller, make, merchants):
    id = caller.post("operations", BODY).json()["id"]
    for other in (make("other"), make("third", queues=["redis"])):
        refused(other.get(f"operations/{id}"), 404, "operation_unknown")
    refused(caller.get("operations/nothing"), 404, "operation_unknown")
    tokens.Token.objects.update(queues=["redis"])
    refused(caller.get(f"operations/{id}"), 404, "operation_unknown")


def test_a_request_that_comes_again_starts_nothing_again(caller, merchants, monkeypatch):
    first = caller.post("operations", BODY, key="a")
    assert caller.post("operations", BODY, key="a").json() == first.json()
    start = operations.start

    def without_an_answer(operation: Operation) -> Operation:
        start(operation)
        raise OperationalError("the connection was lost after the commit")

    monkeypatch.setattr(operations, "start", without_an_answer)
    refused(caller.post("operations", BODY, key="b"), 503, "database_away")
    monkeypatch.setattr(operations, "start", start)
    again = caller.post("operations", BODY, key="b")
    assert again.status_code == 202
    assert {first.json()["id"], again.json()["id"]} == {*map(ids.short, Operation.objects.values_list("pk", flat=True))}


def test_a_token_puts_no_unresolved_job_back(caller, orders, merchants, monkeypatch):
    Job.objects.filter(pk=merchants[0].id).update(published=None, ending="unknown")
    answer = caller.post("operations", {**BODY, "verb": "requeue", "search": "state:unresolved"})
    assert answer.json()["jobs"] == 1
    work()
    assert Operation.objects.get().counts == {"conflict": 1}
