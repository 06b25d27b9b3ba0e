"""The subcommands pause, resume, pauses and rate."""

from __future__ import annotations

from typing import Any, TextIO

from django.db.models import Q

from django_delayq import clock
from django_delayq.console.search_fields import task_rows
from django_delayq.job_meta import Quota
from django_delayq.management import UsageError, look_commands
from django_delayq.management.change_commands import actor, print_result
from django_delayq.management.job_filters import known_queue, moment
from django_delayq.management.output import print_json, print_table, shown
from django_delayq.models import Job, Pause
from django_delayq.producer import outbox, queues, rates
from django_delayq.producer.outbox.pauses import RATE
from django_delayq.producer.queues import PauseReply
from django_delayq.states import State
from django_delayq.text import one_line


def pause(out: TextIO, options: dict[str, Any]) -> int:
    """Pause a queue, a task or a concurrency name, so that workers start no more of its jobs. Running jobs continue. The JSON document
    has `queue`, `task` or `name`, and `paused`, `changed`, `running` and `unconfirmed`.
    """
    until = moment(options["until"], "--until") if options["until"] else None
    return _change(out, options, f" until {shown(until)}" if until else "", paused=True, until=until)


def resume(out: TextIO, options: dict[str, Any]) -> int:
    """Resume a queue, a task or a concurrency name. The JSON document is the same as that of `pause`."""
    return _change(out, options, paused=False, pace=options["pace"])


def pauses(out: TextIO, options: dict[str, Any]) -> int:
    """List what is paused. The JSON document is a list of `queue`, `task` or `name`, with `since`, `by`, `reason`, `until` and
    `unconfirmed`.
    """
    rows = outbox.pauses.of_pauses()
    found = [
        {
            **dict([row.word.split(":", 1)]),
            "since": row.paused_at,
            "by": row.paused_by,
            "reason": row.paused_why,
            "until": row.until,
            "unconfirmed": row.missing.split(),
        }
        for row in rows
    ]
    if options["json"]:
        print_json(out, found)
    elif not found:
        out.write("Nothing is paused.\n")
    else:
        head = ("paused", "since", "until", "by", "reason", "not confirmed by")
        lines = [(*row.word.split(":", 1), row.paused_at, row.until, row.paused_by, row.paused_why, row.missing) for row in rows]
        print_table(out, head, [(f"{kind} {name}", since or "resumed", *rest) for kind, name, since, *rest in lines])
    return 0


def rate(out: TextIO, options: dict[str, Any]) -> int:
    """List the rates that people have set, or set the rate of a name: how many of its jobs can start in a period. The JSON document of
    a name has `name`, `rate`, `burst`, `changed`, `waiting`, `seconds` (until the last of the waiting jobs starts) and `unconfirmed`;
    that of the list has `name`, `rate`, `burst`, `since`, `by`, `reason`, `waiting` and `unconfirmed`.
    """
    name, value = options["name"], options["rate"]
    if name is None:
        return _rates(out, options)
    if (value is None) != options["reset"]:
        raise UsageError("Specify a rate, such as 100/m, or --reset.")
    how = {"actor": actor(), "reason": options["reason"], "dry_run": options["dry_run"]}
    reply = rates.set_rate(name, value, burst=options["burst"], **how)
    pace = Quota.read(value, options["burst"]) if value else None
    new = f"{pace}, burst {pace.burst}" if pace else "the one that tasks declare"
    verb = ("would be" if options["dry_run"] else "is") if reply else "is already"
    text = f"The rate of {one_line(name)} {verb} {new}. Waiting jobs: {reply.waiting}"
    text += f"; the last one starts in {reply.seconds:,.0f} s." if pace and reply.waiting else "."
    if reply.unconfirmed:
        text += f" Workers repeat this for partitions that cannot be reached: {', '.join(reply.unconfirmed)}."
    document = {
        "name": name,
        "rate": str(pace) if pace else None,
        "burst": pace.burst if pace else None,
        "changed": reply.changed,
        "waiting": reply.waiting,
        "seconds": reply.seconds,
        "unconfirmed": reply.unconfirmed,
    }
    print_result(out, options, document, text)
    return 1 if reply.unconfirmed else 0


def _rates(out: TextIO, options: dict[str, Any]) -> int:
    found = []
    for row in outbox.pauses.of_rates():
        name = row.word.removeprefix(RATE)
        pace = Quota(*map(int, row.rate.split(":"))) if row.rate else None
        found.append(
            {
                "name": name,
                "rate": str(pace) if pace else None,
                "burst": pace.burst if pace else None,
                "since": row.paused_at,
                "by": row.paused_by,
                "reason": row.paused_why,
                "waiting": rates.waiting(name),
                "unconfirmed": row.missing.split(),
            }
        )
    if options["json"]:
        print_json(out, found)
    elif not found:
        out.write("No rate is set. The rates that tasks declare count.\n")
    else:
        lines = [tuple(", ".join(value) if isinstance(value, list) else value for value in one.values()) for one in found]
        print_table(out, ("name", "rate", "burst", "since", "by", "reason", "waiting", "not confirmed by"), lines)
    return 0


def paused_row(row: Pause) -> str:
    """When, by whom, why and until when something was paused."""
    at_ms = clock.to_ms(row.paused_at) if row.paused_at else 0
    until_ms = outbox.pauses.until_ms(row)
    return look_commands.paused(
        {"paused_ms": at_ms, "paused_by": row.paused_by, "paused_reason": row.paused_why, "paused_until_ms": until_ms}
    )


def _change(out: TextIO, options: dict[str, Any], end: str = "", *, paused: bool, **how: Any) -> int:
    given = {kind: options[kind] for kind in ("queue", "task", "name") if options[kind] is not None}
    if len(given) != 1:
        raise UsageError("Specify a queue, --task or --name, and only one of them.")
    [(kind, name)] = given.items()
    known_queue(options["queue"])
    label = name if kind == "queue" else f"The {kind} {one_line(name)}"
    if options["dry_run"]:
        of = task_rows(name) if kind == "task" else Q(queue=name)
        waiting = Job.objects.filter(of, state=State.SCHEDULED).count() if kind != "name" else None
        running = queues.running(**given)
        text = f"{label} would be {'paused' if paused else 'resumed'}{end}. Running jobs: {running}."
        text += "" if waiting is None else f" Scheduled jobs: {waiting}."
        return print_result(out, options, {**given, "running": running, "scheduled": waiting}, text)
    act = queues.pause if paused else queues.resume
    reply: PauseReply = act(**given, **how, actor=actor(), reason=options["reason"])
    done, same = ("is paused", "is already paused") if paused else ("is resumed", "is not paused")
    text = f"{label} {done if reply else same}{end}."
    if paused and reply.running:
        text += f" Jobs that are still running: {reply.running}."
    if reply.unconfirmed:
        text += f" Workers repeat this for partitions that cannot be reached: {', '.join(reply.unconfirmed)}."
    document = {**given, "paused": paused, "changed": reply.changed, "running": reply.running, "unconfirmed": reply.unconfirmed}
    print_result(out, options, document, text)
    return 1 if reply.unconfirmed else 0
