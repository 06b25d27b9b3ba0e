"""The charts of the dashboard and of the pages of queues and tasks, as plain values. `svg_bars` draws them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final
from zoneinfo import ZoneInfo

from django.utils.formats import number_format
from django.utils.safestring import SafeString
from django.utils.timezone import get_current_timezone
from django.utils.translation import gettext as now
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext

from django_delayq import clock, spread
from django_delayq.admin.dashboard import brief
from django_delayq.admin.svg_bars import bars, scale
from django_delayq.console import overview
from django_delayq.console.overview import DOWN
from django_delayq.console.trends import SPANS, Span
from django_delayq.producer.stores import stores
from django_delayq.store.reads.figures import Forecast

HEIGHT: Final = 100
# Round values of milliseconds for the y axis.
DURATIONS: Final = tuple(
    unit * count
    for unit, counts in (
        (1, (1, 2, 5, 10, 20, 50, 100, 200, 500)),
        (1000, (1, 2, 4, 10, 20, 30)),
        (60_000, (1, 2, 4, 10, 20, 30)),
        (3_600_000, (1, 2, 4, 12)),
        (86_400_000, (1, 2, 4, 10, 20, 40, 100, 200, 400, 1000)),
    )
    for count in counts
)
NAMES: Final = {"1h": _("1 hour"), "1d": _("1 day"), "7d": _("7 days")}


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """One chart with its axes and its table. `marks`: labels of the x axis; `heads`: of the columns of the table."""

    name: str
    title: str
    picture: SafeString
    top: str
    half: str
    marks: Sequence[str]
    first: str
    heads: Sequence[str]
    legend: Sequence[tuple[str, str]]
    rows: Sequence[tuple[str, Sequence[str]]]
    nothing: bool


def chosen(given: Any, usual: str = "1h") -> tuple[str, Span]:
    """Returns the span in a URL, or the default."""
    name = given if given in SPANS else usual
    return name, SPANS[name]


def spans(name: str) -> list[tuple[str, Any, bool]]:
    """Returns the choices of spans: value, label, and whether it is selected."""
    return [(each, NAMES[each], each == name) for each in SPANS]


def moments(start: datetime, step: timedelta, steps: int) -> list[str]:
    """Returns the start of each step in the current time zone, with the day if there are several."""
    zone: Any = get_current_timezone()
    form = "%H:%M" if step * steps <= timedelta(days=1) else "%m-%d %H:%M"
    return [f"{(start + number * step).astimezone(zone):{form}}" for number in range(steps)]


def counted(name: str, title: Any, series: Sequence[tuple[str, Any, Sequence[int]]], labels: Sequence[str], first: Any = None) -> Chart:
    """Returns a chart of counts. `series`: class, name and numbers of each; `first`: the heading of the labels."""
    return _chart(name, title, series, labels, scale, _whole, first)


def timed(name: str, title: Any, half: Sequence[float | None], most: Sequence[float | None], labels: Sequence[str]) -> Chart:
    """Returns a chart of durations in ms. `half`: the medians; `most`: the 95th percentiles."""
    lower = [value or 0.0 for value in half]
    rest = [max(0.0, (high or 0.0) - low) for low, high in zip(lower, most, strict=True)]
    series = [("delayq-bar-half", "p50", lower), ("delayq-bar-most", "p95", rest)]
    told = [(brief(low), brief(high)) for low, high in zip(half, most, strict=True)]
    return _chart(name, title, series, labels, lambda edge: scale(edge, DURATIONS), brief, None, told)


def histogram(name: str, title: Any, seconds: Sequence[float]) -> Chart:
    """Returns a histogram whose steps double in length."""
    counts = [0] * spread.BUCKETS
    for value in seconds:
        counts[spread.bucket(int(value * 1000))] += 1
    used = [number for number, count in enumerate(counts) if count]
    shown = range(used[0], used[-1] + 1) if used else range(1)
    labels = [f"< {brief(2.0**number)}" if number < spread.BUCKETS - 1 else f"≥ {brief(2.0 ** (number - 1))}" for number in shown]
    return counted(name, title, [("delayq-bar-ahead", now("Attempts"), [counts[number] for number in shown])], labels, now("Took"))


def _chart(
    name: str,
    title: Any,
    series: Sequence[tuple[str, Any, Sequence[float]]],
    labels: Sequence[str],
    rounded: Callable[[float], float],
    told: Callable[[float], str],
    first: Any,
    cells: Sequence[Sequence[str]] | None = None,
) -> Chart:
    sums = [sum(column) for column in zip(*(numbers for _, _, numbers in series), strict=True)]
    top = rounded(max(sums, default=0))
    heads = [str(head) for _, head, _ in series]
    nothing = not any(sums) if cells is None else all(value == brief(None) for row in cells for value in row)
    if cells is None:
        cells = [[told(numbers[at]) for _, _, numbers in series] for at in range(len(labels))]
    titles = [f"{label}: " + ", ".join(map(" ".join, zip(heads, row, strict=True))) for label, row in zip(labels, cells, strict=True)]
    return Chart(
        name=name,
        title=str(title),
        picture=bars(
            [(look, numbers) for look, _, numbers in series], str(title), height=HEIGHT, look="delayq-trend", top=top, titles=titles
        ),
        top="" if nothing else told(top),
        half="" if nothing else told(top / 2) if top >= 2 else "",
        marks=[labels[0], labels[len(labels) // 2], labels[-1]] if len(labels) > 2 else labels,
        first=str(first or now("From")),
        heads=heads,
        legend=[(head, look) for head, (look, _, _) in zip(heads, series, strict=True)],
        rows=list(zip(labels, cells, strict=True)),
        nothing=nothing,
    )


def _whole(count: float) -> str:
    return number_format(count, 0 if count == int(count) else 1, force_grouping=True)


def decimal(number: float) -> str:
    """Formats a number with one decimal, or none if it is whole."""
    return _whole(round(number, 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class Ahead:
    """One chart of the forecast with its table."""

    name: str
    title: str
    chart: SafeString
    total: int
    most: int
    rows: list[tuple[str, int]]


def forecast(queues: Sequence[str]) -> list[Ahead]:
    """Returns charts of the jobs that become due, or nothing if Redis cannot be reached."""
    try:
        found, _ = stores.from_each(queues, lambda reach: stores.figures(reach).forecast(queues))
    except DOWN:
        return []
    return _ahead(_with_far(found, queues))


def _with_far(found: Forecast, queues: Sequence[str]) -> Forecast:
    """Adds the far jobs, which only the database has."""
    minute, hour = found.start_ms - found.start_ms % 60_000, found.start_ms - found.start_ms % 3_600_000
    minutes = [minute + step * found.minute_step * 60_000 for step in range(len(found.minutes) + 1)]
    hours = [hour + step * found.hour_step * 3_600_000 for step in range(len(found.hours) + 1)]
    return replace(
        found,
        minutes=tuple(map(sum, zip(found.minutes, overview.due_between(queues, minutes), strict=True))),
        hours=tuple(map(sum, zip(found.hours, overview.due_between(queues, hours), strict=True))),
    )


def _ahead(found: Forecast) -> list[Ahead]:
    zone: Any = get_current_timezone()
    per_minute = ngettext("Due per minute, next hour", "Due per %(count)d minutes, next hour", found.minute_step)
    per_hour = ngettext("Due per hour, next day", "Due per %(count)d hours, next day", found.hour_step)
    minute, hour = found.start_ms - found.start_ms % 60_000, found.start_ms - found.start_ms % 3_600_000
    return [
        _forecast_chart("minutes", per_minute % {"count": found.minute_step}, found.minutes, minute, found.minute_step * 60_000, zone),
        _forecast_chart("hours", per_hour % {"count": found.hour_step}, found.hours, hour, found.hour_step * 3_600_000, zone),
    ]


def _forecast_chart(name: str, title: str, counts: Sequence[int], start: int, step: int, zone: ZoneInfo) -> Ahead:
    times: list[datetime] = [clock.from_ms(start + step * number).astimezone(zone) for number in range(len(counts))]
    return Ahead(
        name=name,
        title=title,
        total=sum(counts),
        most=max(counts, default=0),
        chart=bars([("delayq-bar-ahead", counts)], f"{title}: {sum(counts)}", height=60, look="delayq-ahead"),
        rows=[(f"{time:%H:%M}", count) for time, count in zip(times, counts, strict=True)],
    )
