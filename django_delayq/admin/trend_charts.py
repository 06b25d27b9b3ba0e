"""Trends as charts, in plain values: what ended, what failed, how late and how long, step by step. A template writes them down."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from django.utils.formats import number_format
from django.utils.safestring import SafeString
from django.utils.timezone import get_current_timezone
from django.utils.translation import gettext as now
from django.utils.translation import gettext_lazy as _

from django_delayq import spread
from django_delayq.admin.charts import bars, scale
from django_delayq.admin.dashboard import brief
from django_delayq.console.trends import SPANS, Span

HEIGHT: Final = 100
# Edges of a scale of milliseconds, in which people read time.
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
    """One chart with its axes and its table. `marks`: below it, from left to right; `heads`: of the columns of the table."""

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
    """The span of an address, or the usual one."""
    name = given if given in SPANS else usual
    return name, SPANS[name]


def spans(name: str) -> list[tuple[str, Any, bool]]:
    """What may be chosen: for the address, for people, and whether it is."""
    return [(each, NAMES[each], each == name) for each in SPANS]


def moments(start: datetime, step: timedelta, steps: int) -> list[str]:
    """When each step begins, in the current time zone; with the day where there are several."""
    zone: Any = get_current_timezone()
    form = "%H:%M" if step * steps <= timedelta(days=1) else "%m-%d %H:%M"
    return [f"{(start + number * step).astimezone(zone):{form}}" for number in range(steps)]


def counted(name: str, title: Any, series: Sequence[tuple[str, Any, Sequence[int]]], labels: Sequence[str], first: Any = None) -> Chart:
    """Numbers of jobs. `series`: class, name and numbers of each; `first`: the head of the labels; when a step began if not given."""
    return _chart(name, title, series, labels, scale, _whole, first)


def timed(name: str, title: Any, half: Sequence[float | None], most: Sequence[float | None], labels: Sequence[str]) -> Chart:
    """Durations in ms: below `half` lies one half, below `most` 95 of 100."""
    lower = [value or 0.0 for value in half]
    rest = [max(0.0, (high or 0.0) - low) for low, high in zip(lower, most, strict=True)]
    series = [("delayq-bar-half", "p50", lower), ("delayq-bar-most", "p95", rest)]
    told = [(brief(low), brief(high)) for low, high in zip(half, most, strict=True)]
    return _chart(name, title, series, labels, lambda edge: scale(edge, DURATIONS), brief, None, told)


def histogram(name: str, title: Any, seconds: Sequence[float]) -> Chart:
    """How many took how long, in steps each twice as long as the one before it."""
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
    """With one digit, which a whole number has not."""
    return _whole(round(number, 1))
