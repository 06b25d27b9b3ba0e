"""A test moves the time, and jobs become due on the way."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest
import time_machine
from asgiref.sync import sync_to_async
from django.contrib.auth.models import User
from django.core.exceptions import SynchronousOnlyOperation
from django.db import connections
from django.test import override_settings
from django.utils import timezone

import django_delayq
from django_delayq import clock, signals
from django_delayq.exceptions import GaveUp
from django_delayq.models import Attempt, Job
from django_delayq.producer.stores import stores
from django_delayq.testing.kit import Kit
from tests.tasks_for_tests import pay_out
from tests.testing import shop
from tests.testing.shop import (
    SEEN,
    again,
    ask_bank,
    book_or_wait,
    fail_always,
    fail_twice,
    greet,
    look_at_the_clock,
    make_user,
    move_time,
    settle_cart,
)

schedule = django_delayq.schedule


def test_what_falls_due_runs_and_its_row_says_so(delayq):
    job = schedule(settle_cart, 7, delay="30m")
    assert delayq.advance("29m") == []
    (ran,) = delayq.advance("1m")
    assert (ran.id, ran.task, ran.args, ran.outcome) == (job.id, settle_cart.name, [7], "ack")
    assert SEEN == [("settle_cart", 7, 1)]
    assert job.state == "succeeded"
    assert Job.objects.get(pk=job.id).state == "succeeded"


def test_the_follow_up_of_a_success_runs_when_it_is_due(delayq):
    schedule(settle_cart, 7, delay="30m", then=settle_cart.using(delay="30m").bind(8))
    assert [ran.args for ran in delayq.advance("30m")] == [[7]]
    delayq.assert_scheduled(settle_cart, args=[8], delay="30m")
    assert [ran.args for ran in delayq.advance("30m")] == [[8]]


def test_a_held_job_is_scheduled_with_its_date_and_runs_when_its_pause_ends(delayq):
    schedule(settle_cart, 7, delay="10m")
    (before,) = delayq.scheduled()
    schedule(greet, "Ada", delay="10m")
    assert django_delayq.pause(task=settle_cart, until=delayq.now + timedelta(minutes=20))  # also in the transaction of a TestCase
    assert [ran.args for ran in delayq.advance("15m")] == [["Ada"]]
    (held,) = delayq.scheduled()
    assert (held.args, held.run_at) == ([7], before.run_at)
    assert delayq.advance("2m") == []
    assert [ran.args for ran in delayq.advance("1h")] == [[7]]


def test_jobs_of_a_paused_queue_run_when_the_pause_ends(delayq):
    schedule(settle_cart, 7, delay="10m")
    schedule(greet, "Ada", delay="30m")
    assert django_delayq.pause("orders", until=delayq.now + timedelta(minutes=20))
    assert delayq.advance("15m") == []
    assert [ran.args for ran in delayq.advance("10m")] == [[7]]
    assert [ran.args for ran in delayq.advance("10m")] == [["Ada"]]


def test_the_time_brings_tokens_of_a_rate(delayq):
    for number in (1, 2, 3, 4):
        schedule(pay_out, 7, number)  # a token comes every ten seconds
    assert [ran.args for ran in delayq.run_due()] == [[7, 1]]
    assert delayq.advance("9s") == []
    assert [ran.args for ran in delayq.advance("1s")] == [[7, 2]]
    assert django_delayq.set_rate("bank:7", "1/h")
    assert [ran.args for ran in delayq.advance("50m")] == [[7, 3]]  # the next token comes as before
    assert [ran.args for ran in delayq.drain()] == [[7, 4]]


def test_jobs_run_in_the_order_of_their_dates_over_all_queues(delayq):
    schedule(settle_cart, 2, delay="20m")
    schedule(greet, "Ada", delay="10m")
    schedule(settle_cart, 3, delay="30m")
    schedule(settle_cart, 1, delay="5m")
    assert [ran.args for ran in delayq.advance("1h")] == [[1], ["Ada"], [2], [3]]


def test_each_job_runs_at_its_own_date_and_what_it_schedules_runs_too(delayq):
    schedule(again, "10m", delay="10m")
    delayq.advance("35m")
    first, second, third = SEEN
    assert (second - first, third - second) == (timedelta(minutes=10), timedelta(minutes=10))
    delayq.assert_scheduled(again, delay="5m")


def test_a_ladder_is_climbed_on_the_way_whatever_the_runs_took(delayq):
    schedule(fail_twice, 1)
    ran = delayq.advance("3m15s")
    assert [one.outcome for one in ran] == ["retry", "retry", "ack"]
    assert str(ran[0].error) == "the bank is closed"
    assert list(Attempt.objects.order_by("number").values_list("outcome", flat=True)) == ["retried", "retried", "succeeded"]


def test_a_ladder_stands_where_time_stands(delayq):
    schedule(fail_twice, 1)
    delayq.run_due()
    assert delayq.assert_scheduled(fail_twice, delay="15s").attempts == 1
    delayq.advance("14s")
    assert len(SEEN) == 1
    delayq.advance("1s")
    assert len(SEEN) == 2


def test_what_follows_a_failure_runs_in_the_same_go(delayq):
    job = schedule(shop.charge)
    assert [ran.outcome for ran in delayq.run_due()] == ["fail", "ack"]
    assert [("tell_support", str(job.id))] == SEEN


def test_what_a_receiver_of_an_end_schedules_runs_in_the_same_go(delayq):
    def thank(job, **_):
        if job.task == settle_cart.name:
            schedule(greet, "Ada")

    signals.job_ended.connect(thank)
    try:
        schedule(settle_cart, 1)
        assert [ran.task for ran in delayq.run_due()] == [settle_cart.name, greet.name]
        assert connections["default"].in_atomic_block  # the connection of the test is still open
    finally:
        signals.job_ended.disconnect(thank)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), pytest.fail.Exception("wrong")], ids=lambda error: type(error).__name__)
def test_what_is_to_end_the_test_reaches_it_and_the_kit_goes_on(delayq, error):
    schedule(settle_cart, 1)
    delayq.fail_next(error)
    with pytest.raises(type(error)):
        delayq.run_due()
    assert [ran.outcome for ran in delayq.advance("15s")] == ["ack"]


@pytest.mark.parametrize("error", [SystemExit(3), GeneratorExit(), asyncio.CancelledError()], ids=lambda error: type(error).__name__)
def test_what_ends_no_worker_ends_no_test(delayq, error):
    schedule(settle_cart, 1)
    delayq.fail_next(error)
    assert [ran.outcome for ran in delayq.run_due()] == ["retry"]


def test_within_an_event_loop_it_says_how_to_call_it_and_runs_nothing(delayq):
    async def advance():
        return delayq.advance("1h")

    schedule(settle_cart, 1)
    delayq.assert_scheduled(settle_cart)
    with pytest.raises(SynchronousOnlyOperation, match=r"await sync_to_async\(delayq.advance\)"):
        asyncio.run(advance())
    assert SEEN == []


def test_what_runs_or_asks_says_in_an_event_loop_how_to_call_it_and_the_rest_works_there(delayq):
    moment = datetime(2031, 5, 1, 12, tzinfo=UTC)

    async def within():
        for call in (
            lambda: delayq.advance("1h"),
            delayq.run_due,
            delayq.drain,
            lambda: delayq.perform(settle_cart, 1),
            lambda: delayq.upcoming("nightly"),
            lambda: delayq.follow("nightly"),
            delayq.scheduled,
            lambda: delayq.assert_scheduled(settle_cart),
            delayq.assert_not_scheduled,
        ):
            with pytest.raises(SynchronousOnlyOperation, match=r"await sync_to_async\(delayq.advance\)"):
                call()
        delayq.travel(moment)
        delayq.fail_next(ValueError("no"))
        delayq.crash_next(fail_twice)
        with delayq.redis_down():
            return delayq.now

    assert timedelta(0) <= asyncio.run(within()) - moment < timedelta(minutes=1)
    assert SEEN == []
    schedule(settle_cart, 1)
    assert [str(ran.error) for ran in delayq.run_due()] == ["no"]


def test_drain_goes_from_date_to_date_until_nothing_is_left(delayq):
    schedule(settle_cart, 1, delay="30d")
    schedule(fail_twice, 2)
    before = delayq.now
    assert len(delayq.drain()) == 4
    assert timedelta(days=29) < delayq.now - before < timedelta(days=31)
    assert delayq.scheduled() == []


def test_travel_runs_nothing_and_run_due_runs_what_is_late(delayq):
    schedule(settle_cart, 1, delay="30m")
    delayq.travel(delayq.now + timedelta(hours=2))
    assert SEEN == []
    assert delayq.assert_scheduled(settle_cart).delay < timedelta(minutes=-89)
    delayq.run_due()
    assert len(SEEN) == 1


def test_a_task_that_schedules_itself_for_ever_is_an_error_that_names_it(delayq, monkeypatch):
    monkeypatch.setattr("django_delayq.testing.kit.MOST_RUNS", 50)
    schedule(again, "1s")
    with pytest.raises(RuntimeError, match=r"has run 50 jobs and would continue: tests\.testing\.shop\.again 51 times"):
        delayq.drain()


def test_time_does_not_pass_within_a_task(delayq):
    shop.KIT[:] = [delayq]
    schedule(move_time)
    (ran,) = delayq.run_due()
    assert ran.outcome == "retry"
    assert "advance() was called in tests.testing.shop.move_time" in str(ran.error)


def test_a_coroutine_runs_in_the_tests_own_transaction(delayq):
    User.objects.create(username="seen")
    schedule(greet, "Ada")
    (ran,) = delayq.run_due()
    assert (ran.outcome, SEEN) == ("ack", [("greet", "Ada", 1, 1)])


def test_an_atomic_task_commits_and_publishes_what_it_schedules(delayq):
    schedule(make_user, "Ada")
    (ran,) = delayq.run_due()
    assert (ran.outcome, ran.error) == ("ack", None)
    assert User.objects.filter(username="Ada").exists()
    delayq.assert_scheduled(settle_cart, delay="5m")


def test_no_soft_timeout_strikes_a_run(delayq):
    assert delayq.perform(shop.take_longer_than_allowed) is None


@pytest.mark.parametrize("abort", [False, True])
def test_a_cancel_of_what_runs_is_heard_at_once_and_ends_it(delayq, abort):
    job = schedule(shop.stop_when_asked, abort)
    (ran,) = delayq.run_due()
    assert (ran.outcome, SEEN, job.state) == ("cancel", [True], "cancelled")


def test_a_paused_queue_runs_nothing_and_the_others_go_on(delayq):
    schedule(settle_cart, 1)
    schedule(greet, "Ada")
    django_delayq.pause("orders")
    assert [ran.task for ran in delayq.run_due()] == [greet.name]
    django_delayq.resume("orders")
    assert [ran.task for ran in delayq.run_due()] == [settle_cart.name]


def test_a_queue_that_redis_lets_nobody_claim_from_holds_up_nothing(delayq, settings):
    settings.DELAYQ = {**settings.DELAYQ, "MIRROR_MAX_EVENTS": 1000}
    for number in range(8):
        schedule(settle_cart, number)
    schedule(greet, "Ada")
    stores.link.execute("HSET", stores.queue("orders", 0).keys["meta"], "surplus", 10**7)  # the mirror is too far behind
    assert [ran.task for ran in delayq.run_due()] == [greet.name]
    assert len(delayq.run_due()) == 8


def test_what_has_expired_does_not_run(delayq):
    job = schedule(settle_cart, 1, delay="10m", expires="20m")
    delayq.travel(delayq.now + timedelta(minutes=30))
    assert delayq.run_due() == []
    assert job.state == "cancelled"


@pytest.mark.parametrize("tick", [True, False])
def test_time_machine_and_the_kit_have_one_time(delayq, tick):
    with time_machine.travel(datetime(2031, 5, 1, 12, tzinfo=UTC), tick=tick):
        schedule(look_at_the_clock, run_at=datetime(2031, 5, 1, 12, 30, tzinfo=UTC))
        delayq.advance("30m")
        ((due, seen),) = SEEN
        assert due == datetime(2031, 5, 1, 12, 30, tzinfo=UTC)
        assert timedelta(0) <= seen - due < timedelta(seconds=5)
        assert timezone.now() >= datetime(2031, 5, 1, 12, 30, tzinfo=UTC)


def test_what_time_machine_shifts_is_due(delayq):
    with time_machine.travel(datetime(2031, 5, 1, tzinfo=UTC), tick=False) as traveller:
        schedule(settle_cart, 1, delay="30m")
        traveller.shift(timedelta(minutes=29))
        assert delayq.run_due() == []
        traveller.shift(timedelta(minutes=1))
        assert len(delayq.run_due()) == 1


def test_freezegun_and_the_kit_have_one_time(delayq):
    freezegun = pytest.importorskip("freezegun")
    with freezegun.freeze_time("2031-05-01 12:00:00"):
        schedule(look_at_the_clock, run_at=datetime(2031, 5, 1, 12, 30, tzinfo=UTC))
        delayq.assert_scheduled(look_at_the_clock, delay="30m")
        delayq.advance("1h")
        assert [(datetime(2031, 5, 1, 12, 30, tzinfo=UTC), datetime(2031, 5, 1, 12, 30, tzinfo=UTC))] == SEEN
        assert timezone.now() == datetime(2031, 5, 1, 13, tzinfo=UTC)


def test_whoever_freezes_time_behind_an_advance_has_one_time(delayq):
    freezegun = pytest.importorskip("freezegun")
    delayq.advance("30m")
    with freezegun.freeze_time("2031-05-01 12:00:00"):
        assert delayq.now == timezone.now()
        delayq.advance("1h")
        assert delayq.now == timezone.now() == datetime(2031, 5, 1, 13, tzinfo=UTC)
    assert timedelta(minutes=29) < delayq.now - timezone.now() < timedelta(minutes=31)


def test_what_freezegun_let_pass_is_not_missing_behind_it(delayq):
    freezegun = pytest.importorskip("freezegun")
    before = clock.monotonic()
    with freezegun.freeze_time("2031-05-01 12:00:00"):
        delayq.advance("10000d")
    assert clock.monotonic() >= before
    schedule(settle_cart, 1, durability="redis")
    assert len(delayq.run_due()) == 1


@pytest.mark.django_db(transaction=True)
def test_an_async_test_calls_the_verbs_in_djangos_thread(delayq):
    async def story():
        job = await sync_to_async(schedule)(greet, "Ada", delay="30m")
        await sync_to_async(delayq.assert_scheduled)(greet, delay="30m")
        ran = await sync_to_async(delayq.advance)("30m")
        return job, ran

    job, ran = asyncio.run(story())
    asyncio.run(sync_to_async(connections.close_all)())  # those of that thread
    assert ([one.id for one in ran], [one.outcome for one in ran]) == ([job.id], ["ack"])


def test_what_travels_with_a_job_is_there_in_its_run(delayq, settings):
    settings.DELAYQ = {**settings.DELAYQ, "CARRIERS": ["tests.testing.shop.ShopCarrier"]}
    schedule(settle_cart, 1)
    delayq.run_due()
    delayq.perform(settle_cart, 2)
    assert SEEN == [("inside", 7), ("settle_cart", 1, 1), ("inside", 7), ("settle_cart", 2, 1)]


def test_settings_that_a_test_changes_count_from_then_on(delayq, settings):
    settings.DELAYQ = {**settings.DELAYQ, "QUEUES": {**settings.DELAYQ["QUEUES"], "fresh": {"BACKOFF": "7s"}}}
    schedule(fail_twice, 1, queue="fresh", backoff=None)
    assert delayq.run_due()[0].queue == "fresh"
    with override_settings(DELAYQ={**settings.DELAYQ, "MAX_ATTEMPTS": 1}):
        delayq.assert_scheduled(fail_twice, queue="fresh")


def test_a_second_kit_at_once_is_refused(delayq):
    with pytest.raises(RuntimeError, match="already in use"):
        Kit().start()


def test_redis_durability_is_moved_and_run_alike(delayq):
    job = schedule(settle_cart, 1, delay="30m", durability="redis")
    delayq.assert_scheduled(settle_cart, delay="30m")
    delayq.advance("30m")
    assert (SEEN, job.state) == ([("settle_cart", 1, 1)], "succeeded")


def test_the_next_test_begins_empty_and_at_pythons_time(delayq):
    schedule(settle_cart, 1, delay="30m")
    delayq.advance("1h")
    schedule(settle_cart, 2, delay="30m")
    Job.objects.all().delete()
    delayq.stop()
    delayq.start()
    assert delayq.scheduled() == []
    assert abs(delayq.now - timezone.now()) < timedelta(seconds=5)


def test_it_asks_along_its_ladder_and_that_is_no_attempt(delayq):
    job = schedule(ask_bank, 7)
    assert [ran.outcome for ran in delayq.run_due()] == ["ask"]
    assert delayq.advance("14s") == []
    assert [ran.outcome for ran in delayq.advance("1s")] == ["ask"]
    assert [ran.outcome for ran in delayq.advance("3m")] == ["ask"]
    assert SEEN == [("ask_bank", 1, 0), ("ask_bank", 1, 1), ("ask_bank", 1, 2)]
    row = Job.objects.get(pk=job.id)
    assert (row.state, row.attempts, row.asked, row.error) == ("scheduled", 0, 3, "")
    runs = Attempt.objects.order_by("id").values_list("outcome", "error_class", "message")
    assert list(runs) == [("asked", "", "the bank has not booked it")] * 3


def test_at_the_ladders_end_it_gives_up_and_a_requeue_begins_anew(delayq):
    job = schedule(ask_bank, 7)
    *_, last = delayq.advance("1d")
    assert isinstance(last.error, GaveUp)
    assert last.error.fields == {"steps": 3, "reason": "the bank has not booked it"}
    row = Job.objects.get(pk=job.id)
    assert (row.state, row.asked) == ("failed", 3)
    assert row.error.startswith("django_delayq.exceptions.GaveUp: The task still raised NotYet after its last poll delay (number 3)")
    assert job.requeue() == "done"
    SEEN.clear()
    assert [ran.outcome for ran in delayq.advance("15s")] == ["ask", "ask"]
    assert SEEN == [("ask_bank", 1, 0), ("ask_bank", 1, 1)]
    assert job.asked == 2


def test_who_performs_a_task_sees_what_it_raises(delayq):
    with pytest.raises(django_delayq.NotYet, match="the bank has not booked it"):
        delayq.perform(ask_bank, 7)
    with pytest.raises(GaveUp):
        delayq.perform(ask_bank, 7, asked=3)


def test_a_job_without_a_limit_is_tried_until_its_date_and_the_last_step_repeats(delayq):
    job = schedule(fail_always, 1, max_attempts=0, expires="30m")
    ran = delayq.advance("1h")
    assert [one.outcome for one in ran] == ["retry"] * 5  # at 0 s, 15 s, 3 min 15 s, 13 min 15 s, 23 min 15 s
    assert [("fail_always", attempt, 0, False) for attempt in range(1, 6)] == SEEN
    row = Job.objects.get(pk=job.id)
    assert (row.state, row.attempts) == ("failed", 5)
    assert row.error.endswith("Its last error: RuntimeError: the bank is closed")


def test_a_job_that_has_only_asked_before_it_expires_has_failed_too(delayq):
    job = schedule(ask_bank, 7, expires="2m")
    assert [ran.outcome for ran in delayq.advance("1h")] == ["ask", "ask"]
    row = Job.objects.get(pk=job.id)
    assert (row.state, row.attempts, row.asked, row.ending) == ("failed", 0, 2, None)
    assert row.error.startswith("Expired: ")


def test_what_an_atomic_run_has_written_before_it_asks_is_rolled_back(delayq):
    schedule(book_or_wait, "ada")
    assert [ran.outcome for ran in delayq.advance("15s")] == ["ask", "ask"]
    assert User.objects.count() == 0
    assert [ran.outcome for ran in delayq.advance("3m")] == ["ack"]
    assert User.objects.count() == 1
    assert Job.objects.get().asked == 2
