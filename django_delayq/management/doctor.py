"""The subcommand doctor: findings about the settings, the database, the schedules and Redis, each with a hint.

It changes nothing unless --fix is given. Then it repairs differences between Redis and the database.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from typing import Any, Final, Literal, TextIO
from uuid import UUID

from django.core.checks import run_checks
from django.db import DatabaseError
from django.db.models import Count, Min
from django.utils import translation

from django_delayq import clock, conf, ids
from django_delayq.checks import installed, missing_migrations
from django_delayq.conf import QueueConfig
from django_delayq.console import keyset, overview, schedule_views
from django_delayq.console.health import MEASURES
from django_delayq.exceptions import PayloadError
from django_delayq.findings import Finding
from django_delayq.management import UsageError
from django_delayq.management.change_commands import confirm
from django_delayq.management.output import duration, print_json, progress, shown
from django_delayq.management.pause_commands import paused_row
from django_delayq.management.queue_findings import redis_findings
from django_delayq.mirror import reconcile_rows
from django_delayq.mirror.checkpoint import locked_checkpoint, needs_restore
from django_delayq.mirror.mirror_loop import MirrorLoop
from django_delayq.mirror.reconcile_rows import end_of, leave_to_a_person, unknown_end
from django_delayq.mirror.relay import unlisted_requests
from django_delayq.mirror.restore import RestoreLoop
from django_delayq.models import PARKED_ROWS, UNPUBLISHED, Job, Periodic, SetAside, database
from django_delayq.producer.outbox import pauses, rows
from django_delayq.producer.outbox.batches import stuck as batches_stuck
from django_delayq.producer.outbox.batches import waiting as batches_waiting
from django_delayq.producer.put import batches
from django_delayq.producer.stores import stores
from django_delayq.signing import Signer
from django_delayq.states import PARKED_ARGUMENTS, PARKED_CARRIERS, PARKED_SIGNATURE, PARKED_TASK, UNFINISHED, State
from django_delayq.store.connection.places import Places
from django_delayq.store.reads.fitness import link_findings, version_findings
from django_delayq.store.reads.inspector import Inspector, JobView
from django_delayq.store.scripts.decode import position
from django_delayq.store.scripts.events import FIRST
from django_delayq.store.scripts.queue import MOST

MOST_PARKED = 20  # queues and tasks in the findings
_PARKED_WHY = {
    PARKED_TASK: (
        "The workers have no task named {task!r}.",
        "Deploy workers with the task, in the tasks module of an installed app or in a module in DELAYQ['TASK_MODULES'].",
    ),
    PARKED_ARGUMENTS: (
        "The task {task!r} accepts different arguments in the workers.",
        "Deploy workers of the release that scheduled the jobs, or give new parameters a default value.",
    ),
    PARKED_CARRIERS: (
        "The workers do not have a carrier that jobs of {task!r} need.",
        "Deploy workers whose DELAYQ['CARRIERS'] lists the carrier.",
    ),
    PARKED_SIGNATURE: (
        "The workers do not have the key that signed the jobs.",
        "Deploy the new SECRET_KEY, or the old one in SECRET_KEY_FALLBACKS. If no key changed, another program writes to Redis.",
    ),
}
INCOMPARABLE = {"D001", "D003", "D007", "E013", "E014", "E015", "E016", "E025"}  # with one of these, rows cannot be compared with Redis
UNUSABLE = {"E001", "E002", "E003", "E006"}  # with one of these settings, there is no server or no database to check
MOST_SCHEDULES: Final = 20  # with one problem


def doctor(out: TextIO, options: dict[str, Any]) -> int:
    """Find problems and show how to fix them.

    The exit code is 1 if it finds an error. The JSON document has `ok` and `findings`, each with `code`, `level`, `message` and `hint`.
    """
    if options["fix"] and not options["deep"]:
        raise UsageError("--fix requires --deep.")
    checks = [message for message in run_checks() if (message.id or "").startswith("delayq.")]
    findings = [Finding((message.id or "").removeprefix("delayq."), message.msg, message.hint or "") for message in checks]
    if not UNUSABLE & {finding.code for finding in findings}:
        config = conf.get()
        findings += version_findings(installed())
        findings += [one for redis in config.servers for one in link_findings(redis, signed=bool(config.signer))]
        try:
            findings += missing_migrations() or list(_row_findings())
        except DatabaseError as error:
            findings.append(Finding("D003", f"The database {database.alias()!r} cannot be read: {error}"))
        unusable = any(finding.code in ("D001", "D003") for finding in findings)  # then the id of the site is not available either
        findings += [finding for finding in redis_findings() if not (unusable and finding.code == "D003")]
        if options["deep"] and not any(finding.code in INCOMPARABLE for finding in findings):
            findings += _orphans(options)
    errors = sum(finding.level == "error" for finding in findings)
    if options["json"]:
        print_json(out, {"ok": not errors, "findings": list(map(asdict, findings))})
    elif not findings:
        out.write("No problems found.\n")
    else:
        for finding in findings:
            out.write(f"{finding.level.upper():<8} {finding.code} {finding.message}\n")
            if finding.hint:
                out.write(f"         {finding.hint}\n")
    return 1 if errors else 0


def _row_findings() -> Iterator[Finding]:
    kept = SetAside.objects.values_list("queue").annotate(Count("pk"), Min("noticed_at")).order_by("queue")
    for queue, count, first in kept:
        yield Finding(
            "D011",
            f"The database rejected events of {queue!r}: {count}, the first at {shown(first)}. The rows of their jobs are out of date.",
            f"To list the events, run manage.py delayq set-aside --queue {queue}. After you have fixed the cause, add --retry.",
        )
    for row in pauses.of_pauses():
        kind, _, name = row.word.partition(":")
        if row.paused_at and (kind != "queue" or row.missing):  # other paused queues are found in Redis
            away = f" Not confirmed by: {', '.join(row.missing.split())}." if row.missing else ""
            hint = f"To resume it, run manage.py delayq resume {'' if kind == 'queue' else f'--{kind} '}{name}"
            yield Finding("D005", f"The {kind} {name!r} is {paused_row(row)}.{away}", hint)
    if count := overview.count_unresolved():
        text = f"Unresolved jobs: {overview.count_text(count)}. No event of this site shows how they ended."
        yield Finding("D033", f"{text} Another site may use this Redis database, or Redis lost data.")
    for batch, count in batches_stuck().items():
        text = f"The batch {ids.short(batch)} waits for jobs whose ends are not known: {count}."
        yield Finding("D039", text, "Retry rejected events with manage.py delayq set-aside --retry, and resolve unresolved jobs.")
    for waiting in batches_waiting(database.now() - timedelta(hours=1)):
        text = f"The batch {waiting.short_id} has ended, but not all of its jobs succeeded. Its next job is not scheduled."
        yield Finding(
            "D040", text, f"To list these jobs, run manage.py delayq list --search 'batch:{waiting.short_id} -state:succeeded'"
        )
    yield from _schedule_findings()
    parked = Job.objects.filter(PARKED_ROWS).values_list("queue", "task", "fingerprint").annotate(Count("pk"))
    for queue, task, code, count in parked.order_by("queue", "task", "fingerprint")[:MOST_PARKED]:
        why, hint = _PARKED_WHY[code]
        text = f"Parked jobs of {queue!r}: {count}. {why.format(task=task)}"
        yield Finding("D035", text, f"{hint} A job fails a day after it was first parked.")
    for far in overview.far_queues():
        if far.late:
            text = f"Far jobs of {far.name!r} are late: the first is due at {shown(far.first)}, but it is not in Redis."
            yield Finding("D023", text)
    for queue, count in unlisted_requests().items():  # committed changes that no process with these settings carries out
        text = f"Committed changes of jobs in the queue {queue!r} that no process carries out: {count}."
        yield Finding("D038", f"{text} DELAYQ['QUEUES'] does not list this queue.")
    first = Job.objects.filter(UNPUBLISHED, durable=True).order_by("id").values_list("created_at", flat=True).first()
    age = (database.now() - first).total_seconds() if first else 0.0
    if MEASURES["outbox_age"].is_finding(age) and overview.count_absent():
        yield Finding("D002", f"The outbox has jobs that are not in Redis. The oldest has waited for {duration(age)}.")


def _schedule_findings() -> Iterator[Finding]:
    """Schedules with a problem, late ones, and ones that were retired lately."""
    which = schedule_views.wrong()
    rows = Periodic.objects.order_by("name")
    for row in rows.filter(which["trouble"])[:MOST_SCHEDULES]:
        with translation.override(None):  # commands are always in English
            text = f"The schedule {row.name!r} creates no jobs: {schedule_views.problem(row)}"
        yield Finding("D030", text, f"For details, run manage.py delayq periodic {row.name!r}")
    for row in rows.filter(which["late"])[:MOST_SCHEDULES]:
        yield Finding("D031", f"No ticks of the schedule {row.name!r} have been written since {shown(row.write_at)}.")
    for row in rows.filter(which["retired"])[:MOST_SCHEDULES]:
        yield Finding("D032", f"The schedule {row.name!r} was retired at {shown(row.retired_at)} because no code declares it.")


def _orphans(options: dict[str, Any]) -> list[Finding]:
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
    found: list[Finding] = []
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
                found.append(Finding(code, f"{what.format(queue=repr(name))}: {len(jobs)} ({shown}).", remedy, level))
    return found


def _without(jobs: list[UUID], left: list[UUID]) -> list[UUID]:
    return [id for id in jobs if id not in left]


def _fix(sides: dict[str, Comparison], orphans: dict[str, Orphans], options: dict[str, Any]) -> None:
    def total(*kinds: str) -> int:
        return sum(len(getattr(found, kind)) for found in orphans.values() for kind in kinds)

    back, dropped, written, ended = total("missing", "nowhere"), total("risen"), total("rowless"), total("lost", "ended")
    if not options["yes"]:
        wanted = (
            f"Jobs to restore in Redis: {back}, to remove there: {dropped}, to mark as unresolved: {ended}. Rows to write: {written}."
        )
        confirm(f"{wanted} Continue? [y/N] ")
    with progress(back + dropped + written + ended, "fixing", quiet=options["json"]) as advance:
        for name, found in orphans.items():
            for count in sides[name].fix(found):
                advance(count)


def _mirrored(mirror: MirrorLoop) -> Iterator[None]:
    while True:
        clock.sleep(min(mirror.poll(), 0.05))
        yield


PATIENCE: Final = 30.0  # seconds for the mirror to catch up
NO_END: Final = "why it failed did not reach the database"


@dataclass(slots=True)
class Orphans:
    """Jobs that only one side has. `missing`: unfinished rows that are not in Redis; `risen`: unfinished jobs in Redis with a finished
    row; `rowless`: jobs in Redis without a row (unfinished ones if `AUDIT` keeps a row for each, and failed ones within their
    retention); `lost`: unfinished rows of redis durability that are not in Redis; `ended`: unfinished rows whose job ended in Redis,
    without an event that shows how; `nowhere`: jobs with a record in Redis and no date, which no claim finds, without those that the
    relay schedules.
    """

    missing: list[UUID] = field(default_factory=list)
    risen: list[UUID] = field(default_factory=list)
    rowless: list[UUID] = field(default_factory=list)
    lost: list[UUID] = field(default_factory=list)
    ended: list[UUID] = field(default_factory=list)
    nowhere: list[UUID] = field(default_factory=list)

    def __len__(self) -> int:
        return sum(map(len, (self.missing, self.risen, self.rowless, self.lost, self.ended, self.nowhere)))


class Comparison:
    """1. Reads both sides in batches, and notes the differences. 2. Waits until the mirror has written the events of that time. For a
    job of redis durability that ran, it also waits for a lease, because its worker may still adopt it. 3. Checks the differences
    again, and drops those that were in progress. `fix` restores or removes jobs, writes rows, or marks lost jobs as unresolved.
    `left`: what `fix` cannot repair, because no worker could run the job, Redis was wiped in the meantime, or the record is
    unreadable or not signed.

    Raises (all methods):
        StoreUnavailable, DatabaseError: call again later.
    """

    def __init__(self, places: Places, queue: QueueConfig, *, prefix: str, partition: int = 0, signer: Signer | None = None) -> None:
        self.queue = queue
        self.loop = RestoreLoop(places, queue, prefix=prefix, partition=partition, signer=signer)
        self._signer = signer
        self.left = Orphans()
        self._inspector = Inspector(places, prefix=prefix)
        self._of_redis = reconcile_rows.unfinished_redis_only(queue.name, partition)

    def find(self, wait: Iterator[None]) -> Orphans:
        """All differences. `wait`: each step lets some time pass and the mirror work."""
        suspects = Orphans()
        for batch in _ids(self.loop.unfinished()):
            suspects.missing += self.loop.log.unknown(batch)
            suspects.ended += self.loop.log.ended(batch)
        for batch in _ids(self._of_redis):
            suspects.lost += self.loop.log.unknown(batch)
        for jobs in self.loop.log.jobs():
            for batch in batches([ids.full(id) for id, _ in jobs], MOST):
                self._judge(batch, suspects)
                suspects.nowhere += self._inspector.nowhere(self.queue.name, batch)
        told = not suspects or self._wait_for_mirror(wait)
        found = Orphans()
        if told and suspects.lost and not needs_restore(*self.loop.look()):
            found.lost = self._lost(suspects.lost, wait)
        for batch in batches(suspects.missing, MOST):
            found.missing += self.loop.log.unknown(_still(self.loop.unfinished(), batch))
        for batch in batches(suspects.ended, MOST) if told else ():
            found.ended += self.loop.log.ended(_still(self.loop.unfinished(), batch))
        for batch in batches(suspects.nowhere, MOST):
            unpublished = set(Job.objects.filter(UNPUBLISHED, pk__in=batch).values_list("id", flat=True))
            found.nowhere += [id for id in self._inspector.nowhere(self.queue.name, batch) if id not in unpublished]
        for batch in batches([*suspects.risen, *suspects.rowless], MOST):
            self._judge(batch, found)
        return found

    def fix(self, orphans: Orphans) -> Iterator[int]:
        """Restores missing jobs, removes risen jobs and writes missing rows. Yields the number of checked jobs after every step of at
        most 200.
        """
        for batch in batches(orphans.missing, MOST):
            found = self._restore(self.loop.unfinished().filter(pk__in=batch))
            self.left.missing += self.loop.log.unknown([row.id for row in found])
            yield len(batch)
        for batch in batches(orphans.risen, MOST):
            self._drop_ended(batch)
            yield len(batch)
        for batch in batches(orphans.rowless, MOST):
            self._write_rows(batch)
            yield len(batch)
        for batch in batches(orphans.lost, MOST):
            reconcile_rows.give_up(self.queue.name, self.loop.partition, self.loop.log.unknown(batch))
            yield len(batch)
        for batch in batches(orphans.ended, MOST):
            with locked_checkpoint(self.queue.name, self.loop.partition):  # a mirror can be writing the rows
                leave_to_a_person(self.loop.unfinished().filter(pk__in=batch), unknown_end("finished"))
            yield len(batch)
        for batch in batches(orphans.nowhere, MOST):  # scheduled by their rows; a job without a row is `left`
            self._drop_ended(batch)
            self._restore(Job.objects.filter(pk__in=batch, state__in=UNFINISHED, settled=""))
            self.left.nowhere += self._inspector.nowhere(self.queue.name, batch)
            yield len(batch)

    def _restore(self, wanted: Any) -> list[rows.UnfinishedRow]:
        epoch, found = self.loop.store.epoch(), reconcile_rows.fields_of(wanted)
        self.loop.epoch.restore(self.loop.items(found), epoch=epoch, actor="doctor")
        return found

    def _drop_ended(self, batch: list[UUID]) -> None:
        known = Job.objects.filter(pk__in=batch).values_list("id", "state", "settled")
        self.loop.epoch.drop([ids.short(id) for id, *row in known if end_of(*row)], actor="doctor")

    def _lost(self, suspects: list[UUID], wait: Iterator[None]) -> list[UUID]:
        if self._of_redis.filter(pk__in=suspects, state=State.RUNNING).exists():
            until = clock.monotonic() + self.queue.lease
            while clock.monotonic() < until:
                next(wait)
        return [id for batch in batches(suspects, MOST) for id in self.loop.log.unknown(_still(self._of_redis, batch))]

    def _judge(self, batch: list[UUID], found: Orphans) -> None:
        views = self._inspector.jobs(self.queue.name, batch)
        there = [view for view in views if view is not None and view.state != "finished"]
        known = Job.objects.filter(pk__in=[view.id for view in there])
        ends = {id: end_of(state, settled) for id, state, settled in known.values_list("id", "state", "settled")}
        for view in there:
            if view.id not in ends:
                if self._needs_row(view):
                    found.rowless.append(view.id)
            elif ends[view.id] and view.state != "failed":
                found.risen.append(view.id)

    def _needs_row(self, view: JobView) -> bool:
        if view.state != "failed":
            return self.queue.audit == "full"
        kept = self.queue.retention["failed"]
        return kept is None or view.now_ms - view.date_ms < kept * 1000

    def _wait_for_mirror(self, wait: Iterator[None]) -> bool:
        mark, until = position(self.loop.log.last_id()), clock.monotonic() + PATIENCE
        while (first := self.loop.log.read(FIRST, 1)) and position(first[0].id) <= mark:
            if clock.monotonic() > until:
                return False
            next(wait)
        return True

    def _write_rows(self, batch: list[UUID]) -> None:
        made, now = [], database.now()
        for view in self._inspector.jobs(self.queue.name, batch):
            if view is None:
                continue  # it has ended in the meantime
            signed = self._signer is None or self._signer.verifies(view.raw, queue=self.queue.name, id=ids.short(view.id))
            if view.record is None or not signed:
                self.left.rowless.append(view.id)
                continue
            date = clock.from_ms(view.date_ms)
            try:
                row = rows.new_row(
                    view.record,
                    self.queue.name,
                    date,
                    state=view.state,
                    created_at=now,
                    published=now,
                    attempts=view.attempt,
                    crashes=view.crashes,
                )
            except PayloadError:
                self.left.rowless.append(view.id)
                continue
            if view.state == "failed":
                row.finished_at, row.error = date, row.error or NO_END
                row.fingerprint = rows.fingerprint(row.error)
            made.append(rows.model_of(row))
        Job.objects.bulk_create(made, ignore_conflicts=True)


def _ids(wanted: Any) -> Iterator[list[UUID]]:
    return batches((row.id for row in keyset.through(wanted.order_by("id").only("id"), ("id",), MOST)), MOST)


def _still(wanted: Any, batch: list[UUID]) -> list[UUID]:
    still = set(wanted.filter(pk__in=batch).values_list("id", flat=True))
    return [id for id in batch if id in still]
