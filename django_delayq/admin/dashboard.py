"""The rows of the dashboard, one for each queue. Templates only print them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from django.utils.formats import number_format
from django.utils.safestring import SafeString
from django.utils.timezone import get_current_timezone
from django.utils.translation import gettext as now

from django_delayq import clock, conf
from django_delayq.admin.svg_bars import bars, sums
from django_delayq.console.overview import DOWN, Overview, QueueView
from django_delayq.console.why_not_yet import PULLED_LATELY
from django_delayq.console.wording import duration, error_text
from django_delayq.producer.stores import stores
from django_delayq.spread import MINUTES, Spread, percentile
from django_delayq.text import visible

PARTS: Final = 6  # of an hour, in the table beside a sparkline
MOST_NAMED: Final = 20  # of the queues that are left out
MANY: Final = 0.1  # a failure share that is shown in red


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """The row of one queue."""

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
    """The row of a queue whose server does not answer. `away`: its name in the settings."""

    away: str
    name: str


def rows(seen: Overview) -> tuple[list[Row | Away], Overview, str]:
    """Returns the rows in the order of the settings, the overview without servers that failed meanwhile, and an error if no server
    answered.
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
    """Returns the queues and partitions whose servers cannot be reached, with the reason."""
    return [
        (", ".join(map(visible, names[:MOST_NAMED])) + ", …" * (len(names) > MOST_NAMED), error_text(error))
        for names, error in seen.left_out
    ]


def brief(ms: float | None) -> str:
    """Formats a duration for a narrow column."""
    if ms is None:
        return "–"
    if ms < 1:
        return "<1ms"
    if ms < 1000:
        return f"{ms:.0f}ms"
    return f"{number_format(ms / 1000, 1)}s" if ms < 10_000 else clock.text(round(ms / 1000))


def percent(share: float | None) -> str:
    """Formats a share as a percentage; small shares have a decimal."""
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
    """Reports that no consumer pulls a queue of messages, or ""."""
    if not queue.pulled:
        return ""
    if not queue.depth.asked_ms:
        return now("never pulled")
    ago = (clock.wall_ms() - queue.depth.asked_ms) / 1000
    return now("not pulled for %(duration)s") % {"duration": duration(ago)} if ago >= PULLED_LATELY else ""


def _parts(hour: Spread) -> list[tuple[str, int, int]]:
    """Returns rows of time, succeeded and failed for the last hour."""
    step = MINUTES // PARTS
    ago = [now("%(first)d to %(last)d minutes ago") % {"first": first, "last": first - step} for first in range(MINUTES, 0, -step)]
    return list(zip(ago, sums(hour.succeeded, PARTS), sums(hour.failed, PARTS), strict=True))


def _moment(ms: int) -> str:
    zone: Any = get_current_timezone()
    at, today = clock.from_ms(ms).astimezone(zone), clock.now().astimezone(zone)
    if at <= today:
        return now("now")
    return f"{at:%H:%M:%S}" if at.date() == today.date() else f"{at:%Y-%m-%d %H:%M}"
