"""The charts of a page: queues by the counters in Redis or by the newest rows, tasks by attempts."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from django.utils.translation import gettext_lazy as _

from django_delayq import clock
from django_delayq.admin.badges import word
from django_delayq.admin.dashboard_charts import Chart, counted, moments, timed
from django_delayq.console.trends import ENDED, EndedJob, NewestJobs, NewestRuns, Span, quantile, spread_over
from django_delayq.producer.stores import Missing, stores
from django_delayq.spread import SLOT_MS, percentile
from django_delayq.states import AttemptOutcome
from django_delayq.store.reads.figures import EndedCounts, Figures, SlotCounts

LOOKS: Final = {  # CSS classes, from the bottom of a bar upward
    AttemptOutcome.SUCCEEDED.value: "delayq-bar-well",
    AttemptOutcome.RETRIED.value: "delayq-bar-late",
    AttemptOutcome.CRASHED.value: "delayq-bar-gone",
    AttemptOutcome.FAILED.value: "delayq-bar-bad",
}
TITLES: Final = {"well": _("Succeeded"), "unwell": _("Did not succeed"), "late": _("Lateness"), "ran": _("Run time")}
SHARES: Final = (0.5, 0.95)
Counts = Mapping[str, Sequence[int]]
Ms = tuple[float | None, float | None]  # median and 95th percentile


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """The sums of one queue, one task, or all of them, over a span. `counts`: by outcome."""

    name: str
    counts: Mapping[str, int]
    late: Ms
    ran: Ms

    @property
    def succeeded(self) -> int:
        return self.counts.get(AttemptOutcome.SUCCEEDED.value, 0)

    @property
    def failed(self) -> int:
        return self.counts.get(AttemptOutcome.FAILED.value, 0)

    @property
    def share(self) -> float | None:
        """The failed share of the jobs that ended; None if no job ended."""
        ended = self.succeeded + self.failed
        return self.failed / ended if ended else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """The charts of a span, and its sums. `looked`: the rows that were read, or None; `queues`: sums per queue; `missing`: data that
    the counters lack, None if they were not read.
    """

    charts: Sequence[Chart]
    looked: NewestJobs | NewestRuns | None
    whole: Part
    queues: Sequence[Part] = ()
    missing: Missing | None = None


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
    start, by_queue = _by_counters(names, found) if alive else _of_rows(names, span, looked)
    late, ran, times = _of_slots(slots) if slots else _of_ends(span, looked)
    counts = {kind: _added([each[kind] for each in by_queue.values()]) for kind in by_queue[names[0]]}
    each = {slot.queue: _times_of([slot]) for slot in slots} if slots else _times_by_queue(span, looked)
    nothing = ((None, None), (None, None))
    return Section(
        charts=[*_ended(span, start, counts), late, ran],
        looked=looked,
        whole=_part("", counts, times),
        queues=[_part(name, of_queue, each.get(name, nothing)) for name, of_queue in by_queue.items()],
        missing=missing,
    )


def of_tasks(span: Span, ends: NewestJobs) -> list[Part]:
    """Returns the tasks of these rows within the span, ordered by the number of ended jobs."""
    rows = _within(span, ends)
    grouped: defaultdict[str, list[EndedJob]] = defaultdict(list)
    for one in rows:
        grouped[one.task].append(one)
    parts = [
        Part(name=task, counts=Counter(one.state for one in found), late=_late(found), ran=_ran(found))
        for task, found in grouped.items()
    ]
    return sorted(parts, key=lambda part: (-part.succeeded - part.failed, part.name))


def of_task(span: Span, ends: NewestJobs, runs: NewestRuns) -> Section:
    """Returns the charts of a task, by attempts. Lateness is that of each last attempt, because rows do not keep earlier dates."""
    start, steps = spread_over(span, ((run.finished_at, run) for run in runs.rows), clock.now())
    counts = {outcome: [sum(run.outcome == outcome for run in step) for step in steps] for outcome in LOOKS}
    late, _, (lates, _) = _of_ends(span, ends)
    ran, rans = _timed("ran", span, start, [[run.ran for run in step] for step in steps])
    return Section(charts=[*_ended(span, start, counts), late, ran], looked=runs, whole=_part("", counts, (lates, rans)))


def _counted(names: Sequence[str], span: Span, figures: Figures) -> tuple[list[EndedCounts], list[SlotCounts]]:
    """Returns charts of the ended jobs and, for at most an hour, of lateness and run time."""
    ended = [figures.ended(name, step=span.step, steps=span.steps) for name in names]
    return ended, figures.slots(names) if span.length <= timedelta(hours=1) else []


def _by_counters(names: Sequence[str], found: Sequence[EndedCounts]) -> tuple[datetime, dict[str, Counts]]:
    kinds = ("succeeded", "retried", "failed")
    asked = [each for each in found if each.queue in names]
    return clock.from_ms(asked[0].start_ms), {each.queue: {kind: getattr(each, kind) for kind in kinds} for each in asked}


def _of_rows(names: Sequence[str], span: Span, looked: NewestJobs | None) -> tuple[datetime, dict[str, Counts]]:
    rows = looked.rows if looked else ()
    ended = ((one.finished_at, (one.queue, one.state)) for one in rows if one.finished_at)
    start, steps = spread_over(span, ended, clock.now())
    return start, {name: {state: [step.count((name, state)) for step in steps] for state in ENDED} for name in names}


def _of_slots(slots: Sequence[SlotCounts]) -> tuple[Chart, Chart, tuple[Ms, Ms]]:
    labels = moments(clock.from_ms(slots[0].start_ms), timedelta(milliseconds=SLOT_MS), len(slots[0].late))
    charts = []
    for name in ("late", "ran"):
        counts = [_added(buckets) for buckets in zip(*(getattr(each, name) for each in slots), strict=True)]
        half, most = ([percentile(each, share) for each in counts] for share in SHARES)
        charts.append(timed(name, TITLES[name], half, most, labels))
    return charts[0], charts[1], _times_of(slots)


def _times_of(slots: Sequence[SlotCounts]) -> tuple[Ms, Ms]:
    late, ran = (_added([counts for each in slots for counts in getattr(each, name)]) for name in ("late", "ran"))
    return (percentile(late, 0.5), percentile(late, 0.95)), (percentile(ran, 0.5), percentile(ran, 0.95))


def _of_ends(span: Span, looked: NewestJobs | None) -> tuple[Chart, Chart, tuple[Ms, Ms]]:
    rows = looked.rows if looked else ()
    start, steps = spread_over(span, ((one.finished_at, one) for one in rows if one.finished_at), clock.now())
    late, lates = _timed("late", span, start, [[one.late for one in step if one.late is not None] for step in steps])
    ran, rans = _timed("ran", span, start, [[one.ran for one in step if one.ran is not None] for step in steps])
    return late, ran, (lates, rans)


def _times_by_queue(span: Span, looked: NewestJobs | None) -> dict[str, tuple[Ms, Ms]]:
    grouped: defaultdict[str, list[EndedJob]] = defaultdict(list)
    for one in _within(span, looked):
        grouped[one.queue].append(one)
    return {name: (_late(found), _ran(found)) for name, found in grouped.items()}


def _within(span: Span, looked: NewestJobs | None) -> list[EndedJob]:
    begin = clock.now() - span.length
    return [one for one in looked.rows if one.finished_at and one.finished_at >= begin] if looked else []


def _late(rows: Sequence[EndedJob]) -> Ms:
    return _pair([one.late for one in rows if one.late is not None])


def _ran(rows: Sequence[EndedJob]) -> Ms:
    return _pair([one.ran for one in rows if one.ran is not None])


def _pair(seconds: Sequence[float]) -> Ms:
    return _ms(quantile(seconds, 0.5)), _ms(quantile(seconds, 0.95))


def _timed(name: str, span: Span, start: datetime, steps: Sequence[Sequence[float]]) -> tuple[Chart, Ms]:
    half, most = zip(*map(_pair, steps), strict=True)
    return timed(name, TITLES[name], half, most, _labels(span, start)), _pair([value for step in steps for value in step])


def _ended(span: Span, start: datetime, counts: Counts) -> list[Chart]:
    """Returns two charts, because successes usually dwarf failures."""
    labels = _labels(span, start)
    series = {outcome: (look, word(outcome), counts[outcome]) for outcome, look in LOOKS.items() if outcome in counts}
    well = series.pop(AttemptOutcome.SUCCEEDED.value)
    return [counted("well", TITLES["well"], [well], labels), counted("unwell", TITLES["unwell"], list(series.values()), labels)]


def _part(name: str, counts: Counts, times: tuple[Ms, Ms]) -> Part:
    return Part(name=name, counts={outcome: sum(numbers) for outcome, numbers in counts.items()}, late=times[0], ran=times[1])


def _labels(span: Span, start: datetime) -> list[str]:
    return moments(start, timedelta(minutes=span.step), span.steps)


def _added(columns: Sequence[Sequence[int]]) -> list[int]:
    return [sum(column) for column in zip(*columns, strict=True)]


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1000
