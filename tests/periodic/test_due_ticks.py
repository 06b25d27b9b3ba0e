"""Each tick of a schedule has one job, which waits in Redis before its date."""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta

import pytest
from django.db import connection
from django.db.utils import OperationalError
from django.test.utils import CaptureQueriesContext

from django_delayq import clock as clocks
from django_delayq import conf, ids
from django_delayq.mirror.relay import RelayLoop
from django_delayq.mirror.restore import RestoreLoop
from django_delayq.models import Event, Job, Periodic, Tick
from django_delayq.periodic import due_ticks, schedules
from django_delayq.periodic.dates import Dates
from django_delayq.periodic.due_ticks import DueTicks, TickWriter
from django_delayq.producer import acts, queues
from django_delayq.producer.stores import stores
from django_delayq.states import PERIODIC, Change
from tests.carriers import TENANT, Tenant
from tests.depths import queue_depth
from tests.periodic.conftest import Code, fates, in_redis
from tests.tasks_for_tests import close_order, ping


def test_the_job_of_the_next_tick_waits_in_redis_before_its_date(code, clock):
    code.declare(every_ms=600_000, args=(7,), kwargs={"note": "by calendar"})
    assert code.poll() == due_ticks.IDLE
    job = Job.objects.get()
    assert (job.task, job.queue, job.args, job.kwargs) == (close_order.name, "orders", [7], {"note": "by calendar"})
    assert f"{job.run_at:%H:%M:%S}" == "12:10:00"
    view = stores.inspector().job("orders", job.pk)
    assert view.state == "scheduled"
    assert view.date_ms == clocks.to_ms(job.run_at)
    assert Tick.objects.get().job_id == job.pk


def test_the_job_says_of_which_schedule_and_tick_it_is(code):
    code.declare("weekly-eu", overlap="skip")
    code.poll()
    told = Job.objects.get().options["meta"][PERIODIC]
    assert told == {"name": "weekly-eu", "tick": "2031-03-04T12:10:00+00:00", "overlap": "skip"}


def test_each_tick_gets_one_job_while_time_passes(code, clock):
    code.declare(every_ms=600_000)
    code.live(clock, seconds=3_600, step=60)
    assert fates() == [(f"{at}:00", "scheduled") for at in ("12:10", "12:20", "12:30", "12:40", "12:50", "13:00", "13:10")]
    assert Job.objects.count() == 7
    assert sorted(Tick.objects.values_list("job_id", flat=True)) == sorted(Job.objects.values_list("pk", flat=True))


def test_ticks_below_a_minute_are_all_there(code, clock):
    code.declare(every_ms=1_000)
    code.poll()
    code.live(clock, seconds=60, step=5)
    written = [f"{at:%H:%M:%S}" for at in Tick.objects.order_by("at").values_list("at", flat=True)]
    assert written == [f"12:{second // 60:02}:{second % 60:02}" for second in range(31, 31 + len(written))]
    assert Tick.objects.filter(at__gt=clock.moment + timedelta(seconds=9)).exists()
    assert Job.objects.count() == len(written)


def test_it_sleeps_until_the_next_tick_is_due_and_five_seconds_at_most(code, clock):
    code.declare(every_ms=60_000)
    assert code.poll() == due_ticks.IDLE
    clock.advance(seconds=28)
    assert code.loop.poll() == 2.0


def test_jitter_is_that_of_the_dates(code):
    declared = code.declare(every_ms=3_600_000, jitter_ms=1_800_000)
    code.poll()
    tick = Tick.objects.get()
    assert tick.run_at == declared.dates.jittered("nightly", tick.at) == Job.objects.get().run_at
    assert tick.at < tick.run_at < tick.at + timedelta(minutes=30)


def test_a_task_of_a_redis_queue_has_rows_all_the_same(code):
    code.declare(task=ping, args=(1,))
    code.poll()
    assert Job.objects.get().durable
    assert Job.objects.get().queue == "redis"


