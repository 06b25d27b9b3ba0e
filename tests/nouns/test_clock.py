"""Times and durations: which values are read, which are refused and how, and that conversions lose nothing and are never early."""

from __future__ import annotations

import ast
import math
from datetime import UTC, date, datetime, timedelta, timezone
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import django_delayq.clock
from django_delayq import clock, durations

WHOLE_MS = st.integers(min_value=0, max_value=int(durations.MAX_SECONDS) * 1_000)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("90s", 90.0),
        ("1h30m", 5_400.0),
        ("2d", 172_800.0),
        ("1w", 604_800.0),
        ("500ms", 0.5),
        ("1.5h", 5_400.0),
        ("0s", 0.0),
        ("1w2d3h4m5s6ms", 788_645.006),
        ("1m500ms", 60.5),
        (" 10m ", 600.0),
        ("0.1s", 0.1),
        ("1.1h", 3_960.0),
        (0, 0.0),
        (30, 30.0),
        (2.5, 2.5),
        (-0.0, 0.0),
        (timedelta(minutes=5, milliseconds=1), 300.001),
        ("5200w", 3_144_960_000.0),
        (durations.MAX_SECONDS, durations.MAX_SECONDS),
        (timedelta(0), 0.0),
        ("007s", 7.0),
    ],
)
def test_durations_are_read(value: durations.Delay, expected: float) -> None:
    result = durations.seconds(value)
    assert type(result) is float
    assert result == expected
    assert math.copysign(1, result) == 1


@pytest.mark.parametrize(
    "value",
    [
        "",
        " ",
        "s",
        "90",
        "-5s",
        "+5s",
        "1h 30m",
        "30m1h",
        "1h1h",
        "1,5h",
        "1.h",
        ".5h",
        "1e3s",
        "5S",
        "5min",
        "1y",
        "\u0661s",
        "1s\x00",
        "nan",
        "inf",
        "5 s",
        "9999999999999s",
        "1_0s",
        "999999999999w",
        "1m2",
        "x" * 500,
        -1,
        -0.001,
        math.nan,
        math.inf,
        -math.inf,
        10**400,
        -(10**400),
        pytest.param(10**5_000, id="vast"),
        1e308,
        True,
        False,
        timedelta(seconds=-1),
        timedelta.max,
        timedelta.min,
        None,
        b"5s",
        [],
        {},
        1j,
        Fraction(1, 2),
        object(),
    ],
)
def test_what_is_no_duration_is_refused_with_what_was_given_and_what_is_accepted(value: object) -> None:
    with pytest.raises(ValueError, match=r"is not a duration|is negative|more than 100 years") as caught:
        durations.seconds(value)
    said = str(caught.value)
    if "is negative" not in said:
        assert "timedelta" in said
        assert '"1h30m"' in said
    assert len(said) < 300
    if isinstance(value, str | float | bool) and len(repr(value)) < 80:
        assert repr(value) in said


@given(st.text(alphabet="0123456789.wdhms -", max_size=12) | st.text(max_size=12))
def test_any_text_is_a_duration_or_a_value_error(value: str) -> None:
    try:
        result = durations.seconds(value)
    except ValueError:
        return
    assert 0 <= result <= durations.MAX_SECONDS


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0, "0s"),
        (0.0004, "0s"),
        (0.5, "500ms"),
        (0.001, "1ms"),
        (1.5, "1.5s"),
        (15, "15s"),
        (90, "1m30s"),
        (5_400, "1h30m"),
        (172_800, "2d"),
        (604_800, "1w"),
        (691_200, "8d"),
        (3_661.25, "1h1m1.25s"),
        (86_400.001, "1d0.001s"),
    ],
)
def test_durations_are_written(value: float, expected: str) -> None:
    assert durations.text(value) == expected


@given(WHOLE_MS)
def test_a_written_duration_reads_back_to_the_millisecond(ms: int) -> None:
    assert durations.seconds(durations.text(ms / 1_000)) == ms / 1_000


@pytest.mark.parametrize("value", [-1, math.nan, math.inf])
def test_text_refuses_what_is_no_duration(value: float) -> None:
    with pytest.raises(ValueError, match=r"is negative|is not a duration"):
        durations.text(value)


