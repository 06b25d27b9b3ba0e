"""The dates of schedules, exact to the second, across clock changes, checked against an oracle that goes minute by minute."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from functools import cache
from itertools import islice, pairwise, takewhile
from zoneinfo import ZoneInfo, available_timezones

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from django_delayq.exceptions import ConfigError
from django_delayq.periodic import dates
from django_delayq.periodic.dates import Dates

MINUTE, DAY = timedelta(minutes=1), timedelta(days=1)
SOME_DAY = datetime(2026, 1, 1, tzinfo=UTC)


def ticks(cron: str, zone: str, since: str, number: int = 3) -> list[str]:
    """Returns the next ticks after a local time, in the local time of the zone, with its offset."""
    begin = datetime.fromisoformat(since).replace(tzinfo=ZoneInfo(zone))
    found = islice(Dates(cron, timezone=zone).after(begin), number)
    return [f"{tick.astimezone(ZoneInfo(zone)):%m-%d %H:%M%z}" for tick in found]


# fixed times


@pytest.mark.parametrize(
    ("cron", "zone", "since", "said"),
    [
        # The clock goes from 2 to 3: once, at three.
        ("30 2 * * *", "Europe/Berlin", "2026-03-28T00:00", ["03-28 02:30+0100", "03-29 03:00+0200", "03-30 02:30+0200"]),
        ("0,30 2 * * *", "Europe/Berlin", "2026-03-29T00:00", ["03-29 03:00+0200", "03-30 02:00+0200", "03-30 02:30+0200"]),
        ("0-59/20 2,3 * * *", "Europe/Berlin", "2026-03-29T00:00", ["03-29 03:00+0200", "03-29 03:20+0200", "03-29 03:40+0200"]),
        ("30 2 * * *", "America/New_York", "2026-03-07T12:00", ["03-08 03:00-0400", "03-09 02:30-0400", "03-10 02:30-0400"]),
        # It goes from 2 to 2:30.
        ("15 2 * * *", "Australia/Lord_Howe", "2026-10-03T12:00", ["10-04 02:30+1100", "10-05 02:15+1100", "10-06 02:15+1100"]),
        # There is no midnight.
        ("0 0 * * *", "America/Sao_Paulo", "2018-11-03T12:00", ["11-04 01:00-0200", "11-05 00:00-0200", "11-06 00:00-0200"]),
        ("0 0 * * *", "Asia/Beirut", "2026-03-28T12:00", ["03-29 01:00+0300", "03-30 00:00+0300", "03-31 00:00+0300"]),
        # There is no 30th of December: its tick comes at its end.
        ("0 3 * * *", "Pacific/Apia", "2011-12-29T00:00", ["12-29 03:00-1000", "12-31 00:00+1400", "12-31 03:00+1400"]),
        ("0 3 30 12 *", "Pacific/Apia", "2011-12-29T00:00", ["12-31 00:00+1400", "12-30 03:00+1400", "12-30 03:00+1400"]),
        # The clock goes from 3 to 2: once, the first time.
        ("30 2 * * *", "Europe/Berlin", "2026-10-24T12:00", ["10-25 02:30+0200", "10-26 02:30+0100", "10-27 02:30+0100"]),
        ("0,30 2 * * *", "Europe/Berlin", "2026-10-24T12:00", ["10-25 02:00+0200", "10-25 02:30+0200", "10-26 02:00+0100"]),
        ("30 1 * * *", "America/New_York", "2026-10-31T12:00", ["11-01 01:30-0400", "11-02 01:30-0500", "11-03 01:30-0500"]),
        ("45 1 * * *", "Australia/Lord_Howe", "2026-04-04T12:00", ["04-05 01:45+1100", "04-06 01:45+1030", "04-07 01:45+1030"]),
        ("30 23 * * *", "America/Sao_Paulo", "2018-02-17T12:00", ["02-17 23:30-0200", "02-18 23:30-0300", "02-19 23:30-0300"]),
    ],
)
def test_a_fixed_time_comes_once_a_day_whatever_the_clock_does(cron, zone, since, said):
    assert ticks(cron, zone, since) == said


def test_who_begins_in_the_repeated_hour_gets_no_tick_that_is_over():
    second = datetime(2026, 10, 25, 2, 15, fold=1, tzinfo=ZoneInfo("Europe/Berlin"))
    assert Dates("30 2 * * *", timezone="Europe/Berlin").first_after(second) == datetime(2026, 10, 26, 1, 30, tzinfo=UTC)


def test_who_begins_at_the_end_of_a_gap_gets_the_next_day():
    end = datetime(2026, 3, 29, 1, tzinfo=UTC)
    found = Dates("30 2 * * *", timezone="Europe/Berlin")
    assert found.first_after(end) == datetime(2026, 3, 30, 0, 30, tzinfo=UTC)
    assert found.first_after(end - timedelta(microseconds=1)) == end


# any other cron


@pytest.mark.parametrize(
    ("cron", "zone", "since", "said"),
    [
        ("0 * * * *", "Europe/Berlin", "2026-03-29T00:30", ["03-29 01:00+0100", "03-29 03:00+0200", "03-29 04:00+0200"]),
        ("0 * * * *", "Europe/Berlin", "2026-10-25T01:30", ["10-25 02:00+0200", "10-25 02:00+0100", "10-25 03:00+0100"]),
        ("*/30 * * * *", "Europe/Berlin", "2026-10-25T02:00", ["10-25 02:30+0200", "10-25 02:00+0100", "10-25 02:30+0100"]),
        # The next day that has such a time is a year away, and the clock is changed before.
        ("*/30 2 25 10 *", "Europe/Berlin", "2026-10-25T02:00", ["10-25 02:30+0200", "10-25 02:00+0100", "10-25 02:30+0100"]),
        ("*/30 2 * * *", "Europe/Berlin", "2026-03-28T12:00", ["03-30 02:00+0200", "03-30 02:30+0200", "03-31 02:00+0200"]),
        ("0 */2 * * *", "Europe/Berlin", "2026-03-29T00:00", ["03-29 04:00+0200", "03-29 06:00+0200", "03-29 08:00+0200"]),
        ("*/10 3 * * *", "Australia/Lord_Howe", "2026-10-04T00:00", ["10-04 03:00+1100", "10-04 03:10+1100", "10-04 03:20+1100"]),
        ("*/20 * * * *", "Australia/Lord_Howe", "2026-10-04T01:30", ["10-04 01:40+1030", "10-04 02:40+1100", "10-04 03:00+1100"]),
        ("*/20 1,2 * * *", "Australia/Lord_Howe", "2026-04-05T01:25", ["04-05 01:40+1100", "04-05 01:40+1030", "04-05 02:00+1030"]),
        ("*/30 0 * * *", "America/Sao_Paulo", "2018-11-03T12:00", ["11-05 00:00-0200", "11-05 00:30-0200", "11-06 00:00-0200"]),
        ("0 * * * *", "Asia/Beirut", "2026-03-28T22:30", ["03-28 23:00+0200", "03-29 01:00+0300", "03-29 02:00+0300"]),
        ("0 */12 * * *", "Pacific/Apia", "2011-12-29T00:00", ["12-29 12:00-1000", "12-31 00:00+1400", "12-31 12:00+1400"]),
    ],
)
def test_a_cron_with_a_star_for_hour_or_minute_comes_whenever_the_clock_shows_it(cron, zone, since, said):
    assert ticks(cron, zone, since) == said


@pytest.mark.parametrize(
    ("zone", "year"), [("Europe/Berlin", 2026), ("Asia/Beirut", 2026), ("America/Sao_Paulo", 2018), ("Pacific/Apia", 2011)]
)
def test_every_quarter_of_an_hour_is_a_quarter_of_an_hour_all_year(zone, year):
    found = list(
        takewhile(lambda tick: tick.year == year, Dates("*/15 * * * *", timezone=zone).after(datetime(year, 1, 1, tzinfo=UTC)))
    )
    assert {b - a for a, b in pairwise(found)} == {15 * MINUTE}
    assert len(found) > 35_000


# the calendar


def days(cron: str, number: int, since: datetime = SOME_DAY) -> list[str]:
    return [f"{tick:%Y-%m-%d}" for tick in islice(Dates(cron).after(since), number)]


def test_leap_days_come_every_four_years_but_not_in_2100():
    assert days("0 0 29 2 *", 3) == ["2028-02-29", "2032-02-29", "2036-02-29"]
    assert days("0 0 29 2 *", 2, datetime(2094, 1, 1, tzinfo=UTC)) == ["2096-02-29", "2104-02-29"]


def test_the_longest_wait_is_found():
    # A 29th of February on a Sunday: 2100 is no leap year.
    assert days("0 0 29 2 */7", 1, datetime(2088, 3, 1, tzinfo=UTC)) == ["2128-02-29"]
    assert date(2088, 2, 29).weekday() == date(2128, 2, 29).weekday() == 6


def test_the_last_day_of_the_month():
    assert days("0 0 L * *", 4) == ["2026-01-31", "2026-02-28", "2026-03-31", "2026-04-30"]
    assert days("0 0 L 2 *", 3) == ["2026-02-28", "2027-02-28", "2028-02-29"]
    assert days("0 0 LW * *", 3) == ["2026-01-30", "2026-02-27", "2026-03-31"]


def test_months_without_a_31st_are_left_out():
    assert days("0 0 31 * *", 4) == ["2026-01-31", "2026-03-31", "2026-05-31", "2026-07-31"]
    assert days("0 0 30 * *", 3) == ["2026-01-30", "2026-03-30", "2026-04-30"]


def test_days_of_the_week():
    assert days("0 0 * * MON#2", 2) == ["2026-01-12", "2026-02-09"]
    assert days("0 0 * * 5L", 2) == ["2026-01-30", "2026-02-27"]
    assert days("0 0 * * 0", 2) == days("0 0 * * 7", 2) == days("0 0 * * sun", 2) == ["2026-01-04", "2026-01-11"]


def test_day_of_month_and_day_of_week_are_either_unless_one_begins_with_a_star():
    assert days("0 0 13 * FRI", 4) == ["2026-01-02", "2026-01-09", "2026-01-13", "2026-01-16"]
    assert days("0 0 */2 * FRI", 3) == ["2026-01-09", "2026-01-23", "2026-02-13"]


@pytest.mark.parametrize("cron", ["0 0 30 2 *", "0 0 31 4,6,9,11 *", "0 0 */15 2 MON#5"])
def test_a_cron_that_never_fires_says_so_and_is_looked_for_once(monkeypatch, cron):
    found = Dates(cron)
    assert found.fires is False

    def no_more(*_: object) -> None:
        raise AssertionError("looked for again")

    monkeypatch.setattr(dates, "_walls", no_more)
    assert list(found.after(SOME_DAY)) == []
    assert found.first_after(SOME_DAY) is None
    assert found.fires is False
    assert found.words == found.text


def test_a_cron_that_is_always_in_a_gap_is_given_up():
    always = Dates("*/30 2 * 3 7L", timezone="Europe/Berlin")  # the hour that is left out each year
    assert always.first_after(SOME_DAY) is None
    assert next(islice(Dates("*/30 2,3 * 3 7L", timezone="Europe/Berlin").after(SOME_DAY), 100, None)).year == 2076


def test_the_end_of_all_years_ends_the_ticks():
    assert list(Dates("0 0 31 12 *", timezone="Asia/Tokyo").after(datetime(9998, 6, 1, tzinfo=UTC)))[-1].year in (9998, 9999)
    assert len(list(Dates(every_ms=86_400_000).after(datetime(9999, 12, 1, tzinfo=UTC)))) == 30
    last = Dates("0 * * * *", timezone="America/New_York").after(datetime(9999, 12, 31, 20, tzinfo=UTC))
    assert [tick.hour for tick in last] == [21, 22, 23]


# periods


def test_a_period_counts_from_1970_in_elapsed_time():
    assert days("", 0) == []
    found = list(islice(Dates(every_ms=7 * 86_400_000).after(SOME_DAY), 2))
    assert [f"{tick:%a %F %T}" for tick in found] == ["Thu 2026-01-08 00:00:00", "Thu 2026-01-15 00:00:00"]


@given(st.integers(1_000, 10**9), st.datetimes(datetime(1960, 1, 1), datetime(2200, 1, 1), timezones=st.just(UTC)))
@example(1_000, datetime(2026, 1, 1, 0, 0, 0, 999_999, tzinfo=UTC))
@example(1_500, datetime(1969, 12, 31, 23, 59, 59, 1, tzinfo=UTC))
def test_the_ticks_of_a_period_are_its_multiples(every_ms, moment):
    first, second = islice(Dates(every_ms=every_ms).after(moment), 2)
    period = timedelta(milliseconds=every_ms)
    assert first - period <= moment < first
    assert second - first == period
    assert (first - datetime(1970, 1, 1, tzinfo=UTC)) % period == timedelta(0)


# jitter


def test_jitter_is_the_same_for_all_who_ask_and_spreads_what_ticks_together():
    found = Dates("0 3 * * *", jitter_ms=300_000)
    tick = datetime(2026, 1, 1, 3, tzinfo=UTC)
    assert found.jittered("nightly", tick) == Dates("0 3 * * *", jitter_ms=300_000).jittered("nightly", tick)
    assert found.jittered("nightly", tick) == datetime(2026, 1, 1, 3, 3, 27, 196_000, tzinfo=UTC)  # for good: releases agree
    late = {found.jittered(f"schedule {number}", tick) - tick for number in range(200)}
    assert min(late) >= timedelta(0)
    assert max(late) < timedelta(minutes=5)
    assert len(late) > 190
    assert max(late) - min(late) > timedelta(minutes=4)
    assert len({found.jittered("nightly", tick + number * DAY) - tick - number * DAY for number in range(20)}) == 20


def test_without_jitter_a_tick_is_a_tick():
    tick = datetime(2026, 1, 1, 3, tzinfo=UTC)
    assert Dates("0 3 * * *").jittered("nightly", tick) == tick


# the oracle


Cron = tuple[str, ...]
RANGES = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 7))
ZONES = sorted(
    {
        "UTC",
        "Africa/Cairo",  # midnight, and a day before it, in a gap
        "Africa/Casablanca",  # the clock goes back in summer
        "America/Havana",  # an overlap that ends at one, a gap at midnight
        "America/New_York",
        "America/Nuuk",  # a gap that ends the day
        "America/Sao_Paulo",
        "America/St_Johns",  # half an hour off, once at a minute past midnight
        "Antarctica/Troll",  # two hours at once
        "Asia/Beirut",
        "Asia/Kathmandu",  # 5:45
        "Asia/Pyongyang",  # half an hour, once
        "Australia/Lord_Howe",
        "Europe/Berlin",
        "Europe/Dublin",  # standard time is that of summer
        "Pacific/Apia",  # a day left out
        "Pacific/Kwajalein",  # another one
        "America/Caracas",
    }
    & available_timezones()
)


def values(field: str, low: int, high: int) -> set[int]:
    found: set[int] = set()
    for term in field.split(","):
        term, _, step = term.partition("/")
        first, _, last = term.partition("-")
        begin = low if first == "*" else int(first)
        end = high if first == "*" or (step and not last) else int(last or first)
        found |= set(range(begin, end + 1, int(step or 1)))
    return found


@cache
def sets(cron: str) -> list[set[int]]:
    return [values(field, *bounds) for field, bounds in zip(cron.split(), RANGES, strict=True)]


def matches(cron: str, wall: datetime) -> bool:
    minutes, hours, month_days, months, weekdays = sets(cron)
    if wall.minute not in minutes or wall.hour not in hours or wall.month not in months:
        return False
    by_month, by_week = wall.day in month_days, bool({wall.isoweekday(), wall.isoweekday() % 7} & weekdays)
    _, _, month_field, _, week_field = cron.split()
    both = month_field.startswith("*") or week_field.startswith("*")
    return (by_month and by_week) if both else (by_month or by_week)


def by_the_minute(cron: str, zone: ZoneInfo, begin: datetime, end: datetime) -> Iterator[datetime]:
    """Simulates a watchman who looks at the clock once a minute and remembers the latest time that it has shown."""
    star = any(field.startswith("*") for field in cron.split()[:2])
    latest = (begin - MINUTE).astimezone(zone).replace(tzinfo=None)
    now = begin
    while now <= end:
        wall = now.astimezone(zone).replace(tzinfo=None, fold=0)
        if star:
            rings = matches(cron, wall)
        else:
            rings = False
            while latest < wall:
                latest += MINUTE
                rings = matches(cron, latest) or rings
        if rings:
            yield now
        now += MINUTE


@cache
def changes(zone: str, year: int) -> list[datetime]:
    """Returns the hours of a year before the clock of the zone changes."""
    hours = [datetime(year, 1, 1, tzinfo=UTC) + timedelta(hours=number) for number in range(8_760)]
    offsets = [hour.astimezone(ZoneInfo(zone)).utcoffset() for hour in hours]
    return [hour for hour, (before, after) in zip(hours[1:], pairwise(offsets), strict=True) if before != after]


@st.composite
def fields(draw, low: int, high: int) -> str:
    first = st.integers(low, high - 1)
    ranges = first.flatmap(lambda first: st.tuples(st.just(first), st.integers(first + 1, high)))
    stepped = ranges.flatmap(lambda ends: st.integers(1, ends[1] - ends[0]).map(lambda step: f"{ends[0]}-{ends[1]}/{step}"))
    step = st.integers(1, (high - low) // 2)
    term = st.one_of(
        st.integers(low, high).map(str),
        ranges.map(lambda ends: f"{ends[0]}-{ends[1]}"),
        stepped,
        st.builds("{}/{}".format, first, step),
        st.builds("*/{}".format, step),
    )
    return draw(st.one_of(st.just("*"), st.lists(term, min_size=1, max_size=3).map(",".join)))


crons = st.builds(
    lambda *parts: " ".join(parts),
    st.one_of(fields(0, 59), st.sampled_from(["0", "30", "*/15", "*", "0,30"])),
    st.one_of(fields(0, 23), st.sampled_from(["0", "1", "2", "3", "1-3", "*", "*/2", "0,2,23"])),
    st.one_of(st.just("*"), fields(1, 31)),
    st.one_of(st.just("*"), fields(1, 12)),
    st.one_of(st.just("*"), fields(0, 7)),
)


@st.composite
def places(draw) -> tuple[str, datetime]:
    """Makes a zone and a moment in it, mostly near a clock change."""
    zone, year = draw(st.sampled_from(ZONES)), draw(st.sampled_from([1993, 2007, 2011, 2015, 2018, 2023, 2026, 2037, 2060]))
    near = draw(st.sampled_from([*changes(zone, year), datetime(year, 7, 1, tzinfo=UTC)]))
    return zone, near + timedelta(microseconds=draw(st.integers(-2 * 86_400_000_000, 86_400_000_000)))


@given(crons, places())
@example("30 2 * * *", ("Europe/Berlin", datetime(2026, 10, 25, 0, 45, tzinfo=UTC)))
@example("*/10 1,2 * * *", ("Australia/Lord_Howe", datetime(2026, 4, 4, 14, 45, 30, tzinfo=UTC)))
@example("0 0 * * *", ("Pacific/Apia", datetime(2011, 12, 30, 9, 59, 59, 999_999, tzinfo=UTC)))
def test_the_ticks_are_those_of_who_looks_at_the_clock_every_minute(cron, place):
    name, moment = place
    zone, end = ZoneInfo(name), moment + 2 * DAY
    floor = moment.replace(second=0, microsecond=0)
    wanted = [tick for tick in by_the_minute(cron, zone, floor - DAY, end) if tick > moment]
    # A watchman who starts a day earlier may start in an overlap, or directly after a gap.
    assume(zone.utcoffset((floor - DAY).astimezone(zone)) == zone.utcoffset((floor - DAY - timedelta(hours=3)).astimezone(zone)))
    found = list(takewhile(lambda tick: tick <= end, Dates(cron, timezone=name).after(moment)))
    assert found == wanted


@given(crons, places(), st.integers(0, 6))
def test_ticks_rise_and_who_goes_on_from_one_gets_the_rest(cron, place, number):
    zone, moment = place
    found = list(islice(Dates(cron, timezone=zone).after(moment), 10))
    assert all(moment < a for a in found[:1])
    assert all(a < b for a, b in pairwise(found))
    assert all(tick.tzinfo is UTC and tick.second == tick.microsecond == 0 for tick in found)
    if number < len(found):
        rest = list(islice(Dates(cron, timezone=zone).after(found[number]), 9 - number))
        assert rest == found[number + 1 :]
        between = found[number] - timedelta(microseconds=1)
        assert Dates(cron, timezone=zone).first_after(between) == found[number]


# what people write


@pytest.mark.parametrize(
    ("cron", "field"),
    [
        ("60 3 * * *", "'60' as minute"),
        ("0 24 * * *", "'24' as hour"),
        ("0 3 0 * *", "'0' as day of month"),
        ("0 3 32 * *", "'32' as day of month"),
        ("0 3 * 13 *", "'13' as month"),
        ("0 3 * JANUARY *", "'JANUARY' as month"),
        ("0 3 * * 8", "'8' as day of week"),
        ("0 3 * * MO", "'MO' as day of week"),
        ("5-1 3 * * *", "'5-1' as minute"),
        ("0 3,, * * *", "'3,,' as hour"),
        ("*/0 3 * * *", "'*/0' as minute"),
        ("0 3 ? * *", "'?' as day of month"),
        ("0 3 * * L", "'L' as day of week"),
        (f"{'1' * 150} 3 * * *", "as minute"),
    ],
)
def test_a_field_that_cannot_be_read_is_named(cron, field):
    with pytest.raises(ConfigError) as caught:
        Dates.of(cron, where="@periodic in shop.tasks, line 7")
    assert field in str(caught.value)
    assert str(caught.value).startswith("@periodic in shop.tasks, line 7: the cron ")
    assert "Use " in caught.value.fields["hint"]


@pytest.mark.parametrize(
    "cron", ["*/90 * * * *", "0 */24 * * *", "0 0 */31 * *", "0 0 * 2,*/12 *", "5/60 * * * *", "0 5-5/1 * * *", "0 0 * * mon-wed/3"]
)
def test_a_step_over_the_whole_field_is_refused(cron):
    with pytest.raises(ConfigError, match="is too large for"):
        Dates.of(cron)


@pytest.mark.parametrize(
    ("cron", "hint"),
    [
        ("0 3 * *", "'0 3 * * *' is every night at three"),
        ("0 0 3 * * *", "For seconds, use every='10s'"),
        ("@daily", "Use '0 0 * * *'"),
        ("@Hourly ", "Use '0 * * * *'"),
        ("@reboot", "'0 3 * * *' is every night at three"),
    ],
)
def test_five_fields_and_no_others(cron, hint):
    with pytest.raises(ConfigError, match="It must have five: minute, hour, day of month, month, day of week") as caught:
        Dates.of(cron)
    assert hint in caught.value.fields["hint"]


@pytest.mark.parametrize(
    ("given_", "said"),
    [
        ({}, "neither a cron nor every="),
        ({"cron": "0 3 * * *", "every": "10m"}, "both a cron and every="),
        ({"every": "0.5s"}, "every='0.5s' is too short"),
        ({"every": 0}, "every=0 is too short. The minimum is one second"),
        ({"every": -5}, "every=-5 is too short. The minimum is one second"),
        ({"every": -0.5}, "every=-0.5 is too short. The minimum is one second"),
        ({"every": timedelta(-1)}, "is too short. The minimum is one second"),
        ({"every": float("nan")}, "every=nan is not a duration"),
        ({"every": "10 minutes"}, "did you mean '10m'"),
        ({"every": True}, "every=True is not a duration"),
        ({"every": "10m", "jitter": "10m"}, "is not shorter than every='10m'"),
        ({"every": "10d", "jitter": "2d"}, "longer than one day"),
        ({"cron": "0 3 * * *", "jitter": "soon"}, "jitter='soon' is not a duration"),
        ({"cron": "0 3 * * *", "timezone": "Europe/Berln"}, "did you mean 'Europe/Berlin'"),
        ({"cron": "0 3 * * *", "timezone": "Europe"}, "not a time zone that this host knows"),
        ({"cron": "0 3 * * *", "timezone": "../etc/passwd"}, "not a time zone that this host knows"),
        ({"cron": "0 3 * * *", "timezone": "localtime"}, "timezone: 'localtime' is not a geographic time zone"),
        ({"cron": "0 3 * * *", "timezone": "posixrules"}, "is not a geographic time zone"),
        ({"cron": "0 3 * * *", "timezone": "Factory"}, "is not a geographic time zone"),
        ({"cron": "0 3 * * *", "timezone": "right/Europe/Berlin"}, "it includes leap seconds"),
        ({"cron": "0 3 * * *", "timezone": ""}, "must be the name of a time zone"),
        ({"cron": "0 3 * * *", "timezone": UTC}, "must be the name of a time zone"),
        ({"cron": "0 " * 200}, "at most 200 characters"),
        ({"cron": 5}, "must be text"),
    ],
)
def test_dates_that_cannot_work_are_refused(given_, said):
    with pytest.raises(ConfigError) as caught:
        Dates.of(**given_)
    assert said in str(caught.value)


def test_what_is_written_is_kept_in_one_form():
    assert Dates.of("  0   3 * *  mon ", timezone="Europe/Berlin", jitter="5m") == Dates("0 3 * * mon", 0, "Europe/Berlin", 300_000)
    assert Dates.of(every="1s") == Dates(every_ms=1_000)
    assert Dates.of(every="1h30m") == Dates("", 5_400_000, "UTC", 0)
    assert Dates.of(every=timedelta(seconds=1.5), jitter=0.25) == Dates(every_ms=1_500, jitter_ms=250)


def test_a_naive_moment_is_refused():
    with pytest.raises(ValueError, match="naive"):
        Dates("0 3 * * *").first_after(datetime(2026, 1, 1))


def test_what_a_row_holds_and_nobody_can_read_is_an_error_not_silence():
    with pytest.raises(ConfigError, match="'61' as minute"):
        Dates("61 3 * * *").first_after(SOME_DAY)
    with pytest.raises(ConfigError, match="not a time zone"):
        Dates("0 3 * * *", timezone="Moon/Base").first_after(SOME_DAY)


def test_where_cronsim_is_missing_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "cronsim", None)
    dates._fires.cache_clear()
    assert Dates.of("0 3 * * *").text == "0 3 * * *, UTC"  # so that a module that declares it can be imported
    with pytest.raises(ConfigError, match=r'pip install "django-delayq\[cron\]"'):
        Dates("0 3 * * *").first_after(SOME_DAY)
    assert Dates(every_ms=1_000).first_after(SOME_DAY) == SOME_DAY + timedelta(seconds=1)


def test_where_no_zone_is_known_tzdata_is_named(monkeypatch):
    monkeypatch.setattr("zoneinfo.available_timezones", set)
    with pytest.raises(ConfigError, match="pip install tzdata"):
        Dates.of("0 3 * * *", timezone="Europe/Atlantis")


@pytest.mark.parametrize(
    ("found", "text", "words"),
    [
        (Dates("0 3 * * *", timezone="Europe/Berlin"), "0 3 * * *, Europe/Berlin", "At 03:00 every day, Europe/Berlin"),
        (Dates("0 8 * * 1"), "0 8 * * 1, UTC", "At 08:00 on Monday, UTC"),
        (Dates("0 8 1 * *", jitter_ms=300_000), "0 8 1 * *, UTC, jitter 5m", "At 08:00 on the first day of every month, UTC"),
        (Dates(every_ms=600_000), "every 10m", "every 10m"),
        (Dates(every_ms=90_000, jitter_ms=10_000), "every 1m30s, jitter 10s", "every 1m30s, jitter 10s"),
    ],
)
def test_dates_in_words(found, text, words):
    assert found.text == text
    assert found.words == words


@given(crons)
def test_every_cron_has_words(cron):
    assert Dates.of(cron).words.endswith(", UTC")
