"""A moment as people type it in the search, in forms and on the command line."""

from __future__ import annotations

import re
from datetime import datetime, time, timedelta

from django.utils.dateparse import parse_date, parse_datetime
from django.utils.timezone import get_current_timezone, is_naive, make_aware

from django_delayq import clock, durations

DAYS = {"today": 0, "yesterday": -1}
TIME = re.compile(r"\d{1,2}:\d{2}(:\d{2})?")


def parse_moment(text: str, at: datetime) -> datetime:
    """Reads "2026-05-01", "2026-05-01 18:30", ISO 8601 with or without an offset, "18:30" (today), "today" or "yesterday" (at
    00:00), "-2h" or "+10m". Dates without an offset are in the current time zone; `at` is the present.

    Raises:
        ValueError: the text is none of these, or no database can hold the moment.
    """
    today = at.astimezone(get_current_timezone()).date()
    if text[:1] in ("+", "-"):
        delay = timedelta(seconds=durations.seconds(text[1:]))
        moment = at + delay if text[0] == "+" else at - delay
    elif text in DAYS:
        moment = datetime.combine(today + timedelta(days=DAYS[text]), time.min)
    elif TIME.fullmatch(text):
        moment = datetime.combine(today, time.fromisoformat(text.zfill(5) if len(text) < 6 else text.zfill(8)))
    elif found := parse_datetime(text):
        moment = found
    elif day := parse_date(text):
        moment = datetime.combine(day, time.min)
    else:
        raise ValueError(f"{text!r} is not a moment")
    if is_naive(moment):
        moment = make_aware(moment, get_current_timezone())
    clock.from_ms(clock.to_ms(moment))  # the query uses UTC, in which the last hours of 9999 overflow
    return moment


def parse_start(text: str, at: datetime) -> datetime:
    """Reads the date of a job in the same way.

    Raises:
        ValueError: also for "today" and "yesterday", because a whole day is not the date of a job.
    """
    if text in DAYS:
        raise ValueError(f"{text!r} has no time")
    return parse_moment(text, at)


def written(moment: datetime) -> str:
    """The text of a moment for a search, with its offset."""
    return moment.astimezone(get_current_timezone()).isoformat()
