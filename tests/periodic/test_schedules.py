"""Changes that people make to schedules."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta

import pytest
from django.db import connection, connections, transaction

import django_delayq as delayq
from django_delayq import clock as clocks
from django_delayq import conf
from django_delayq.exceptions import ConfigError, PayloadError, PayloadTooLarge, QueueUnknown, StoreUnavailable, UnknownTask
from django_delayq.models import Attempt, Event, Job, Periodic, Tick
from django_delayq.periodic import schedule_rows, schedules
from django_delayq.producer.stores import stores
from django_delayq.states import PERIODIC
from django_delayq.store.scripts.queue import Outcome
from tests.periodic.conftest import Code, fates, in_redis
from tests.tasks_for_tests import close_order


@pytest.fixture
def nightly(code):
    code.declare(every_ms=600_000)
    code.poll()
    return code


def acts(name: str = "nightly") -> list[tuple[str, str, str]]:
    return [(event.kind, event.actor, event.reason) for event in reversed(schedule_rows.events(schedules.get(name), 50))]


# off and on


def test_off_cancels_the_waiting_tick_at_once(nightly):
    row = schedules.turn_off("nightly", "sam", "too loud")
    assert not row.enabled
    tick = Tick.objects.get()
    assert (tick.fate, tick.actor, in_redis(tick)) == ("cancelled", "sam", "finished")
    job = Job.objects.get()
    assert (job.state, job.error) == ("cancelled", "its schedule nightly was turned off")
    assert acts() == [("periodic_off", "sam", "too loud")]


def test_a_job_that_begins_before_it_can_be_cancelled_runs_on_and_is_not_asked_to_stop(nightly):
    tick = Tick.objects.get()
    store = stores.queue("orders", 0)
    late = int(tick.at.timestamp() * 1000) + 1
    (job,) = store.claim("host:1:w", "n1", want=1, lease_ms=60_000, max_crashes=9, now_ms=late).jobs
    schedules.turn_off("nightly", "sam")
    assert fates() == [("12:10:00", "scheduled")]
    view = stores.inspector().job("orders", tick.job_id)
    assert (job.attempt, view.state, view.cancel_by) == (1, "running", "")


def test_a_job_that_runs_and_fails_just_before_it_can_be_cancelled_keeps_its_retry(nightly, monkeypatch):
    tick, store, moved = Tick.objects.get(), stores.queue("orders", 0), schedule_rows.acts.reschedule

    def late(*args, **options):
        at = int(tick.at.timestamp() * 1000) + 1
        [job] = store.claim("host:1:w", "n1", want=1, lease_ms=60_000, max_crashes=9, now_ms=at).jobs
        store.settle([Outcome(job.id, job.attempt, job.fence, "retry", delay_ms=1000)], worker="host:1:w", max_crashes=9, now_ms=at)
        return moved(*args, **options)

    monkeypatch.setattr(schedule_rows.acts, "reschedule", late)
    schedules.turn_off("nightly", "sam")
    assert fates() == [("12:10:00", "scheduled")]
    view = stores.inspector().job("orders", tick.job_id)
    assert (view.state, view.attempt) == ("scheduled", 1)


def test_a_job_that_has_run_is_late_by_a_minute_if_the_process_that_cancels_it_dies_in_between(nightly, clock, monkeypatch):
    tick = Tick.objects.get()

    def die(*args, **options):
        raise StoreUnavailable(code="down", cause="the process dies")

    with monkeypatch.context() as meanwhile, suppress(StoreUnavailable):
        meanwhile.setattr(schedule_rows.acts, "cancel", die)
        schedules.turn_off("nightly", "sam")
    assert fates() == [("12:10:00", "withdrawn")]
    # The mirror learns of a run from before a failover.
    Attempt.objects.create(job_id=tick.job_id, number=1, outcome="crashed", started_at=tick.at)
    nightly.poll()
    assert fates() == [("12:10:00", "scheduled")]
    view = stores.inspector().job("orders", tick.job_id)
    until, wait = tick.run_at - clock.moment, timedelta(milliseconds=view.date_ms - view.now_ms)
    assert view.state == "scheduled"
    assert until < wait + timedelta(seconds=30), "it is not early"
    assert wait <= until + timedelta(minutes=1)


@pytest.mark.parametrize(("decided", "wanted"), [(False, ["12:05:00", "12:10:00"]), (True, ["12:10:00"])])
def test_a_job_that_another_process_has_found_running_and_that_is_cancelled_after_all_leaves_its_date_to_another_one(
    nightly, clock, monkeypatch, decided, wanted
):
    cancelled = schedule_rows._cancelled

    def late(job, *words) -> bool:
        Tick.objects.update(fate="scheduled")  # the other one; then the run is put off
        if decided:  # and more is written
            Periodic.objects.update(decided_to=Tick.objects.get().at)
        return cancelled(job, *words)

    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(schedule_rows, "_cancelled", late)
        schedules.override("nightly", every="5m", actor="sam")
    clock.advance(seconds=301)
    nightly.poll()
    assert fates() == [(date, "scheduled") for date in wanted]
    first, *others = Job.objects.order_by("pk")
    assert in_redis(first) == "finished"
    assert {in_redis(job) for job in others} == {"scheduled"}
    assert Tick.objects.latest("at").job_id != first.pk


@pytest.mark.parametrize("outcome", ["retry", "crash", "ask"])
def test_a_job_that_has_begun_before_it_can_be_cancelled_and_is_tried_again_keeps_its_tick(nightly, outcome):
    tick = Tick.objects.get()
    store, late = stores.queue("orders", 0), clocks.to_ms(tick.at) + 1  # the clock of Redis is ahead, and the mirror behind
    (job,) = store.claim("host:1:w", "n1", want=1, lease_ms=60_000, max_crashes=9, now_ms=late).jobs
    store.settle([Outcome(job.id, 1, job.fence, outcome, 5_000)], worker="host:1:w", max_crashes=9, now_ms=late)
    before = stores.inspector().job("orders", tick.job_id)
    schedules.turn_off("nightly", "sam")
    assert fates() == [("12:10:00", "scheduled")]
    view = stores.inspector().job("orders", tick.job_id)
    assert (view.state, view.date_ms) == ("scheduled", before.date_ms)


@pytest.mark.parametrize(("outcome", "fate"), [("crashed", "scheduled"), ("snoozed", "cancelled"), ("running", "cancelled")])
def test_a_job_whose_run_redis_has_lost_keeps_its_tick_and_one_that_was_put_off_does_not(nightly, outcome, fate):
    tick = Tick.objects.get()
    Attempt.objects.create(job_id=tick.job_id, number=1, fence="lost", started_at=clocks.now(), outcome=outcome)
    schedules.turn_off("nightly", "sam")
    assert fates() == [("12:10:00", fate)]


def test_off_it_makes_no_jobs(nightly, clock):
    schedules.turn_off("nightly", "sam")
    nightly.live(clock, seconds=3_600, step=60)
    assert fates() == [("12:10:00", "cancelled")]


def test_on_again_it_begins_now_and_has_missed_nothing(nightly, clock):
    schedules.turn_off("nightly", "sam")
    nightly.live(clock, seconds=3_600, step=60)
    schedules.turn_on("nightly", "kim")
    nightly.poll()
    assert fates() == [("12:10:00", "cancelled"), ("13:10:00", "scheduled")]
    assert [kind for kind, *_ in acts()] == ["periodic_off", "periodic_on"]


def test_off_and_on_before_the_tick_gives_it_another_job(nightly):
    first = Tick.objects.get().job_id
    schedules.turn_off("nightly", "sam")
    schedules.turn_on("nightly", "sam")
    nightly.poll()
    tick = Tick.objects.get()
    assert tick.fate == "scheduled"
    assert tick.job_id != first
    assert (tick.actor, in_redis(tick)) == ("", "scheduled")
    assert Job.objects.exclude(state="cancelled").count() == 1


def test_what_is_off_is_not_turned_off_once_more(nightly):
    schedules.turn_off("nightly", "sam")
    schedules.turn_off("nightly", "kim")
    assert len(acts()) == 1


def test_off_leaves_what_is_due_to_run(nightly, clock):
    clock.advance(minutes=10)
    nightly.poll()
    schedules.turn_off("nightly", "sam")
    assert fates() == [("12:10:00", "scheduled"), ("12:20:00", "cancelled")]


def test_what_is_rolled_back_has_not_happened(nightly):
    with transaction.atomic():
        schedules.turn_off("nightly", "sam")
        transaction.set_rollback(True)
    assert Periodic.objects.get().enabled
    assert in_redis(Tick.objects.get()) == "scheduled"
    assert not acts()


def test_with_redis_away_a_worker_cancels_when_it_is_there(nightly, clock, settings):
    there = settings.DELAYQ
    settings.DELAYQ = {**there, "REDIS": "unix:///nowhere/redis.sock"}
    schedules.turn_off("nightly", "sam")
    nightly.poll()
    assert fates() == [("12:10:00", "withdrawn")]
    settings.DELAYQ = there
    assert in_redis(Tick.objects.get()) == "scheduled"
    nightly.poll()
    assert fates() == [("12:10:00", "cancelled")]
    assert in_redis(Tick.objects.get()) == "finished"
    row = Periodic.objects.get()
    assert (row.write_at, row.withdrawing) == (None, False)


def test_a_tick_whose_job_is_not_cancelled_yet_gets_no_other_one_before_that(nightly, clock, settings):
    there = settings.DELAYQ
    settings.DELAYQ = {**there, "REDIS": "unix:///nowhere/redis.sock"}
    schedules.turn_off("nightly", "sam")
    schedules.turn_on("nightly", "sam")
    for _ in range(3):
        clock.advance(seconds=2)
        nightly.poll()
    assert fates() == [("12:10:00", "withdrawn")]
    assert Job.objects.count() == 1
    settings.DELAYQ = there
    clock.advance(seconds=2)
    nightly.poll()
    assert fates() == [("12:10:00", "scheduled")]
    assert [in_redis(job) for job in Job.objects.order_by("pk")] == ["finished", "scheduled"]


# other dates


def test_a_tick_that_is_withdrawn_while_redis_is_away_is_cancelled_though_the_next_date_is_far(nightly, clock, settings):
    there = settings.DELAYQ
    settings.DELAYQ = {**there, "REDIS": "unix:///nowhere/redis.sock"}
    schedules.override("nightly", every="1h", actor="sam")
    nightly.poll()
    assert fates() == [("12:10:00", "withdrawn"), ("13:00:00", "scheduled")]
    settings.DELAYQ = there
    clock.advance(seconds=5)
    nightly.poll()
    assert fates() == [("12:10:00", "cancelled"), ("13:00:00", "scheduled")]


@pytest.mark.parametrize(
    ("missed", "late", "wanted"),
    [("once", 30, "scheduled"), ("skip", 30, "scheduled"), ("once", 90, "scheduled"), ("all", 90, "scheduled"), ("skip", 90, "missed")],
)
def test_a_tick_whose_date_passes_before_its_former_job_is_cancelled_is_late_and_not_lost(code, clock, settings, missed, late, wanted):
    code.declare(every_ms=600_000, missed=missed)
    code.poll()
    there, before = settings.DELAYQ, Tick.objects.get()
    settings.DELAYQ = {**there, "REDIS": "unix:///nowhere/redis.sock"}
    schedules.turn_off("nightly", "sam")
    schedules.turn_on("nightly", "sam")
    while clock.moment < before.at + timedelta(seconds=late):
        clock.advance(seconds=10)
        code.poll()
    assert fates()[0] == ("12:10:00", "withdrawn")
    settings.DELAYQ = there
    clock.advance(seconds=2)
    code.poll()
    clock.advance(seconds=2)
    code.poll()
    assert fates() == [("12:10:00", wanted), ("12:20:00", "scheduled")]
    tick = Tick.objects.get(pk=before.pk)
    assert tick.job_id != before.job_id
    assert Job.objects.count() == (2 if wanted == "missed" else 3)
    assert Event.objects.filter(kind="periodic_missed").count() == (wanted == "missed")


def test_an_override_holds_from_now_on_and_is_shown_as_such(nightly, clock):
    row = schedules.override("nightly", cron="*/15 * * * *", timezone="Europe/Berlin", actor="sam", reason="less of it")
    assert row.overridden
    assert (row.every_ms, row.override_cron, row.override_timezone) == (600_000, "*/15 * * * *", "Europe/Berlin")
    nightly.poll()
    assert fates() == [("12:10:00", "cancelled"), ("12:15:00", "scheduled")]
    assert acts() == [("periodic_dates", "sam", "less of it")]
    assert Event.objects.get(kind="periodic_dates").detail == {"schedule": "nightly", "dates": "*/15 * * * *, Europe/Berlin"}


def test_without_an_override_its_owners_dates_hold_again(nightly, clock):
    schedules.override("nightly", every="15m", actor="sam")
    nightly.poll()
    clock.advance(minutes=1)
    schedules.drop_override("nightly", "kim", "as before")
    nightly.poll()
    assert fates() == [("12:10:00", "scheduled"), ("12:15:00", "cancelled")]
    assert not Periodic.objects.get().overridden
    assert [kind for kind, *_ in acts()] == ["periodic_dates", "periodic_dates"]


def test_code_that_declares_other_dates_leaves_an_override_in_place(nightly, clock):
    schedules.override("nightly", every="15m", actor="sam")
    other = Code()
    other.declare(every_ms=300_000)
    clock.advance(seconds=1)
    other.poll()
    assert fates()[-1] == ("12:15:00", "scheduled")
    assert Periodic.objects.get().every_ms == 300_000


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"cron": "61 * * * *"}, "minute"),
        ({"cron": "0 0 30 2 *"}, "never matches a date"),
        ({"every": "10ms"}, "too short"),
        ({"cron": "0 3 * * *", "every": "1h"}, "both"),
        ({}, "neither"),
        ({"cron": "0 3 * * *", "timezone": "Europe/Berlim"}, "Europe/Berlin"),
    ],
)
def test_an_override_that_cannot_work_is_refused_and_changes_nothing(nightly, given, said):
    with pytest.raises(ConfigError, match=said):
        schedules.override("nightly", actor="sam", **given)
    assert not Periodic.objects.get().overridden
    assert fates() == [("12:10:00", "scheduled")]


def test_in_the_jitter_of_a_tick_other_dates_leave_its_job_and_off_cancels_it(code, clock):
    code.declare(every_ms=3_600_000, jitter_ms=3_500_000)
    code.poll()
    tick = Tick.objects.get()
    clock.moment = tick.at + (tick.run_at - tick.at) / 2
    schedules.override("nightly", every="90m", actor="sam")
    schedules.drop_override("nightly", actor="sam")
    assert in_redis(tick) == "scheduled"
    schedules.turn_off("nightly", "sam")
    assert in_redis(tick) == "finished"


def test_off_cancels_what_the_jitter_of_older_code_has_wait(code, clock):
    code.declare(every_ms=3_600_000, jitter_ms=3_500_000)
    code.poll()
    tick = Tick.objects.get()
    clock.moment = tick.at + (tick.run_at - tick.at) / 2
    without = Code()
    without.declare(every_ms=3_600_000)
    without.poll()
    assert in_redis(tick) == "scheduled"
    schedules.turn_off("nightly", "sam")
    assert in_redis(tick) == "finished"


def test_jitter_stays_shorter_than_a_period_that_people_give(code, clock):
    code.declare(every_ms=3_600_000, jitter_ms=1_800_000)
    code.poll()
    schedules.override("nightly", every="10s", actor="sam")
    code.live(clock, seconds=60)
    ticks = list(Tick.objects.filter(fate="scheduled").order_by("at"))
    assert [tick.run_at for tick in ticks] == sorted(tick.run_at for tick in ticks)
    assert len(ticks) >= 6


# run now


def test_run_now_is_one_more_job_and_told_as_by_hand(nightly, clock):
    job = schedules.run_now("nightly", "sam", "the bank asks")
    assert isinstance(job, delayq.Job)
    row = Job.objects.get(pk=job.id)
    assert row.args == [7]
    assert row.options["meta"][PERIODIC] == {"name": "nightly", "tick": "2031-03-04T12:00:30+00:00", "by_hand": True}
    assert in_redis(row) == "scheduled"
    tick = Tick.objects.get(by_hand=True)
    assert (tick.actor, tick.job_id) == ("sam", job.id)
    assert fates() == [("12:10:00", "scheduled")], "its dates stay as they are"
    assert acts() == [("periodic_run", "sam", "the bank asks")]


def test_run_now_at_the_moment_of_a_tick_is_another_job(nightly, clock):
    clock.advance(minutes=9, seconds=30)
    first, second = schedules.run_now("nightly", "sam"), schedules.run_now("nightly", "kim")
    assert first.id != second.id
    assert Tick.objects.filter(by_hand=True).count() == 2
    assert Tick.objects.filter(at=clock.moment).count() == 2


def test_run_now_works_while_it_is_off(nightly):
    schedules.turn_off("nightly", "sam")
    assert in_redis(Job.objects.get(pk=schedules.run_now("nightly", "sam").id)) == "scheduled"


def test_off_leaves_runs_by_hand_alone(nightly):
    job = schedules.run_now("nightly", "sam")
    schedules.turn_off("nightly", "sam")
    assert in_redis(Job.objects.get(pk=job.id)) == "scheduled"


# of the admin


def test_a_schedule_of_the_admin_makes_jobs_like_one_of_the_code(code):
    row = schedules.create("theirs", close_order.name, cron="0 13 * * *", args=(5,), kwargs={"note": "x"}, actor="sam", reason="new")
    assert row.owner == "admin"
    code.poll()
    assert fates("theirs") == [("13:00:00", "scheduled")]
    job = Job.objects.get()
    assert (job.args, job.kwargs) == ([5], {"note": "x"})
    assert acts("theirs") == [("periodic_created", "sam", "new")]


@pytest.mark.parametrize(
    ("given", "error", "said"),
    [
        ({"task": "app.tasks.unknown"}, UnknownTask, "app.tasks.unknown"),
        ({"args": ()}, PayloadError, "order_id"),
        ({"args": (1, 2)}, PayloadError, "order"),
        ({"args": "1"}, ConfigError, "list"),
        ({"args": (object(),)}, PayloadError, "args"),
        ({"missed": "al"}, ConfigError, "all"),
        ({"overlap": "no"}, ConfigError, "allow"),
        ({"every": None}, ConfigError, "neither"),
        ({"name": "x" * 201}, ConfigError, "200"),
        ({"name": " x"}, ConfigError, "space"),
        ({"name": "nightly"}, ConfigError, "with this name"),
    ],
)
def test_a_schedule_that_cannot_work_is_not_created(nightly, given, error, said):
    fields = {"name": "theirs", "task": close_order.name, "every": "10m", "args": (1,), **given}
    with pytest.raises(error, match=said):
        schedules.create(fields.pop("name"), fields.pop("task"), actor="sam", **fields)
    assert Periodic.objects.count() == 1


@pytest.mark.parametrize("overlap", ["allow", "wait"])
def test_the_longest_arguments_that_are_taken_are_not_refused_at_a_tick(code, settings, overlap):
    queues = {**settings.DELAYQ["QUEUES"], "orders": {"MAX_PAYLOAD": 2_048}}
    settings.DELAYQ = {**settings.DELAYQ, "QUEUES": queues, "CHECK_TYPES": False}
    for size in range(2_048, 1_500, -1):
        with suppress(PayloadTooLarge):
            schedules.create("theirs", close_order.name, every="10m", args=("e" * size,), overlap=overlap, actor="sam")
            break
    code.poll()
    schedules.run_now("theirs", "sam")
    assert schedules.get("theirs").problem is None
    assert Job.objects.count() == Tick.objects.count() == 2
    with pytest.raises(PayloadTooLarge):
        schedules.change("theirs", args=("e" * (size + 1),), every="10m", overlap=overlap, actor="sam")
    assert schedules.get("theirs").args == ["e" * size]


def test_arguments_that_are_a_text_are_refused_where_it_is_changed_too(code):
    schedules.create("theirs", close_order.name, every="10m", args=(1,), actor="sam")
    with pytest.raises(ConfigError, match="must be a list"):
        schedules.change("theirs", args="1", every="10m", actor="sam")


def test_names_are_two_hundred_characters_at_most(code):
    schedules.create("n" * 200, close_order.name, every="10m", args=(1,), actor="sam")
    code.poll()
    assert Tick.objects.get().schedule.name == "n" * 200


def test_deleted_it_is_gone_with_its_ticks_and_its_waiting_job_is_cancelled(code):
    schedules.create("theirs", close_order.name, every="10m", args=(1,), actor="sam")
    code.poll()
    schedules.delete("theirs", "kim", "not wanted")
    assert not Periodic.objects.exists()
    assert not Tick.objects.exists()
    assert Job.objects.get().state == "cancelled"
    assert list(Event.objects.filter(kind="periodic_deleted").values_list("actor", "reason")) == [("kim", "not wanted")]


def test_with_redis_away_it_is_off_and_not_deleted(code, settings):
    schedules.create("theirs", close_order.name, every="10m", args=(1,), actor="sam")
    code.poll()
    there = settings.DELAYQ
    settings.DELAYQ = {**there, "REDIS": "unix:///nowhere/redis.sock"}
    with pytest.raises(delayq.StoreUnavailable):
        schedules.delete("theirs", "kim")
    assert not Periodic.objects.get().enabled
    settings.DELAYQ = there
    schedules.delete("theirs", "kim")
    assert not Periodic.objects.exists()


def test_one_whose_queue_has_left_the_settings_is_deleted_and_its_job_is_left_there(code, settings, caplog):
    schedules.create("theirs", close_order.name, every="10m", args=(1,), actor="sam")
    code.poll()
    settings.DELAYQ = {**settings.DELAYQ, "QUEUES": {"default": {}}}
    schedules.delete("theirs", "kim")
    assert not Periodic.objects.exists()
    assert not Tick.objects.exists()
    assert in_redis(Job.objects.get()) == "scheduled"
    assert len([record for record in caplog.records if "remains in its queue" in record.getMessage()]) == 1


@pytest.mark.parametrize(("state", "fate"), [("scheduled", "cancelled"), ("succeeded", "scheduled")])
def test_a_withdrawn_tick_whose_queue_has_left_the_settings_is_given_up_behind_its_date(nightly, clock, settings, caplog, state, fate):
    settings.DELAYQ = {**settings.DELAYQ, "QUEUES": {"default": {}}}
    schedules.turn_off("nightly", "sam")
    clock.advance(seconds=40)
    nightly.poll()
    assert fates() == [("12:10:00", "withdrawn")], "its queue may be there elsewhere, or come back"
    assert Periodic.objects.get().problem["code"] == "queue_unknown"
    clock.advance(minutes=10)
    Job.objects.update(state=state)  # as workers of the old settings may have run it
    nightly.poll()
    assert fates() == [("12:10:00", fate)]
    row = Periodic.objects.get()
    assert (row.withdrawing, row.write_at, row.problem) == (False, None, None)
    told = [record.getMessage() for record in caplog.records if "remains in its queue" in record.getMessage()]
    assert len(told) == (fate == "cancelled")


@pytest.fixture
def while_deleted(code, monkeypatch):
    """`while_deleted(act)`: deletes a schedule of the admin that has a waiting job, and runs the action when that job is cancelled."""

    def delete(act) -> None:
        schedules.create("theirs", close_order.name, every="10m", args=(1,), actor="sam")
        code.poll()
        cancel_withdrawn, acts = schedule_rows.cancel_withdrawn, [act, lambda: None]  # the latter at the commit of what turns it off

        def followed(*args, **options) -> bool:
            done = cancel_withdrawn(*args, **options)
            if acts:
                acts.pop()()
            return done

        monkeypatch.setattr(schedule_rows, "cancel_withdrawn", followed)
        schedules.delete("theirs", "kim")

    return delete


def test_one_that_is_turned_on_while_it_is_deleted_stays_with_its_waiting_job(code, while_deleted):
    def turn_on() -> None:
        schedules.turn_on("theirs", "sam")
        code.poll()

    with pytest.raises(ConfigError, match="'theirs' was turned on while it was being deleted"):
        while_deleted(turn_on)
    assert Periodic.objects.get().enabled
    assert Job.objects.exclude(state="cancelled").get().pk == Tick.objects.get(fate="scheduled").job_id


def test_one_that_code_declares_while_it_is_deleted_stays(code, while_deleted):
    def declare() -> None:
        code.declare("theirs")
        code.loop._deployments.look(schedule_rows.now())

    with pytest.raises(ConfigError, match="'theirs' is declared in code"):
        while_deleted(declare)
    assert Periodic.objects.get().owner == "code"


def test_what_comes_to_wait_while_it_is_deleted_and_is_off_again_is_cancelled_too(code, while_deleted, settings):
    def turn_on_and_off() -> None:
        schedules.turn_on("theirs", "sam")
        code.poll()
        there = settings.DELAYQ
        settings.DELAYQ = {**there, "REDIS": "unix:///nowhere/redis.sock"}
        schedules.turn_off("theirs", "sam")
        settings.DELAYQ = there

    while_deleted(turn_on_and_off)
    assert not Periodic.objects.exists()
    assert set(Job.objects.values_list("state", flat=True)) == {"cancelled"}
    assert Job.objects.count() == 2


def test_one_that_is_deleted_by_another_meanwhile_is_told(while_deleted):
    with pytest.raises(ConfigError, match="no schedule 'theirs'"):
        while_deleted(lambda: schedules.delete("theirs", "sam"))
    assert Event.objects.filter(kind="periodic_deleted").count() == 1


def test_one_of_the_code_is_not_deleted(nightly):
    with pytest.raises(ConfigError, match="declared in code"):
        schedules.delete("nightly", "sam")


def test_no_other_job_can_say_that_it_is_one_of_a_tick(nightly):
    mine = {PERIODIC: {"name": "nightly", "tick": "2031-03-04T12:10:00+00:00", "overlap": "skip"}}
    count = Job.objects.count()
    for act in (
        lambda: delayq.schedule(close_order, 7, meta=mine),
        lambda: close_order.using(meta=mine).schedule(7),
        lambda: delayq.schedule_many([close_order.using(meta=mine).bind(7)]),
    ):
        with pytest.raises(PayloadError, match=r"meta has the key 'delayq\.periodic'"):
            act()
    assert Job.objects.count() == count


# none of that name


ACTS = [
    lambda name: schedules.turn_on(name, "sam"),
    lambda name: schedules.turn_off(name, "sam"),
    lambda name: schedules.override(name, every="1m", actor="sam"),
    lambda name: schedules.drop_override(name, "sam"),
    lambda name: schedules.run_now(name, "sam"),
    lambda name: schedules.delete(name, "sam"),
]


@pytest.mark.parametrize("act", ACTS)
def test_a_schedule_that_is_not_there_is_told_with_the_nearest_name(nightly, act):
    with pytest.raises(ConfigError, match=r"no schedule 'nightli' \(did you mean 'nightly'\?\)"):
        act("nightli")


@pytest.mark.parametrize("act", ACTS[:-1])
def test_a_retired_schedule_is_left_as_it_is(nightly, clock, act):
    Periodic.objects.update(retired_at=clock.moment, withdrawing=False, write_at=None)
    before = Periodic.objects.values().get()
    with pytest.raises(ConfigError, match="'nightly' is retired: no code declares it"):
        act("nightly")
    assert Periodic.objects.values().get() == before
    assert Job.objects.count() == 1
    assert not Event.objects.exists()


def test_queues_that_are_gone_are_told(nightly, settings):
    settings.DELAYQ = {**settings.DELAYQ, "QUEUES": {"default": {}}}
    with pytest.raises(QueueUnknown):
        schedules.create("theirs", close_order.name, every="10m", args=(1,), actor="sam")
    assert conf.get().queues.keys() == {"default"}


class Elsewhere:
    """A project's database router that does not know DELAYQ["DATABASE"]."""

    def db_for_read(self, model, **hints):
        return "elsewhere"

    db_for_write = db_for_read


