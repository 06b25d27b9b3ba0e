"""Callbacks that run after a commit, in a TestCase that never commits."""

from __future__ import annotations

import pytest
from asgiref.sync import sync_to_async
from django.core.management import call_command
from django.db import connection, transaction
from django.test import TestCase, TransactionTestCase

import django_delayq
from django_delayq.models import Job, Periodic
from django_delayq.periodic.declarations import declarations
from django_delayq.testing import DelayqMixin, project_commits
from tests.testing.shop import SEEN, settle_cart

schedule = django_delayq.schedule


def test_a_job_of_a_block_is_published_when_the_block_ends(delayq):
    with transaction.atomic():
        with transaction.atomic():
            job = schedule(settle_cart, 1, delay="5m")
        delayq.assert_not_scheduled()
        assert job.created is None
    delayq.assert_scheduled(settle_cart, args=[1])
    assert job.created is True


@pytest.mark.parametrize("durability", ["outbox", "redis"])
def test_a_block_that_is_rolled_back_schedules_nothing(delayq, durability):
    with pytest.raises(RuntimeError), transaction.atomic():
        schedule(settle_cart, 1, durability=durability)
        raise RuntimeError
    delayq.assert_not_scheduled()
    schedule(settle_cart, 2, durability=durability)
    assert [job.args for job in delayq.scheduled()] == [[2]]


@pytest.mark.parametrize("durability", ["outbox", "redis"])
def test_outside_of_blocks_a_schedule_is_as_without_a_transaction(delayq, durability):
    first = schedule(settle_cart, 1, delay="5m", key="k", durability=durability)
    assert first.created is True
    again = schedule(settle_cart, 2, delay="5m", key="k", durability=durability)
    assert (again.id, again.created) == (first.id, False)
    with pytest.raises(django_delayq.KeyTaken):
        schedule(settle_cart, 2, key="k", on_conflict="error", durability=durability)


def test_a_block_without_a_savepoint_publishes_too(delayq):
    with transaction.atomic(savepoint=False):
        schedule(settle_cart, 1, delay="5m")
        delayq.assert_not_scheduled()
    delayq.assert_scheduled(settle_cart)


def test_a_cancel_within_the_block_withdraws_the_job(delayq):
    with transaction.atomic():
        job = schedule(settle_cart, 1)
        assert job.cancel() == "done"
    assert delayq.advance("1h") == []
    assert Job.objects.get(pk=job.id).state == "cancelled"


def test_hooks_of_others_are_left_to_their_capture(delayq, django_capture_on_commit_callbacks):
    happened = []
    transaction.on_commit(lambda: happened.append("mail"))
    with transaction.atomic():
        transaction.on_commit(lambda: schedule(settle_cart, 9))
        schedule(settle_cart, 1)
    assert (happened, [job.args for job in delayq.scheduled()]) == ([], [[1]])
    with django_capture_on_commit_callbacks(execute=True) as callbacks:
        transaction.on_commit(lambda: schedule(settle_cart, 9))
    assert len(callbacks) == 1
    assert [job.args for job in delayq.scheduled()] == [[1], [9]]


@pytest.mark.django_db(transaction=True)
def test_with_real_transactions_a_commit_publishes(delayq):
    with transaction.atomic():
        schedule(settle_cart, 1, delay="5m")
        delayq.assert_not_scheduled()
    delayq.assert_scheduled(settle_cart)
    assert len(delayq.advance("5m")) == 1


class WithTheMixin(DelayqMixin, TestCase):
    def test_it_has_the_same_verbs(self):
        schedule(settle_cart, 3, delay="30m")
        self.delayq.assert_scheduled(settle_cart, args=[3], delay="30m")
        self.delayq.advance("30m")
        self.delayq.assert_not_scheduled()
        assert SEEN == [("settle_cart", 3, 1)]

    def test_and_begins_empty(self):
        self.delayq.assert_not_scheduled()


class WithRowsOfTheClass(DelayqMixin, TestCase):
    @classmethod
    def setUpTestData(cls):
        schedule(settle_cart, 4, delay="30m")
        cls.kept = schedule(settle_cart, 5, delay="30m", durability="redis")

    def test_what_was_scheduled_before_is_there(self):
        self.delayq.assert_scheduled(settle_cart, args=[4])
        self.delayq.advance("29m")
        assert self.kept.cancel() == "done"
        self.delayq.advance("2m")
        assert SEEN == [("settle_cart", 4, 1)]

    def test_what_was_scheduled_before_is_there_in_the_next_test_too(self):
        self.test_what_was_scheduled_before_is_there()


@pytest.mark.django_db(transaction=True)
def test_a_real_worker_runs_what_is_due(delayq):
    job = schedule(settle_cart, 5)
    later = schedule(settle_cart, 6, delay="30m")
    call_command("delayq_worker", "--burst", "--threads", "1")
    assert (job.state, later.state) == ("succeeded", "scheduled")
    assert Job.objects.get(pk=job.id).state == "succeeded"


@pytest.mark.django_db(transaction=True)
def test_a_real_worker_without_the_role_relay_keeps_no_schedules(delayq, monkeypatch):
    monkeypatch.setattr(declarations, "_all", dict(declarations._all))
    django_delayq.periodic("0 3 * * *", name="nightly", args=[7])(settle_cart)
    job = schedule(settle_cart, 5)
    call_command("delayq_worker", "--burst", "--threads", "1", "--roles", "move,mirror")
    assert Job.objects.get(pk=job.id).state == "succeeded"
    assert not Periodic.objects.exists()
    delayq.assert_not_scheduled()


class WithCoroutines(DelayqMixin, TestCase):
    async def test_its_verbs_are_called_in_the_thread_and_transaction_of_the_test(self):
        await sync_to_async(schedule)(settle_cart, 5, delay="30m")
        assert [ran.outcome for ran in await sync_to_async(self.delayq.advance)("30m")] == ["ack"]
        assert await sync_to_async(lambda: connection.in_atomic_block)()


class WithRealCommits(DelayqMixin, TransactionTestCase):
    def test_subtests_have_one_schedule(self):
        for number in range(2):
            with self.subTest(number=number):
                with transaction.atomic():
                    schedule(settle_cart, number, delay="5m")
                    assert len(self.delayq.scheduled()) == number
                self.delayq.assert_scheduled(settle_cart, count=number + 1)

    async def test_its_verbs_are_called_in_the_thread_of_the_test(self):
        await sync_to_async(schedule)(settle_cart, 5, delay="30m")
        assert len(await sync_to_async(self.delayq.advance)("30m")) == 1


@pytest.mark.usefixtures("delayq")
class WithTheFixture(TestCase):
    def test_a_schedule_goes_to_the_tests_server(self):
        assert schedule(settle_cart, 5, delay="30m").created is True
        assert connection.in_atomic_block


def test_a_mixin_that_stands_behind_is_refused():
    with pytest.raises(TypeError, match=r"class Late\(DelayqMixin, …\)"):
        type("Late", (TestCase, DelayqMixin), {})


def test_a_test_that_cannot_begin_leaves_the_next_one_alone(delayq):
    delayq.stop()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(project_commits, "catch_up", lambda: schedule(settle_cart, object()))
        with pytest.raises(django_delayq.PayloadError):
            delayq.start()
    delayq.start()
    assert delayq.scheduled() == []
