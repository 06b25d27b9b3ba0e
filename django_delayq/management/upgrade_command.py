"""The subcommand upgrade: raises the format of the queues, when nobody works any more who does not know it."""

from __future__ import annotations

from typing import Any, TextIO

from django.core.management.base import CommandError

from django_delayq import conf
from django_delayq.exceptions import StoreUnavailable
from django_delayq.management.change_commands import actor, confirm, said
from django_delayq.producer.stores import stores
from django_delayq.store import formats
from django_delayq.store.connection import Link
from django_delayq.store.format_store import FormatStore
from django_delayq.store.queue import QueueStore
from django_delayq.store.reach import Reach
from django_delayq.store.worker_registry import WorkerRegistry
from django_delayq.text import one_line


def upgrade(out: TextIO, options: dict[str, Any]) -> int:
    """Gives every queue the newest format that this release knows. Queues whose server is away are left out."""
    seen, lacking = stores.from_each(conf.get().queues, _formats)
    found, missing = {name: format for name, format in seen.items() if name not in lacking.parts}, lacking.labels
    due = [name for name, format in found.items() if format < formats.FORMAT]
    older, unseen = _workers()
    document: dict[str, Any] = {
        "queues": {name: {"before": format, "after": format} for name, format in found.items()},
        "older": older,
        "upgraded": 0,
    }
    if not due:
        every = "Each of the others" if missing else "Every queue"
        return said(out, options, document, f"{every} has format {formats.FORMAT}, the newest of this release.", missing)
    if options["dry_run"]:
        text = f"Would give format {formats.FORMAT} to {', '.join(due)}." + (_sentence(older) if older else "")
        if unseen is not None:
            text += f" Which workers there are cannot be said: {one_line(str(unseen))}"
        return said(out, options, document, text, missing) or int(unseen is not None)
    if unseen is not None and not options["force"]:
        raise unseen  # one of an older release might be there
    if older and not options["force"]:
        raise CommandError(f"Nothing was changed.{_sentence(older)}")
    if not options["yes"]:
        confirm(
            f"{_sentence(older).lstrip() + ' ' if older else ''}From now on processes of older releases are refused by "
            f"{', '.join(due)}, and going back means to drain them. Go on? [y/N] "
        )
    for name in due:
        quiet_ms = 0 if options["force"] else formats.SHOWS_MS
        done = [FormatStore(store).upgrade(quiet_ms=quiet_ms, actor=actor()) for store in stores.parts(name)]
        document["queues"][name]["after"] = after = min(one.after for one in done)
        document["upgraded"] += after > document["queues"][name]["before"]
        shown = {format: since_ms for one in done if one.after < formats.FORMAT for format, since_ms in one.older.items()}
        older += [
            f"a process that knows format {format} only, and called {name} {since_ms / 1000:.0f} s ago"
            for format, since_ms in shown.items()
            if since_ms < formats.SHOWS_MS
        ]
    upgraded = [name for name in due if document["queues"][name]["after"] == formats.FORMAT]
    text = f"Format {formats.FORMAT}: {', '.join(upgraded) or 'no queue'}." + (_sentence(older) if older else "")
    return said(out, options, document, text, missing) or int(len(upgraded) < len(due))


def _formats(reach: Reach) -> dict[str, int]:
    """The oldest format of each queue. Raises: as `formats.check`."""
    found: dict[str, list[int]] = {}

    def look(_link: Link, there: list[QueueStore]) -> None:
        for store in there:
            format = FormatStore(store).look()
            found.setdefault(store.queue, []).append(format)

    reach.each(stores.places, [store for name in conf.get().queues for store in stores.parts(name)], look)
    for name, parts in found.items():
        formats.check(name, max(parts))
    return {name: min(parts) for name, parts in found.items()}


def _workers() -> tuple[list[str], StoreUnavailable | None]:
    """Those of an older release; and why that cannot be said, since the server where they show themselves is away."""
    try:
        there = [one for one in WorkerRegistry(stores.link, prefix=conf.get().prefix).all() if not one["silent"]]
    except StoreUnavailable as error:
        return [], error
    return [one_line(f"the worker {one['id']} (version {one.get('version', '?')})") for one in formats.older(there)], None


def _sentence(older: list[str]) -> str:
    return (
        f" Of an older release: {'; '.join(older)}. Replace what is older, then run this again; --force goes on all the same, and "
        "what they run may run twice."
    )
