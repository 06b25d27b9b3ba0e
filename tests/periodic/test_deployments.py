"""Old code and new code at the same time, the way back, and schedules that no code declares any more."""

from __future__ import annotations

from datetime import timedelta

import pytest

from django_delayq import clock as clocks
from django_delayq.exceptions import StoreUnavailable
from django_delayq.models import Event, Job, Periodic, SeenDeclaration, Tick
from django_delayq.periodic import due_ticks, schedule_rows, schedules
from django_delayq.producer.stores import stores
from django_delayq.store.scripts.queue import Outcome
from tests.periodic.conftest import Code, fates, in_redis
from tests.tasks_for_tests import close_order, takes_all


@pytest.fixture
def old(tables, clock) -> Code:
    made = Code()
    made.declare(every_ms=600_000, args=("old",), task=takes_all)
    return made


@pytest.fixture
def new(tables, clock) -> Code:
    made = Code()
    made.declare(every_ms=900_000, args=("new",), task=takes_all)
    return made


def ran(clock) -> list[tuple[str, str]]:
    """Returns the jobs that are due by now and not cancelled, oldest first: date and version."""
    jobs = Job.objects.filter(run_at__lte=clock.moment).exclude(state="cancelled").order_by("run_at")
    return [(f"{job.run_at:%H:%M}", job.args[0]) for job in jobs]


def side_by_side(clock, *versions: Code, minutes: int) -> None:
    for _ in range(minutes * 2):
        clock.advance(seconds=30)
        for version in versions:
            version.poll()


def test_new_code_takes_over_at_once_and_old_code_beside_it_writes_nothing_more(old, new, clock):
    side_by_side(clock, old, minutes=12)
    side_by_side(clock, old, new, minutes=40)
    side_by_side(clock, new, minutes=20)
    # From 12:12:30 on; the tick that the old code had written for 12:20 is withdrawn.
    assert ran(clock) == [("12:10", "old"), ("12:15", "new"), ("12:30", "new"), ("12:45", "new"), ("13:00", "new")]
    assert ("12:20:00", "cancelled") in fates()


def test_the_way_back_takes_over_when_the_new_code_has_gone(old, new, clock):
    side_by_side(clock, old, minutes=12)
    side_by_side(clock, old, new, minutes=10)
    side_by_side(clock, old, minutes=20)
    assert ran(clock) == [("12:10", "old"), ("12:15", "new"), ("12:30", "old"), ("12:40", "old")]


def test_old_code_that_comes_back_after_it_was_gone_takes_over_at_once(old, new, clock):
    side_by_side(clock, old, minutes=5)
    side_by_side(clock, new, minutes=5)  # 12:10:30
    old.poll()
    assert Periodic.objects.get().args == ["old"]
    side_by_side(clock, new, old, minutes=15)
    assert ran(clock)[-1] == ("12:20", "old")


def test_versions_do_not_take_turns(old, new, clock):
    side_by_side(clock, old, minutes=1)
    side_by_side(clock, old, new, minutes=30)
    assert Event.objects.filter(kind="periodic_declared").count() == 1


def test_old_code_that_looked_before_the_new_one_came_changes_nothing(old, new, clock, monkeypatch):
    old.poll()
    clock.advance(seconds=31)
    note, calls = due_ticks.note_seen, []

    def late(mine, now):  # between its look and what it does about it, the new code comes
        seen = note(mine, now)
        calls.append(now)
        if len(calls) == 1:
            new.loop._deployments.look(now)
        return seen

    monkeypatch.setattr(due_ticks, "note_seen", late)
    old.loop._deployments.look(clock.moment)
    assert Periodic.objects.get().args == ["new"]


def test_what_a_deploy_leaves_as_it_was_is_left_alone(old, clock):
    old.poll()
    job = Job.objects.get().pk
    same = Code()
    same.declare(every_ms=600_000, args=("old",), task=takes_all)
    side_by_side(clock, same, minutes=5)
    assert Job.objects.get().pk == job
    assert in_redis(Job.objects.get()) == "scheduled"