def test_records_of_ticks_are_signed_where_all_are(code, settings):
    settings.DELAYQ = {**settings.DELAYQ, "SIGNING": True}
    code.declare()
    code.poll()
    view = stores.inspector().job("orders", Job.objects.get().pk)
    assert conf.get().signer.standing(view.raw, queue="orders", id=ids.short(view.id)) not in ("unsigned", "wrong")


class OnlyWithTenant(Tenant):
    """Refuses to schedule without a tenant, as a project may."""

    def pack(self) -> object:
        if TENANT.get() is None:
            raise LookupError("no tenant")
        return TENANT.get()


@pytest.mark.parametrize("tenant", ["acme", None])
def test_jobs_of_ticks_and_those_by_hand_carry_nothing_of_the_process_that_writes_them(code, settings, tenant):
    settings.DELAYQ = {**settings.DELAYQ, "CARRIERS": [f"{__name__}.OnlyWithTenant"]}
    code.declare()
    before = TENANT.set(tenant)
    code.poll()
    schedules.run_now("nightly", "sam")
    TENANT.reset(before)
    assert Periodic.objects.get().problem is None
    assert [set(job.options["meta"]) for job in Job.objects.all()] == [{PERIODIC}, {PERIODIC}]


# many at once


def test_of_several_loops_each_tick_gets_one_job(tables, clock):
    workers = [Code() for _ in range(3)]
    for one in workers:
        one.declare(every_ms=60_000)
    for _ in range(30):
        clock.advance(seconds=20)
        for one in workers:
            one.loop.poll()
    assert Tick.objects.count() == Job.objects.count() == 11
    assert len(set(Tick.objects.values_list("at", flat=True))) == 11


def test_a_tick_that_somebody_has_written_gets_no_second_job(code, clock):
    code.declare()
    code.poll()
    before = Job.objects.get().pk
    Periodic.objects.update(decided_to=clock.moment, write_at=clock.moment)  # as after a backup of this table alone
    code.poll()
    assert Job.objects.get().pk == before
    assert Tick.objects.count() == 1
    assert Periodic.objects.get().decided_to == Tick.objects.get().at, "it goes on behind it"


def test_a_schedule_that_another_loop_has_in_hand_is_left_to_it(code, clock, monkeypatch):
    code.declare()
    code.loop._deployments.look(clock.now())
    monkeypatch.setattr(TickWriter, "_locked", lambda self, pks: [])
    assert code.loop.poll() == due_ticks.SOON
    assert not Job.objects.exists()


# clocks


def test_a_database_clock_that_is_put_back_makes_no_second_job(code, clock):
    code.declare(every_ms=600_000)
    code.live(clock, seconds=1_800, step=60)
    before = set(Job.objects.values_list("pk", flat=True))
    clock.advance(minutes=-25)
    code.live(clock, seconds=1_200, step=60)
    assert set(Job.objects.values_list("pk", flat=True)) == before
    code.live(clock, seconds=900, step=60)
    assert Job.objects.count() == len(before) + 1
    assert len(set(Tick.objects.values_list("at", flat=True))) == Job.objects.count()


def test_off_and_on_behind_a_clock_that_was_put_back_makes_no_second_job(code, clock):
    code.declare(every_ms=600_000)
    code.live(clock, seconds=1_800, step=60)
    ran = set(Tick.objects.filter(at__lte=clock.moment).values_list("at", "job_id"))
    clock.advance(minutes=-20)
    schedules.turn_off("nightly", "sam")
    acts_done = set(Tick.objects.filter(fate="scheduled").values_list("at", "job_id"))
    schedules.turn_on("nightly", "sam")
    code.live(clock, seconds=1_200, step=60)
    assert acts_done <= set(Tick.objects.values_list("at", "job_id"))
    assert len(set(Tick.objects.values_list("at", flat=True))) == Tick.objects.count()
    waiting = Job.objects.exclude(state="cancelled").count()
    assert waiting == Tick.objects.filter(fate="scheduled").count()
    assert len(ran) == 3


