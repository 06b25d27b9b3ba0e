"""Runs of one schedule that must not overlap."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from itertools import count
from threading import Barrier
from types import SimpleNamespace

import pytest
from django.db import connection, connections
from django.db.utils import OperationalError
from django.test.utils import CaptureQueriesContext

import django_delayq as delayq
from django_delayq import clock as clocks
from django_delayq import conf
from django_delayq.models import Attempt, Job, Periodic, Tick
from django_delayq.periodic import overlap, schedules
from django_delayq.producer.stores import stores
from django_delayq.store.scripts.queue import Outcome, QueueStore
from django_delayq.testing.calling_thread import OneRun, executor, taken
from django_delayq.worker.line import lines_of
from tests.tasks_for_tests import book, fetch, takes_all


class Worker:
    """Claims jobs of the queue "orders", and runs them with the executor of workers, one call after the other."""

    numbers = count(1)

    def __init__(self) -> None:
        self.line = next(iter(lines_of(conf.get(), {"orders": 1}))).on(stores.link, conf.get().prefix)
        self.store: QueueStore = self.line.store

    def claim(self, want: int = 1, *, lease_ms: int = 30_000) -> list:
        """Returns the due jobs, under a lease."""
        claim = f"n{next(self.numbers)}"
        return self.store.claim("host:1:w", claim, want=want, lease_ms=lease_ms, max_crashes=9).jobs

    def take_over(self, want: int) -> list:
        """Returns the jobs whose leases expire within the next milliseconds."""
        found: list = []
        for _ in range(1000):
            found += self.claim(want - len(found))
            if len(found) == want:
                return found
            clocks.sleep(0.005)
        pytest.fail(f"{len(found)} of {want} leases have run out")

    def run(self, job) -> Outcome:
        """Runs a claimed job, and settles it."""
        leases = OneRun(1)
        try:
            outcome = executor(leases).run(taken(leases, self.line, 0, job))
        finally:
            leases.close()
        assert outcome is not None
        assert self.store.settle([outcome], worker="host:1:w", max_crashes=9) == ["done"]
        return outcome

    def next(self, **lease) -> Outcome:
        """Runs the next job that is due."""
        (job,) = self.claim(**lease)
        return self.run(job)


@pytest.fixture
def worker(code) -> Worker:
    return Worker()


@pytest.fixture
def body(monkeypatch) -> Callable[[Callable[[], object]], None]:
    """Gives the task a body for one run. A second run does nothing."""

    def give(do: Callable[[], object], task=takes_all) -> None:
        left = [do]
        if task is fetch:

            async def fn(*args: object) -> None:
                if left:
                    left.pop()()
        else:

            def fn(*args: object) -> None:
                if left:
                    left.pop()()

        monkeypatch.setattr(task, "fn", fn)

    return give


@pytest.fixture
def scheduled(code):
    """Makes a schedule with that policy, and that many due jobs of it."""

    def make(policy: str, jobs: int, task=takes_all) -> list[delayq.Job]:
        code.declare(overlap=policy, task=task, args=(1,))
        code.poll()
        return [schedules.run_now("nightly", "sam") for _ in range(jobs)]

    return make


def hold(job) -> None:
    """That run holds the schedule; its process died without releasing it."""
    Periodic.objects.update(holder=f"{job.id}/{job.fence}", holder_queue="orders")


def tick_of(job) -> Tick:
    return Tick.objects.get(job_id=job.id)


def test_where_overlap_is_allowed_nothing_is_asked(scheduled, worker):
    scheduled("allow", 1)
    (job,) = worker.claim()
    with CaptureQueriesContext(connection) as asked:
        assert worker.run(job).kind == "ack"
    assert not asked.captured_queries


def test_skip_a_tick_that_finds_another_run_is_not_run(scheduled, worker, body, fold):
    first, second = scheduled("skip", 2)
    seen = []
    body(lambda: seen.append(worker.next()))
    assert worker.next().kind == "ack"
    assert [outcome.kind for outcome in seen] == ["cancel"]
    fold()
    rows = Job.objects.in_bulk([first.id, second.id])
    assert rows[first.id].state == "succeeded"
    assert rows[second.id].state == "cancelled"
    assert rows[second.id].error == f"skipped: job {first.short_id} of the same schedule was running"
    assert [tick_of(first).fate, tick_of(second).fate] == ["scheduled", "skipped"]


@pytest.mark.parametrize("outcome", ["crashed", "running"])
def test_skip_a_run_that_was_lost_with_redis_is_none_that_has_not_begun(scheduled, worker, body, outcome):
    _, second = scheduled("skip", 2)
    Attempt.objects.create(job_id=second.id, number=1, fence="lost", started_at=clocks.now(), outcome=outcome)
    seen = []
    body(lambda: seen.append(worker.next()))
    assert worker.next().kind == "ack"
    assert [outcome.kind for outcome in seen] == ["snooze"]
    assert tick_of(second).fate == "scheduled"


def test_wait_a_tick_that_finds_another_run_comes_later(scheduled, worker, body, fold):
    _, second = scheduled("wait", 2)
    seen = []
    body(lambda: seen.append(worker.next()))
    assert worker.next().kind == "ack"
    assert [outcome.kind for outcome in seen] == ["snooze"]
    fold()
    assert Job.objects.get(pk=second.id).state == "scheduled"
    assert delayq.run_now(second) == "done"
    assert worker.next().kind == "ack"


@pytest.mark.parametrize("policy", ["skip", "wait"])
def test_when_the_other_run_has_ended_the_next_one_runs(scheduled, worker, policy):
    scheduled(policy, 3)
    assert [worker.next().kind for _ in range(3)] == ["ack", "ack", "ack"]


def test_one_waits_a_quarter_of_the_time_that_it_has_waited_half_a_minute_at_most():
    now = clocks.now()
    job = SimpleNamespace(now=now)
    waits = [overlap._wait(job, (now - timedelta(seconds=ago)).isoformat()) for ago in (-600, 0, 20, 600)]
    assert waits[0] == waits[1] == overlap.SHORTEST
    assert 5.0 <= waits[2] < 6.0
    assert waits[3] == overlap.LONGEST
    assert overlap._wait(job, "no date") == overlap._wait(job, None) == overlap.LONGEST


@pytest.mark.parametrize("error", [delayq.Retry(delay="1h"), delayq.NotYet()])
@pytest.mark.parametrize("policy", ["skip", "wait"])
def test_a_retry_that_waits_holds_nobody_up_and_waits_itself_while_another_runs(scheduled, worker, body, fold, policy, error):
    first, second = scheduled(policy, 2)

    def fail() -> None:
        raise error

    body(fail)
    assert worker.next().kind in ("retry", "ask")
    seen = []

    def meanwhile() -> None:
        delayq.run_now(first)
        seen.append(worker.next())

    body(meanwhile)
    assert worker.next().kind == "ack", "the second one runs while the first one waits for its retry"
    assert [outcome.kind for outcome in seen] == ["snooze"], "it has begun once, so it is not skipped"
    fold()
    assert Job.objects.get(pk=second.id).state == "succeeded"
    delayq.run_now(first)
    assert worker.next().kind == "ack"


def test_a_holder_whose_worker_vanished_holds_until_its_lease_ends(scheduled, worker):
    scheduled("wait", 2)
    (lost,) = worker.claim(lease_ms=30_000)
    hold(lost)
    assert worker.next().kind == "snooze"


def test_a_holder_whose_lease_has_ended_holds_no_more(scheduled, worker):
    scheduled("wait", 2)
    lost, _ = worker.claim(2, lease_ms=1)
    hold(lost)
    again = worker.take_over(2)
    assert [job.crashes for job in again] == [1, 1]
    assert [worker.run(job).kind for job in again] == ["ack", "ack"]


def test_a_crashed_run_that_comes_back_waits_for_who_has_taken_over(scheduled, worker, body):
    scheduled("skip", 2)
    lost, _ = worker.claim(2, lease_ms=1)
    hold(lost)
    back, other = worker.take_over(2)
    seen = []
    body(lambda: seen.append(worker.run(back)))
    assert worker.run(other).kind == "ack"
    assert [outcome.kind for outcome in seen] == ["snooze"]


def test_of_many_that_begin_at_once_one_runs(scheduled, worker):
    many = 6
    scheduled("wait", many)
    jobs = worker.claim(many)
    assert len(jobs) == many
    together, over = Barrier(many), Barrier(many)
    check = overlap.check

    def run(job) -> str:
        leases = OneRun(1)
        try:
            outcome = executor(leases).run(taken(leases, worker.line, 0, job))
            over.wait(60)  # no run ends before all have looked
            return outcome.kind
        finally:
            leases.close()
            connections.close_all()

    def all_at_once(tick) -> None:
        together.wait(60)
        check(tick)

    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(many) as pool:
        patch.setattr(overlap, "check", all_at_once)
        kinds = [one.result(90) for one in [pool.submit(run, job) for job in jobs]]
    assert sorted(kinds) == ["ack"] + ["snooze"] * (many - 1)


def test_who_has_read_what_stands_there_no_more_looks_again(scheduled, worker, monkeypatch):
    scheduled("wait", 2)
    mine, other = worker.claim(2)
    runs = overlap._runs
    Periodic.objects.update(holder="0000000000000000000000/gone", holder_queue="orders")

    def meanwhile(queue: str, id: str, nonce: str) -> bool:
        Periodic.objects.filter(holder__endswith="/gone").update(holder=f"{other.id}/{other.fence}")
        return runs(queue, id, nonce)

    monkeypatch.setattr(overlap, "_runs", meanwhile)
    assert worker.run(mine).kind == "snooze"
    assert Periodic.objects.get().holder == f"{other.id}/{other.fence}"


@pytest.mark.parametrize("policy", ["skip", "wait"])
def test_with_the_database_away_a_run_is_put_off(scheduled, worker, monkeypatch, policy):
    scheduled(policy, 1)

    def away(*args: object) -> None:
        raise OperationalError("away")

    monkeypatch.setattr(overlap, "_take", away)
    outcome = worker.next()
    assert (outcome.kind, outcome.delay_ms) == ("snooze", 10_000)


def test_with_redis_away_a_run_is_put_off(scheduled, worker, settings, monkeypatch):
    scheduled("wait", 2)
    jobs = worker.claim(2)
    Periodic.objects.update(holder=f"{jobs[1].id}/{jobs[1].fence}", holder_queue="orders")
    leases = OneRun(1)
    settings.DELAYQ = {**settings.DELAYQ, "REDIS": "unix:///nowhere/redis.sock"}
    outcome = executor(leases).run(taken(leases, worker.line, 0, jobs[0]))
    leases.close()
    assert (outcome.kind, outcome.delay_ms) == ("snooze", 10_000)


def test_a_schedule_that_is_gone_holds_nobody(scheduled, worker):
    scheduled("wait", 1)
    Periodic.objects.all().delete()
    assert worker.next().kind == "ack"


@pytest.mark.parametrize("task", [book, fetch], ids=["atomic", "coroutine"])
def test_runs_of_atomic_tasks_and_coroutines_do_not_overlap_either(scheduled, worker, body, task):
    scheduled("skip", 2, task=task)
    assert [worker.next().kind for _ in range(2)] == ["ack", "ack"], "the first one has ended"
    third, fourth = [schedules.run_now("nightly", "sam") for _ in range(2)]
    held, next_one = worker.claim(2)
    hold(held)
    outcome = worker.run(next_one)
    assert (outcome.kind, tick_of(fourth).fate, tick_of(third).fate) == ("cancel", "skipped", "scheduled")


def test_the_hold_of_an_atomic_run_is_seen_before_it_commits(scheduled, worker, body):
    if connection.vendor == "sqlite":
        pytest.skip("SQLite has one writer at a time: while an atomic run writes, nobody can take hold")
    scheduled("skip", 2, task=book)
    seen = []

    def meanwhile() -> None:
        def other() -> str:
            try:
                return worker.next().kind
            finally:
                connections.close_all()

        with ThreadPoolExecutor(1) as pool:
            seen.append(pool.submit(other).result(60))

    body(meanwhile, task=book)
    assert worker.next().kind == "ack"
    assert seen == ["cancel"]


def test_what_was_skipped_and_is_requeued_runs_when_nobody_does(scheduled, worker, body, fold):
    _, second = scheduled("skip", 2)
    body(lambda: worker.next())
    worker.next()
    fold()
    assert tick_of(second).fate == "skipped"
    assert delayq.requeue(second) == "done"
    assert worker.next().kind == "ack"
    assert tick_of(second).fate == "scheduled"


def test_meta_of_another_shape_is_nobodys_policy():
    for tick in ("text", None, 7, [], {}, {"overlap": "often"}):
        overlap.check(tick)
