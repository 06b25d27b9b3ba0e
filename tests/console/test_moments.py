"""Moments as people type them."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from django.utils import timezone

from django_delayq.console.moments import parse_moment

AT = datetime(2026, 5, 1, 23, 30, tzinfo=UTC)  # in Berlin already 2 May, 01:30


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("2026-05-01", datetime(2026, 4, 30, 22, tzinfo=UTC)),
        ("2026-05-01 18:30", datetime(2026, 5, 1, 16, 30, tzinfo=UTC)),
        ("2026-05-01T18:30:05", datetime(2026, 5, 1, 16, 30, 5, tzinfo=UTC)),
        ("2026-05-01T18:30Z", datetime(2026, 5, 1, 18, 30, tzinfo=UTC)),
        ("2026-05-01T18:30+05:00", datetime(2026, 5, 1, 13, 30, tzinfo=UTC)),
        ("10:00", datetime(2026, 5, 2, 8, tzinfo=UTC)),
        ("9:05", datetime(2026, 5, 2, 7, 5, tzinfo=UTC)),
        ("9:05:06", datetime(2026, 5, 2, 7, 5, 6, tzinfo=UTC)),
        ("today", datetime(2026, 5, 1, 22, tzinfo=UTC)),
        ("yesterday", datetime(2026, 4, 30, 22, tzinfo=UTC)),
        ("-2h", datetime(2026, 5, 1, 21, 30, tzinfo=UTC)),
        ("+10m", datetime(2026, 5, 1, 23, 40, tzinfo=UTC)),
    ],
)
def test_a_moment_is_in_the_current_time_zone(text, moment):
    with timezone.override("Europe/Berlin"):
        assert parse_moment(text, AT) == moment


@pytest.mark.parametrize(
    "text", ["", "soon", "monday", "today 18:00", "24:00", "10:60", "1:2", "2026-13-45", "-2", "-soon", "+", "-9999999999d", "٣:00"]
)
def test_anything_else_is_an_error(text):
    with pytest.raises((ValueError, OverflowError)):
        parse_moment(text, AT)


@pytest.mark.parametrize("text", ["9999-12-31T23:59:59-12:00", "0001-01-01T00:00:00+12:00"])
def test_a_moment_that_no_database_can_hold_is_an_error(text):
    with pytest.raises((ValueError, OverflowError)):
        parse_moment(text, AT)
