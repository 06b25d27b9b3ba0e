"""Cursors: how far a job is, committed with its effects. Each payment is made once, wherever a run is cut off."""

from __future__ import annotations

import itertools
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from types import FrameType, SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from django.contrib.auth.models import Group
from django.core.management import call_command
from django.db import connection, connections, transaction

import django_delayq as delayq
from django_delayq import clock, conf, ids
from django_delayq.exceptions import ConfigError, LeaseLost, PayloadError
from django_delayq.mirror import atomic_runs
from django_delayq.mirror.adoption import end_rows
from django_delayq.mirror.atomic_runs import once
from django_delayq.mirror.prune import PruneLoop
from django_delayq.models import Job, Step
from django_delayq.producer.stores import stores
from django_delayq.states import State
from django_delayq.worker import current
from django_delayq.worker.current import CurrentJob
from tests.tasks_for_tests import close_order

PAYMENTS, CHUNK = 200, 50
pytestmark = pytest.mark.django_db(transaction=True)


class Leases:
    """The lease of a run: it has it, unless `lost`."""

    def __init__(self) -> None:
        self.lost = False

    def is_lost(self, row: int, turn: int) -> bool:
        return self.lost

    def is_at_work(self, row: int, turn: int) -> bool:
        return True


def run_of(job: UUID, fence: str = "f1") -> CurrentJob:
    """A run as the worker gives it to a task."""
    claimed = SimpleNamespace(id=ids.short(job), fence=fence, queue="orders", attempt=1)
    return CurrentJob(SimpleNamespace(job=claimed, leases=Leases(), row=0, turn=1, cursor_from=None))


def pay_all(run: CurrentJob) -> None:
    """The pay run: chunks of payments, each in a transaction with its checkpoint."""
    while (paid := run.cursor or 0) < PAYMENTS:
        with transaction.atomic():
            Group.objects.bulk_create([Group(name=f"{run.short_id} {paid + n}") for n in range(CHUNK)])
            run.checkpoint(paid + CHUNK)


def payments(job: UUID) -> int:
    """How many there are; the name of each is unique."""
    return Group.objects.filter(name__startswith=ids.short(job)).count()


class Cut(BaseException):
    """A run ends here, as if its process had died."""


@contextmanager
def cut_at(line: int) -> Iterator[list[int]]:
    """Raises Cut at the line with this number, counted over all lines of the task and of the package that run. Yields the counter."""
    seen = [0]

    def trace(frame: FrameType, event: str, arg: Any) -> Any:
        if frame.f_code is not pay_all.__code__ and frame.f_code.co_filename != atomic_runs.__file__:
            return None
        if event == "line":
            seen[0] += 1
            if seen[0] == line:
                raise Cut
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield seen
    except Cut:
        if connection.in_atomic_block:  # it was cut off in front of the end of the block, so the process has left it open
            connection.in_atomic_block, connection.needs_rollback = False, False
            connection.atomic_blocks, connection.savepoint_ids, connection.run_on_commit = [], [], []
            connection.rollback()
            connection.set_autocommit(True)
    finally:
        sys.settrace(before)


def in_thread(call: Callable[[], Any]) -> threading.Thread:
    def work() -> None:
        try:
            call()
        finally:
            connections.close_all()

    thread = threading.Thread(target=work)
    thread.start()
    return thread


def test_a_pay_run_that_is_cut_off_at_any_line_pays_each_payment_once():
    for line in itertools.count(1):
        job = ids.new()
        for attempt in range(2):  # each of them is cut off at this line
            with cut_at(line) as seen:
                pay_all(run_of(job, f"f{attempt}"))
            done = Step.objects.filter(job_id=job).values_list("result", flat=True).first()
            assert payments(job) == (done or 0), f"cut off at line {line} of run {attempt}"
            if attempt == 0 and seen[0] < line:  # it has come to its end
                assert line > 60
                return
        pay_all(run_of(job, "last"))
        assert payments(job) == PAYMENTS, f"cut off at line {line}"


def test_a_checkpoint_is_committed_and_rolled_back_with_its_transaction():
    job = ids.new()
    run = run_of(job)
    assert run.cursor is None
    with pytest.raises(ValueError), transaction.atomic():
        run.checkpoint(40)
        assert run.cursor == 40
        raise ValueError
    assert run.cursor is None
    with transaction.atomic():
        run.checkpoint({"after": "x", "page": 2})
    assert run_of(job, "f2").cursor == {"after": "x", "page": 2}


def test_without_a_transaction_it_is_written_at_once():
    job = ids.new()
    run_of(job).checkpoint(7)
    assert not connection.in_atomic_block
    assert run_of(job, "f2").cursor == 7
    assert Step.objects.count() == 1


def test_a_cursor_that_is_first_read_in_a_transaction_that_is_rolled_back_is_read_again():
    job = ids.new()
    for fence, before in (("f1", None), ("f2", 5)):
        run = run_of(job, fence)
        with pytest.raises(ValueError), transaction.atomic():
            assert run.cursor == before
            run.checkpoint(99)
            raise ValueError
        assert run.cursor == before
        run.checkpoint(5)


def test_an_earlier_run_pays_nothing_more_once_a_later_one_has_looked():
    job = ids.new()
    early, late = run_of(job), run_of(job, "f2")
    early.checkpoint(1)
    assert late.cursor == 1
    with pytest.raises(LeaseLost, match="another run"), transaction.atomic():
        Group.objects.create(name="twice")
        early.checkpoint(2)
    with pytest.raises(LeaseLost):
        _ = early.cursor
    assert (Group.objects.count(), late.cursor) == (0, 1)
    late.checkpoint(2)


