"""Figures as text, and the charts of the dashboard and of the pages of queues and tasks: their data, their rows for a table, and the
SVG. Queues use the counters in Redis or the newest rows, tasks use attempts.

The SVG is inline. It has attributes and classes only, because the content security policy forbids styles.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from django.utils.formats import number_format
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.timezone import get_current_timezone
from django.utils.translation import gettext as now
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext

from django_delayq import clock, durations, spread
from django_delayq.admin.badges import word
from django_delayq.console import overview, trends
from django_delayq.console.overview import DOWN
from django_delayq.console.trends import ENDED, SPANS, EndedJob, NewestJobs, NewestRuns, Span, quantile, spread_over
from django_delayq.producer.stores import Missing, stores
from django_delayq.spread import SLOT_MS, percentile
from django_delayq.states import AttemptOutcome
from django_delayq.store.reads.figures import EndedCounts, Figures, SlotCounts

GAP: Final = 0.2  # of a bar's width
HEIGHT: Final = 100
MANY: Final = 0.1  # a failure share that is shown in red
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
LOOKS: Final = {  # CSS classes, from the bottom of a bar upward
    AttemptOutcome.SUCCEEDED.value: "delayq-bar-well",
    AttemptOutcome.RETRIED.value: "delayq-bar-late",
    AttemptOutcome.CRASHED.value: "delayq-bar-gone",
    AttemptOutcome.FAILED.value: "delayq-bar-bad",
}
TITLES: Final = {"well": _("Succeeded"), "unwell": _("Did not succeed"), "late": _("Lateness"), "ran": _("Run time")}
KINDS: Final = ("succeeded", "retried", "failed")  # of the counters in Redis
TIMES: Final = ("late", "ran")
Line = dict[str, Any]  # what a template prints
Counts = Mapping[str, Sequence[int]]
Ms = tuple[float | None, float | None]  # median and 95th percentile


def brief(ms: float | None) -> str:
    """Formats a duration for a narrow column."""
    if ms is None:
        return "–"
    if ms < 1:
        return "<1ms"
    if ms < 1000:
        return f"{ms:.0f}ms"
    return f"{number_format(ms / 1000, 1)}s" if ms < 10_000 else durations.text(round(ms / 1000))


def percent(share: float | None) -> str:
    """Formats a share as a percentage; small shares have a decimal."""
    return "–" if share is None else f"{number_format(share * 100, 1 if 0 < share < 0.1 else 0)}%"


def decimal(number: float) -> str:
    """Formats a number with one decimal, or none if it is whole."""
    return _whole(round(number, 1))


def _whole(count: float) -> str:
    return number_format(count, 0 if count == int(count) else 1, force_grouping=True)


def chosen(given: Any, usual: str = "1h") -> tuple[str, Span]:
    """Returns the span in a URL, or the default."""
    name = given if given in SPANS else usual
    return name, SPANS[name]


# One chart: a dict with its axes and its table. `marks`: labels of the x axis; `heads`: of the columns of the table.


def moments(start: datetime, step: timedelta, steps: int) -> list[str]:
    """Returns the start of each step in the current time zone, with the day if there are several."""
    zone: Any = get_current_timezone()
    form = "%H:%M" if step * steps <= timedelta(days=1) else "%m-%d %H:%M"
    return [f"{(start + number * step).astimezone(zone):{form}}" for number in range(steps)]


def counted(name: str, title: Any, series: Sequence[tuple[str, Any, Sequence[int]]], labels: Sequence[str], first: Any = None) -> Line:
    """Returns a chart of counts. `series`: class, name and numbers of each; `first`: the heading of the labels."""
    return _chart(name, title, series, labels, scale, _whole, first)


def timed(name: str, times: Sequence[Ms], labels: Sequence[str]) -> Line:
    """Returns a chart of lateness or run time, in ms."""
    lower = [half or 0.0 for half, _ in times]
    rest = [max(0.0, (most or 0.0) - (half or 0.0)) for half, most in times]
    series = [("delayq-bar-half", "p50", lower), ("delayq-bar-most", "p95", rest)]
    cells = [tuple(map(brief, pair)) for pair in times]
    return _chart(name, TITLES[name], series, labels, lambda edge: scale(edge, DURATIONS), brief, None, cells)


def histogram(name: str, title: Any, seconds: Sequence[float]) -> Line:
    """Returns a histogram whose steps double in length."""
    counts = Counter(spread.bucket(int(value * 1000)) for value in seconds)
    shown = range(min(counts), max(counts) + 1) if counts else range(1)
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
) -> Line:
    columns = list(zip(*(numbers for _, _, numbers in series), strict=True))
    top = rounded(max(map(sum, columns), default=0))
    heads = [str(head) for _, head, _ in series]
    nothing = not any(map(sum, columns)) if cells is None else all(value == brief(None) for row in cells for value in row)
    cells = cells or [[told(number) for number in column] for column in columns]
    titles = [f"{label}: " + ", ".join(map(" ".join, zip(heads, row, strict=True))) for label, row in zip(labels, cells, strict=True)]
    stacks = [(look, numbers) for look, _, numbers in series]
    return {
        "name": name,
        "title": title,
        "picture": bars(stacks, str(title), height=HEIGHT, look="delayq-trend", top=top, titles=titles),
        "top": "" if nothing else told(top),
        "half": "" if nothing or top < 2 else told(top / 2),
        "marks": [labels[0], labels[len(labels) // 2], labels[-1]] if len(labels) > 2 else labels,
        "first": first or now("From"),
        "heads": heads,
        "legend": [(head, look) for head, (look, _) in zip(heads, stacks, strict=True)],
        "rows": list(zip(labels, cells, strict=True)),
        "nothing": nothing,
    }


def bars(
    stacks: Sequence[tuple[str, Sequence[float]]],
    label: str,
    *,
    height: int = 24,
    look: str = "",
    top: float = 0,
    titles: Sequence[str] = (),
) -> SafeString:
    """Returns bars side by side, one per number. Several series are stacked.

    Args:
        stacks: (class, numbers) from the bottom upward, all of one length.
        label: what the picture shows, for screen readers.
        top: the number at the upper edge, which gets a line, like its half. 0: the highest bar touches the edge.
        titles: the tooltip of each bar.
    """
    count = max((len(numbers) for _, numbers in stacks), default=0)
    floor: list[float] = [0] * count
    edge = max((sum(column) for column in zip(*(numbers for _, numbers in stacks), strict=True)), default=0)
    lines = "".join(f"M0 {_short(-height * share)}h{max(1, count)}" for share in ((0, 0.5, 1) if top else (0,)))
    top = top or edge
    paths = []
    for name, numbers in stacks:
        places = zip(range(count), floor, numbers, strict=True)
        steps = [_bar(at, below, number, height / top) for at, below, number in places if number]
        floor = [a + b for a, b in zip(floor, numbers, strict=True)]
        if steps:
            paths.append((name, "".join(steps)))
    return format_html(
        '<svg class="delayq-chart {}" viewBox="0 {} {} {}" preserveAspectRatio="none" role="img" aria-label="{}" focusable="false">'
        '<path class="delayq-ground" d="{}"/>{}{}</svg>',
        look,
        -height,
        max(1, count),
        height,
        label,
        lines,
        format_html_join("", '<path class="{}" d="{}"/>', paths),
        format_html_join(
            "",
            '<g><title>{}</title><path class="delayq-over" d="M{} 0v-{}h1v{}z"/></g>',
            ((title, at, height, height) for at, title in enumerate(titles)),
        ),
    )


def scale(most: float, steps: Sequence[float] = ()) -> float:
    """Returns a round number that is at least `most`: one of the steps, or 1, 2 or 5 times a power of ten."""
    for step in steps:
        if most <= step:
            return step
    top = 1.0
    while top < most:
        top *= 2.5 if f"{top:g}".startswith("2") else 2
    return top


def _bar(at: int, below: float, number: float, unit: float) -> str:
    tall = max(number * unit, 1.0)  # the smallest number is visible
    return f"M{at} {_short(-below * unit)}v{_short(-tall)}h{1 - GAP:g}v{_short(tall)}z"


def _short(value: float) -> str:
    return f"{value:.1f}".rstrip("0").rstrip(".") or "0"


# The forecast.


def forecast(queues: Sequence[str]) -> list[Line]:
    """Returns charts of the jobs that become due, or nothing if Redis cannot be reached."""
    try:
        found, _ = stores.from_each(queues, lambda reach: stores.figures(reach).forecast(queues))
    except DOWN:
        return []
    per_minute = ngettext("Due per minute, next hour", "Due per %(count)d minutes, next hour", found.minute_step)
    per_hour = ngettext("Due per hour, next day", "Due per %(count)d hours, next day", found.hour_step)
    return [
        _ahead(queues, "minutes", per_minute % {"count": found.minute_step}, found.minutes, found.start_ms, 60_000, found.minute_step),
        _ahead(queues, "hours", per_hour % {"count": found.hour_step}, found.hours, found.start_ms, 3_600_000, found.hour_step),
    ]


def _ahead(queues: Sequence[str], name: str, title: str, in_redis: Sequence[int], now_ms: int, unit_ms: int, units: int) -> Line:
    """Returns one chart and its table. Adds the far jobs, which only the database has. `units`: the length of a step."""
    starts = [now_ms // unit_ms * unit_ms + number * units * unit_ms for number in range(len(in_redis) + 1)]
    counts = list(map(sum, zip(in_redis, overview.due_between(queues, starts), strict=True)))
    zone: Any = get_current_timezone()
    return {
        "name": name,
        "title": title,
        "total": sum(counts),
        "most": max(counts, default=0),
        "chart": bars([("delayq-bar-ahead", counts)], f"{title}: {sum(counts)}", height=60, look="delayq-ahead"),
        "rows": [(f"{clock.from_ms(start).astimezone(zone):%H:%M}", count) for start, count in zip(starts, counts, strict=False)],
    }


# The charts of a page.


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """The charts of a span, and its sums. `looked`: the rows that were read, or None; `queues`: sums per queue; `missing`: data that
    the counters lack, None if they were not read.
    """

    charts: Sequence[Line]
    looked: NewestJobs | NewestRuns | None
    whole: Line
    queues: Sequence[Line] = ()
    missing: Missing | None = None

    def context(self, name: str, span: Span) -> Line:
        """Returns the context of the charts. `name`: of the span; `short`: the rows are complete only for a part of the span."""
        looked = self.looked
        return {
            "charts": self.charts,
            "spans": [(each, NAMES[each], each == name) for each in SPANS],
            "whole": self.whole,
            "looked": looked,
            "short": bool(looked and looked.since and looked.since > clock.now() - span.length),
            "newest": trends.NEWEST,
        }


def of_queues(names: Sequence[str], span: Span, ends: Callable[[], NewestJobs], *, alive: bool) -> Section:
    """Returns the charts of these queues together. `ends` reads their newest rows if Redis has no counters or cannot be reached
    (`alive`).

    Raises:
        StoreUnavailable, StoreError: no server can be reached any more.
    """
    missing: Missing | None = None
    slots: list[SlotCounts] = []
    if alive:
        (found, slots), missing = stores.from_each(names, lambda reach: _counted(names, span, stores.figures(reach)))
        names = [name for name in names if name not in missing.queues]
        slots = [slot for slot in slots if slot.queue in names]
    looked = None if slots else ends()
    if alive:
        asked = [each for each in found if each.queue in names]
        start = clock.from_ms(asked[0].start_ms)
        by_queue: dict[str, Counts] = {each.queue: {kind: getattr(each, kind) for kind in KINDS} for each in asked}
    else:
        start, by_queue = _of_rows(names, span, looked)
    charts, times = _of_slots(slots) if slots else _of_ends(span, looked)
    counts = {kind: _added([each[kind] for each in by_queue.values()]) for kind in by_queue[names[0]]}
    if slots:
        each = {slot.queue: _times_of([slot]) for slot in slots}
    else:
        each = {name: _times(rows) for name, rows in _grouped(span, looked, "queue").items()}
    return Section(
        charts=[*_ended(span, start, counts), *charts],
        looked=looked,
        whole=_sums("", counts, times),
        queues=[_sums(name, of_queue, each.get(name, _times([]))) for name, of_queue in by_queue.items()],
        missing=missing,
    )


def of_tasks(span: Span, ends: NewestJobs) -> list[Line]:
    """Returns the sums of the tasks of these rows within the span, ordered by the number of ended jobs."""
    sums = [
        _sums(task, {state: [sum(one.state == state for one in rows)] for state in ENDED}, _times(rows))
        for task, rows in _grouped(span, ends, "task").items()
    ]
    return sorted(sums, key=lambda line: (-line["succeeded"] - line["failed"], line["name"]))


def of_task(span: Span, ends: NewestJobs, runs: NewestRuns) -> Section:
    """Returns the charts of a task, by attempts. Lateness is that of each last attempt, because rows do not keep earlier dates."""
    start, steps = spread_over(span, ((run.finished_at, run) for run in runs.rows), clock.now())
    counts = {outcome: [sum(run.outcome == outcome for run in step) for step in steps] for outcome in LOOKS}
    (late, _), (lates, _) = _of_ends(span, ends)
    ran, rans = _timed("ran", span, start, steps)
    return Section(charts=[*_ended(span, start, counts), late, ran], looked=runs, whole=_sums("", counts, (lates, rans)))


def _counted(names: Sequence[str], span: Span, figures: Figures) -> tuple[list[EndedCounts], list[SlotCounts]]:
    """Returns the ended jobs and, for at most an hour, lateness and run time."""
    ended = [figures.ended(name, step=span.step, steps=span.steps) for name in names]
    return ended, figures.slots(names) if span.length <= timedelta(hours=1) else []


def _of_rows(names: Sequence[str], span: Span, looked: NewestJobs | None) -> tuple[datetime, dict[str, Counts]]:
    rows = looked.rows if looked else ()
    ended = ((one.finished_at, (one.queue, one.state)) for one in rows if one.finished_at)
    start, steps = spread_over(span, ended, clock.now())
    return start, {name: {state: [step.count((name, state)) for step in steps] for state in ENDED} for name in names}


def _of_slots(slots: Sequence[SlotCounts]) -> tuple[list[Line], tuple[Ms, Ms]]:
    labels = moments(clock.from_ms(slots[0].start_ms), timedelta(milliseconds=SLOT_MS), len(slots[0].late))
    charts = []
    for name in TIMES:
        columns = zip(*(getattr(each, name) for each in slots), strict=True)
        charts.append(timed(name, [_percentiles(buckets) for buckets in columns], labels))
    return charts, _times_of(slots)


def _times_of(slots: Sequence[SlotCounts]) -> tuple[Ms, Ms]:
    late, ran = (_percentiles([counts for each in slots for counts in getattr(each, name)]) for name in TIMES)
    return late, ran


def _percentiles(buckets: Sequence[Sequence[int]]) -> Ms:
    counts = _added(buckets)
    return percentile(counts, 0.5), percentile(counts, 0.95)


def _of_ends(span: Span, looked: NewestJobs | None) -> tuple[list[Line], tuple[Ms, Ms]]:
    rows = looked.rows if looked else ()
    start, steps = spread_over(span, ((one.finished_at, one) for one in rows if one.finished_at), clock.now())
    (late, lates), (ran, rans) = (_timed(name, span, start, steps) for name in TIMES)
    return [late, ran], (lates, rans)


def _grouped(span: Span, looked: NewestJobs | None, field: str) -> dict[str, list[EndedJob]]:
    """Returns the rows within the span, by queue or by task."""
    begin = clock.now() - span.length
    found: defaultdict[str, list[EndedJob]] = defaultdict(list)
    for one in looked.rows if looked else ():
        if one.finished_at and one.finished_at >= begin:
            found[getattr(one, field)].append(one)
    return found


def _times(rows: Iterable[Any]) -> tuple[Ms, Ms]:
    late, ran = (_quantiles([value for one in rows if (value := getattr(one, name)) is not None]) for name in TIMES)
    return late, ran


def _quantiles(seconds: Sequence[float]) -> Ms:
    half, most = (None if (value := quantile(seconds, share)) is None else value * 1000 for share in (0.5, 0.95))
    return half, most


def _timed(name: str, span: Span, start: datetime, steps: Sequence[Sequence[Any]]) -> tuple[Line, Ms]:
    values = [[value for one in step if (value := getattr(one, name)) is not None] for step in steps]
    return timed(name, list(map(_quantiles, values)), _labels(span, start)), _quantiles([value for step in values for value in step])


def _ended(span: Span, start: datetime, counts: Counts) -> list[Line]:
    """Returns two charts, because successes usually dwarf failures."""
    labels = _labels(span, start)
    series = {outcome: (look, word(outcome), counts[outcome]) for outcome, look in LOOKS.items() if outcome in counts}
    well = series.pop(AttemptOutcome.SUCCEEDED.value)
    return [counted("well", TITLES["well"], [well], labels), counted("unwell", TITLES["unwell"], list(series.values()), labels)]


def _sums(name: str, counts: Counts, times: tuple[Ms, Ms]) -> Line:
    """Returns the sums of one queue, one task, or all of them, over a span. `share`: the failed share of the jobs that ended."""
    succeeded, failed = (sum(counts.get(outcome.value, ())) for outcome in (AttemptOutcome.SUCCEEDED, AttemptOutcome.FAILED))
    share = failed / (succeeded + failed) if succeeded + failed else None
    late, ran = (tuple(map(brief, pair)) for pair in times)
    bad = share is not None and share >= MANY
    return {"name": name, "succeeded": succeeded, "failed": failed, "share": percent(share), "bad": bad, "late": late, "ran": ran}


def _labels(span: Span, start: datetime) -> list[str]:
    return moments(start, timedelta(minutes=span.step), span.steps)


def _added(columns: Sequence[Sequence[int]]) -> list[int]:
    return [sum(column) for column in zip(*columns, strict=True)]
