"""The subcommand doctor: findings from the settings, the database and Redis, each with its remedy. It changes nothing but, with
`--fix`, what one side has and the other has not.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import Any, TextIO

from django.core.checks import run_checks
from django.core.management.base import CommandError
from django.db import DatabaseError, connections
from django.db.migrations.executor import MigrationExecutor
from django.db.models import Count, Min

from django_delayq import clock, conf, ids
from django_delayq.checks import installed
from django_delayq.console.overview import DOWN
from django_delayq.console.vitals import HALF, LAG
from django_delayq.exceptions import ConfigError
from django_delayq.management.change_commands import confirm
from django_delayq.management.compare import Comparison, Orphans
from django_delayq.management.job_filters import USAGE
from django_delayq.management.look_commands import paused
from django_delayq.management.output import duration, print_json, progress
from django_delayq.management.schedule_findings import schedule_findings
from django_delayq.mirror.mirror_loop import MirrorLoop
from django_delayq.models import UNPUBLISHED, Job, SetAside
from django_delayq.producer.stores import stores
from django_delayq.store import formats
from django_delayq.store.address import is_embedded, way
from django_delayq.store.fitness import (
    Finding,
    link_findings,
    probe_findings,
    server_findings,
    target_findings,
    unkept,
    version_findings,
)
from django_delayq.store.format_store import FormatStore
from django_delayq.store.inspector import Inspector
from django_delayq.store.worker_registry import WorkerRegistry

MOST_OUTBOX = 60.0  # seconds; a row unpublished for longer is a finding
RISKY = (("FLUSHALL",), ("CONFIG", "SET", "appendonly", "no"))  # commands that no part of this package sends
UNUSABLE = {"E001", "E002", "E003", "E006"}  # settings that lead to no server or no database: nothing more can be asked


def doctor(out: TextIO, options: dict[str, Any]) -> int:
    """Everything that is wrong, with its remedy."""
    if options["fix"] and not options["deep"]:
        raise CommandError("--fix goes with --deep.", returncode=USAGE)
    findings = _settings_findings()
    if not UNUSABLE & {finding["code"] for finding in findings}:
        findings += [*_link_findings(), *_database_findings(), *_redis_findings()]
        if options["deep"] and not any(finding["code"] in ("D001", "D003", "D007") for finding in findings):
            findings += _orphans(options)
    errors = sum(finding["level"] == "error" for finding in findings)
    if options["json"]:
        print_json(out, {"ok": not errors, "findings": findings})
    elif not findings:
        out.write("Nothing is wrong.\n")
    else:
        for finding in findings:
            out.write(f"{finding['level'].upper():<8} {finding['message']}\n")
            if finding["hint"]:
                out.write(f"         {finding['hint']}\n")
    return 1 if errors else 0


def _finding(code: str, level: str, message: str, hint: str = "") -> dict[str, str]:
    return {"code": code, "level": level, "message": message, "hint": hint}


def _settings_findings() -> list[dict[str, str]]:
    found = [message for message in run_checks() if (message.id or "").startswith("delayq.")]
    return [
        _finding(
            (message.id or "").removeprefix("delayq."),
            "error" if message.is_serious() else "warning",
            message.msg,
            message.hint or "",
        )
        for message in found
    ]


def _told(findings: Iterable[Finding]) -> list[dict[str, str]]:
    return [_finding(found.code, found.level, found.message, found.hint) for found in findings]


def _link_findings() -> list[dict[str, str]]:
    config = conf.get()
    return _told([*version_findings(installed()), *link_findings(config.redis, signed=bool(config.signer))])


def _rights_findings(inspector: Inspector) -> list[dict[str, str]]:
    redis = conf.get().redis
    if is_embedded(redis) or not way(redis).network:
        return []
    names = " and ".join(" ".join(command[:2]) for command in inspector.may(*RISKY))
    if not names:
        return []
    return [
        _finding(
            "D014",
            "warning",
            f"The Redis user of this project may call {names}, which delayq never does.",
            "Name another user in DELAYQ['REDIS']. The rights that one needs: manage.py delayq settings REDIS",
        )
    ]


def _database_findings() -> list[dict[str, str]]:
    using = conf.get().database
    try:
        executor = MigrationExecutor(connections[using])
        plan = executor.migration_plan([node for node in executor.loader.graph.leaf_nodes() if node[0] == "delayq"])
        if plan:
            return [
                _finding(
                    "D001",
                    "error",
                    f"{len(plan)} migrations of delayq are not applied to {using!r}.",
                    "Run manage.py migrate.",
                )
            ]
        kept = SetAside.objects.using(using).values_list("queue").annotate(Count("pk"), Min("noticed_at")).order_by("queue")
        aside = [
            _finding(
                "D011",
                "warning",
                f"Events of {queue!r} are set aside: {count}, the first at {first:%Y-%m-%d %H:%MZ}. The rows of "
                "their jobs do not say what has happened.",
                f"Look at them: manage.py delayq set-aside --queue {queue}. When the reason is gone, add --retry.",
            )
            for queue, count, first in kept
        ]
        aside += _told(schedule_findings(using))
        waiting = Job.objects.using(using).filter(UNPUBLISHED, durable=True)
        first = waiting.order_by("id").values_list("created_at", flat=True).first()
        age = (clock.now() - first).total_seconds() if first else 0.0
        if age > MOST_OUTBOX:
            return [
                *aside,
                _finding(
                    "D002",
                    "warning",
                    f"The outbox holds jobs that Redis does not have, the oldest for {duration(age)}.",
                    "Run a worker with the roles mirror and relay, and look at its log.",
                ),
            ]
    except DatabaseError as error:
        return [
            _finding(
                "D003",
                "error",
                f"The database {using!r} cannot be asked: {error}",
                "Check DATABASES, and that it runs.",
            )
        ]
    return aside


def _redis_findings() -> list[dict[str, str]]:
    config = conf.get()
    found: list[dict[str, str]] = []
    try:
        inspector = stores.inspector()
        found += [*_told(server_findings(inspector.server())), *_rights_findings(inspector)]
        found += _told(target_findings(inspector.targets(config.targets.values())))
        workers = [worker for worker in WorkerRegistry(stores.link, prefix=config.prefix).all() if not worker["silent"]]
        found += _told(probe_findings(workers))
        served = {name for worker in workers for name in worker.get("queues", ())}
        unkept_queues = unkept(list(config.queues), workers)
        for name, queue in config.queues.items():
            if queue.pulled and name in unkept_queues:
                found.append(
                    _finding(
                        "D004",
                        "warning",
                        f"No worker keeps the records of the queue {name!r}, from which consumers pull.",
                        f"Start one: manage.py delayq_worker --roles mirror,relay --queues {name}",
                    )
                )
            elif not queue.pulled and name not in served:
                found.append(
                    _finding(
                        "D004",
                        "warning",
                        f"No worker serves the queue {name!r}.",
                        f"Start one: manage.py delayq_worker --queues {name}",
                    )
                )
            found += _format_findings(name, workers)
            depth = inspector.depth(name)
            if depth.paused:
                found.append(
                    _finding(
                        "D005",
                        "warning",
                        f"The queue {name!r} is {paused(asdict(depth))}.",
                        f"Resume it: manage.py delayq resume {name}",
                    )
                )
            most = config.most_events
            if most and depth.untold >= HALF * most:
                found.append(
                    _finding(
                        "D012",
                        "error",
                        f"The mirror of {name!r} is {depth.untold:,} jobs behind, of {most:,} at which schedules are refused.",
                        "Run a worker with the role mirror; if one runs, look at its log and at the database.",
                    )
                )
            lag = MirrorLoop(stores.link, queue, prefix=config.prefix, using=config.database).lag()
            if lag.seconds > LAG[1]:
                found.append(
                    _finding(
                        "D006",
                        "warning",
                        f"The mirror of {name!r} is {duration(lag.seconds)} and {lag.entries} entries behind.",
                        "Run a worker with the role mirror; if one runs, look at its log and at the database.",
                    )
                )
    except (*DOWN, ConfigError) as error:  # also an embedded server that does not start
        found.append(_finding("D007", "error", str(error), "Check DELAYQ['REDIS'], and that the server runs."))
    return found


def _format_findings(name: str, workers: Sequence[dict[str, Any]]) -> list[dict[str, str]]:
    store = FormatStore(stores.queue(name))
    format = store.look()
    if format > formats.FORMAT:
        return [_finding("D021", "error", str(formats.FormatNewer(name, format)), "Deploy the newer release here, too.")]
    if format == formats.FORMAT or not store.used():
        return []
    old = ", ".join(worker["id"] for worker in formats.older(workers))
    return [
        _finding(
            "D020",
            "warning",
            f"The queue {name!r} has format {format} in Redis; this release knows {formats.FORMAT}.",
            f"Replace the workers of an older release first: {old}."
            if old
            else "When every process, the web processes too, runs this release: manage.py delayq upgrade",
        )
    ]


def _orphans(options: dict[str, Any]) -> list[dict[str, str]]:
    config = conf.get()
    common: Any = {"prefix": config.prefix, "using": config.database, "signer": config.signer}
    sides = {name: Comparison(stores.link, queue, **common) for name, queue in config.queues.items()}
    orphans = {name: sides[name].find(_mirrored(MirrorLoop(stores.link, queue, **common))) for name, queue in config.queues.items()}
    fixed = options["fix"] and not options["dry_run"] and any(orphans.values())
    if fixed:
        _fix(sides, orphans, options)
    hint = "It has been put right." if fixed else "Put it right: manage.py delayq doctor --deep --fix"
    found: list[dict[str, str]] = []
    for name in orphans:
        left = sides[name].left
        orphans[name].rowless = [id for id in orphans[name].rowless if id not in left]
        for code, jobs, what in (
            ("D008", orphans[name].missing, "unfinished rows are not in Redis"),
            ("D009", orphans[name].risen, "jobs are in Redis, and their rows are finished"),
            ("D010", orphans[name].rowless, "jobs are in Redis, and have no row"),
            ("D013", orphans[name].lost, "jobs of redis durability are not in Redis, and nobody can bring them back"),
            (
                "D010",
                left,
                "jobs are in Redis and can get no row, since their records cannot be read or are not signed",
            ),
        ):
            if jobs:
                shown = ", ".join(map(ids.short, jobs[:3])) + (", …" if len(jobs) > 3 else "")
                level = "warning" if fixed or code in ("D010", "D013") else "error"
                remedy = f"Look at one: manage.py delayq inspect {ids.short(jobs[0])}" if jobs is left else hint
                found.append(_finding(code, level, f"{len(jobs)} {what}, in {name!r}: {shown}.", remedy))
    return found


def _fix(sides: dict[str, Comparison], orphans: dict[str, Orphans], options: dict[str, Any]) -> None:
    back, dropped, written, ended = (
        sum(len(getattr(found, kind)) for found in orphans.values()) for kind in ("missing", "risen", "rowless", "lost")
    )
    if not options["yes"]:
        confirm(
            f"This brings {back} jobs back into Redis, drops {dropped} from it, writes {written} rows, and ends {ended} as failed. "
            "Go on? [y/N] "
        )
    with progress(back + dropped + written + ended, "putting right", quiet=options["json"]) as advance:
        for name, found in orphans.items():
            for count in sides[name].fix(found):
                advance(count)


def _mirrored(mirror: MirrorLoop) -> Iterator[None]:
    while True:
        clock.sleep(min(mirror.poll(), 0.05))
        yield