@pytest.mark.skipif(connection.vendor == "sqlite", reason="on SQLite the host's clock is the database's")
@pytest.mark.parametrize("wrong", [timedelta(minutes=-10), timedelta(minutes=10)])
def test_the_clock_of_a_host_changes_nothing(tables, monkeypatch, wrong):
    now = clocks.now
    monkeypatch.setattr(clocks, "now", lambda: now() + wrong)
    wall_ms = clocks.wall_ms
    monkeypatch.setattr(clocks, "wall_ms", lambda: wall_ms() + int(wrong.total_seconds() * 1000))
    code = Code()
    code.declare(every_ms=3_600_000)
    code.poll()
    tick = Tick.objects.get()
    assert now() < tick.at <= now() + timedelta(hours=1)
    assert Job.objects.get().run_at == tick.at
    assert stores.inspector().job("orders", tick.job_id).date_ms == clocks.to_ms(tick.at)


# missed


@pytest.mark.parametrize(
    ("policy", "jobs", "missed"),
    [("skip", 0, 5), ("once", 1, 4), ("all", 5, 0)],
)
def test_ticks_that_nobody_could_write_are_missed(code, clock, caplog, policy, jobs, missed):
    code.declare(every_ms=600_000, missed=policy)
    code.poll()
    Job.objects.all().delete()
    clock.advance(hours=1, minutes=2)
    code.poll()
    assert Tick.objects.filter(fate="missed").count() == missed
    late = Job.objects.filter(run_at__lt=clock.moment)
    assert late.count() == jobs
    assert Job.objects.count() == jobs + 1, "and the next one"
    if policy == "once":
        assert f"{late.get().run_at:%H:%M}" == "13:00"
    told = [record.getMessage() for record in caplog.records if "no jobs were created" in record.getMessage()]
    assert len(told) == bool(missed)
    assert Event.objects.filter(kind="periodic_missed").count() == bool(missed)
    code.poll()
    assert Tick.objects.filter(fate="missed").count() == missed, "they are told once"


def test_the_database_away_for_less_than_a_period_delays_nothing(code, clock):
    code.declare(every_ms=600_000)
    code.poll()
    clock.advance(minutes=18)  # the job of 12:10 was in Redis all the time
    code.poll()
    assert fates() == [("12:10:00", "scheduled"), ("12:20:00", "scheduled")]


def test_a_schedule_seen_for_the_first_time_has_missed_nothing(code, clock):
    code.declare(every_ms=600_000, missed="all")
    code.poll()
    assert fates() == [("12:10:00", "scheduled")]


# troubles


def test_redis_away_leaves_ticks_as_rows_and_the_relay_publishes_them(code, clock, settings, redis_server):
    code.declare(every_ms=600_000)
    there = settings.DELAYQ
    settings.DELAYQ = {**there, "REDIS": "unix:///nowhere/redis.sock"}
    code.poll()
    clock.advance(minutes=10)
    code.poll()
    assert fates() == [("12:10:00", "scheduled"), ("12:20:00", "scheduled")]
    settings.DELAYQ = there
    assert [in_redis(job) for job in Job.objects.all()] == ["", ""]
    relay = RelayLoop(stores.link, conf.get().queue("orders"), prefix="delayq", young=0)
    relay.poll()
    assert [in_redis(job) for job in Job.objects.all()] == ["scheduled", "scheduled"]


def test_a_loop_that_dies_behind_its_commit_loses_nothing(code, monkeypatch):
    code.declare()
    with monkeypatch.context() as patch:
        patch.setattr("django_delayq.producer.put._send_rows", lambda publisher, puts: [])
        code.poll()
    assert in_redis(Job.objects.get()) == ""
    RelayLoop(stores.link, conf.get().queue("orders"), prefix="delayq", young=0).poll()
    assert in_redis(Job.objects.get()) == "scheduled"


def test_a_loop_that_dies_before_its_commit_leaves_nothing_behind(code, monkeypatch):
    code.declare()
    with monkeypatch.context() as patch, pytest.raises(OperationalError):

        def die(*args):
            raise OperationalError("the connection is gone")

        patch.setattr(due_ticks, "failpoint", die)
        code.loop.poll()
    assert not Job.objects.exists()
    assert not Tick.objects.exists()
    code.poll()
    assert Tick.objects.count() == Job.objects.count() == 1


