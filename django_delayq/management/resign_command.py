"""The subcommand `resign`: signs records again with the newest key, after SECRET_KEY has changed or SIGNING was turned on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any, TextIO

from django.core.management.base import CommandError

from django_delayq import conf, ids
from django_delayq.management.change_commands import confirm, said
from django_delayq.management.job_filters import USAGE, named_queues
from django_delayq.management.output import progress
from django_delayq.producer.stores import stores
from django_delayq.signing import Signer, Standing
from django_delayq.store.scripts.queue import MOST, QueueStore

Record = tuple[str, bytes, Standing]  # short id, as it was read, by whom it is signed


def resign(out: TextIO, options: dict[str, Any]) -> int:
    """Signs what verifies under an older key, and with --unsigned what bears no signature."""
    config = conf.get()
    if config.signer is None:
        raise CommandError("SIGNING is off, so there is nothing to sign. See: manage.py delayq settings SIGNING", returncode=USAGE)
    names = named_queues(options)
    wanted: tuple[Standing, ...] = ("older", "unsigned") if options["unsigned"] else ("older",)
    found = Counter(standing for name in names for batch in _records(name, config.signer) for _, _, standing in batch)
    todo = sum(found[standing] for standing in wanted)
    document: dict[str, Any] = {standing: found[standing] for standing in ("newest", "older", "unsigned", "wrong")}
    if options["dry_run"]:
        return said(out, options, {**document, "would_sign": todo}, f"{_text(found)} Records that would be signed again: {todo}.")
    if todo and not options["yes"]:
        trust = "All unsigned jobs will run. " if found["unsigned"] and options["unsigned"] else ""
        confirm(f"{_text(found)} Records that will be signed again: {todo}. {trust}Continue? [y/N] ")
    signed = 0
    with progress(todo, "signing", quiet=options["json"]) as advance:
        for name in names if todo else ():
            for batch in _records(name, config.signer):
                done = _sign(name, [(id, read) for id, read, standing in batch if standing in wanted])
                signed += done
                advance(done)
    said(
        out,
        options,
        {**document, "signed": signed},
        f"{_text(found)} Records signed again: {signed}.{_rest(found, options)}",
    )
    return 1 if found["wrong"] or (found["unsigned"] and not options["unsigned"]) else 0


def _records(queue: str, signer: Signer) -> Iterator[list[Record]]:
    for batch in stores.inspector().records(queue):
        yield [(id, read, signer.standing(read, queue=queue, id=id)) for id, read in batch]


def _sign(queue: str, items: list[tuple[str, bytes]]) -> int:
    parts: dict[QueueStore, list[tuple[str, bytes]]] = {}
    for id, read in items:
        parts.setdefault(stores.with_job(queue, ids.full(id)), []).append((id, read))
    return sum(
        store.resign(some[start : start + MOST]).count("done") for store, some in parts.items() for start in range(0, len(some), MOST)
    )


def _text(found: Counter[Standing]) -> str:
    return (
        f"Records: {found.total()}. Signed with the newest key: {found['newest']}, with an older key: {found['older']}, "
        f"unsigned: {found['unsigned']}, with an invalid signature: {found['wrong']}."
    )


def _rest(found: Counter[Standing], options: dict[str, Any]) -> str:
    text = ""
    if found["unsigned"] and not options["unsigned"]:
        text += " Unsigned jobs do not run. If you trust them, add --unsigned."
    if found["wrong"]:
        text += " Jobs with an invalid signature do not run and are kept. Was a key removed from SECRET_KEY_FALLBACKS too early?"
    return text
