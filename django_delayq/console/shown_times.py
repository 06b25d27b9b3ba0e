"""Formats dates, durations and names for pages and for the output of commands."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Final

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.timezone import get_current_timezone
from django.utils.translation import gettext as now

from django_delayq import clock
from django_delayq.states import MESSAGE
from django_delayq.text import visible

_COARSE: Final = ((7 * 86_400, 86_400), (86_400, 3_600), (600, 60))  # seconds from which on only whole steps are told, and the step
_JOINTS: Final = re.compile(r"(?<=[._/:])(?=\w)")  # of `shop.tasks.close_order` and `/srv/shop/tasks.py:41`


def second(moment: datetime) -> str:
    """A moment to the second, in the current time zone."""
    return f"{moment.astimezone(get_current_timezone()):%Y-%m-%d %H:%M:%S}"


def duration(seconds: float | None) -> str:
    """A duration for a person; a dash for none."""
    if seconds is None:
        return "-"
    seconds = min(seconds, clock.MAX_SECONDS)  # a date in Redis may be anything
    return clock.text(round(seconds)) if seconds >= 1 else f"{max(0.0, seconds) * 1000:.0f}ms"


def relative(moment: datetime) -> str:
    """How far off a moment is, in two units at most: "in 4m", "2d5h ago"."""
    seconds = round((moment - clock.now()).total_seconds())
    far = min(abs(seconds), int(clock.MAX_SECONDS))
    step = next((step for least, step in _COARSE if far >= least), 1)
    text = now("in %(duration)s") if seconds > 0 else now("%(duration)s ago")
    return text % {"duration": clock.text(far - far % step)} if far else now("now")


def zoned(moment: datetime) -> str:
    """A moment to the second with its time zone and what that is ahead of UTC."""
    return f"{moment.astimezone(get_current_timezone()):%Y-%m-%d %H:%M:%S %Z (UTC%z)}"


def cut(text: str, most: int) -> str:
    """The beginning of a text, and a sign that there is more. Django's way of cutting adds a mark that turns all that follows, in some
    languages.
    """
    return text if len(text) <= most else f"{text[: most - 1]}…"


def task_name(task: str) -> str:
    """What stands where a job has its task: the name, or that it is a message."""
    return now("a message") if task == MESSAGE else visible(task)


def breakable(text: str) -> SafeString:
    """A dotted name or a path, which a narrow column breaks at its joints rather than within a word; copied, it is as it was."""
    return format_html_join(SafeString("<wbr>"), "{}", ((part,) for part in _JOINTS.split(visible(text))))


def dated(date: datetime) -> SafeString:
    """A date to the second; its zone where the mouse rests, and for programs that read the page."""
    return format_html('<time datetime="{}" title="{}">{}</time>', date.isoformat(), zoned(date), second(date))


def moment(date: datetime) -> SafeString:
    """A date, and how far off it is."""
    return format_html('{} <span class="delayq-soft">{}</span>', dated(date), relative(date))


def utc(date: datetime) -> str:
    """A moment to the second in UTC, and that it is."""
    return f"{date.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