def test_a_wiped_redis_gets_the_waiting_ticks_back_once(code, fold, redis_server):
    code.declare()
    code.declare("other", every_ms=900_000)
    code.poll()
    fold()
    redis_server.link.execute("FLUSHALL")
    stores.reset()
    loop = RestoreLoop(stores.link, conf.get().queue("orders"), prefix="delayq")
    for _ in range(10):
        loop.poll()
    fold()
    assert [in_redis(job) for job in Job.objects.all()] == ["scheduled", "scheduled"]
    assert queue_depth("orders").scheduled == 2


def test_right_behind_a_wipe_what_is_due_may_have_begun_and_is_not_cancelled(code, clock, fold, redis_server):
    clock.advance(days=-3650)  # so the clock of Redis is ahead
    code.declare()
    code.poll()
    fold()
    redis_server.link.execute("FLUSHALL")
    stores.reset()
    schedules.turn_off("nightly", "sam")
    assert [fate for _, fate in fates()] == ["scheduled"]
    loop = RestoreLoop(stores.link, conf.get().queue("orders"), prefix="delayq")
    for _ in range(10):
        loop.poll()
    tick = Tick.objects.get()
    assert in_redis(tick) == "scheduled"
    assert acts.cancel(tick.job_id) is Change.RUNNING, "a person still can, and it ends when it would begin"


def test_one_that_cannot_be_written_does_not_stop_the_others(code, clock, caplog):
    code.declare("good")
    code.declare("refused", args=())
    code.declare("zone", cron="0 3 * * *", timezone="Mars/Olympus")
    code.poll()
    assert [tick.schedule.name for tick in Tick.objects.all()] == ["good"]
    for _ in range(3):
        clock.advance(seconds=40)
        code.poll()
    told = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert len(told) == 2, "each is told once"
    assert Periodic.objects.get(name="good").problem is None
    problems = {row.name: row.problem for row in Periodic.objects.exclude(name="good")}
    assert problems["refused"]["code"] == "argument_missing"
    assert problems["zone"]["code"] == "config"
    assert "Mars/Olympus" in problems["zone"]["fields"]["message"]


def test_rows_that_the_database_refuses_are_told_and_stop_no_other_schedule(code, clock, monkeypatch, caplog):
    for name in ("refused", "good", "late"):
        code.declare(name)
    put = due_ticks.schedule_many

    def refuse(bindings):
        if any(binding.tick["name"] == "refused" for binding in bindings):
            Periodic.objects.bulk_create([Periodic(name="good", decided_to=clock.moment, created_at=clock.moment)])
        return put(bindings)

    monkeypatch.setattr(due_ticks, "schedule_many", refuse)
    for _ in range(3):
        code.poll()
        assert code.loop.poll() == due_ticks.IDLE, "it is not tried again at once"
        clock.advance(seconds=40)
    assert sorted(tick.schedule.name for tick in Tick.objects.all()) == ["good", "late"]
    told = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert len(told) == 1
    assert "refused" in told[0]
    assert Periodic.objects.get(name="refused").problem["fields"]["kind"] == "IntegrityError"


def test_trouble_that_is_over_is_told_no_more(code, clock):
    code.declare("refused", args=())
    code.poll()
    clock.advance(seconds=40)
    code.poll()
    assert Periodic.objects.get().problem
    Periodic.objects.update(args=[7])
    clock.advance(seconds=40)
    code.poll()
    assert Periodic.objects.get().problem is None
    assert Job.objects.count() == 1


def test_a_schedule_of_the_admin_whose_task_nobody_has_says_so(code, clock):
    schedules.create("theirs", close_order.name, every="10m", args=(1,), actor="sam")
    Periodic.objects.update(task="app.tasks.gone")
    code.poll()
    assert Periodic.objects.get().problem is None, "another worker may have it"
    clock.advance(seconds=40)
    code.poll()
    assert Periodic.objects.get().problem == {"code": "task_unknown", "fields": {"name": "app.tasks.gone"}}


