"""The subcommand set-aside: shows what the mirror could not take in, and tries it again."""

from __future__ import annotations

from typing import Any, TextIO

from django_delayq import conf, ids
from django_delayq.console import masking
from django_delayq.management.change_commands import confirm, said
from django_delayq.management.job_filters import named_queues
from django_delayq.management.output import print_json, progress
from django_delayq.mirror.mirror_loop import MirrorLoop
from django_delayq.mirror.set_aside import CHUNK
from django_delayq.mirror.set_aside_retry import retry
from django_delayq.models import SetAside
from django_delayq.producer.stores import stores
from django_delayq.text import one_line

SHOWN = (
    "pk",
    "queue",
    "partition",
    "stream_id",
    "item",
    "kind",
    "job_id",
    "at",
    "actor",
    "length",
    "code",
    "text",
    "noticed_at",
    "tries",
)


def set_aside(out: TextIO, options: dict[str, Any]) -> int:
    """Lists events that were set aside, or takes them in where that is possible now."""
    config = conf.get()
    names = named_queues(options)
    kept = SetAside.objects.using(config.database).filter(queue__in=names).order_by("pk")
    if options["retry"]:
        return _retry(out, options, names)
    total = kept.count()
    found = [_masked(row) for row in kept.values(*SHOWN)[: options["limit"]]]
    if options["json"]:
        print_json(out, {"total": total, "events": found})
        return 0
    if not total:
        out.write("There are no rejected events.\n")
    for row in found:
        job = ids.short(row["job_id"]) if row["job_id"] else "?"
        out.write(
            f"{row['queue']} {row['stream_id']}/{row['item']} {one_line(row['kind'])} {job} {row['code']}: {one_line(row['text'])}\n"
        )
    if total > len(found):
        out.write(f"… and {total - len(found)} more.\n")
    return 0


def _masked(row: dict[str, Any]) -> dict[str, Any]:
    """What a database said of a value may quote it."""
    return {**row, "text": masking.MASK} if masking.hides() else row


def _retry(out: TextIO, options: dict[str, Any], names: list[str]) -> int:
    config = conf.get()
    kept = SetAside.objects.using(config.database)
    wanted: dict[tuple[str, int], list[int]] = {}
    for name, partition, pk in kept.filter(queue__in=names).order_by("pk").values_list("queue", "partition", "pk"):
        if name in names:  # some databases take others for the same
            wanted.setdefault((name, partition), []).append(pk)
    total = sum(map(len, wanted.values()))
    if options["dry_run"]:
        return said(out, options, {"would_retry": total}, f"Rejected events that would be retried: {total}.")
    if total and not options["yes"]:
        confirm(f"This retries rejected events: {total}. Continue? [y/N] ")
    done = refused = 0
    with progress(total, "trying again", quiet=options["json"]) as advance:
        for (name, partition), keys in wanted.items():
            common: Any = {"prefix": config.prefix, "using": config.database, "signer": config.signer}
            mirror = MirrorLoop(stores.places, config.queue(name), partition=partition, **common)
            for start in range(0, len(keys), CHUNK):
                chunk = keys[start : start + CHUNK]
                taken, left = retry(mirror, chunk)
                done, refused = done + taken, refused + left
                advance(len(chunk))
    said(
        out,
        options,
        {"taken_in": done, "refused": refused},
        f"Saved events: {done}. Rejected again: {refused}.",
    )
    return 1 if refused else 0