def test_other_arguments_are_those_of_the_next_tick_whose_job_waits_already(old, clock):
    old.poll()
    other = Code()
    other.declare(every_ms=600_000, args=("other",), task=takes_all)
    clock.advance(minutes=1)
    other.poll()
    assert fates() == [("12:10:00", "scheduled")]
    assert Job.objects.get(pk=Tick.objects.get().job_id).args == ["other"]
    assert [in_redis(job) for job in Job.objects.order_by("pk")] == ["finished", "scheduled"]


@pytest.mark.parametrize("every_ms", [3_600_000, 5_400_000], ids=["other arguments", "other dates"])
def test_a_tick_whose_date_has_passed_keeps_its_job_though_jitter_has_it_wait(tables, clock, every_ms):
    before, after = Code(), Code()
    before.declare(every_ms=3_600_000, jitter_ms=3_500_000, args=("old",), task=takes_all)
    after.declare(every_ms=every_ms, jitter_ms=3_500_000, args=("new",), task=takes_all)
    before.poll()
    tick = Tick.objects.get()
    clock.moment = tick.at + (tick.run_at - tick.at) / 2
    after.poll()
    assert Periodic.objects.get().args == ["new"]
    assert fates()[0] == ("13:00:00", "scheduled")
    assert in_redis(tick) == "scheduled"
    assert Tick.objects.exclude(pk=tick.pk).get().at > clock.moment


def test_what_was_missed_while_all_were_away_for_a_deploy_is_missed_with_other_arguments_too(old, clock):
    old.poll()
    clock.advance(hours=1)
    other = Code()
    other.declare(every_ms=600_000, args=("other",), task=takes_all)
    other.poll()
    assert fates()[1:4] == [("12:20:00", "missed"), ("12:30:00", "missed"), ("12:40:00", "missed")]
    late = Job.objects.filter(run_at__lte=clock.moment, run_at__gt=clock.moment - timedelta(minutes=15)).order_by("run_at")
    assert [(f"{job.run_at:%H:%M}", job.args) for job in late] == [("12:50", ["other"]), ("13:00", ["other"])]


def test_with_other_dates_a_schedule_begins_now(old, new, clock):
    old.poll()
    clock.advance(hours=3)
    new.poll()
    assert not Tick.objects.filter(fate="missed").exists()
    assert fates()[-1] == ("15:15:00", "scheduled")


def test_a_worker_notes_what_it_declares_unless_another_one_just_has(old, clock):
    old.poll()
    first = SeenDeclaration.objects.get(name="nightly").last_seen
    beside = Code()
    beside.declare(every_ms=600_000, args=("old",), task=takes_all)
    clock.advance(seconds=14)
    beside.poll()
    assert SeenDeclaration.objects.get(name="nightly").last_seen == first
    clock.advance(seconds=17)
    old.poll()
    assert SeenDeclaration.objects.get(name="nightly").last_seen == clock.moment


# many at once


@pytest.fixture
def slow(clock, monkeypatch):
    """`slow(seconds, act)`: makes each such action on a schedule take that long."""
    passed = [0.0]
    monkeypatch.setattr(clocks, "monotonic", lambda: passed[0])

    def slowly(seconds: float, name: str) -> None:
        owner = schedule_rows if name == "cancel_withdrawn" else due_ticks.Deployments
        quick = getattr(owner, name)

        def act(*args, **options):
            passed[0] += seconds
            clock.advance(seconds=seconds)
            return quick(*args, **options)

        monkeypatch.setattr(owner, name, act)

    return slowly


def many(told: str) -> Code:
    made = Code()
    for number in range(10):
        made.declare(f"s{number}", every_ms=3_600_000, args=(told,), task=takes_all)
    return made


@pytest.mark.parametrize(("act", "declared", "cancelled"), [("_put_in_force", 4, 4), ("cancel_withdrawn", 10, 4)])
def test_of_many_that_a_deploy_changes_a_pass_takes_a_second_s_worth(tables, clock, slow, act, declared, cancelled):
    before, after = many("old"), many("new")
    before.poll()
    clock.advance(seconds=1)
    slow(0.3, act)
    assert after.loop.poll() == 0.0, "there is more to do"
    assert Periodic.objects.filter(args=["new"]).count() == declared
    assert Job.objects.filter(state="cancelled").count() == cancelled
    after.poll()
    clock.advance(seconds=2)
    after.poll()
    assert Periodic.objects.filter(args=["new"], withdrawing=False).count() == 10
    assert Tick.objects.filter(fate="scheduled").count() == Job.objects.filter(state="scheduled").count() == 10


