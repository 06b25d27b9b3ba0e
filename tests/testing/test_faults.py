"""Faults that a test can request."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from django.contrib.auth.models import User
from django.db import transaction

import django_delayq
from django_delayq import KeyTaken
from django_delayq.mirror.checkpoint import CheckpointTaken
from django_delayq.mirror.mirror_loop import MirrorLoop
from django_delayq.models import Attempt, Job
from tests.testing.shop import SEEN, fail_twice, greet, make_user, settle_cart

schedule = django_delayq.schedule
pytestmark = pytest.mark.usefixtures("stopped_clock")


def test_a_crash_loses_the_attempt_and_the_job_comes_back_when_its_lease_has_run_out(delayq):
    job = schedule(settle_cart, 1)
    delayq.crash_next()
    (lost,) = delayq.run_due()
    assert (lost.outcome, SEEN, job.state) == ("crash", [], "running")
    began = delayq.now
    assert delayq.advance("29s") == []
    (ran,) = delayq.advance("2s")
    assert (ran.outcome, ran.attempt, job.state) == ("ack", 1, "succeeded")
    assert Job.objects.get(pk=job.id).crashes == 1
    assert delayq.now - began < timedelta(seconds=32)


def test_a_crash_at_the_end_runs_the_task_twice_and_an_atomic_one_keeps_its_effect_once(delayq):
    schedule(make_user, "Ada")
    delayq.crash_next(make_user, at="end")
    assert [ran.outcome for ran in delayq.advance("1m")] == ["crash", "ack"]
    assert User.objects.filter(username="Ada").count() == 1


def test_a_crash_waits_for_a_run_of_its_task(delayq):
    delayq.crash_next(fail_twice)
    schedule(settle_cart, 1)
    schedule(fail_twice, 2, delay="1m")
    assert [ran.outcome for ran in delayq.advance("1m")] == ["ack", "crash"]


def test_who_crashes_too_often_is_poison(delayq):
    job = schedule(settle_cart, 1)
    for _ in range(4):
        delayq.crash_next()
    delayq.advance("10m")
    assert (SEEN, job.state) == ([], "failed")


def test_a_run_fails_by_the_error_that_a_test_chose(delayq):
    schedule(settle_cart, 1)
    delayq.fail_next(ConnectionError("no route"))
    failed, ran = delayq.advance("15s")
    assert (failed.outcome, str(failed.error)) == ("retry", "no route")
    assert (ran.outcome, ran.attempt) == ("ack", 2)
    assert Attempt.objects.get(number=1).message == "no route"


def test_a_class_of_errors_does_as_well_as_an_error(delayq):
    schedule(settle_cart, 1)
    delayq.fail_next(django_delayq.Fail, settle_cart)
    assert [ran.outcome for ran in delayq.drain()] == ["fail"]


def test_while_redis_is_down_a_row_is_written_and_it_is_published_behind_that(delayq):
    with delayq.redis_down():
        job = schedule(settle_cart, 1, delay="30m")
        assert job.created is None
        assert not delayq.assert_scheduled(settle_cart, delay="30m").published
        assert delayq.advance("10m") == []
    assert delayq.advance("19m") == []
    (ran,) = delayq.advance("1m")
    assert (ran.id, job.state) == (job.id, "succeeded")


def test_redis_that_is_down_twice_is_there_behind_both(delayq):
    with delayq.redis_down():
        with delayq.redis_down():
            pass
        assert schedule(settle_cart, 1).created is None
    assert len(delayq.run_due()) == 1


def test_redis_that_is_down_within_a_block_only_is_there_at_its_commit(delayq):
    with transaction.atomic():
        with delayq.redis_down():
            job = schedule(settle_cart, 1)
        assert job.created is None
    assert delayq.assert_scheduled(settle_cart).published


def test_while_another_mirror_has_the_turn_rows_wait_for_it(delayq, monkeypatch):
    """As on PostgreSQL and MariaDB, where a partition that is taken is left to who has it."""

    def taken(_: MirrorLoop) -> None:
        raise CheckpointTaken

    job = schedule(settle_cart, 1)
    with monkeypatch.context() as others:
        others.setattr(MirrorLoop, "_fold_batch", taken)
        assert [ran.outcome for ran in delayq.run_due()] == ["ack"]
    delayq.run_due()
    assert Job.objects.get(pk=job.id).state == "succeeded"


def test_faults_that_no_run_has_used_up_are_gone_with_their_test(delayq):
    delayq.crash_next()
    delayq.fail_next(ValueError)
    down = delayq.redis_down()
    down.__enter__()
    delayq.stop()
    delayq.start()
    schedule(settle_cart, 1)
    assert [ran.outcome for ran in delayq.run_due()] == ["ack"]
    down.__exit__(None, None, None)  # otherwise the garbage collector ends it in the middle of another test


def test_while_redis_is_down_what_needs_it_is_told_so(delayq):
    job = schedule(settle_cart, 1, delay="30m")
    with delayq.redis_down():
        with pytest.raises(django_delayq.StoreUnavailable, match=r"redis_down\(\)"):
            schedule(settle_cart, 2, durability="redis")
        with pytest.raises(django_delayq.StoreUnavailable):
            job.cancel()
    assert job.cancel() == "done"


def test_while_redis_is_down_a_rolled_back_row_is_no_promise(delayq):
    with delayq.redis_down():
        with pytest.raises(RuntimeError), transaction.atomic():
            schedule(settle_cart, 1)
            raise RuntimeError
        delayq.assert_not_scheduled()


def test_what_waits_behind_a_running_job_of_its_key_runs_when_that_has_ended(delayq):
    schedule(settle_cart, 1, key="k")
    delayq.crash_next()
    delayq.run_due()
    schedule(settle_cart, 2, key="k", on_conflict="after")
    assert not delayq.assert_scheduled(settle_cart, args=[2]).published
    assert [ran.args for ran in delayq.advance("1m")] == [[1], [2]]


def test_perform_runs_a_task_as_of_a_tick_that_the_test_names(delayq, monkeypatch):
    seen, tick = [], {"name": "nightly", "tick": "2031-03-04T12:10:00+00:00"}
    task = fail_twice.using(meta={"delayq.periodic": tick, "by": "form"})
    monkeypatch.setattr(fail_twice, "fn", lambda number: seen.append(dict(django_delayq.current().meta)))
    delayq.perform(task, 5)
    assert seen == [{"delayq.periodic": tick, "by": "form"}]


def test_perform_runs_a_task_as_a_given_attempt_and_returns_what_it_returns(delayq):
    with pytest.raises(RuntimeError, match="the bank is closed"):
        delayq.perform(fail_twice, 5, attempt=2)
    assert delayq.perform(fail_twice, 5, attempt=3) == "paid"
    assert delayq.perform(make_user, "Ada") == 1
    assert delayq.perform(greet, "Ada", attempt=4) == "hello Ada"
    assert SEEN[-1] == ("greet", "Ada", 4, 1)


def test_perform_refuses_what_schedule_would_refuse(delayq):
    with pytest.raises(django_delayq.PayloadError):
        delayq.perform(settle_cart, object())
    with pytest.raises(django_delayq.ConfigError, match="is not a task"):
        delayq.perform(print, 1)


@pytest.mark.parametrize("wrong", [None, 5, "x", int, KeyTaken, UnicodeDecodeError])
def test_what_no_run_could_raise_is_refused_and_burns_no_attempt(delayq, wrong):
    with pytest.raises(ValueError, match=r"^fail_next\("):
        delayq.fail_next(wrong)
    schedule(settle_cart, 1)
    assert [(ran.outcome, ran.attempt) for ran in delayq.run_due()] == [("ack", 1)]


@pytest.mark.parametrize("wrong", [-1, "2", None, 1.0, True, 2**40])
@pytest.mark.parametrize("name", ["attempt", "crashes", "asked"])
def test_perform_refuses_numbers_that_no_job_has(delayq, name, wrong):
    with pytest.raises(ValueError, match=f"settle_cart: {name}=.* is not a whole number"):
        delayq.perform(settle_cart, 1, **{name: wrong})


def test_attempts_count_from_1(delayq):
    with pytest.raises(ValueError, match=r"attempt=0 is not a whole number of at least 1\."):
        delayq.perform(settle_cart, 1, attempt=0)
    assert delayq.perform(greet, "Ada", attempt=1, crashes=0, asked=0) == "hello Ada"


@pytest.mark.parametrize("wrong", [5, "2030-01-01", datetime(2030, 1, 1), datetime(1, 1, 1, tzinfo=UTC)])
def test_perform_refuses_a_date_that_is_none(delayq, wrong):
    with pytest.raises(ValueError, match=r"^perform\(\): run_at: "):
        delayq.perform(settle_cart, 1, run_at=wrong)
