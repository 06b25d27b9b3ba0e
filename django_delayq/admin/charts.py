"""Figures as text, and the charts of the dashboard and of the pages of queues and tasks: their data, their rows for a table, and the
SVG. Lateness and run time are those of the last runs of jobs that succeeded or failed. They come from rows, or from the counters in
Redis if there are too many rows. Counts of queues come from the counters.

The SVG is inline. It has attributes and classes only, because the content security policy forbids styles.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import pairwise, zip_longest
from typing import Any, Final, NamedTuple
from urllib.parse import urlencode

from django.utils.formats import number_format
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.timezone import get_current_timezone
from django.utils.translation import gettext as now
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext

from django_delayq import clock, conf, durations, spread
from django_delayq.admin.badges import word
from django_delayq.console import overview, trends
from django_delayq.console.moments import written
from django_delayq.console.overview import DOWN
from django_delayq.console.trends import ENDED, SPANS, EndedJob, NewestJobs, NewestRuns, Span, quantile, spread_over
from django_delayq.producer.stores import Missing, stores
from django_delayq.spread import SLOT_MS, percentile
from django_delayq.states import AttemptOutcome, State
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
DAY: Final = 24 * 60  # minutes


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


class ListLinks(NamedTuple):
    """The list of jobs that the bars of a chart lead to. `url`: "" if the user may not view jobs; `named`: its queue or task."""

    url: str
    named: Mapping[str, str] = {}

    def between(self, edges: Sequence[datetime], counts: Sequence[float], words: str, dates: str = "ended_") -> list[str]:
        """Returns a URL for each step that has jobs, and "" for the others. `edges`: of the steps; `words`: a search; `dates`: which
        date of the jobs.
        """
        if not self.url:
            return []
        texts = list(map(written, edges))
        return [
            f"{self.url}?{urlencode({**self.named, 'q': f'{words} {dates}after:{begin} {dates}before:{end}'})}" if count else ""
            for (begin, end), count in zip(pairwise(texts), counts, strict=True)
        ]


NO_LIST: Final = ListLinks("")


def counted(
    name: str,
    title: Any,
    series: Sequence[tuple[str, Any, Sequence[int]]],
    labels: Sequence[str],
    first: Any = None,
    links: Sequence[str] = (),
) -> Line:
    """Returns a chart of counts. `series`: class, name and numbers of each; `first`: the heading of the labels."""
    return _chart(name, title, series, labels, scale, _whole, first, links)


def timed(name: str, times: Sequence[Ms], labels: Sequence[str], links: Sequence[str] = ()) -> Line:
    """Returns a chart of lateness or run time, in ms."""
    lower = [half or 0.0 for half, _ in times]
    rest = [max(0.0, (most or 0.0) - (half or 0.0)) for half, most in times]
    series = [("delayq-bar-half", "p50", lower), ("delayq-bar-most", "p95", rest)]
    cells = [tuple(map(brief, pair)) for pair in times]
    return _chart(name, TITLES[name], series, labels, lambda edge: scale(edge, DURATIONS), brief, None, links, cells)


def histogram(name: str, title: Any, seconds: Sequence[float]) -> Line:
    """Returns a histogram whose steps double in length."""
    counts = Counter(spread.bucket(int(value * 1000)) for value in seconds)
    shown = range(min(counts), max(counts) + 1) if counts else range(1)
    labels = [f"< {brief(2.0**number)}" if number < spread.BUCKETS - 1 else f"≥ {brief(2.0 ** (number - 1))}" for number in shown]
    return counted(name, title, [("delayq-bar-ahead", now("Jobs"), [counts[number] for number in shown])], labels, now("Took"))


def _chart(
    name: str,
    title: Any,
    series: Sequence[tuple[str, Any, Sequence[float]]],
    labels: Sequence[str],
    rounded: Callable[[float], float],
    told: Callable[[float], str],
    first: Any,
    links: Sequence[str],
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
        "picture": bars(stacks, str(title), height=HEIGHT, look="delayq-trend", top=top, titles=titles, links=links),
        "top": "" if nothing else told(top),
        "half": "" if nothing or top < 2 else told(top / 2),
        "marks": [labels[0], labels[len(labels) // 2], labels[-1]] if len(labels) > 2 else labels,
        "first": first or now("From"),
        "heads": heads,
        "legend": [(head, look) for head, (look, _) in zip(heads, stacks, strict=True)],
        "rows": list(zip(linked(labels, links), cells, strict=True)),
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
    links: Sequence[str] = (),
) -> SafeString:
    """Returns bars side by side, one per number. Several series are stacked. With links, the picture is for the mouse only: the table
    beside it has the same links for the keyboard and for screen readers.

    Args:
        stacks: (class, numbers) from the bottom upward, all of one length.
        label: what the picture shows, for screen readers.
        top: the number at the upper edge, which gets a line, like its half. 0: the highest bar touches the edge.
        titles: the tooltip of each bar.
        links: the URL of each bar, or "".
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
    over = [
        (_link(link), title, at, height, height, SafeString("</a>" if link else "</g>"))
        for at, (title, link) in enumerate(zip_longest(titles, links, fillvalue=""))
    ]
    return format_html(
        '<svg class="delayq-chart {}" viewBox="0 {} {} {}" preserveAspectRatio="none" {} focusable="false">'
        '<path class="delayq-ground" d="{}"/>{}{}</svg>',
        look,
        -height,
        max(1, count),
        height,
        SafeString('aria-hidden="true"') if links else format_html('role="img" aria-label="{}"', label),
        lines,
        format_html_join("", '<path class="{}" d="{}"/>', paths),
        format_html_join("", '{}<title>{}</title><path class="delayq-over" d="M{} 0v-{}h1v{}z"/>{}', over),
    )