def test_of_many_that_nobody_declares_any_more_a_pass_takes_a_second_s_worth(tables, clock, slow):
    before, after = many("old"), Code()
    after.declare("another", every_ms=3_600_000)
    before.poll()
    side_by_side(clock, after, minutes=60)
    clock.advance(seconds=30)
    slow(0.3, "_retire_one")
    assert after.loop.poll() == 0.0
    assert Periodic.objects.filter(retired_at__isnull=False).count() == 4
    after.poll()
    assert Periodic.objects.filter(retired_at__isnull=False, withdrawing=False).count() == 10


def test_however_long_a_deploy_takes_over_versions_do_not_take_turns(tables, clock, slow):
    before, after = many("old"), many("new")
    side_by_side(clock, before, minutes=1)
    slow(20, "_put_in_force")
    for _ in range(40):
        before.loop.poll()
        after.loop.poll()
    assert [row.args for row in Periodic.objects.all()] == [["new"]] * 10
    assert Event.objects.filter(kind="periodic_declared").count() == 10


# retired


def test_a_schedule_that_no_code_declares_is_retired_after_an_hour_and_said_so(old, clock, caplog):
    old.poll()
    beside = Code()
    beside.declare("another", every_ms=3_600_000)
    side_by_side(clock, old, beside, minutes=12)
    side_by_side(clock, beside, minutes=59)
    assert Periodic.objects.get(name="nightly").retired_at is None
    side_by_side(clock, beside, minutes=3)
    row = Periodic.objects.get(name="nightly")
    assert row.retired_at is not None
    assert (row.write_at, row.withdrawing) == (None, False)
    assert len([record for record in caplog.records if "is retired" in record.getMessage()]) == 1
    assert [event.kind for event in schedule_rows.events(row, 50)] == ["periodic_retired"]
    assert Periodic.objects.get(name="another").retired_at is None


def test_ticks_of_a_retired_schedule_never_fire(old, clock):
    yearly = Code()
    yearly.declare("yearly", cron="0 0 1 1 *")
    yearly.poll()
    waiting = Tick.objects.get(schedule__name="yearly")
    side_by_side(clock, old, minutes=70)
    waiting.refresh_from_db()
    assert waiting.fate == "cancelled"
    assert in_redis(waiting) == "finished"
    job = Job.objects.get(pk=waiting.job_id)
    assert job.state == "cancelled"
    assert Event.objects.filter(job=job, kind="cancelled").count() == 1, "once, however often one looks"


def test_a_tick_that_waits_for_a_task_that_is_no_more_is_cancelled_with_its_schedule(old, clock):
    beside = Code()
    beside.declare("another", every_ms=3_600_000)
    side_by_side(clock, old, minutes=1)
    side_by_side(clock, beside, minutes=70)  # its job of 12:10 is due, and no worker claims it
    tick = Tick.objects.get(schedule__name="nightly")
    assert (f"{tick.at:%H:%M}", tick.fate) == ("12:10", "cancelled")


@pytest.mark.parametrize("outcome", ["crash", "ask"])
def test_a_tick_whose_run_was_cut_off_or_asks_runs_again_though_its_schedule_is_retired(old, clock, fold, outcome):
    beside = Code()
    beside.declare("another", every_ms=3_600_000)
    side_by_side(clock, old, minutes=1)
    tick, store = Tick.objects.get(schedule__name="nightly"), stores.queue("orders", 0)
    late = clocks.to_ms(tick.at) + 1
    (job,) = store.claim("host:1:w", "n1", want=1, lease_ms=60_000, max_crashes=9, now_ms=late).jobs
    store.settle([Outcome(job.id, 1, job.fence, outcome)], worker="host:1:w", max_crashes=9, now_ms=late)
    fold()
    side_by_side(clock, beside, minutes=70)
    assert Periodic.objects.get(name="nightly").retired_at is not None
    assert [fate for _, fate in fates()] == ["scheduled"]
    assert in_redis(tick) == "scheduled"


