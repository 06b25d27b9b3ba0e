"""What the page of a schedule shows, gathered: what its owner says and what people say beside it, the dates ahead, what became of those
behind, and who changed it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from itertools import islice
from typing import Any, Final

from django.http import HttpRequest
from django.utils.functional import Promise
from django.utils.timezone import get_current_timezone_name
from django.utils.translation import gettext as now
from django.utils.translation import gettext_lazy as _

from django_delayq import clock
from django_delayq.admin import timeline
from django_delayq.admin.show import badge, word
from django_delayq.console import masking, schedule_views
from django_delayq.console.schedule_views import TickView
from django_delayq.console.wording import duration, error_text, second, utc
from django_delayq.exceptions import ConfigError
from django_delayq.models import Event, Periodic, Tick
from django_delayq.periodic import schedule_rows
from django_delayq.periodic.dates import Dates, zone_of
from django_delayq.periodic.declarations import declarations
from django_delayq.text import visible

UPCOMING: Final = 10
MOST: Final = 50  # ticks on a page, and as many changes
STEPS: Final = ((86_400, 3_600), (300, 60), (30, 5))  # from so many seconds on, so many are one step
ALARMING: Final = 60.0  # seconds late
OWNERS: Final[dict[str, Promise]] = {Periodic.Owner.CODE: _("code"), Periodic.Owner.ADMIN: _("made here")}
POLICIES: Final[dict[str, dict[str, Promise]]] = {
    "missed": {
        "skip": _("skip: missed ticks create no jobs"),
        "once": _("once: only the latest missed tick creates a job"),
        "all": _("all: every missed tick creates a job, at most 100"),
    },
    "overlap": {
        "allow": _("allow: runs may overlap"),
        "skip": _("skip: a tick does not run if another run is still in progress"),
        "wait": _("wait: a run waits until the previous run has ended"),
    },
}


@dataclass(frozen=True, slots=True, kw_only=True)
class DateShown:
    """A date ahead, on three clocks: that of the schedule, with its offset; that of the reader; and UTC. `shifted`: since the date
    before, the clock of the schedule has been changed.
    """

    there: str
    here: str
    utc: str
    wait: str
    shifted: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TickLine:
    """A line of the history. `alarming`: it is very late; `gone`: there was a job, and its row is no more."""

    view: TickView
    at: str
    utc: str
    mark: str
    late: str
    alarming: bool
    by: str
    gone: bool


def gather(request: HttpRequest, row: Periodic, using: str, *, sensitive: bool, behind: Tick | None = None) -> dict[str, Any]:
    """The context of the page, without the buttons. `sensitive`: with what is masked for others; `behind`: the history begins there."""
    ticks = schedule_views.ticks_of(row, using, MOST + 1, behind=behind)
    declared = declarations.get(row.name)
    coming, trouble = upcoming(row)
    args, kwargs = (row.args, row.kwargs) if sensitive else masking.arguments(row.task, row.args, row.kwargs)
    return {
        "row": row,
        "original": row,
        "name": visible(row.name),
        "mark": badge(schedule_views.standing(row)),
        "own": dates_shown(Dates(row.cron, row.every_ms, row.timezone, row.jitter_ms)),
        "other": dates_shown(schedule_rows.dates_of(row)) if row.overridden else None,
        "missed": POLICIES["missed"].get(row.missed, row.missed),
        "overlap": POLICIES["overlap"].get(row.overlap, row.overlap),
        "by_code": row.owner == Periodic.Owner.CODE,
        "place": declared.place if declared else "",
        "differs": declared is not None and row.fingerprint not in ("", declared.fingerprint),
        "trouble": schedule_views.problem(row) or trouble,
        "args": timeline.pretty(args) if args else "",
        "kwargs": timeline.pretty(kwargs) if kwargs else "",
        "upcoming": coming if row.active else [],
        **clocks(schedule_rows.dates_of(row)),
        "ticks": lines(schedule_views.seen(ticks[:MOST], using)),
        "earlier": ticks[MOST - 1].pk if len(ticks) > MOST else None,
        "cut": behind is not None,
        "changes": [(event, word(event.kind), _told_of(event)) for event in schedule_rows.events(row, using, MOST)],
    }


def dates_shown(dates: Dates) -> tuple[str, str]:
    """As in a crontab, and in words where there are any."""
    try:
        words = dates.words
    except ConfigError:
        words = dates.text
    return visible(dates.text), visible(words) if words != dates.text else ""


def upcoming(row: Periodic, most: int = UPCOMING) -> tuple[list[DateShown], str]:
    """The next of the dates that hold, and why they cannot be told, or ""."""
    try:
        return ahead(schedule_rows.dates_of(row), most), ""
    except ConfigError as error:
        return [], error_text(error)


def ahead(dates: Dates, most: int) -> list[DateShown]:
    """The next dates, as tables show them.

    Raises:
        ConfigError: the cron or the zone cannot be read.
    """
    zone, present, before = zone_of(dates.timezone or "UTC"), clock.now(), None
    found: list[DateShown] = []
    for moment in islice(dates.after(present), most):
        there = moment.astimezone(zone)
        offset = there.utcoffset() or timedelta(0)
        found.append(
            DateShown(
                there=f"{there:%Y-%m-%d %H:%M:%S} {_offset(offset)}",
                here=second(moment),
                utc=utc(moment),
                wait=now("in %(duration)s") % {"duration": _coarse((moment - present).total_seconds())},
                shifted=before is not None and offset != before,
            )
        )
        before = offset
    return found


def clocks(dates: Dates) -> dict[str, Any]:
    """By whose clock dates are shown: that of the schedule, and whether that of the reader, too."""
    zone = dates.timezone or "UTC"
    here = get_current_timezone_name()
    return {"zone": visible(zone), "in_utc": zone != "UTC", "elsewhere": here not in (zone, "UTC"), "here": visible(here)}


def lines(views: Iterable[TickView]) -> list[TickLine]:
    """The history, line by line."""
    return [
        TickLine(
            view=view,
            at=second(view.tick.at),
            utc=utc(view.tick.at),
            mark=badge(view.state) if view.state else "",
            late=duration(view.late) if view.late is not None and view.late >= 1 else "",
            alarming=(view.late or 0) >= ALARMING,
            by=visible(view.tick.actor),
            gone=view.job is None and view.tick.job_id is not None,
        )
        for view in views
    ]


def _told_of(event: Event) -> str:
    """Which dates it has since, or how many were missed."""
    detail: Any = event.detail if isinstance(event.detail, dict) else {}
    parts = [str(detail[name]) for name in ("dates", "first", "last") if detail.get(name)]
    if detail.get("missed"):
        parts.insert(0, now("%(count)s ticks") % {"count": detail["missed"]})
    return visible(" · ".join(parts))


def _coarse(seconds: float) -> str:
    """In steps, so that a page that stays fresh is not sent again for each second that passes."""
    step = next((step for least, step in STEPS if seconds >= least), 1)
    return duration(round(seconds / step) * step)


def _offset(offset: timedelta) -> str:
    """+01:00, as ISO 8601 has it."""
    minutes = round(offset.total_seconds() / 60)
    return f"{'-' if minutes < 0 else '+'}{abs(minutes) // 60:02}:{abs(minutes) % 60:02}"
