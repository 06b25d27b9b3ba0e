"""The dashboard in plain values: a row per queue, the forecast, what fails most. Templates only write it down."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final
from zoneinfo import ZoneInfo

from django.utils.formats import number_format
from django.utils.safestring import SafeString
from django.utils.timezone import get_current_timezone
from django.utils.translation import gettext as now
from django.utils.translation import ngettext

from django_delayq import clock, conf
from django_delayq.admin.charts import bars, sums
from django_delayq.console import overview
from django_delayq.console.overview import DOWN, Overview, QueueView
from django_delayq.console.why_not_yet import PULLED_LATELY
from django_delayq.console.wording import duration, error_text
from django_delayq.producer.stores import stores
from django_delayq.spread import MINUTES, Spread, percentile
from django_delayq.store.reads.figures import Forecast
from django_delayq.text import visible

PARTS: Final = 6  # of an hour, in the table beside a sparkline
MOST_NAMED: Final = 20  # of what is left out
MANY: Final = 0.1  # a failure share that is shown in red


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One queue, as its line shows it."""

    queue: QueueView
    name: str
    by: str
    reason: str
    late: str
    busy: int
    minute: str
    hour: int
    share: str
    bad: bool
    lateness: tuple[str, str]
    ran: tuple[str, str]
    chart: SafeString
    parts: list[tuple[str, int, int]]
    next_due: str
    unpulled: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Away:
    """The line of a queue whose server does not answer. `away`: its name as the settings have it."""

    away: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Ahead:
    """One chart of the forecast with its table."""

    name: str
    title: str
    chart: SafeString
    total: int
    most: int
    rows: list[tuple[str, int]]


def rows(seen: Overview) -> tuple[list[Row | Away], Overview, str]:
    """A row per queue, in the order of the settings; what was seen, without what went away meanwhile; and why there are none, if all
    of Redis did.
    """
    names = [queue.name for queue in seen.queues]
    try:
        found, missing = stores.from_each(names, lambda reach: stores.figures(reach).hours(names))
    except DOWN as error:
        return [], seen, error_text(error)
    hours = dict(zip(names, found, strict=True))
    seen = seen.lacking(missing)
    there = {queue.name: _row(queue, hours[queue.name]) for queue in seen.queues}
    return [there.get(name) or Away(away=name, name=visible(name)) for name in conf.get().queues], seen, ""


def left_out(seen: Overview) -> list[tuple[str, str]]:
    """The queues, and partitions of queues, of servers that cannot be asked, and why."""
    return [
        (", ".join(map(visible, names[:MOST_NAMED])) + ", …" * (len(names) > MOST_NAMED), error_text(error))
        for names, error in seen.left_out
    ]


def forecast(queues: Sequence[str]) -> list[Ahead]:
    """What becomes due in these queues; nothing while Redis cannot be asked."""
    try:
        found, _ = stores.from_each(queues, lambda reach: stores.figures(reach).forecast(queues))
    except DOWN:
        return []
    return _ahead(_with_far(found, queues))


def _with_far(found: Forecast, queues: Sequence[str]) -> Forecast:
    """What the database alone has is due behind what Redis has."""
    minute, hour = found.start_ms - found.start_ms % 60_000, found.start_ms - found.start_ms % 3_600_000
    minutes = [minute + step * found.minute_step * 60_000 for step in range(len(found.minutes) + 1)]
    hours = [hour + step * found.hour_step * 3_600_000 for step in range(len(found.hours) + 1)]
    return replace(
        found,
        minutes=tuple(map(sum, zip(found.minutes, overview.due_between(queues, minutes), strict=True))),
        hours=tuple(map(sum, zip(found.hours, overview.due_between(queues, hours), strict=True))),
    )


def brief(ms: float | None) -> str:
    """A duration in a narrow column; a dash for none."""
    if ms is None:
        return "–"
    if ms < 1:
        return "<1ms"
    if ms < 1000:
        return f"{ms:.0f}ms"
    return f"{number_format(ms / 1000, 1)}s" if ms < 10_000 else clock.text(round(ms / 1000))