def test_a_job_that_cannot_be_cancelled_stops_no_other_schedule(code, clock, settings):
    code.declare()
    code.poll()
    there = settings.DELAYQ
    settings.DELAYQ = {**there, "QUEUES": {"default": {}, "redis": {"DURABILITY": "redis"}}}  # without "orders"
    schedules.turn_off("nightly", "sam")
    assert fates() == [("12:10:00", "withdrawn")]
    code.declare("other", task=ping, args=(1,))
    clock.advance(seconds=31)
    code.poll()
    assert [tick.fate for tick in Tick.objects.filter(schedule__name="other")] == ["scheduled"]
    settings.DELAYQ = there
    clock.advance(seconds=31)
    code.poll()
    assert fates() == [("12:10:00", "cancelled")]


def test_on_a_paused_queue_ticks_go_on_and_their_jobs_wait(code, clock):
    queues.pause("orders", actor="sam")
    code.declare(every_ms=600_000)
    code.live(clock, seconds=1_800, step=60)
    assert Job.objects.filter(run_at__lte=clock.moment).count() == 3
    assert {in_redis(job) for job in Job.objects.all()} == {"scheduled"}


@pytest.mark.skipif(connection.vendor != "mysql", reason="other databases tell such names apart")
def test_names_that_the_database_takes_for_one_are_told(code, clock, caplog):
    code.declare("nightly")
    code.declare("Nightly")
    code.poll()
    clock.advance(seconds=31)
    code.poll()
    assert Periodic.objects.count() == 1
    assert len([record for record in caplog.records if "treats its name as equal to that of another" in record.getMessage()]) == 1


def test_a_person_may_cancel_the_job_of_a_tick_like_any_other(code, clock):
    code.declare(every_ms=600_000)
    code.poll()
    assert acts.cancel(Job.objects.get().pk) is Change.DONE
    clock.advance(minutes=10)
    code.poll()
    assert fates() == [("12:10:00", "scheduled"), ("12:20:00", "scheduled")]
    assert Job.objects.filter(state="cancelled").count() == 1


# costs


def test_without_schedules_it_asks_once_a_minute(code):
    with CaptureQueriesContext(connection) as asked:
        assert code.loop.poll() == due_ticks.UNUSED
    assert len(asked) == 1


def test_a_thousand_schedules_of_which_none_is_due_cost_three_queries(code, clock):
    for number in range(1_000):
        code.declare(f"s{number:04}", every_ms=3_600_000)
    code.poll(200)
    assert Tick.objects.count() == Job.objects.count() == 1_000
    clock.advance(seconds=5)
    with CaptureQueriesContext(connection) as asked:
        assert code.loop.poll() == due_ticks.IDLE
    assert len(asked) <= 3, [query["sql"][:120] for query in asked]


def test_a_thousand_schedules_that_are_due_at_once_are_written_a_hundred_by_a_hundred(code, clock):
    for number in range(1_000):
        code.declare(f"s{number:04}", every_ms=3_600_000)
    code.poll(200)
    clock.moment = clock.moment.replace(hour=13, minute=0, second=0)
    code.loop._looked = clock.moment
    with CaptureQueriesContext(connection) as asked:
        assert code.loop.poll() == 0.0
    assert Tick.objects.count() == 1_100
    assert len(asked) <= 20, [query["sql"][:120] for query in asked]


def test_a_look_at_who_declares_what_costs_the_same_for_a_thousand(code, clock):
    for number in range(1_000):
        code.declare(f"s{number:04}", every_ms=86_400_000)
    code.poll(200)
    clock.advance(seconds=31)
    with CaptureQueriesContext(connection) as asked:
        code.loop.poll()
    assert len(asked) <= 8, [query["sql"][:120] for query in asked]