def test_an_earlier_run_that_has_not_looked_takes_nothing_without_its_lease():
    job = ids.new()
    late = run_of(job, "f2")
    late.checkpoint(3)
    early = run_of(job)
    early._run.leases.lost = True
    for call in (lambda: early.cursor, lambda: early.checkpoint(1)):
        with pytest.raises(LeaseLost):
            call()
    assert late.cursor == 3


def test_a_later_run_waits_for_the_open_transaction_of_an_earlier_one_and_continues_behind_it():
    if connection.vendor == "sqlite":
        pytest.skip("one writer at a time: SQLite itself keeps the two apart")
    job, found, begun = ids.new(), [], threading.Event()
    early, late = run_of(job), run_of(job, "f2")
    early.checkpoint(1)

    def look() -> None:
        assert Step.objects.get().result == 1
        begun.set()
        found.append(late.cursor)

    with transaction.atomic():
        early.checkpoint(2)
        thread = in_thread(look)
        assert begun.wait(30)
        assert not found
    thread.join(30)
    assert found == [2]


def test_of_two_runs_that_look_first_at_the_same_time_each_returns_or_has_lost(monkeypatch):
    job, other = ids.new(), []

    def race(name: str) -> None:
        if name == "cursor.take" and not other:
            other.append(run_of(job, "f2"))
            other[0].checkpoint(8)

    monkeypatch.setattr(atomic_runs, "failpoint", race)
    late = run_of(job, "f3")
    assert late.cursor == 8
    with pytest.raises(LeaseLost):
        other[0].checkpoint(9)
    late.checkpoint(9)


def test_a_run_that_is_always_beaten_gives_up(monkeypatch):
    job, numbers = ids.new(), iter(range(100))

    def race(name: str) -> None:
        if name == "cursor.take":
            Step.objects.update_or_create(job_id=job, name="delayq.cursor", defaults={"fence": f"x{next(numbers)}", "at": clock.now()})

    monkeypatch.setattr(atomic_runs, "failpoint", race)
    with pytest.raises(LeaseLost):
        _ = run_of(job).cursor


@pytest.mark.parametrize(("cursor", "message"), [(object(), "cursor is of type object"), ("x" * 100_000, "MAX_PAYLOAD")])
def test_a_cursor_is_json_of_a_limited_size(cursor, message):
    run = run_of(ids.new())
    with pytest.raises(PayloadError, match=message):
        run.checkpoint(cursor)
    assert run.cursor is None


def test_the_name_of_its_step_is_reserved():
    with pytest.raises(ValueError, match="reserved"), once(run_of(ids.new()), "delayq.cursor"):
        pass


def test_without_the_app_there_is_no_cursor(monkeypatch):
    monkeypatch.setattr(current, "_installed", None)
    with pytest.raises(ConfigError, match=r"current\(\).cursor requires the database"):
        _ = run_of(ids.new()).cursor


def started(job: delayq.Job, orders: Any) -> Any:
    """The claim of a run that has made a checkpoint."""
    [claimed] = orders.claim()
    run_of(job.id, claimed.fence).checkpoint(40)
    orders.fold()
    return claimed


@pytest.mark.parametrize("end", ["fail", "cancel"])
def test_a_job_that_is_requeued_continues(orders, end):
    job = delayq.schedule(close_order, 7)
    claimed = started(job, orders)
    orders.settle(claimed, end, detail=b'{"c":"X","m":"no"}')
    orders.fold()
    assert delayq.requeue(job) == "done"
    [claimed] = orders.claim()
    assert run_of(job.id, claimed.fence).cursor == 40


def test_after_a_wipe_the_job_continues(orders, loop, wipe):
    job = delayq.schedule(close_order, 7)
    orders.settle(started(job, orders), "retry", delay=0)
    orders.fold()
    wipe()
    while loop.poll() == 0:
        pass
    [claimed] = orders.claim(ahead_ms=3_600_000)
    assert claimed.id == job.short_id
    assert run_of(job.id, claimed.fence).cursor == 40


def test_an_adopted_database_keeps_it_also_of_the_jobs_that_it_ends(orders):
    job = delayq.schedule(close_order, 7)
    started(job, orders)
    assert [*end_rows(["orders"], "Ada", "")] == [1]
    assert Job.objects.get().state == "cancelled"
    assert run_of(job.id, "f9").cursor == 40


def test_it_goes_with_its_job_and_without_one_a_month_after_the_last_checkpoint(orders):
    job, rowless = delayq.schedule(close_order, 7), ids.new()
    orders.settle(started(job, orders), "ack")
    orders.fold()
    run_of(rowless).checkpoint(1)
    loop, long_ago = PruneLoop(stores.places, conf.get().queue("orders")), clock.now() - timedelta(days=60)
    Step.objects.update(at=long_ago)
    run_of(rowless).checkpoint(2)
    loop.prune()
    assert Step.objects.count() == 2
    Step.objects.update(at=long_ago)
    Job.objects.update(state=State.SUCCEEDED, finished_at=long_ago)
    loop.prune()
    loop.prune()
    assert not Step.objects.exists()


def test_it_is_erased_with_its_job(orders):
    job = delayq.schedule(close_order, 7)
    orders.settle(started(job, orders), "ack")
    orders.fold()
    call_command("delayq", "erase", job.short_id, "--yes", "--reason", "asked")
    assert not Job.objects.exists()
    assert not Step.objects.exists()
