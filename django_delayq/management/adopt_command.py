"""The subcommand adopt: a site that has moved, or a copy of its database that is to run, takes the queues in Redis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, TextIO

from django.core.management.base import CommandError

from django_delayq import clock, conf
from django_delayq.management.change_commands import actor, confirm, said
from django_delayq.management.output import progress
from django_delayq.mirror import adoption
from django_delayq.mirror.adoption import Adoptable
from django_delayq.producer.stores import stores
from django_delayq.store.scripts import site
from django_delayq.store.scripts.worker_registry import WorkerRegistry
from django_delayq.text import one_line

REPORTED: Final = 60.0  # seconds; a worker that has shown itself since may be running jobs
WHY: Final = {
    "moved": "has no jobs of this site, which was at another address before",
    "other": "belongs to another site",
    "behind": "is recorded by another database, or this database has lost commits",
}


def adopt(out: TextIO, options: dict[str, Any]) -> int:
    """Takes the queues; with --empty ends the unfinished rows of this database instead of bringing them into Redis."""
    config = conf.get()
    ours = adoption.own_id(config.database)
    parts = adoption.parts_of(stores.places, config)
    wanted = [part for part in parts if part.standing not in ("own", "new")]
    names = sorted({part.keys.queue for part in wanted if part.queue is not None})
    theirs = sorted({part.found for part in wanted if part.found and part.found != ours})
    count = adoption.unfinished(names, config.database).count()
    document = {
        "site": ours,
        "found": theirs,
        "parts": {part.label: {"standing": part.standing, "site": part.found, "jobs": part.jobs} for part in wanted},
        "rows": count,
        "adopted": 0,
        "cancelled": 0,
    }
    if not wanted:
        return said(out, options, document, f"Redis already belongs to this site, {ours}. There is nothing to adopt.")
    text = _text(wanted, ours, theirs, count, empty=options["empty"])
    if options["dry_run"]:
        return said(out, options, document, text)
    _refuse_workers(wanted, force=options["force"])
    if not options["yes"]:
        confirm(f"{text}\nGo on? [y/N] ")
    elif not options["json"]:
        out.write(f"{text}\n")
    cancelled = 0
    if options["empty"]:
        with progress(count, "cancelling", quiet=options["json"]) as advance:
            for done in adoption.end_rows(names, actor(), options["reason"], config.database):
                cancelled += done
                advance(done)
    adoption.take(parts, config, actor(), options["reason"], empty=options["empty"])
    stores.forget()
    document |= {"site": site.of(config.prefix), "adopted": len(wanted), "cancelled": cancelled}
    then = f" Cancelled rows: {cancelled}." if options["empty"] else ""
    return said(out, options, document, f"Adopted by site {site.of(config.prefix)}.{then} Restart all running processes.")


def _text(wanted: Sequence[Adoptable], ours: str, theirs: Sequence[str], count: int, *, empty: bool) -> str:
    lines = [f"This database is site {ours}. Its unfinished jobs: {count}."]
    lines += [f"Redis has queues of site {', '.join(theirs)}."] if theirs else []
    lines += [f"{part.label}: Redis at {part.link.home} {WHY[part.standing]}. Unfinished jobs there: {part.jobs}." for part in wanted]
    gone = sum(part.jobs for part in wanted if part.standing == "other" or (empty and part.standing == "behind"))
    if gone:
        lines.append(f"Unfinished jobs that will be removed from Redis: {gone}.")
    if empty:
        lines.append(f"Unfinished jobs that will be cancelled in this database only: {count}.")
    elif any(part.standing == "behind" for part in wanted):
        lines.append(
            "Redis keeps its jobs. Jobs that have ended in the meantime are still unfinished in this database. To "
            "find them, run manage.py delayq doctor --deep."
        )
    else:
        lines.append(f"Unfinished jobs of this database that will be restored in Redis and run: {count}.")
    return "\n".join(lines)


def _refuse_workers(wanted: Sequence[Adoptable], *, force: bool) -> None:
    """Workers of another database may be running these jobs. Those of this one may run meanwhile."""
    strange = any(part.standing in ("other", "behind") for part in wanted)
    if force or not strange:
        return
    registry = WorkerRegistry(stores.link, prefix=conf.get().prefix)
    limit = clock.milliseconds(REPORTED)
    alive = [one_line(worker["id"]) for worker in registry.all(silent_ms=limit, of_any_site=True) if not worker["silent"]]
    if alive:
        raise CommandError(
            f"Nothing was changed: workers have reported within the last minute: {', '.join(alive)}. They may be running these jobs. "
            "Stop them and run the command again, or add --force."
        )