def test_what_nobody_expected_ends_no_pass_of_the_record_keeper_and_is_logged(code, clock, monkeypatch, caplog):
    code.declare()
    loop = due_ticks.UnendingLoop(code.loop)

    def broken(_now):
        raise TypeError("can't compare")

    with monkeypatch.context() as patch:
        patch.setattr(code.loop._deployments, "look", broken)
        assert loop.poll() > 0
    assert "schedules do not run here" in caplog.text
    loop.poll()
    assert Tick.objects.count() == 1


def test_where_jobs_run_at_once_no_ticks_are_written(code, settings):
    settings.DELAYQ = {**settings.DELAYQ, "INLINE": True}
    code.declare()
    assert code.loop.poll() == due_ticks.UNUSED
    assert not Tick.objects.exists()


# Which ticks get a job, and which passed without

NOON = datetime(2031, 3, 4, 12, tzinfo=UTC)
TEN_MINUTES = Dates(every_ms=600_000)


def at(text: str) -> datetime:
    return datetime.combine(NOON.date(), datetime.strptime(text, "%H:%M:%S").time(), UTC)


def shown(ticks) -> list[str]:
    return [f"{tick:%H:%M:%S}" for tick in ticks]


def found(dates: Dates = TEN_MINUTES, missed: str = "once", *, since: str, now: str) -> DueTicks:
    return due_ticks.due_ticks(dates, "name", missed, at(since), at(now))


def test_a_new_schedule_has_its_next_tick_written_and_nothing_of_the_past():
    got = found(since="12:00:30", now="12:00:30")
    assert shown(got.jobs) == ["12:10:00"]
    assert not got.missed
    assert got.decided_to == at("12:10:00")


def test_one_looks_again_when_that_tick_is_due():
    assert found(since="12:00:30", now="12:00:30").write_at == at("12:10:00")


def test_a_tick_is_written_when_the_one_before_it_is_due():
    got = found(since="12:10:00", now="12:10:00")
    assert shown(got.jobs) == ["12:20:00"], "the one at 12:10 has its job"


def test_of_short_periods_all_that_is_near_is_written():
    got = found(Dates(every_ms=2_000), since="12:00:00", now="12:00:00")
    assert shown(got.jobs) == [f"12:00:{second:02}" for second in range(2, 16, 2)]
    assert got.write_at == at("12:00:16") - due_ticks.NEAR, "so the ticks of the next ten seconds always have their jobs"


def test_what_is_less_than_a_minute_late_is_not_missed():
    got = found(missed="skip", since="12:00:30", now="12:10:59")
    assert shown(got.jobs) == ["12:10:00", "12:20:00"]
    assert not got.missed


@pytest.mark.parametrize(
    ("policy", "jobs", "missed"),
    [
        ("skip", ["12:40:00"], ["12:10:00", "12:20:00", "12:30:00"]),
        ("once", ["12:30:00", "12:40:00"], ["12:10:00", "12:20:00"]),
        ("all", ["12:10:00", "12:20:00", "12:30:00", "12:40:00"], []),
    ],
)
def test_what_becomes_of_missed_ticks_is_the_policy_of_the_schedule(policy, jobs, missed):
    got = found(missed=policy, since="12:00:30", now="12:35:00")
    assert shown(got.jobs) == jobs
    assert shown(got.missed) == missed
    assert got.decided_to == at("12:40:00")


def test_at_most_a_hundred_missed_ticks_get_a_job_and_the_rest_is_told():
    minutely = Dates(every_ms=60_000)
    got = due_ticks.due_ticks(minutely, "name", "all", NOON - timedelta(days=20), NOON + timedelta(seconds=30))
    assert len([tick for tick in got.jobs if tick <= NOON]) == due_ticks.MOST_MISSED
    assert NOON in got.jobs, "that one is not missed"
    assert len(got.missed) == due_ticks.MOST_MISSED
    assert got.since == NOON - timedelta(days=20)
    assert max(got.missed) < min(got.jobs), "the newest ones get a job"


