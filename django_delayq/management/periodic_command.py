"""The subcommand periodic: shows schedules and their dates, turns them on and off, and runs one now."""

from __future__ import annotations

from itertools import islice
from typing import Any, Final, TextIO

from django.utils import translation

from django_delayq import clock, durations
from django_delayq.console import masking, schedule_views
from django_delayq.console.schedule_views import TickView
from django_delayq.exceptions import ConfigError
from django_delayq.management import UsageError
from django_delayq.management.change_commands import actor, print_result
from django_delayq.management.output import print_json, print_table, shown
from django_delayq.models import Periodic
from django_delayq.periodic import schedule_rows, schedules
from django_delayq.periodic.dates import Dates

UPCOMING: Final = 10
MOST_EVENTS: Final = 50


def periodic(out: TextIO, options: dict[str, Any]) -> int:
    """List schedules, turn a schedule on or off, or run it now.

    Dates are in UTC. Schedules are listed once a worker with the role relay has read them. The exit code is 1 if a schedule cannot
    create jobs. The JSON document is a list of schedules, or one schedule with its `ticks` and `events`.
    """
    name, on, off, run_now = options["name"], options["on"], options["off"], options["run_now"]
    if name is not None and not name.isprintable():  # bytes that are not UTF-8 arrive as unpaired surrogates
        raise UsageError(f"{name!r} is not a valid schedule name: it contains unprintable characters.")
    if on or off or run_now:
        if name is None:
            raise UsageError("Specify the name of the schedule: manage.py delayq periodic NAME --on")
        if run_now:
            job = schedules.run_now(name, actor(), options["reason"])
            return print_result(out, options, {"name": name, "job": job.id}, f"{name}: the job {shown(job.id)} is due now.")
        return _turn(out, options, name, on=on)
    return _list(out, options) if name is None else _show(out, options, name)


def _list(out: TextIO, options: dict[str, Any]) -> int:
    rows = list(Periodic.objects.order_by("name"))
    last = schedule_views.last_seen(rows)
    found = [_document(row, last.get(row.pk), 1) for row in rows]
    if options["json"]:
        print_json(out, found)
    elif not rows:
        out.write("There are no schedules. A declared schedule appears when a worker with the role relay has seen it.\n")
    else:
        head = ("name", "state", "dates", "next", "last", "ended", "task")
        lines = []
        for one in found:
            tick, following = one["last"] or {}, next(iter(one["next"]), None)
            lines.append((one["name"], one["state"], one["dates"], following, tick.get("at"), tick.get("state"), one["task"]))
        print_table(out, head, lines)
    return 1 if any(one["state"] == "trouble" for one in found) else 0


def _show(out: TextIO, options: dict[str, Any], name: str) -> int:
    row = schedules.get(name)
    views = schedule_views.seen(schedule_views.ticks_of(row, options["limit"]))
    document = _document(row, schedule_views.last_seen([row]).get(row.pk), UPCOMING)
    document["ticks"] = [_tick(view) for view in views]
    document["events"] = [
        {"at": event.at, "kind": event.kind, "actor": event.actor, "reason": event.reason, "detail": event.detail}
        for event in schedule_rows.events(row, MOST_EVENTS)
    ]
    if options["json"]:
        print_json(out, document)
    else:
        _print(out, document)
    return 1 if document["state"] == "trouble" else 0


def _print(out: TextIO, document: dict[str, Any]) -> None:
    for part, value in document.items():
        if part not in ("next", "last", "ticks", "events") and (part != "own_dates" or document["overridden"]):
            out.write(f"{part:<12} {shown(value)}\n")
    out.write("next\n")
    for moment in document["next"]:
        out.write(f"  {shown(moment)}\n")
    if document["ticks"]:
        out.write("ticks\n")
        head = ("date", "state", "late", "job", "by")
        rows = []
        for tick in document["ticks"]:
            late = durations.text(round(tick["late_s"])) if (tick["late_s"] or 0) >= 1 else ""
            by = f"hand, {tick['actor']}" if tick["by_hand"] else tick["actor"]
            rows.append((tick["at"], tick["state"], late, tick["job"], by))
        print_table(out, head, rows)
    if document["events"]:
        out.write("events\n")
        happened = [(event["at"], event["kind"], event["actor"], event["reason"]) for event in document["events"]]
        print_table(out, ("at", "kind", "actor", "reason"), happened)


def _turn(out: TextIO, options: dict[str, Any], name: str, *, on: bool) -> int:
    before = schedules.get(name)
    turn = schedules.turn_on if on else schedules.turn_off
    turn(name, actor(), options["reason"])
    changed = before.enabled != on
    document = {"name": name, "on": on, "changed": changed}
    return print_result(out, options, document, f"{name} is {'' if changed else 'already '}{'on' if on else 'off'}.")


def _document(row: Periodic, last: TickView | None, most: int) -> dict[str, Any]:
    """A schedule as a JSON document. Sensitive values are masked."""
    dates, trouble = schedule_rows.dates_of(row), ""
    try:
        following = list(islice(dates.after(clock.now()), most)) if row.active else []
    except ConfigError as error:
        following, trouble = [], str(error)
    args, kwargs = masking.arguments(row.task, row.args, row.kwargs, version=masking.UPGRADED)
    with translation.override(None):  # commands are always in English
        trouble = schedule_views.problem(row) or trouble
    return {
        "name": row.name,
        "state": schedule_views.standing(row),
        "owner": row.owner,
        "task": row.task,
        "args": args,
        "kwargs": kwargs,
        "dates": dates.text,
        "overridden": row.overridden,
        "own_dates": Dates(row.cron, row.every_ms, row.timezone, row.jitter_ms).text,
        "missed": row.missed,
        "overlap": row.overlap,
        "retired_at": row.retired_at,
        "trouble": trouble,
        "next": following,
        "last": None if last is None else _tick(last),
    }


def _tick(view: TickView) -> dict[str, Any]:
    found = {name: getattr(view.tick, name) for name in ("at", "run_at", "by_hand", "actor")}
    late = None if view.late is None else round(view.late, 3)
    return {**found, "state": view.state, "late_s": late, "job": view.tick.job_id}
