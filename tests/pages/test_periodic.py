"""The tables of docs/topics/periodic-tasks.md match the code."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from itertools import takewhile
from zoneinfo import ZoneInfo

import pytest

from django_delayq.periodic.dates import Dates
from tests.pages.blocks import DOCS

PAGE = (DOCS / "topics/periodic-tasks.md").read_text()
BERLIN = ZoneInfo("Europe/Berlin")
ROWS = re.findall(r"^\| `([^`]+ \* \* \*)` \| (.+) \| (.+) \|$", PAGE, flags=re.MULTILINE)


def times(cron: str, day: datetime) -> list[str]:
    """Returns the ticks in Berlin on that day, up to the end of the table."""
    dates = Dates.of(cron, timezone="Europe/Berlin")
    ticks = takewhile(lambda tick: tick < day + timedelta(days=1), dates.after(day - timedelta(seconds=1)))
    return [f"{tick.astimezone(BERLIN):%-H:%M}" for tick in ticks]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_what_happens_when_the_clock_changes_is_what_the_code_does(row):
    cron, spring, autumn = row
    for day, cell in ((datetime(2026, 3, 29, tzinfo=BERLIN), spring), (datetime(2026, 10, 25, tzinfo=BERLIN), autumn)):
        shown, ticks = re.findall(r"\d+:\d\d", cell), times(cron, day)
        if cell == "never" or "once" in cell:
            assert ticks == shown, cell
        else:
            first = ticks.index(shown[0])
            assert ticks[first : first + len(shown)] == shown, cell


def test_the_table_of_clock_changes_is_found():
    assert len(ROWS) == 4