def test_rows_of_missed_ticks_are_a_hundred_at_most_and_the_rest_is_told():
    got = due_ticks.due_ticks(
        Dates(every_ms=60_000), "name", "skip", NOON - timedelta(minutes=150, seconds=30), NOON + timedelta(seconds=30)
    )
    assert len(got.missed) == due_ticks.MOST_MISSED
    assert got.since == NOON - timedelta(minutes=150)
    assert got.missed[-1] == NOON - timedelta(minutes=1)


def test_a_year_without_a_worker_costs_as_many_dates_as_it_takes_to_find_the_newest(monkeypatch):
    asked = []
    after = Dates.after

    def counted(self, moment):
        for tick in after(self, moment):
            asked.append(tick)
            yield tick

    monkeypatch.setattr(Dates, "after", counted)
    got = due_ticks.due_ticks(Dates(cron="* * * * *"), "name", "all", NOON - timedelta(days=365), NOON + timedelta(seconds=30))
    assert len(asked) < 5_000
    assert got.since == NOON - timedelta(days=365)
    assert len([tick for tick in got.jobs if tick <= NOON]) == due_ticks.MOST_MISSED


def test_rare_ticks_are_found_however_long_ago():
    yearly = Dates(cron="0 0 1 1 *")
    got = due_ticks.due_ticks(yearly, "name", "all", datetime(2010, 6, 1, tzinfo=UTC), datetime(2014, 6, 1, tzinfo=UTC))
    assert [tick.year for tick in got.jobs] == [2011, 2012, 2013, 2014, 2015]
    assert got.since is None


def test_with_jitter_the_date_of_the_job_says_whether_it_is_missed():
    dates = Dates(every_ms=3_600_000, jitter_ms=1_800_000)
    tick = at("13:00:00")
    date = dates.jittered("name", tick)
    assert date > tick + timedelta(minutes=2)
    before = due_ticks.due_ticks(dates, "name", "skip", at("12:30:00"), date + due_ticks.LATE)
    assert tick in before.jobs
    behind = due_ticks.due_ticks(dates, "name", "skip", at("12:30:00"), date + due_ticks.LATE + timedelta(seconds=1))
    assert behind.missed == [tick]


@pytest.mark.parametrize("policy", ["skip", "once", "all"])
def test_ticks_that_are_late_within_their_jitter_are_a_hundred_at_most_with_the_missed_ones(policy):
    dates = Dates(cron="* * * * *", jitter_ms=6 * 3_600_000)
    got = due_ticks.due_ticks(dates, "name", policy, NOON - timedelta(hours=20), NOON + timedelta(seconds=30))
    past = [tick for tick in got.jobs if tick <= NOON]
    assert len(past) == due_ticks.MOST_MISSED
    assert all(dates.jittered("name", tick) >= NOON + timedelta(seconds=30) - due_ticks.LATE for tick in past)
    assert (len(got.missed), got.since) == (due_ticks.MOST_MISSED, NOON - timedelta(hours=20) + timedelta(minutes=1))
    assert not set(got.missed) & set(got.jobs)
    assert got.decided_to > NOON


def test_what_is_late_within_its_jitter_leaves_room_for_some_that_are_missed():
    dates = Dates(cron="* * * * *", jitter_ms=1_800_000)
    late, fresh = (
        due_ticks.due_ticks(dates, "name", policy, NOON - timedelta(hours=20), NOON + timedelta(seconds=30))
        for policy in ("all", "skip")
    )
    assert 0 < len([tick for tick in fresh.jobs if tick <= NOON]) < 31
    assert len([tick for tick in late.jobs if tick <= NOON]) == due_ticks.MOST_MISSED
    assert set(fresh.jobs) < set(late.jobs)


def test_a_schedule_that_never_comes_again_is_left_alone():
    got = due_ticks.due_ticks(Dates(cron="0 0 30 2 *"), "name", "once", at("12:00:00"), at("12:00:00"))
    assert not got.jobs
    assert got.write_at is None


def test_what_is_decided_stays_so_when_the_clock_is_put_back():
    got = found(since="12:40:00", now="12:05:00")
    assert shown(got.jobs) == ["12:50:00"]
    assert not got.missed
