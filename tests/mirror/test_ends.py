"""`job_ended` for each end of a job, whatever its cause; and what follows a failure."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from django.db import DatabaseError, connection, connections

import django_delayq as delayq
from django_delayq import codec, conf, failpoints, ids, signals
from django_delayq.mirror import ends
from django_delayq.mirror.mirror_loop import MirrorLoop
from django_delayq.models import Job
from django_delayq.producer.stores import stores
from django_delayq.producer.task import registry
from django_delayq.states import CARRIED, EndCause, State
from django_delayq.store.scripts.queue import Outcome
from django_delayq.worker.hanging_calls import PatientThread
from tests.carriers import TENANT, Tenant
from tests.tasks_for_tests import close_order, look_after, risky

Told = list[tuple[Any, ...]]


@pytest.fixture
def told() -> Iterator[Told]:
    """The calls of `job_ended` receivers: (id, state, cause)."""
    heard: Told = []

    def hear(*, job: delayq.Job, row: Job | None, state: State, cause: EndCause, sender: object, **_more: object) -> None:
        assert row is None or (row.pk, row.state) == (job.id, state)
        assert (sender.name if sender else "") == job.task
        heard.append((job.id, state.value, cause.value))

    signals.job_ended.connect(hear, weak=False)
    yield heard
    signals.job_ended.disconnect(hear)


def detail(name: str, print: str = "") -> bytes:
    return codec.dumps({"c": name, "m": "so", "p": print})


@pytest.mark.parametrize(
    ("outcome", "body", "end"),
    [
        ("ack", b"{}", ("succeeded", "succeeded")),
        ("fail", detail("ValueError"), ("failed", "failed")),
        ("fail", detail("HardTimeout"), ("failed", "timeout")),
        ("fail", detail("Poison", "poison-task"), ("failed", "poison")),
        ("cancel", b"{}", ("cancelled", "cancelled")),
    ],
)
def test_the_end_of_a_run_is_told(orders, told, outcome, body, end):
    job = delayq.schedule(close_order, 7)
    (claimed,) = orders.claim()
    orders.settle(claimed, outcome, detail=body)
    orders.fold()
    assert told == [(job.id, *end)]


def test_what_goes_on_has_not_ended(orders, told):
    delayq.schedule(close_order, 7)
    (claimed,) = orders.claim()
    orders.settle(claimed, "retry", delay=1000, detail=detail("ValueError"))
    orders.fold()
    assert told == []


def test_a_job_that_was_cancelled_while_it_waited_is_told(orders, told):
    job = delayq.schedule(close_order, 7, delay="1h")
    job.cancel()
    orders.fold()
    assert told == [(job.id, "cancelled", "cancelled")]


def test_a_job_that_another_replaces_is_told(orders, told):
    job = delayq.schedule(close_order, 7, delay="1h", key="o:7")
    delayq.schedule(close_order, 8, delay="1h", key="o:7", on_conflict="replace")
    orders.fold()
    assert told == [(job.id, "cancelled", "replaced")]


def test_a_job_that_has_expired_is_told(orders, told):
    job = delayq.schedule(close_order, 7, expires="1ms")
    threading.Event().wait(0.02)
    assert orders.claim() == []
    orders.fold()
    assert told == [(job.id, "cancelled", "expired")]


def test_a_job_whose_workers_vanish_is_told(orders, told):
    job = delayq.schedule(close_order, 7)
    for _ in range(4):
        orders.settle(orders.claim()[0], "crash")
    orders.fold()
    assert told == [(job.id, "failed", "crashed")]


def test_an_end_of_which_no_row_is_kept_is_told_without_one(orders, told, settings):
    settings.DELAYQ = {**settings.DELAYQ, "AUDIT": "failures"}
    mirror = MirrorLoop(stores.link, conf.get().queue("orders"), prefix="delayq")
    job = delayq.schedule(close_order, 7, durability="redis")
    orders.settle(orders.claim()[0], "ack")
    mirror.drain()
    assert told == [(job.id, "succeeded", "succeeded")]
    assert not Job.objects.exists()


def test_what_a_mirror_has_folded_and_not_told_the_next_one_tells(orders, told, monkeypatch):
    job = delayq.schedule(close_order, 7)
    orders.settle(orders.claim()[0], "ack")

    def dies(name: str) -> None:
        if name == "mirror.committed":
            raise KeyboardInterrupt

    monkeypatch.setattr("django_delayq.mirror.mirror_loop.failpoint", dies)
    with pytest.raises(KeyboardInterrupt):
        orders.fold()
    assert told == []
    assert Job.objects.get(pk=job.id).state == "succeeded"
    monkeypatch.setattr("django_delayq.mirror.mirror_loop.failpoint", failpoints.failpoint)
    MirrorLoop(stores.link, orders.config, prefix="delayq").drain()
    assert told == [(job.id, "succeeded", "succeeded")]


def test_what_could_not_be_told_for_the_database_is_told_with_the_next_pass(orders, told, monkeypatch):
    job = delayq.schedule(close_order, 7)
    orders.settle(orders.claim()[0], "ack")

    def refuses(*_given: object) -> None:
        raise DatabaseError

    with monkeypatch.context() as patch, pytest.raises(DatabaseError):
        patch.setattr(ends.JobEndedSender, "_send", refuses)
        orders.fold()
    assert told == []
    orders.fold()
    assert told == [(job.id, "succeeded", "succeeded")]


def test_a_receiver_that_fails_keeps_nobody_else_from_hearing(orders, told, caplog):
    def fails(**_given: object) -> None:
        raise ValueError("no")

    signals.job_ended.connect(fails)
    try:
        job = delayq.schedule(close_order, 7)
        orders.settle(orders.claim()[0], "ack")
        orders.fold()
    finally:
        signals.job_ended.disconnect(fails)
    assert told == [(job.id, "succeeded", "succeeded")]
    assert "a receiver of job_ended failed" in caplog.text


def test_a_receiver_that_hangs_is_left_and_the_mirror_goes_on(orders, monkeypatch, caplog):
    monkeypatch.setattr(ends, "PATIENCE", 0.05)
    free, calls = threading.Event(), []

    def hangs(*, job: delayq.Job, **_given: object) -> None:
        calls.append(job.id)
        free.wait(60)

    signals.job_ended.connect(hangs)
    mirror = MirrorLoop(stores.link, orders.config, prefix="delayq", call_within=PatientThread(connections.close_all).run)
    try:
        jobs = delayq.schedule_many(close_order.bind(number) for number in range(5))
        for claimed in orders.claim():
            orders.settle(claimed, "ack")
        mirror.drain()
    finally:
        signals.job_ended.disconnect(hangs)
        free.set()
    assert len(calls) == 1
    assert "took longer than 0.05 s" in caplog.text
    assert "job_ended was not sent for some jobs (4)" in caplog.text
    assert {row.state for row in Job.objects.filter(pk__in=[job.id for job in jobs])} == {"succeeded"}


def test_a_thread_that_was_left_ends_and_the_next_call_has_another():
    patient, free, seen = PatientThread(connections.close_all), threading.Event(), []
    assert patient.run(lambda: seen.append(threading.current_thread()), 5) is True
    assert patient.run(lambda: free.wait(60) and None, 0.01) is False
    assert patient.run(lambda: seen.append(threading.current_thread()), 5) is True
    assert seen[0] is not seen[1]
    free.set()
    seen[0].join(30)
    assert not seen[0].is_alive()


def test_without_a_receiver_nobody_is_asked(orders, django_assert_num_queries, monkeypatch):
    monkeypatch.setattr(ends.JobEndedSender, "_send", lambda *_given: pytest.fail("it was told"))
    delayq.schedule(close_order, 7)
    orders.settle(orders.claim()[0], "ack")
    orders.fold()


def follow_ups() -> list[tuple[str, list[Any], str]]:
    return [(row.task, row.args, row.derived) for row in Job.objects.filter(task=look_after.name)]


def test_a_failure_schedules_what_shall_follow_once_per_end(orders):
    job = delayq.schedule(risky, 7)
    orders.settle(orders.claim()[0], "fail", detail=detail("ValueError"))
    entries = orders.mirror.log.read("0-0", 100)
    orders.fold()
    assert follow_ups() == [(look_after.name, [str(job.id)], "unpublished")]
    orders.mirror._write(entries)  # folded once more
    assert len(follow_ups()) == 1
    orders.relay.poll()
    (claimed,) = orders.claim()
    assert ids.full(claimed.id) == Job.objects.get(task=look_after.name).pk
    orders.settle(claimed, "ack")
    delayq.requeue(job)
    orders.settle(orders.claim()[0], "fail", detail=detail("ValueError"))
    orders.fold()
    assert len(follow_ups()) == 2


class OnlyWithTenant(Tenant):
    """Refuses to schedule without a tenant, as a project may."""

    name = "Tenant"

    def pack(self) -> object:
        if TENANT.get() is None:
            raise LookupError("no tenant")
        return TENANT.get()


@pytest.mark.parametrize("carried", ["acme", None])
def test_what_follows_a_failure_carries_what_the_failed_job_carried_and_asks_no_carrier(orders, settings, carried):
    token = TENANT.set(carried)
    settings.DELAYQ = {**settings.DELAYQ, "CARRIERS": ["tests.carriers.Tenant"]}
    delayq.schedule(risky, 7, meta={"by": "form"})
    TENANT.reset(token)
    settings.DELAYQ = {**settings.DELAYQ, "CARRIERS": [f"{__name__}.OnlyWithTenant"]}
    orders.settle(orders.claim()[0], "fail", detail=detail("ValueError"))
    orders.fold()
    (follower,) = Job.objects.filter(task=look_after.name)
    assert follower.options == ({"meta": {CARRIED: {"Tenant": carried}}} if carried else {})


def test_a_failure_that_was_requeued_before_the_mirror_came_has_its_follower_too(orders):
    job = delayq.schedule(risky, 7)
    orders.settle(orders.claim()[0], "fail", detail=detail("ValueError"))
    orders.store.requeue(job.id)
    orders.settle(orders.claim()[0], "ack")
    orders.fold()
    assert Job.objects.get(pk=job.id).state == "succeeded"
    assert follow_ups() == [(look_after.name, [str(job.id)], "unpublished")]


@pytest.fixture
def few_variables(orders) -> Iterator[None]:
    """SQLite takes as few variables in a query as its older builds do."""
    if connection.vendor != "sqlite":
        yield
        return
    connection.ensure_connection()
    before = connection.connection.setlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER, 999)
    yield
    connection.connection.setlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER, before)


@pytest.mark.usefixtures("few_variables")
def test_a_thousand_ends_in_one_batch_are_told(orders, told):
    jobs = delayq.schedule_many(risky.bind(number) for number in range(1001))
    while claimed := orders.claim():
        failed = [Outcome(id=one.id, attempt=one.attempt, fence=one.fence, kind="fail", detail=b"{}") for one in claimed]
        orders.store.settle(failed, worker="host:1:w", max_crashes=3)
    orders.fold()
    assert sorted(told) == [(job.id, "failed", "failed") for job in jobs]
    assert len(follow_ups()) == 1001


def test_a_job_that_does_not_fail_has_no_follower(orders):
    delayq.schedule(risky, 7)
    orders.settle(orders.claim()[0], "ack")
    delayq.schedule(close_order, 7)
    orders.settle(orders.claim()[0], "fail", detail=detail("ValueError"))
    orders.fold()
    assert follow_ups() == []


def test_a_follower_that_cannot_be_scheduled_keeps_no_failure_from_its_row(orders, monkeypatch, caplog):
    monkeypatch.setattr(look_after, "queue", "gone")
    job = delayq.schedule(risky, 7)
    orders.settle(orders.claim()[0], "fail", detail=detail("ValueError"))
    orders.fold()
    assert Job.objects.get(pk=job.id).state == "failed"
    assert "cannot be scheduled for it" in caplog.text


def test_a_mirror_that_does_not_know_a_failed_task_says_that_nothing_follows(orders, monkeypatch, caplog):
    job = delayq.schedule(close_order, 7)
    orders.settle(orders.claim()[0], "fail")
    monkeypatch.setattr(registry, "followed", True)
    monkeypatch.delitem(registry._tasks, close_order.name)
    orders.fold()
    assert f"job {job.short_id} has failed, and its task {close_order.name} is not known in this process" in caplog.text


@pytest.mark.parametrize("follower", ["close_order", 5, close_order.fn])
def test_a_follower_is_a_task(follower):
    with pytest.raises(delayq.ConfigError, match="on_failure must be a task"):
        delayq.task(on_failure=follower, name="x.y")(lambda: None)


def test_a_follower_takes_the_id_of_the_job():
    nothing = delayq.task(name="tests.nothing", queue="orders")(lambda: None)
    with pytest.raises(delayq.ConfigError, match="one argument, the id of the failed job"):
        delayq.task(on_failure=nothing, name="x.y")(lambda: None)


def test_what_tidies_up_behind_a_call_does_so_in_the_thread_of_the_call():
    tidied, seen = [], []
    patient = PatientThread(lambda: tidied.append(threading.current_thread()))
    for _ in range(2):
        assert patient.run(lambda: seen.append(threading.current_thread()), 5) is True
    assert tidied == seen
    assert threading.current_thread() not in seen