def test_the_tick_of_the_last_schedule_of_all_is_cancelled_too_when_redis_was_away_as_it_was_retired(clock, tables, monkeypatch):
    yearly, bare = Code(), Code()
    yearly.declare("yearly", cron="0 0 1 1 *")
    yearly.poll()
    with monkeypatch.context() as away:
        away.setattr(schedule_rows, "cancel_withdrawn", unreachable)
        side_by_side(clock, bare, minutes=70)
    assert Periodic.objects.get().retired_at is not None
    assert [fate for _, fate in fates("yearly")] == ["withdrawn"]
    bare.poll()
    assert [fate for _, fate in fates("yearly")] == ["cancelled"]
    assert in_redis(Tick.objects.get()) == "finished"


def unreachable(*_: object) -> bool:
    raise StoreUnavailable("away")


def test_declared_again_it_lives_from_then_on_and_its_history_stays(old, clock):
    beside = Code()
    beside.declare("another", every_ms=3_600_000)
    side_by_side(clock, old, beside, minutes=12)
    side_by_side(clock, beside, minutes=70)
    assert Periodic.objects.get(name="nightly").retired_at is not None
    side_by_side(clock, old, minutes=10)
    row = Periodic.objects.get(name="nightly")
    assert row.retired_at is None
    assert fates()[0][0] == "12:10:00"
    assert not Tick.objects.filter(fate="missed").exists()
    assert fates()[-1][0] == "13:40:00"


def test_after_a_weekend_without_workers_nothing_is_retired_for_an_hour(old, clock):
    old.poll()
    clock.advance(days=2)
    beside = Code()
    beside.declare("another", every_ms=3_600_000)
    side_by_side(clock, beside, minutes=55)
    assert Periodic.objects.get(name="nightly").retired_at is None, "its worker may not have been started yet"
    side_by_side(clock, beside, minutes=10)
    assert Periodic.objects.get(name="nightly").retired_at is not None


def test_a_schedule_of_the_admin_is_never_retired(old, clock):
    schedules.create("theirs", close_order.name, every="10m", args=(1,), actor="sam")
    side_by_side(clock, old, minutes=70)
    assert Periodic.objects.get(name="theirs").retired_at is None


def test_code_that_declares_the_name_of_one_of_the_admin_owns_it_from_then_on(old, clock):
    schedules.create("nightly", close_order.name, every="5m", args=(1,), actor="sam")
    old.poll()
    row = Periodic.objects.get()
    assert (row.owner, row.task, row.every_ms) == ("code", takes_all.name, 600_000)


def test_old_notes_of_declarations_go(old, new, clock):
    old.poll()
    clock.advance(days=2)
    new.poll()
    assert SeenDeclaration.objects.filter(name="nightly").count() == 1


def test_a_clock_that_is_put_back_retires_nothing_and_versions_go_on(old, new, clock):
    side_by_side(clock, old, minutes=5)
    clock.advance(hours=-3)
    side_by_side(clock, old, minutes=5)
    assert Periodic.objects.get().retired_at is None
    side_by_side(clock, old, new, minutes=1)
    assert Periodic.objects.get().args == ["new"]


@pytest.mark.parametrize("every_ms", [3_600_000, 7_200_000])
def test_a_tick_whose_date_has_passed_keeps_its_job_until_its_jitter_is_over(tables, clock, every_ms):
    versions = Code(), Code()
    for code, every, told in zip(versions, (3_600_000, every_ms), ("old", "new"), strict=True):
        code.declare(every_ms=every, jitter_ms=1_800_000, args=(told,), task=takes_all)
    old, new = versions
    old.poll()
    tick = Tick.objects.get()
    clock.moment = tick.at + (tick.run_at - tick.at) / 2
    new.poll()
    clock.advance(seconds=1)
    new.poll()
    assert Tick.objects.get(pk=tick.pk).fate == "scheduled"
    assert Job.objects.get(pk=tick.job_id).state == "scheduled"
    assert Periodic.objects.get().args == ["new"]
