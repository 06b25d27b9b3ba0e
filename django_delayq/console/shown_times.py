"""Dates and durations, as people read them on pages and in the sentences of commands."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from django.utils.timezone import get_current_timezone
from django.utils.translation import gettext as now

from django_delayq import clock

_COARSE: Final = ((7 * 86_400, 86_400), (86_400, 3_600), (600, 60))  # seconds from which on only whole steps are told, and the step


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