def test_ticks_are_written_where_the_settings_say_whatever_a_router_says(code, clock, settings):
    settings.DATABASE_ROUTERS = [Elsewhere()]
    code.declare(every_ms=60_000)
    code.poll()
    job = schedules.run_now("nightly", actor="sam")
    assert {tick.job_id for tick in Tick.objects.using("default")} >= {job.id}
    assert Tick.objects.using("default").filter(by_hand=False).count() == 1


@pytest.fixture
def repeatable(code):
    """Transactions of this thread use the isolation level REPEATABLE READ."""
    with connection.cursor() as cursor:
        cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    yield
    connection.close()


@pytest.mark.skipif(connection.vendor != "mysql", reason="PostgreSQL raises an error here, and SQLite has one writer")
def test_a_delete_in_a_transaction_that_reads_repeatably_sees_what_another_process_has_cancelled(code, repeatable, settings):
    schedules.create("theirs", close_order.name, every="10m", args=(1,), actor="sam")
    code.poll()
    there = settings.DELAYQ
    settings.DELAYQ = {**there, "REDIS": "unix:///nowhere/redis.sock"}
    schedules.turn_off("theirs", "sam")
    settings.DELAYQ = there
    pk = Periodic.objects.get().pk

    def another() -> None:
        schedule_rows.cancel_withdrawn(pk)
        connections.close_all()

    with transaction.atomic(), ThreadPoolExecutor(1) as pool:
        assert [tick.fate for tick in Tick.objects.all()] == ["withdrawn"]
        pool.submit(another).result(60)
        Periodic.objects.update(withdrawing=True)
        assert schedule_rows.cancel_withdrawn(pk)
        schedules.delete("theirs", "kim")
    assert not Periodic.objects.exists()


@pytest.mark.skipif(connection.vendor != "mysql", reason="PostgreSQL raises an error here, and SQLite has one writer")
def test_an_act_in_a_transaction_that_reads_repeatably_takes_back_nothing_of_others(code, clock, repeatable):
    code.declare(every_ms=60_000)
    code.poll()

    def another() -> None:
        schedules.override("nightly", every="2m", actor="alex")
        connections.close_all()

    with transaction.atomic(), ThreadPoolExecutor(1) as pool:
        assert not Periodic.objects.get().overridden
        pool.submit(another).result(60)
        schedules.turn_off("nightly", "sam")
    row = Periodic.objects.get()
    assert (row.enabled, row.override_every_ms) == (False, 120_000)