def _link(url: str) -> SafeString:
    return format_html('<a href="{}" tabindex="-1">', url) if url else SafeString("<g>")


def linked(labels: Sequence[str], links: Sequence[str]) -> list[str]:
    """Returns the labels, with a link where there is one."""
    pairs = zip_longest(labels, links, fillvalue="")
    return [format_html('<a href="{}">{}</a>', link, label) if link else label for label, link in pairs]


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


def forecast(queues: Sequence[str], jobs: ListLinks = NO_LIST) -> list[Line]:
    """Returns charts of the jobs that become due, or nothing if Redis cannot be reached."""
    try:
        found, _ = stores.from_each(queues, lambda reach: stores.figures(reach).forecast(queues))
    except DOWN:
        return []
    per_minute = ngettext("Due per minute, next hour", "Due per %(count)d minutes, next hour", found.minute_step)
    per_hour = ngettext("Due per hour, next day", "Due per %(count)d hours, next day", found.hour_step)
    return [
        _ahead(
            queues, jobs, "minutes", per_minute % {"count": found.minute_step}, found.minutes, found.start_ms, 60_000, found.minute_step
        ),
        _ahead(queues, jobs, "hours", per_hour % {"count": found.hour_step}, found.hours, found.start_ms, 3_600_000, found.hour_step),
    ]


