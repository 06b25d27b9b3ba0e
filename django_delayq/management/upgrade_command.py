"""The subcommand upgrade: raises the format of the queues, when nobody works any more who does not know it."""

from __future__ import annotations

from typing import Any, TextIO

from django.core.management.base import CommandError

from django_delayq import conf
from django_delayq.management.change_commands import actor, confirm, said
from django_delayq.producer.stores import stores
from django_delayq.store import formats
from django_delayq.store.format_store import FormatStore
from django_delayq.store.worker_registry import WorkerRegistry
from django_delayq.text import one_line


def upgrade(out: TextIO, options: dict[str, Any]) -> int:
    """Gives every queue the newest format that this release knows."""
    queues = {name: [FormatStore(store) for store in stores.parts(name)] for name in conf.get().queues}
    found = {name: min(store.look() for store in parts) for name, parts in queues.items()}
    for name, parts in queues.items():
        formats.check(name, max(store.look() for store in parts))
    due = [name for name, format in found.items() if format < formats.FORMAT]
    older = _workers()
    document: dict[str, Any] = {
        "queues": {name: {"before": format, "after": format} for name, format in found.items()},
        "older": older,
        "upgraded": 0,
    }
    if not due:
        return said(out, options, document, f"Every queue has format {formats.FORMAT}, the newest of this release.")
    if options["dry_run"]:
        text = f"Would give format {formats.FORMAT} to {', '.join(due)}." + (_sentence(older) if older else "")
        return said(out, options, document, text)
    if older and not options["force"]:
        raise CommandError(f"Nothing was changed.{_sentence(older)}")
    if not options["yes"]:
        confirm(
            f"{_sentence(older).lstrip() + ' ' if older else ''}From now on processes of older releases are refused by "
            f"{', '.join(due)}, and going back means to drain them. Go on? [y/N] "
        )
    for name in due:
        quiet_ms = 0 if options["force"] else formats.SHOWS_MS
        done = [store.upgrade(quiet_ms=quiet_ms, actor=actor()) for store in queues[name]]
        document["queues"][name]["after"] = after = min(one.after for one in done)
        document["upgraded"] += after > document["queues"][name]["before"]
        seen = {format: since_ms for one in done if one.after < formats.FORMAT for format, since_ms in one.older.items()}
        older += [
            f"a process that knows format {format} only, and called {name} {since_ms / 1000:.0f} s ago"
            for format, since_ms in seen.items()
            if since_ms < formats.SHOWS_MS
        ]
    upgraded = [name for name in due if document["queues"][name]["after"] == formats.FORMAT]
    text = f"Format {formats.FORMAT}: {', '.join(upgraded) or 'no queue'}." + (_sentence(older) if older else "")
    said(out, options, document, text)
    return 0 if len(upgraded) == len(due) else 1


def _workers() -> list[str]:
    there = [one for one in WorkerRegistry(stores.link, prefix=conf.get().prefix).all() if not one["silent"]]
    return [one_line(f"the worker {one['id']} (version {one.get('version', '?')})") for one in formats.older(there)]


def _sentence(older: list[str]) -> str:
    return (
        f" Of an older release: {'; '.join(older)}. Replace what is older, then run this again; --force goes on all the same, and "
        "what they run may run twice."
    )
