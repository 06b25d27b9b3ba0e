"""Which ticks of a schedule get a job, and which have passed without."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from django_delayq.periodic import portion as module
from django_delayq.periodic.dates import Dates
from django_delayq.periodic.portion import Portion, portion

NOON = datetime(2031, 3, 4, 12, tzinfo=UTC)
TEN_MINUTES = Dates(every_ms=600_000)


def at(text: str) -> datetime:
    return datetime.combine(NOON.date(), datetime.strptime(text, "%H:%M:%S").time(), UTC)


def shown(ticks) -> list[str]:
    return [f"{tick:%H:%M:%S}" for tick in ticks]


def found(dates: Dates = TEN_MINUTES, missed: str = "once", *, since: str, now: str) -> Portion:
    return portion(dates, "name", missed, at(since), at(now))


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
    assert got.write_at == at("12:00:16") - module.NEAR, "so the ticks of the next ten seconds always have their jobs"


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
    got = portion(minutely, "name", "all", NOON - timedelta(days=20), NOON + timedelta(seconds=30))
    assert len([tick for tick in got.jobs if tick <= NOON]) == module.MOST_MISSED
    assert NOON in got.jobs, "that one is not missed"
    assert len(got.missed) == module.MOST_MISSED
    assert got.since == NOON - timedelta(days=20)
    assert max(got.missed) < min(got.jobs), "the newest ones get a job"


def test_rows_of_missed_ticks_are_a_hundred_at_most_and_the_rest_is_told():
    got = portion(Dates(every_ms=60_000), "name", "skip", NOON - timedelta(minutes=150, seconds=30), NOON + timedelta(seconds=30))
    assert len(got.missed) == module.MOST_MISSED
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
    got = portion(Dates(cron="* * * * *"), "name", "all", NOON - timedelta(days=365), NOON + timedelta(seconds=30))
    assert len(asked) < 5_000
    assert got.since == NOON - timedelta(days=365)
    assert len([tick for tick in got.jobs if tick <= NOON]) == module.MOST_MISSED


def test_rare_ticks_are_found_however_long_ago():
    yearly = Dates(cron="0 0 1 1 *")
    got = portion(yearly, "name", "all", datetime(2010, 6, 1, tzinfo=UTC), datetime(2014, 6, 1, tzinfo=UTC))
    assert [tick.year for tick in got.jobs] == [2011, 2012, 2013, 2014, 2015]
    assert got.since is None


def test_with_jitter_the_date_of_the_job_says_whether_it_is_missed():
    dates = Dates(every_ms=3_600_000, jitter_ms=1_800_000)
    tick = at("13:00:00")
    date = dates.jittered("name", tick)
    assert date > tick + timedelta(minutes=2)
    before = portion(dates, "name", "skip", at("12:30:00"), date + module.LATE)
    assert tick in before.jobs
    behind = portion(dates, "name", "skip", at("12:30:00"), date + module.LATE + timedelta(seconds=1))
    assert behind.missed == [tick]


@pytest.mark.parametrize("policy", ["skip", "once", "all"])
def test_ticks_that_are_late_within_their_jitter_are_a_hundred_at_most_with_the_missed_ones(policy):
    dates = Dates(cron="* * * * *", jitter_ms=6 * 3_600_000)
    got = portion(dates, "name", policy, NOON - timedelta(hours=20), NOON + timedelta(seconds=30))
    past = [tick for tick in got.jobs if tick <= NOON]
    assert len(past) == module.MOST_MISSED
    assert all(dates.jittered("name", tick) >= NOON + timedelta(seconds=30) - module.LATE for tick in past)
    assert (len(got.missed), got.since) == (module.MOST_MISSED, NOON - timedelta(hours=20) + timedelta(minutes=1))
    assert not set(got.missed) & set(got.jobs)
    assert got.decided_to > NOON


def test_what_is_late_within_its_jitter_leaves_room_for_some_that_are_missed():
    dates = Dates(cron="* * * * *", jitter_ms=1_800_000)
    late, fresh = (
        portion(dates, "name", policy, NOON - timedelta(hours=20), NOON + timedelta(seconds=30)) for policy in ("all", "skip")
    )
    assert 0 < len([tick for tick in fresh.jobs if tick <= NOON]) < 31
    assert len([tick for tick in late.jobs if tick <= NOON]) == module.MOST_MISSED
    assert set(fresh.jobs) < set(late.jobs)


def test_a_schedule_that_never_comes_again_is_left_alone():
    got = portion(Dates(cron="0 0 30 2 *"), "name", "once", at("12:00:00"), at("12:00:00"))
    assert not got.jobs
    assert got.write_at is None


def test_what_is_decided_stays_so_when_the_clock_is_put_back():
    got = found(since="12:40:00", now="12:05:00")
    assert shown(got.jobs) == ["12:50:00"]
    assert not got.missed
