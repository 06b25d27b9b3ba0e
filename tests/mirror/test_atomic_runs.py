"""Effects that happen once: a whole atomic run, and a step of a run; however often and by whomever the job is run."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from uuid import UUID

import pytest
from django.contrib.auth.models import Group
from django.db import OperationalError, connection, connections, transaction

import django_delayq as delayq
from django_delayq import clock, conf, ids
from django_delayq.exceptions import ConfigError, LeaseLost
from django_delayq.mirror.atomic_runs import once, run_atomic
from django_delayq.mirror.prune import PruneLoop
from django_delayq.models import Job, Step
from django_delayq.producer.stores import stores
from django_delayq.states import State
from tests.tasks_for_tests import close_order


@dataclass
class Run:
    """A run as the worker gives it. `lost`: another worker has the job."""

    id: UUID = field(default_factory=ids.new)
    nonce: str = "f1"
    attempt: int = 1
    queue: str = "orders"
    task: str = "shop.charge"
    lost: bool = False

    def check_lease(self) -> None:
        if self.lost:
            raise LeaseLost("lost")


def charge() -> str:
    Group.objects.create(name=f"payment {Group.objects.count() + 1}")
    return "charged"


def payments() -> int:
    return Group.objects.count()


@pytest.mark.django_db(transaction=True)
class TestAWholeRun:
    def test_a_second_delivery_does_nothing_and_gives_the_first_result(self):
        run = Run()
        assert run_atomic(run, charge) == "charged"
        assert run_atomic(Run(id=run.id, nonce="f2", attempt=2), lambda: pytest.fail("run twice")) == "charged"
        assert payments() == 1

    def test_what_it_commits_beside_the_effect_is_a_note_and_the_row_follows_by_its_event(self, orders):
        job = delayq.schedule(close_order, 7)
        [claimed] = orders.claim()
        run_atomic(Run(id=job.id, nonce=claimed.fence), charge)
        note = Step.objects.get()
        assert (note.job_id, note.fence, note.result) == (job.id, claimed.fence, "charged")
        orders.fold()
        assert Job.objects.get().state == "running"
        orders.settle(claimed, "ack", detail=b'{"r":"charged"}')
        orders.fold()
        row = Job.objects.get()
        assert (row.state, row.result, row.attempts) == ("succeeded", "charged", 1)

    def test_a_run_that_errs_leaves_nothing_and_may_come_again(self):
        run = Run()

        def err() -> None:
            charge()
            raise ConnectionError("away")

        with pytest.raises(ConnectionError):
            run_atomic(run, err)
        assert (payments(), Step.objects.count()) == (0, 0)
        assert run_atomic(run, charge) == "charged"

    def test_a_run_that_has_lost_its_lease_leaves_nothing(self):
        run = Run()

        def lose() -> None:
            charge()
            run.lost = True

        with pytest.raises(LeaseLost):
            run_atomic(run, lose)
        assert (payments(), Step.objects.count()) == (0, 0)

    def test_a_stale_run_that_ends_after_the_next_one_leaves_nothing(self):
        run = Run()

        def stale() -> str:
            # The other worker's run begins and commits while this one is at it.
            thread = threading.Thread(target=_elsewhere, args=(Run(id=run.id, nonce="f2"),))
            thread.start()
            thread.join()
            return charge()

        if connection.vendor == "sqlite":
            pytest.skip("one writer at a time: SQLite itself keeps the two apart")
        assert run_atomic(run, stale) == "charged"
        assert payments() == 1
        assert Step.objects.get().fence == "f2"

    def test_an_error_that_came_of_the_other_run_is_no_error(self):
        run = Run()

        def beaten() -> None:
            Step.objects.create(job_id=run.id, fence="f2", at=clock.now(), result="charged")
            transaction.on_commit(lambda: None)
            raise ValueError("already paid")

        with pytest.raises(ValueError, match="already paid"):  # its own row went with the rollback
            run_atomic(run, beaten)
        Step.objects.create(job_id=run.id, fence="f2", at=clock.now(), result="charged")
        assert run_atomic(run, lambda: pytest.fail("run twice")) == "charged"

    def test_it_refuses_to_run_inside_another_transaction(self, settings):
        with transaction.atomic(), pytest.raises(RuntimeError, match="durable"):
            run_atomic(Run(), charge)

    @pytest.mark.parametrize("result", [object(), "x" * 100_000])
    def test_a_result_that_cannot_be_kept_is_none_the_second_time(self, result):
        run = Run()
        assert run_atomic(run, lambda: result) is result
        assert run_atomic(run, charge) is None

    @pytest.mark.parametrize("noted", ["in the step", "in the row"])
    @pytest.mark.parametrize("end", ["fail", "cancel"])
    def test_what_redis_says_later_does_not_undo_it(self, orders, noted, end):
        job = delayq.schedule(close_order, 7)
        [claimed] = orders.claim()
        run_atomic(Run(id=job.id, nonce=claimed.fence), charge)
        if noted == "in the row":  # as an older worker has left it
            Step.objects.all().delete()
            Job.objects.update(settled=claimed.fence, state=State.SUCCEEDED, result="charged")
        orders.fold()  # the claim is folded after the commit
        orders.settle(claimed, end, detail=b'{"c":"Poison","m":"its worker vanished","p":"poison"}')
        orders.fold()
        row = Job.objects.get()
        assert (row.state, row.error, row.fingerprint, row.result) == (State.SUCCEEDED, "", "", "charged")
        assert row.finished_at is not None

    @pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
    def test_it_ends_also_where_a_transaction_sees_only_what_was_when_it_began(self, orders, level):
        if connection.vendor != "postgresql":
            pytest.skip("levels of isolation are PostgreSQL's")
        job = delayq.schedule(close_order, 7)
        [claimed] = orders.claim()

        def pay() -> str:
            with connection.cursor() as cursor:
                cursor.execute(f"SET TRANSACTION ISOLATION LEVEL {level}")
            Group.objects.count()  # from here on it sees the row as it was before its claim was folded
            thread = threading.Thread(target=fold)
            thread.start()
            thread.join()
            return charge()

        def fold() -> None:
            try:
                orders.fold()
            finally:
                connections.close_all()

        assert run_atomic(Run(id=job.id, nonce=claimed.fence), pay) == "charged"
        assert (payments(), Job.objects.get().state) == (1, "running")

    def test_a_hook_behind_its_commit_that_raises_is_logged_and_the_others_run(self, orders, caplog):
        run, called = Run(), []

        def fail() -> None:
            raise ConnectionError("the mail server is away")

        def work() -> str:
            transaction.on_commit(partial(called.append, 1))
            transaction.on_commit(partial(fail))
            transaction.on_commit(partial(called.append, 2))
            delayq.schedule(close_order, 1, durability="redis")
            return charge()

        assert run_atomic(run, work) == "charged"
        assert (called, len(orders.claim()), payments()) == ([1, 2], 1, 1)
        [record] = [each for each in caplog.records if "hook" in each.message]
        assert ids.short(run.id) in record.message
        assert "ConnectionError at " in record.message
        assert record.message.endswith(" fail")
        assert "mail server" not in f"{record.message} {vars(record)}", "it might quote an argument"

    def test_a_failure_behind_its_own_commit_is_logged_and_another_runs_is_not(self, caplog, monkeypatch):
        run = Run()

        def lose_the_reply(name: str) -> None:
            if name == "effects.commit":
                monkeypatch.setattr(connection, "_commit", commit_and_lose)

        commit = connection._commit

        def commit_and_lose() -> None:
            commit()
            raise OperationalError("server closed the connection unexpectedly")

        monkeypatch.setattr("django_delayq.mirror.atomic_runs.failpoint", lose_the_reply)
        assert run_atomic(run, charge) == "charged"
        monkeypatch.undo()
        assert payments() == 1
        assert "OperationalError at " in caplog.text
        caplog.clear()
        assert run_atomic(Run(id=run.id, nonce="f2"), charge) == "charged"
        assert not caplog.records

    def test_jobs_scheduled_in_it_come_with_its_commit_only(self, orders):
        run = Run()

        def schedule_and_err() -> None:
            delayq.schedule(close_order, 1)
            raise ValueError

        with pytest.raises(ValueError):
            run_atomic(run, schedule_and_err)
        assert Job.objects.count() == 0
        run_atomic(run, lambda: delayq.schedule(close_order, 1) and None)
        assert Job.objects.count() == 1
        assert len(orders.claim()) == 1


def _elsewhere(run: Run) -> None:
    try:
        run_atomic(run, charge)
    finally:
        connections.close_all()


@pytest.mark.django_db(transaction=True)
class TestAStep:
    def test_its_writes_are_kept_the_first_time_only(self):
        run = Run()
        for expected in (True, False, False):
            with once(run, "charge") as first:
                assert first is expected
                charge()  # also when the task does not look
        assert payments() == 1

    def test_steps_of_other_names_and_jobs_are_their_own(self):
        run = Run()
        for one, name in ((run, "charge"), (run, "ship"), (Run(), "charge")):
            with once(one, name) as first:
                assert first
        assert Step.objects.count() == 3

    def test_an_error_in_it_leaves_nothing_and_it_may_come_again(self):
        run = Run()
        with pytest.raises(ValueError), once(run, "charge"):
            charge()
            raise ValueError
        assert (payments(), Step.objects.count()) == (0, 0)
        with once(run, "charge") as first:
            assert first

    def test_the_loser_of_two_runs_leaves_nothing_and_does_not_go_on(self):
        run = Run()

        def other() -> None:
            try:
                with once(Run(id=run.id, nonce="f2"), "charge"):
                    charge()
            finally:
                connections.close_all()

        if connection.vendor == "sqlite":
            pytest.skip("one writer at a time: SQLite itself keeps the two apart")
        went_on = False
        with pytest.raises(LeaseLost, match="another run"):
            with once(run, "charge") as first:
                assert first
                thread = threading.Thread(target=other)
                thread.start()
                thread.join()
                charge()
            went_on = True
        assert not went_on
        assert payments() == 1
        assert Step.objects.get().fence == "f2"

    def test_a_lost_lease_leaves_nothing(self):
        run = Run(lost=True)
        with pytest.raises(LeaseLost), once(run, "charge"):
            charge()
        assert (payments(), Step.objects.count()) == (0, 0)

    def test_inside_an_atomic_run_it_is_part_of_it(self):
        run = Run()

        def work() -> None:
            with once(run, "charge"):
                charge()
            raise ValueError

        with pytest.raises(ValueError):
            run_atomic(run, work)
        assert (payments(), Step.objects.count()) == (0, 0)

    @pytest.mark.parametrize("name", ["", "x" * 101])
    def test_its_name_has_a_length(self, name):
        with pytest.raises(ValueError, match="1 to 100"), once(Run(), name):
            pass

    def test_outside_of_a_task_there_is_no_job_to_note_it_for(self):
        with pytest.raises(RuntimeError, match="outside a running task"), delayq.once("charge"):
            pass


@pytest.mark.django_db(transaction=True)
def test_steps_go_with_their_job_and_without_one_after_a_month(orders):
    job = delayq.schedule(close_order, 7)
    orders.fold()
    long_ago = clock.now() - timedelta(days=60)
    for id, at in ((job.id, long_ago), (ids.new(), long_ago), (ids.new(), clock.now())):
        Step.objects.create(job_id=id, fence="f", at=at)
    PruneLoop(stores.places, conf.get().queue("orders")).prune()
    assert Step.objects.count() == 2
    Job.objects.update(state=State.SUCCEEDED, finished_at=long_ago)
    PruneLoop(stores.places, conf.get().queue("orders")).prune()
    assert [step.job_id == job.id for step in Step.objects.all()] == [False]


def test_a_coroutine_cannot_be_atomic():
    async def fetch() -> None: ...

    fetch.__qualname__ = "fetch"
    with pytest.raises(ConfigError, match="synchronous function"):
        delayq.task(fetch, atomic=True)
