"""The subcommand restore: brings back from the database what Redis has lost, where that does not happen by itself."""

from __future__ import annotations

from typing import Any, TextIO

from django_delayq import conf
from django_delayq.management.change_commands import actor, confirm, said
from django_delayq.management.job_filters import named_queues
from django_delayq.management.output import progress
from django_delayq.mirror.checkpoint import needs_restore
from django_delayq.mirror.restore import ACTOR, RestoreLoop
from django_delayq.producer.stores import stores


def restore(out: TextIO, options: dict[str, Any]) -> int:
    """Brings back unfinished jobs that Redis has lost, and lets the queue go on that was paused for it."""
    config = conf.get()
    names = named_queues(options)
    wanted = {}
    common: Any = {"prefix": config.prefix, "using": config.database, "signer": config.signer}
    for queue in map(config.queue, names):
        for partition in queue.served:
            loop = RestoreLoop(stores.places, queue, partition=partition, **common)
            if needs_restore(*loop.look()):
                wanted[queue.label(partition)] = loop
    rows = {name: loop.unfinished().count() for name, loop in wanted.items()}
    total = sum(rows.values())
    if options["dry_run"]:
        text = f"{total} unfinished rows would be looked up in Redis: {', '.join(wanted) or 'no queue needs it'}."
        return said(out, options, {"queues": list(wanted), "rows": total}, text)
    if total and not options["yes"]:
        confirm(f"Redis lacks what the database has seen in {', '.join(wanted)}: {total} unfinished rows. Go on? [y/N] ")
    back = 0
    with progress(total, "restoring", quiet=options["json"]) as advance:
        for loop in wanted.values():
            seen = 0
            for step in loop.drain():
                advance(step.done - seen)
                seen = step.done
            back += loop.progress.back
    resumed = [name for name in names if _resume(name)]
    document = {"queues": list(wanted), "rows": total, "back": back, "resumed": resumed}
    if not wanted:
        return said(out, options, document, "Redis has what the database has seen; nothing is to do.")
    return said(out, options, document, f"{back} of {total} jobs are back; the others were there.")


def _resume(name: str) -> bool:
    [depths] = stores.inspector().by_partition([name])
    waiting = [store for store, depth in zip(stores.parts(name), depths, strict=True) if depth.paused_by == ACTOR]
    return sum(store.resume(actor=actor(), reason="restored") for store in waiting) > 0
