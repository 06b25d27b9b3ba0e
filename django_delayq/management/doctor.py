"""The subcommand doctor: findings about the settings, the database, the schedules and Redis, each with a hint.

It changes nothing unless --fix is given. Then it repairs differences between Redis and the database.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, Literal, TextIO
from uuid import UUID

from django.core.checks import run_checks
from django.core.management.base import CommandError
from django.db import DatabaseError
from django.db.models import Count, Min
from django.utils import translation

from django_delayq import clock, conf, ids
from django_delayq.checks import installed, missing_migrations
from django_delayq.console import overview, schedule_views
from django_delayq.console.health import MEASURES
from django_delayq.findings import Finding
from django_delayq.management.change_commands import confirm
from django_delayq.management.compare import Comparison, Orphans
from django_delayq.management.job_filters import USAGE
from django_delayq.management.output import duration, print_json, progress
from django_delayq.management.queue_findings import as_documents, finding, redis_findings
from django_delayq.mirror.mirror_loop import MirrorLoop
from django_delayq.mirror.relay import unlisted_requests
from django_delayq.models import PARKED_ROWS, UNPUBLISHED, Job, Periodic, SetAside, database
from django_delayq.producer.stores import stores
from django_delayq.states import PARKED_ARGUMENTS, PARKED_CARRIERS, PARKED_SIGNATURE, PARKED_TASK
from django_delayq.store.reads.fitness import (
    link_findings,
    version_findings,
)

MOST_PARKED = 20  # queues and tasks in the findings
_PARKED_WHY = {
    PARKED_TASK: (
        "the workers have no task named {task!r}.",
        (
            "Deploy workers that have the task. Its module must be the tasks module of an installed app, or listed in "
            "DELAYQ['TASK_MODULES']."
        ),
    ),
    PARKED_ARGUMENTS: (
        "the task {task!r} accepts different arguments in the workers.",
        "Deploy workers of the release that scheduled the jobs, or give new parameters a default value.",
    ),
    PARKED_CARRIERS: (
        "the workers do not have a carrier that jobs of {task!r} need.",
        "Deploy workers whose DELAYQ['CARRIERS'] lists the carrier.",
    ),
    PARKED_SIGNATURE: (
        "the workers do not have the key that signed the jobs.",
        (
            "Give the workers the new SECRET_KEY, or add the old one to SECRET_KEY_FALLBACKS. If no key changed, another "
            "program writes to Redis."
        ),
    ),
}
INCOMPARABLE = {"D001", "D003", "D007", "E013", "E014", "E015", "E016", "E025"}  # with one of these, rows cannot be compared with Redis
UNUSABLE = {"E001", "E002", "E003", "E006"}  # with one of these settings, there is no server or no database to check
MOST_SCHEDULES: Final = 20  # with one problem


def doctor(out: TextIO, options: dict[str, Any]) -> int:
    """Prints all findings, each with its hint. Exit code 1 if one of them is an error."""
    if options["fix"] and not options["deep"]:
        raise CommandError("--fix requires --deep.", returncode=USAGE)
    findings = _settings_findings()
    if not UNUSABLE & {finding["code"] for finding in findings}:
        findings += [*_link_findings(), *_database_findings()]
        unusable = any(finding["code"] in ("D001", "D003") for finding in findings)  # then the id of the site is not available either
        findings += [finding for finding in redis_findings() if not (unusable and finding["code"] == "D003")]
        if options["deep"] and not any(finding["code"] in INCOMPARABLE for finding in findings):
            findings += _orphans(options)
    errors = sum(finding["level"] == "error" for finding in findings)
    if options["json"]:
        print_json(out, {"ok": not errors, "findings": findings})
    elif not findings:
        out.write("No problems found.\n")
    else:
        for finding in findings:
            out.write(f"{finding['level'].upper():<8} {finding['code']} {finding['message']}\n")
            if finding["hint"]:
                out.write(f"         {finding['hint']}\n")
    return 1 if errors else 0


def _settings_findings() -> list[dict[str, str]]:
    found = [message for message in run_checks() if (message.id or "").startswith("delayq.")]
    return [finding((message.id or "").removeprefix("delayq."), message.msg, message.hint or "") for message in found]


def _link_findings() -> list[dict[str, str]]:
    config = conf.get()
    links = [one for redis in config.servers for one in link_findings(redis, signed=bool(config.signer))]
    return as_documents([*version_findings(installed()), *links])


def _database_findings() -> list[dict[str, str]]:
    try:
        if missing := missing_migrations():
            return as_documents(missing)
        kept = SetAside.objects.values_list("queue").annotate(Count("pk"), Min("noticed_at")).order_by("queue")
        aside = [
            finding(
                "D011",
                f"The database rejected events of {queue!r}: {count}, the first at {first:%Y-%m-%d %H:%MZ}. The rows of "
                "their jobs are out of date.",
                f"To list the events, run manage.py delayq set-aside --queue {queue}. After you have fixed the cause, add --retry.",
            )
            for queue, count, first in kept
        ]
        aside += [
            *_unresolved_findings(),
            *as_documents(_schedule_findings()),
            *_parked_findings(),
            *_far_findings(),
            *_unlisted_findings(),
        ]
        waiting = Job.objects.filter(UNPUBLISHED, durable=True)
        first = waiting.order_by("id").values_list("created_at", flat=True).first()
        age = (database.now() - first).total_seconds() if first else 0.0
        if MEASURES["outbox_age"].is_finding(age) and overview.count_absent():
            return [
                *aside,
                finding("D002", f"The outbox has jobs that are not in Redis. The oldest has waited for {duration(age)}."),
            ]
    except DatabaseError as error:
        return [finding("D003", f"The database {database.alias()!r} cannot be read: {error}")]
    return aside


def _unresolved_findings() -> list[dict[str, str]]:
    count = overview.count_unresolved()
    if not count:
        return []
    jobs = "1 job is" if count == 1 else f"{overview.count_text(count)} jobs are"
    return [
        finding(
            "D033",
            f"{jobs} unresolved: no event of this site shows how they ended. Another site may use this Redis "
            f"database, or Redis lost data.",
        )
    ]


def _unlisted_findings() -> list[dict[str, str]]:
    """Committed changes that no process with these settings carries out."""
    return [
        finding(
            "D038",
            f"No process carries out {count} committed change{'' if count == 1 else 's'} of jobs in the queue {queue!r}: "
            "DELAYQ['QUEUES'] does not list it.",
        )
        for queue, count in unlisted_requests().items()
    ]


def _parked_findings() -> list[dict[str, str]]:
    """Jobs that workers parked because they cannot run them."""
    found = []
    parked = Job.objects.filter(PARKED_ROWS).values_list("queue", "task", "fingerprint").annotate(Count("pk"))
    for queue, task, code, count in parked.order_by("queue", "task", "fingerprint")[:MOST_PARKED]:
        jobs = f"{count} {'job is' if count == 1 else 'jobs are'} parked in {queue!r}"
        why, hint = _PARKED_WHY[code]
        found.append(finding("D035", f"{jobs}: {why.format(task=task)}", f"{hint} A job fails a day after it was first parked."))
    return found


def _far_findings() -> list[dict[str, str]]:
    found = []
    for queue in overview.far_queues():
        if queue.late:
            found.append(
                finding(
                    "D023",
                    f"Far jobs of {queue.name!r} are late: the first is due at {queue.first:%Y-%m-%d %H:%MZ}, but it is not in Redis.",
                )
            )
    return found


def _orphans(options: dict[str, Any]) -> list[dict[str, str]]:
    config = conf.get()
    common: Any = {"prefix": config.prefix, "signer": config.signer}
    parts = [(queue, partition) for queue in config.queues.values() for partition in queue.served]
    sides = {queue.label(partition): Comparison(stores.places, queue, partition=partition, **common) for queue, partition in parts}
    mirrors = {queue.label(partition): MirrorLoop(stores.places, queue, partition=partition, **common) for queue, partition in parts}
    orphans = {name: side.find(_mirrored(mirrors[name])) for name, side in sides.items()}
    fixed = options["fix"] and not options["dry_run"] and any(orphans.values())
    if fixed:
        _fix(sides, orphans, options)
    hint = "These differences have been repaired." if fixed else ""
    found: list[dict[str, str]] = []
    for name in orphans:
        there, left = orphans[name], sides[name].left
        for code, jobs, what in (
            ("D008", _without(there.missing, left.missing), "Unfinished jobs of {queue} that are not in Redis"),
            ("D009", there.risen, "Jobs of {queue} in Redis that are finished in the database"),
            ("D010", _without(there.rowless, left.rowless), "Jobs of {queue} in Redis without a row in the database"),
            ("D013", there.lost, "Jobs of {queue} with redis durability that are no longer in Redis and may have run"),
            ("D034", there.ended, "Unfinished jobs of {queue} that have ended in Redis, although no event shows how"),
            ("D008", left.missing, "Unfinished jobs of {queue} that are not in Redis and cannot be restored"),
            ("D010", left.rowless, "Jobs of {queue} in Redis without a row, whose records are unreadable or not signed"),
            ("D037", _without(there.nowhere, left.nowhere), "Jobs of {queue} in Redis without a date, which no worker runs"),
            ("D037", left.nowhere, "Jobs of {queue} in Redis without a date, and without a row that has it"),
        ):
            if jobs:
                shown = ", ".join(map(ids.short, jobs[:3])) + (", …" if len(jobs) > 3 else "")
                stays = any(jobs is one for one in (left.missing, left.rowless, left.nowhere))
                remedy = f"For details, run manage.py delayq inspect {ids.short(jobs[0])}" if stays else hint
                if jobs is left.nowhere:
                    remedy = f"Requeue or cancel each of these jobs, as in manage.py delayq requeue {ids.short(jobs[0])}"
                level: Literal["warning", ""] = "warning" if fixed and not stays else ""
                found.append(finding(code, f"{what.format(queue=repr(name))}: {len(jobs)} ({shown}).", remedy, level))
    return found


def _without(jobs: list[UUID], left: list[UUID]) -> list[UUID]:
    return [id for id in jobs if id not in left]


def _fix(sides: dict[str, Comparison], orphans: dict[str, Orphans], options: dict[str, Any]) -> None:
    back, dropped, written, lost, ended, nowhere = (
        sum(len(getattr(found, kind)) for found in orphans.values())
        for kind in ("missing", "risen", "rowless", "lost", "ended", "nowhere")
    )
    back += nowhere
    ended += lost
    if not options["yes"]:
        confirm(
            f"This restores jobs in Redis ({back}), removes jobs from Redis ({dropped}), writes rows ({written}) and marks jobs as "
            f"unresolved ({ended}). Continue? [y/N] "
        )
    with progress(back + dropped + written + ended, "fixing", quiet=options["json"]) as advance:
        for name, found in orphans.items():
            for count in sides[name].fix(found):
                advance(count)


def _mirrored(mirror: MirrorLoop) -> Iterator[None]:
    while True:
        clock.sleep(min(mirror.poll(), 0.05))
        yield


def _schedule_findings() -> Iterator[Finding]:
    """Schedules with a problem, late ones, and ones that were retired lately."""
    which = schedule_views.wrong()
    rows = Periodic.objects.order_by("name")
    for row in rows.filter(which["trouble"])[:MOST_SCHEDULES]:
        with translation.override(None):  # commands are always in English
            why = schedule_views.problem(row)
        yield Finding("D030", f"The schedule {row.name!r} creates no jobs: {why}", _details_hint(row))
    for row in rows.filter(which["late"])[:MOST_SCHEDULES]:
        yield Finding("D031", f"No ticks of the schedule {row.name!r} have been written since {row.write_at:%Y-%m-%d %H:%MZ}.")
    for row in rows.filter(which["retired"])[:MOST_SCHEDULES]:
        yield Finding("D032", f"The schedule {row.name!r} was retired at {row.retired_at:%Y-%m-%d %H:%MZ} because no code declares it.")


def _details_hint(row: Periodic) -> str:
    return f"For details, run manage.py delayq periodic {row.name!r}"