def _ahead(
    queues: Sequence[str], jobs: ListLinks, name: str, title: str, in_redis: Sequence[int], now_ms: int, unit_ms: int, units: int
) -> Line:
    """Returns one chart and its table. Adds the far jobs, which only the database has. `units`: the length of a step."""
    zone: Any = get_current_timezone()
    starts = [now_ms // unit_ms * unit_ms + number * units * unit_ms for number in range(len(in_redis) + 1)]
    counts = list(map(sum, zip(in_redis, overview.due_between(queues, starts), strict=True)))
    edges = [clock.from_ms(max(now_ms, start)) for start in starts]
    labels = [f"{clock.from_ms(start).astimezone(zone):%H:%M}" for start in starts[:-1]]
    links = jobs.between(edges, counts, "state:scheduled", "")
    return {
        "name": name,
        "title": title,
        "total": sum(counts),
        "most": max(counts, default=0),
        "chart": bars(
            [("delayq-bar-ahead", counts)],
            f"{title}: {sum(counts)}",
            height=60,
            look="delayq-ahead",
            titles=[f"{label}: {count}" for label, count in zip(labels, counts, strict=True)],
            links=links,
        ),
        "rows": list(zip(linked(labels, links), counts, strict=True)),
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
            "short": bool(looked and looked.since and looked.since > span.start(clock.now())),
            "newest": trends.NEWEST,
        }


def of_queues(
    names: Sequence[str], span: Span, ended: NewestJobs, *, alive: bool, jobs: ListLinks = NO_LIST, earlier: EarlierPeriod | None = None
) -> Section:
    """Returns the charts of these queues together. `ended`: their newest rows, which also have the counts if Redis cannot be reached
    (not `alive`); `jobs`: the list that the bars lead to; `earlier`: what the sums are compared with.

    Raises:
        StoreUnavailable, StoreError: no server can be reached any more.
    """
    missing: Missing | None = None
    slots: list[SlotCounts] = []
    before: list[EndedCounts] = []
    if alive:
        ago = earlier.days * DAY if earlier else None
        (found, before, slots), missing = stores.from_each(names, lambda reach: _counted(names, span, ago, stores.figures(reach)))
        names = [name for name in names if name not in missing.queues]
        asked = [each for each in found if each.queue in names]
        start = clock.from_ms(asked[0].start_ms)
        by_queue = {each.queue: _by_kind(each) for each in asked}
    else:
        start, by_queue = _of_rows(names, span, ended)
    ended = replace(ended, rows=[one for one in ended.rows if one.queue in names])
    count = sum(sum(of_queue[state]) for of_queue in by_queue.values() for state in ENDED)
    slots = [slot for slot in slots if slot.queue in names] if _are_too_few(ended, span, names, count) else []
    charts, times = _of_slots(slots) if slots else _of_ends(span, ended, jobs)
    counts = {kind: _added([each[kind] for each in by_queue.values()]) for kind in by_queue[names[0]]}
    if slots:
        each = {slot.queue: _times_of([slot]) for slot in slots}
    else:
        each = {name: _times(rows) for name, rows in _grouped(span.start(clock.now()), ended, "queue").items()}
    lines = [_sums(name, of_queue, each.get(name, _times([]))) for name, of_queue in by_queue.items()]
    if earlier:
        partial = _only_failures(earlier.start)
        gone = {name: _times(rows) for name, rows in earlier.grouped("queue").items() if name not in partial}
        _compare(lines, [_sums(one.queue, _by_kind(one), gone.get(one.queue, _times([]))) for one in before])
    return Section(
        charts=[*_ended(span, start, counts, jobs), *charts],
        looked=None if slots else ended,
        whole=_sums("", counts, times),
        queues=lines,
        missing=missing,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierPeriod:
    """The same period some days earlier, until the time of now. `ended`: the newest rows of then."""

    days: int
    start: datetime
    end: datetime
    ended: NewestJobs

    def grouped(self, field: str) -> dict[str, list[EndedJob]]:
        """Returns the rows of the period by queue or by task; none if these are not all."""
        return _grouped(self.start, self.ended, field, self.end) if self.ended.covers(self.start) else {}

    def is_pruned(self, names: Sequence[str]) -> bool:
        """Whether rows of these queues may have been deleted since."""
        return bool((_only_failures(self.start) - _only_failures()) & {*names})


def earlier(span: Span, days: int, ends: Callable[[datetime], NewestJobs]) -> EarlierPeriod:
    """Reads the same period some days earlier. `ends`: returns the newest rows with an earlier date than this."""
    end = clock.now() - timedelta(days=days)
    return EarlierPeriod(days=days, start=span.start(end), end=end, ended=ends(end))


def _compare(lines: Sequence[Line], others: Sequence[Line]) -> None:
    """Adds to each line that of the earlier period, or None."""
    found = {other["name"]: other for other in others}
    for line in lines:
        line["before"] = found.get(line["name"])


def of_tasks(span: Span, ends: NewestJobs, earlier: EarlierPeriod | None = None) -> list[Line]:
    """Returns the sums of the tasks of these rows within the span, ordered by the number of ended jobs."""
    sums = _task_sums(_grouped(span.start(clock.now()), ends, "task"))
    if earlier:
        _compare(sums, _task_sums(earlier.grouped("task"), earlier.start))
    return sorted(sums, key=lambda line: (-(line["succeeded"] or 0) - line["failed"], line["name"]))


def _task_sums(rows: Mapping[str, Sequence[EndedJob]], start: datetime | None = None) -> list[Line]:
    partial = _only_failures(start)
    return [
        _sums(
            task,
            {state: [sum(one.state == state for one in those)] for state in ENDED},
            _times([one for one in those if one.queue not in partial]),
            kept=not partial & {one.queue for one in those},
        )
        for task, those in rows.items()
    ]


def of_task(span: Span, ends: NewestJobs, runs: NewestRuns, jobs: ListLinks = NO_LIST) -> Section:
    """Returns the charts of a task, by jobs; attempts that were retried or crashed are counted too."""
    start, jobs_of = spread_over(span, ((one.finished_at, one) for one in ends.rows if one.finished_at), clock.now())
    _, runs_of = spread_over(span, ((run.finished_at, run) for run in runs.rows), clock.now())
    counts = {state: [sum(one.state == state for one in step) for step in jobs_of] for state in ENDED}
    counts |= {outcome: [sum(run.outcome == outcome for run in step) for step in runs_of] for outcome in LOOKS if outcome not in ENDED}
    charts, times = _of_ends(span, ends, jobs)
    return Section(charts=[*_ended(span, start, counts, jobs), *charts], looked=runs, whole=_sums("", counts, times))


def _are_too_few(ended: NewestJobs, span: Span, names: Sequence[str], count: int) -> bool:
    """Whether these rows do not show the times of the queues: too many jobs ended, good ones have no rows, or the mirror is behind."""
    start = span.start(clock.now())
    return not ended.covers(start) or bool(_only_failures() & {*names}) or 2 * len(within(span, ended)) < count


def _only_failures(start: datetime | None = None) -> set[str]:
    """The queues that have no rows of jobs that succeeded, or whose rows from `start` on are partly deleted. The times of failed jobs
    alone would mislead.
    """
    age = (clock.now() - start).total_seconds() if start else 0.0
    kept = {name: (queue.audit, queue.retention[State.SUCCEEDED.value]) for name, queue in conf.get().queues.items()}
    return {name for name, (audit, seconds) in kept.items() if audit == "failures" or (seconds is not None and seconds < age)}


def _counted(
    names: Sequence[str], span: Span, ago: int | None, figures: Figures
) -> tuple[list[EndedCounts], list[EndedCounts], list[SlotCounts]]:
    """Returns the ended jobs, those `ago` minutes earlier, and, for at most an hour, lateness and run time."""
    ended, before = (
        [figures.ended(name, step=span.step, steps=span.steps, ago=minutes) for name in names] if minutes is not None else []
        for minutes in (0, ago)
    )
    return ended, before, figures.slots(names) if span == SPANS["1h"] else []


def _by_kind(ended: EndedCounts) -> Counts:
    return {kind: getattr(ended, kind) for kind in KINDS}


def _of_rows(names: Sequence[str], span: Span, looked: NewestJobs) -> tuple[datetime, dict[str, Counts]]:
    ended = ((one.finished_at, (one.queue, one.state)) for one in looked.rows if one.finished_at)
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


def _of_ends(span: Span, looked: NewestJobs, jobs: ListLinks) -> tuple[list[Line], tuple[Ms, Ms]]:
    start, steps = spread_over(span, ((one.finished_at, one) for one in looked.rows if one.finished_at), clock.now())
    labels, links = _labels(span, start), jobs.between(_edges(span, start), list(map(len, steps)), "-state:cancelled")
    charts = [timed(name, [_quantiles(values(step, name)) for step in steps], labels, links) for name in TIMES]
    return charts, _times([one for step in steps for one in step])


def _grouped(start: datetime, looked: NewestJobs, field: str, end: datetime | None = None) -> dict[str, list[EndedJob]]:
    """Returns the rows that ended from `start` to `end`, by queue or by task."""
    found: defaultdict[str, list[EndedJob]] = defaultdict(list)
    for one in looked.rows:
        if one.finished_at and start <= one.finished_at and (end is None or one.finished_at < end):
            found[getattr(one, field)].append(one)
    return found


def _times(rows: Sequence[EndedJob]) -> tuple[Ms, Ms]:
    late, ran = (_quantiles(values(rows, name)) for name in TIMES)
    return late, ran


def within(span: Span, ends: NewestJobs) -> list[EndedJob]:
    """Returns the rows that ended within the span."""
    return [one for rows in _grouped(span.start(clock.now()), ends, "state").values() for one in rows]


def values(rows: Sequence[EndedJob], name: str) -> list[float]:
    """Returns the lateness or the run times of these jobs, in seconds."""
    partial = _only_failures()
    return [value for one in rows if one.queue not in partial and (value := getattr(one, name)) is not None]


def _quantiles(seconds: Sequence[float]) -> Ms:
    half, most = (None if (value := quantile(seconds, share)) is None else value * 1000 for share in (0.5, 0.95))
    return half, most


def _ended(span: Span, start: datetime, counts: Counts, jobs: ListLinks) -> list[Line]:
    """Returns two charts, because successes usually dwarf failures. The second leads to the failed jobs."""
    labels, edges = _labels(span, start), _edges(span, start)
    series = {outcome: (look, word(outcome), counts[outcome]) for outcome, look in LOOKS.items() if outcome in counts}
    well = series.pop(AttemptOutcome.SUCCEEDED.value)
    to_well, to_failed = (jobs.between(edges, counts[state], f"state:{state}") for state in ENDED)
    return [
        counted("well", TITLES["well"], [well], labels, links=to_well),
        counted("unwell", TITLES["unwell"], list(series.values()), labels, links=to_failed),
    ]


def _sums(name: str, counts: Counts, times: tuple[Ms, Ms], *, kept: bool = True) -> Line:
    """Returns the sums of one queue, one task, or all of them, over a span. `share`: the failed share of the jobs that ended; `kept`:
    whether the jobs that succeeded are known.
    """
    succeeded, failed = (sum(counts.get(state, ())) for state in ENDED)
    share = failed / (succeeded + failed) if kept and succeeded + failed else None
    late, ran = (tuple(map(brief, pair)) for pair in times)
    bad = share is not None and share >= MANY
    return {
        "name": name,
        "succeeded": succeeded if kept else None,
        "failed": failed,
        "share": percent(share),
        "bad": bad,
        "late": late,
        "ran": ran,
    }


def _labels(span: Span, start: datetime) -> list[str]:
    return moments(start, timedelta(minutes=span.step), span.steps)


def _edges(span: Span, start: datetime) -> list[datetime]:
    return [start + number * timedelta(minutes=span.step) for number in range(span.steps + 1)]


def _added(columns: Sequence[Sequence[int]]) -> list[int]:
    return [sum(column) for column in zip(*columns, strict=True)]
