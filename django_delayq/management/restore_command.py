"""The subcommand restore: brings back from the database what Redis has lost, where that does not happen by itself."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, TextIO

from django_delayq import conf
from django_delayq.management.change_commands import actor, confirm, said
from django_delayq.management.job_filters import named_queues
from django_delayq.management.output import progress
from django_delayq.mirror.checkpoint import needs_restore
from django_delayq.mirror.restore import ACTOR, RestoreLoop
from django_delayq.producer.stores import stores
from django_delayq.store.connection.link import Link
from django_delayq.store.reads.reach import Reach
from django_delayq.store.scripts.queue import QueueStore


def restore(out: TextIO, options: dict[str, Any]) -> int:
    """Brings back unfinished jobs that Redis has lost, and lets the queue go on that was paused for it, but for what is on a server
    that is away.
    """
    named = named_queues(options)
    wanted, lacking = stores.from_each(named, lambda reach: _lacking(named, reach))
    missing = lacking.labels
    rows = {name: loop.unfinished().count() for name, loop in wanted.items()}
    total = sum(rows.values())
    if options["dry_run"]:
        text = f"Unfinished rows that would be checked in Redis: {total} ({', '.join(wanted) or 'no queue needs it'})."
        return said(out, options, {"queues": list(wanted), "rows": total}, text, missing)
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
        return said(out, options, document, "Redis has lost no data. There is nothing to restore.", missing)
    return said(out, options, document, f"Restored jobs: {back} of {total}. The others were still in Redis.", missing)


def _lacking(names: list[str], reach: Reach) -> dict[str, RestoreLoop]:
    """What brings back the partitions of these queues that lack something, by their labels."""
    config = conf.get()
    common: Any = {"prefix": config.prefix, "using": config.database, "signer": config.signer}
    found: dict[str, RestoreLoop] = {}

    def look(_link: Link, there: list[QueueStore]) -> None:
        for store in there:
            queue = config.queue(store.queue)
            loop = RestoreLoop(stores.places, queue, partition=store.partition, **common)
            if needs_restore(*loop.look()):
                found[queue.label(store.partition)] = loop

    reach.each(stores.places, [store for name in names for store in stores.parts(name)], look)
    return found


def _resume(name: str, away: Collection[int]) -> bool:
    """What was paused for it goes on. `away`: the partitions that were not looked at."""
    there = [store for store in stores.parts(name) if store.partition not in away]
    waiting = [store for store in there if stores.inspector().part(name, store.partition).paused_by == ACTOR]
    return sum(store.resume(actor=actor(), reason="restored") for store in waiting) > 0
