"""The subcommands that repair: adopt takes the queues of another site, resign signs records again, restore brings back what Redis has
lost, and set-aside lists and retries events that the database rejected.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from typing import Any, Final, TextIO

from django.core.management.base import CommandError

from django_delayq import conf, durations, ids
from django_delayq.console import masking
from django_delayq.management import UsageError
from django_delayq.management.change_commands import actor, confirm, print_result
from django_delayq.management.job_filters import named_queues
from django_delayq.management.output import print_json, progress
from django_delayq.mirror import adoption
from django_delayq.mirror.adoption import Adoptable
from django_delayq.mirror.checkpoint import needs_restore
from django_delayq.mirror.mirror_loop import MirrorLoop
from django_delayq.mirror.restore import ACTOR, RestoreLoop
from django_delayq.mirror.set_aside import CHUNK
from django_delayq.models import SetAside
from django_delayq.producer.put import batches
from django_delayq.producer.stores import stores
from django_delayq.signing import Signer, Standing
from django_delayq.store.connection.link import Link
from django_delayq.store.keys import Keys
from django_delayq.store.reads.reach import Reach
from django_delayq.store.scripts import site
from django_delayq.store.scripts.queue import MOST, QueueStore
from django_delayq.store.scripts.worker_registry import WorkerRegistry
from django_delayq.text import one_line

REPORTED: Final = 60.0  # seconds; a worker that has reported since then may be running jobs
WHY: Final = {
    "moved": "has no jobs of this site, which was at another address before",
    "other": "belongs to another site",
    "behind": "is recorded by another database, or this database has lost commits",
}
Record = tuple[str, bytes, Standing]  # short id, raw record, which key signed it
# Columns of a rejected event that people see. The others may quote arguments.
PLACE: Final = ("queue", "partition", "stream_id", "item")
SHOWN: Final = ("pk", *PLACE, "kind", "job_id", "at", "actor", "length", "code", "text", "noticed_at", "tries")


def adopt(out: TextIO, options: dict[str, Any]) -> int:
    """Take over the queues in Redis after a site has moved, or to run jobs from a copy of the database.

    The command prints the ids of both sites and the number of their unfinished jobs, and asks for confirmation. Restart all processes
    afterwards. The JSON document has `site`, `found`, `parts`, `rows`, `adopted` and `cancelled`.
    """
    config = conf.get()
    ours = adoption.own_id()
    parts = adoption.parts_of(stores.places, config)
    wanted = [part for part in parts if part.standing not in ("own", "new")]
    names = sorted({part.keys.queue for part in wanted if part.queue is not None})
    theirs = sorted({part.found for part in wanted if part.found and part.found != ours})
    count = adoption.unfinished(names).count()
    document = {
        "site": ours,
        "found": theirs,
        "parts": {part.label: {"standing": part.standing, "site": part.found, "jobs": part.jobs} for part in wanted},
        "rows": count,
        "adopted": 0,
        "cancelled": 0,
    }
    if not wanted:
        return print_result(out, options, document, f"Redis already belongs to this site, {ours}. There is nothing to adopt.")
    text = _adoption_text(wanted, ours, theirs, count, empty=options["empty"])
    if options["dry_run"]:
        return print_result(out, options, document, text)
    _refuse_workers(wanted, force=options["force"])
    if not options["yes"]:
        confirm(f"{text}\nContinue? [y/N] ")
    elif not options["json"]:
        out.write(f"{text}\n")
    cancelled = 0
    if options["empty"]:
        with progress(count, "cancelling", quiet=options["json"]) as advance:
            for done in adoption.end_rows(names, actor(), options["reason"]):
                cancelled += done
                advance(done)
    adoption.take(parts, config, actor(), options["reason"], empty=options["empty"])
    stores.forget()
    document |= {"site": site.of(config.prefix), "adopted": len(wanted), "cancelled": cancelled}
    then = f" Cancelled rows: {cancelled}." if options["empty"] else ""
    return print_result(out, options, document, f"Adopted by site {site.of(config.prefix)}.{then} Restart all running processes.")


def _adoption_text(wanted: Sequence[Adoptable], ours: str, theirs: Sequence[str], count: int, *, empty: bool) -> str:
    lines = [f"This database is site {ours}. Its unfinished jobs: {count}."]
    lines += [f"Redis has queues of site {', '.join(theirs)}."] if theirs else []
    lines += [f"{part.label}: Redis at {part.link.home} {WHY[part.standing]}. Unfinished jobs there: {part.jobs}." for part in wanted]
    gone = sum(part.jobs for part in wanted if part.standing == "other" or (empty and part.standing == "behind"))
    if gone:
        lines.append(f"Unfinished jobs that will be removed from Redis: {gone}.")
    if empty:
        lines.append(f"Unfinished jobs that will be cancelled in this database only: {count}.")
    elif any(part.standing == "behind" for part in wanted):
        lines.append("Redis keeps its jobs. To find jobs that have ended in the meantime, run manage.py delayq doctor --deep.")
    else:
        lines.append(f"Unfinished jobs of this database that will be restored in Redis and run: {count}.")
    return "\n".join(lines)


def _refuse_workers(wanted: Sequence[Adoptable], *, force: bool) -> None:
    """Refuses if workers of another database may be running these jobs. Workers of this database do not matter."""
    strange = any(part.standing in ("other", "behind") for part in wanted)
    if force or not strange:
        return
    registry = WorkerRegistry(stores.link, prefix=conf.get().prefix)
    limit = durations.milliseconds(REPORTED)
    alive = [one_line(worker["id"]) for worker in registry.all(silent_ms=limit, of_any_site=True) if not worker["silent"]]
    if alive:
        raise CommandError(
            f"Nothing was changed: workers have reported within the last minute: {', '.join(alive)}. They may be running these jobs. "
            "Stop them and run the command again, or add --force."
        )


def resign(out: TextIO, options: dict[str, Any]) -> int:
    """Sign records with the new key after you change SECRET_KEY.

    Records with an unknown signature are not signed. The exit code is 1 if there are records that workers will not run. The JSON
    document has `newest`, `older`, `unsigned`, `wrong` and `signed`.
    """
    config = conf.get()
    if config.signer is None:
        raise UsageError("SIGNING is off, so there is nothing to sign. See: manage.py delayq settings SIGNING")
    names = named_queues(options)
    wanted: tuple[Standing, ...] = ("older", "unsigned") if options["unsigned"] else ("older",)
    found = Counter(standing for name in names for batch in _records_of(name, config.signer) for _, _, standing in batch)
    todo = sum(found[standing] for standing in wanted)
    document: dict[str, Any] = {standing: found[standing] for standing in ("newest", "older", "unsigned", "wrong")}
    text = _standing_text(found)
    if options["dry_run"]:
        return print_result(out, options, {**document, "would_sign": todo}, f"{text} Records that would be signed again: {todo}.")
    if todo and not options["yes"]:
        trust = "All unsigned jobs will run. " if found["unsigned"] and options["unsigned"] else ""
        confirm(f"{text} Records that will be signed again: {todo}. {trust}Continue? [y/N] ")
    signed = 0
    with progress(todo, "signing", quiet=options["json"]) as advance:
        for name in names if todo else ():
            for batch in _records_of(name, config.signer):
                parts: dict[QueueStore, list[tuple[str, bytes]]] = {}
                for id, read, standing in batch:
                    if standing in wanted:
                        parts.setdefault(stores.with_job(name, ids.full(id)), []).append((id, read))
                done = sum(store.resign(part).count("done") for store, some in parts.items() for part in batches(some, MOST))
                signed += done
                advance(done)
    text = f"{text} Records signed again: {signed}.{_unsigned_text(found, options)}"
    print_result(out, options, {**document, "signed": signed}, text)
    return 1 if found["wrong"] or (found["unsigned"] and not options["unsigned"]) else 0


def _records_of(queue: str, signer: Signer) -> Iterator[list[Record]]:
    for batch in stores.inspector().records(queue):
        yield [(id, read, signer.standing(read, queue=queue, id=id)) for id, read in batch]


def _standing_text(found: Counter[Standing]) -> str:
    return (
        f"Records: {found.total()}. Signed with the newest key: {found['newest']}, with an older key: {found['older']}, "
        f"unsigned: {found['unsigned']}, with an invalid signature: {found['wrong']}."
    )


def _unsigned_text(found: Counter[Standing], options: dict[str, Any]) -> str:
    text = ""
    if found["unsigned"] and not options["unsigned"]:
        text += " Unsigned jobs do not run. If you trust them, add --unsigned."
    if found["wrong"]:
        text += " Jobs with an invalid signature do not run and are kept. Was a key removed from SECRET_KEY_FALLBACKS too early?"
    return text


def restore(out: TextIO, options: dict[str, Any]) -> int:
    """Restore the jobs that Redis has lost from the database.

    Workers do this automatically, unless RESTORE is manual. You can interrupt the command and run it again. The JSON document has
    `queues`, `rows`, `back`, `resumed` and `missing`.
    """
    named = named_queues(options)
    wanted, lacking = stores.from_each(named, lambda reach: _lacking(named, reach))
    missing = lacking.labels
    rows = {name: loop.unfinished().count() for name, loop in wanted.items()}
    total = sum(rows.values())
    if options["dry_run"]:
        text = f"Unfinished rows that would be checked in Redis: {total} ({', '.join(wanted) or 'no queue needs it'})."
        return print_result(out, options, {"queues": list(wanted), "rows": total}, text, missing)
    if total and not options["yes"]:
        confirm(f"Redis has lost data of {', '.join(wanted)}. Unfinished rows to check: {total}. Continue? [y/N] ")
    back = 0
    with progress(total, "restoring", quiet=options["json"]) as advance:
        for loop in wanted.values():
            seen = 0
            for step in loop.drain():
                advance(step.done - seen)
                seen = step.done
            back += loop.progress.back
    resumed = [name for name in named if name not in lacking.queues and _resume(name, lacking.parts.get(name, {}))]
    document = {"queues": list(wanted), "rows": total, "back": back, "resumed": resumed}
    if not wanted:
        return print_result(out, options, document, "Redis has lost no data. There is nothing to restore.", missing)
    return print_result(out, options, document, f"Restored jobs: {back} of {total}. The others were still in Redis.", missing)


def _lacking(names: list[str], reach: Reach) -> dict[str, RestoreLoop]:
    """The loops that restore the partitions that have lost data, by label."""
    config = conf.get()
    common: Any = {"prefix": config.prefix, "signer": config.signer}
    found: dict[str, RestoreLoop] = {}

    def look(_link: Link, there: list[Keys]) -> None:
        for keys in there:
            queue = config.queue(keys.queue)
            loop = RestoreLoop(stores.places, queue, partition=keys.partition, **common)
            if needs_restore(*loop.look()):
                found[queue.label(keys.partition)] = loop

    reach.each(stores.places, [store.keys for name in names for store in stores.parts(name)], look)
    return found


def _resume(name: str, away: Collection[int]) -> bool:
    """Resumes partitions that were paused for a restore. `away`: partitions that were not checked."""
    there = [store for store in stores.parts(name) if store.partition not in away]
    waiting = [store for store in there if stores.inspector().part(name, store.partition).paused_by == ACTOR]
    return sum(store.resume(actor=actor(), reason="restored") for store in waiting) > 0


def set_aside(out: TextIO, options: dict[str, Any]) -> int:
    """List events that the database rejected, or write them again.

    The exit code is 1 if an event was rejected again. The JSON document has `total` and `events`, or `taken_in` and `refused` if you
    use --retry.
    """
    names = named_queues(options)
    kept = SetAside.objects.filter(queue__in=names).order_by("pk")
    if options["retry"]:
        return _retry_events(out, options, names)
    total = kept.count()
    hidden = {"text": masking.MASK} if masking.hides() else {}  # the error text may quote a masked value
    found: list[dict[str, Any]] = [{**row, **hidden} for row in kept.values(*SHOWN)[: options["limit"]]]
    if options["json"]:
        print_json(out, {"total": total, "events": found})
        return 0
    if not total:
        out.write("There are no rejected events.\n")
    for row in found:
        job = ids.short(row["job_id"]) if row["job_id"] else "?"
        place = f"{row['queue']} {row['stream_id']}/{row['item']}"
        out.write(f"{place} {one_line(row['kind'])} {job} {row['code']}: {one_line(row['text'])}\n")
    if total > len(found):
        out.write(f"… and {total - len(found)} more.\n")
    return 0


def _retry_events(out: TextIO, options: dict[str, Any], names: list[str]) -> int:
    config = conf.get()
    kept = SetAside.objects
    wanted: dict[tuple[str, int], list[int]] = {}
    for name, partition, pk in kept.filter(queue__in=names).order_by("pk").values_list("queue", "partition", "pk"):
        if name in names:  # some databases compare without case
            wanted.setdefault((name, partition), []).append(pk)
    total = sum(map(len, wanted.values()))
    if options["dry_run"]:
        return print_result(out, options, {"would_retry": total}, f"Rejected events that would be retried: {total}.")
    if total and not options["yes"]:
        confirm(f"This retries rejected events: {total}. Continue? [y/N] ")
    done = refused = 0
    with progress(total, "trying again", quiet=options["json"]) as advance:
        for (name, partition), keys in wanted.items():
            common: Any = {"prefix": config.prefix, "signer": config.signer}
            mirror = MirrorLoop(stores.places, config.queue(name), partition=partition, **common)
            for chunk in batches(keys, CHUNK):
                taken, left = mirror.retry(chunk)
                done, refused = done + taken, refused + left
                advance(len(chunk))
    print_result(out, options, {"taken_in": done, "refused": refused}, f"Saved events: {done}. Rejected again: {refused}.")
    return 1 if refused else 0