def percent(share: float | None) -> str:
    """A share of 1, small ones more exactly; a dash for none."""
    return "–" if share is None else f"{number_format(share * 100, 1 if 0 < share < 0.1 else 0)}%"


def _row(queue: QueueView, hour: Spread) -> Row:
    depth, share = queue.depth, hour.failure_share
    label = now("Jobs that ended in the last hour, per minute: %(done)d, of which %(failed)d failed") % {
        "done": hour.done,
        "failed": sum(hour.failed),
    }
    return Row(
        queue=queue,
        name=visible(queue.name),
        by=visible(depth.paused_by),
        reason=visible(depth.paused_reason),
        late=duration(float(int(queue.oldest_late))) if queue.oldest_late >= 1 else "–",
        busy=min(depth.running, queue.slots),
        minute=number_format(hour.done_per_minute, 1 if hour.done_per_minute < 10 else 0),
        hour=hour.done,
        share=percent(share),
        bad=share is not None and share >= MANY,
        lateness=(brief(percentile(hour.late, 0.5)), brief(percentile(hour.late, 0.95))),
        ran=(brief(percentile(hour.ran, 0.5)), brief(percentile(hour.ran, 0.95))),
        chart=bars([("delayq-bar-well", hour.succeeded), ("delayq-bar-bad", hour.failed)], label, look="delayq-spark"),
        parts=_parts(hour),
        next_due=_moment(depth.next_due_ms) if depth.next_due_ms else "–",
        unpulled=_unpulled(queue),
    )


def _unpulled(queue: QueueView) -> str:
    """That nobody pulls a queue of messages; "" where somebody does."""
    if not queue.pulled:
        return ""
    if not queue.depth.asked_ms:
        return now("never pulled")
    ago = (clock.wall_ms() - queue.depth.asked_ms) / 1000
    return now("not pulled for %(duration)s") % {"duration": duration(ago)} if ago >= PULLED_LATELY else ""


def _parts(hour: Spread) -> list[tuple[str, int, int]]:
    """The hour in words and numbers: when, succeeded, failed."""
    step = MINUTES // PARTS
    ago = [now("%(first)d to %(last)d minutes ago") % {"first": first, "last": first - step} for first in range(MINUTES, 0, -step)]
    return list(zip(ago, sums(hour.succeeded, PARTS), sums(hour.failed, PARTS), strict=True))


def _moment(ms: int) -> str:
    zone: Any = get_current_timezone()
    at, today = clock.from_ms(ms).astimezone(zone), clock.now().astimezone(zone)
    if at <= today:
        return now("now")
    return f"{at:%H:%M:%S}" if at.date() == today.date() else f"{at:%Y-%m-%d %H:%M}"


def _ahead(found: Forecast) -> list[Ahead]:
    zone: Any = get_current_timezone()
    per_minute = ngettext("Due per minute, next hour", "Due per %(count)d minutes, next hour", found.minute_step)
    per_hour = ngettext("Due per hour, next day", "Due per %(count)d hours, next day", found.hour_step)
    minute, hour = found.start_ms - found.start_ms % 60_000, found.start_ms - found.start_ms % 3_600_000
    return [
        _chart("minutes", per_minute % {"count": found.minute_step}, found.minutes, minute, found.minute_step * 60_000, zone),
        _chart("hours", per_hour % {"count": found.hour_step}, found.hours, hour, found.hour_step * 3_600_000, zone),
    ]


def _chart(name: str, title: str, counts: Sequence[int], start: int, step: int, zone: ZoneInfo) -> Ahead:
    times: list[datetime] = [clock.from_ms(start + step * number).astimezone(zone) for number in range(len(counts))]
    return Ahead(
        name=name,
        title=title,
        total=sum(counts),
        most=max(counts, default=0),
        chart=bars([("delayq-bar-ahead", counts)], f"{title}: {sum(counts)}", height=60, look="delayq-ahead"),
        rows=[(f"{time:%H:%M}", count) for time, count in zip(times, counts, strict=True)],
    )