@pytest.mark.parametrize(
    ("value", "expected"),
    [(1.1, 1_100), (0.0001, 1), ("30m", 1_800_000), (0, 0), (0.29, 290), (timedelta(microseconds=1), 1)],
)
def test_a_delay_in_milliseconds_is_rounded_up_and_free_of_float_noise(value: durations.Delay, expected: int) -> None:
    assert durations.milliseconds(value) == expected


@given(WHOLE_MS)
@example(274_877_906_943)
@example(3_153_599_999_999)
def test_whole_milliseconds_stay_what_they_are(ms: int) -> None:
    assert durations.milliseconds(ms / 1_000) == ms


@given(st.floats(min_value=0, max_value=1e9))
def test_a_delay_in_milliseconds_is_never_shorter_by_more_than_a_microsecond(delay: float) -> None:
    assert durations.milliseconds(delay) / 1_000 >= delay - 1e-6
    assert durations.milliseconds(delay) <= delay * 1_000 + 1


@given(st.integers(min_value=-62_135_596_800_000, max_value=clock.LAST_MS))
def test_milliseconds_become_a_datetime_and_come_back(ms: int) -> None:
    moment = clock.from_ms(ms)
    assert moment.tzinfo is UTC
    assert clock.to_ms(moment) == ms


@given(st.datetimes(timezones=st.sampled_from([UTC, timezone(timedelta(hours=5, minutes=45))]), min_value=datetime(1, 1, 3)))
def test_the_millisecond_of_a_moment_is_never_before_it(moment: datetime) -> None:
    ms = clock.to_ms(moment)
    if ms <= clock.LAST_MS:
        assert timedelta(0) <= clock.from_ms(ms) - moment < timedelta(milliseconds=1)


def test_a_naive_datetime_is_refused_with_the_way_out() -> None:
    with pytest.raises(ValueError, match=r"2026-01-02T03:04:05 is a naive datetime.*timezone\.now\(\)"):
        clock.to_ms(datetime(2026, 1, 2, 3, 4, 5))


@pytest.mark.parametrize("ms", [clock.LAST_MS + 1, clock.MAX_MS, clock.MAX_MS + 1, 10**18, -(10**18), 10**30])
def test_milliseconds_beyond_a_datetime_are_a_value_error(ms: int) -> None:
    with pytest.raises(ValueError, match="years 1 and 9999"):
        clock.from_ms(ms)


@pytest.mark.parametrize("hours", [14, -12])
def test_the_last_moment_can_be_told_in_every_time_zone(hours: int) -> None:
    there = timezone(timedelta(hours=hours))
    assert clock.from_ms(clock.LAST_MS).astimezone(there).year == 9999
    assert clock.from_ms(0).astimezone(there).year in (1969, 1970)


def test_the_clocks_tell_one_time() -> None:
    before = clock.wall_ms()
    present = clock.now()
    assert present.tzinfo is UTC
    assert before - 1 <= clock.to_ms(present) <= clock.wall_ms() + 1
    assert clock.monotonic() <= clock.monotonic()


def test_sleep_accepts_nothing_to_sleep() -> None:
    clock.sleep(0)
    clock.sleep(-1)


def test_no_other_module_reads_a_clock() -> None:
    package = Path(django_delayq.clock.__file__).parent
    readers = []
    for path in package.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            imported = isinstance(node, ast.Import) and any(name.name == "time" for name in node.names)
            drawn = isinstance(node, ast.ImportFrom) and node.module == "time" and not node.level
            asked = (
                isinstance(node, ast.Attribute)
                and node.attr in {"now", "utcnow", "today"}
                and isinstance(node.value, ast.Name)
                and node.value.id in {"datetime", "date"}
            )
            if imported or drawn or asked:
                readers.append(path.relative_to(package).as_posix())
    assert set(readers) <= {"clock.py"}


@pytest.mark.parametrize("long", ["5300w", "5300 weeks", "100000d", "6400000000", "1000000w"])
def test_a_text_that_is_too_long_in_every_spelling_is_given_no_other(long: str) -> None:
    with pytest.raises(ValueError, match=r"is (more than 100 years|not a duration); pass"):
        durations.seconds(long)


@pytest.mark.parametrize("thing", [None, 5, "2030-01-01", date(2030, 1, 1)])
def test_what_is_no_datetime_is_refused_with_the_way_out(thing: datetime) -> None:
    with pytest.raises(ValueError, match=r"is not a datetime.*timezone\.now\(\)"):
        clock.to_ms(thing)
