"""Locks in the time of a test."""

from __future__ import annotations

from datetime import timedelta

import pytest

import django_delayq
from django_delayq.models import Attempt, Job
from tests.testing.shop import SEEN, ship_alone


def test_what_the_test_holds_it_holds_whatever_time_passes_and_a_task_waits_for_it_without_an_attempt(delayq):
    job = django_delayq.schedule(ship_alone, 42, delay="10m")
    with django_delayq.lock("order:42", lease="30s") as lock:
        runs = delayq.advance("10m")
        assert [run.outcome for run in runs] == ["snooze"]
        assert (SEEN, lock.held) == ([], True)
        assert [run.outcome for run in delayq.advance("30s")] == ["snooze"] * 3, "each after ten seconds"
        lock.check()
    assert [run.outcome for run in delayq.advance("10s")] == ["ack"]
    row = Job.objects.get(pk=job.id)
    assert (row.state, row.attempts) == ("succeeded", 1)
    runs = [(one.outcome, one.message) for one in Attempt.objects.filter(job_id=job.id).order_by("pk")]
    assert runs == [("snoozed", "waits for lock order:42")] * 4 + [("succeeded", "")]


def test_a_wait_is_over_at_once_since_no_time_passes(delayq):
    with django_delayq.lock("a"), pytest.raises(django_delayq.LockTaken), django_delayq.lock("a", wait="1h"):
        raise AssertionError


def test_the_number_rises_in_the_time_of_the_test(delayq):
    with django_delayq.lock("a") as lock:
        first = lock.fence
    delayq.advance("1h")
    with lock:
        assert lock.fence - first >= timedelta(hours=1) / timedelta(microseconds=1)


def test_a_lock_is_lost_where_redis_is_away_for_longer_than_its_lease(delayq):
    with pytest.raises(django_delayq.LeaseLost), django_delayq.lock("a", lease="30s") as lock:
        with delayq.redis_down():
            delayq.advance("29s")
            lock.check()
            delayq.advance("1s")
            assert not lock.held
            with pytest.raises(django_delayq.StoreUnavailable):
                django_delayq.lock("b").__enter__()
        assert not lock.held, "what was lost stays lost"


def test_a_lock_that_a_test_has_left_open_is_no_lock_of_the_next_one(delayq):
    lock = django_delayq.lock("a")
    lock.__enter__()
    delayq.stop()
    delayq.start()
    with django_delayq.lock("a"):
        assert not lock.held


def test_a_task_holds_its_lock_under_its_own_name(delayq):
    with django_delayq.lock("order:7"), pytest.raises(django_delayq.LockTaken) as told:
        delayq.perform(ship_alone, 7)
    assert told.value.reason == "waits for lock order:7"
    assert delayq.perform(ship_alone, 8) > 0
    assert SEEN == [("ship_alone", 8)]
