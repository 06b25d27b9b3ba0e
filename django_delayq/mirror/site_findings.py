"""Checks whether queues in Redis belong to this database, before anything is read from them or written to them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial

from django_delayq.findings import Finding
from django_delayq.store.connection.places import Places
from django_delayq.store.keys import Keys
from django_delayq.store.scripts import decode, site
from django_delayq.store.scripts.events import FIRST
from django_delayq.store.scripts.queue import QueueStore
from django_delayq.store.scripts.recovery import Epoch, EpochStore
from django_delayq.store.scripts.site import SiteRefused

UNKNOWN = "site_unknown"


def refusals(places: Places, prefix: str, parts: Iterable[tuple[str, int]]) -> Iterator[SiteRefused]:
    """Yields the reasons why this site must not use queues. `parts`: queues and partitions.

    Raises:
        StoreUnavailable, StoreError: a server cannot be asked; SiteRefused "site_unknown": the database cannot be asked.
    """
    for queue, partition in parts:
        store = QueueStore(places, prefix=prefix, queue=queue, partition=partition)
        try:
            check_queue(store)
        except SiteRefused as error:
            if error.code == UNKNOWN:
                raise
            yield error


def check_queue(store: QueueStore) -> Epoch:
    """Refuses a queue of another site; returns its epoch.

    Raises:
        StoreUnavailable, StoreError: as `refusals`.
    """
    epoch = EpochStore(store).look(FIRST)
    known = partial(site.partition_facts, store.queue, store.partition)
    again = partial(known, apart=True)
    if not epoch.site:
        site.check_address(store.keys.prefix, store.queue, store.link.home, known(), again)
    else:
        site.mark_verified(store.keys.prefix, store.queue, store.partition, store.link.home)
    site.check_mirror(store.keys, store.link.home, epoch.trimmed, known(), again)
    return epoch


def check_workers(places: Places, prefix: str) -> None:
    """Refuses the workers of another site.

    Raises:
        StoreUnavailable, StoreError: as `refusals`.
    """
    keys = Keys.of(prefix, site.WORKERS, 0, jobs=False)
    found = decode.text(places.shared.execute("HGET", keys["meta"], "site"))
    site.check(prefix, site.WORKERS, places.shared.home, found)


def site_findings(places: Places, prefix: str, parts: Iterable[tuple[str, int]]) -> list[Finding]:
    """One finding for each different text of `refusals`. None if the database does not tell which site this is: other checks report
    that.

    Raises:
        StoreUnavailable, StoreError: a server cannot be asked.
    """
    texts: dict[str, None] = {}
    try:
        texts.update(dict.fromkeys(map(str, refusals(places, prefix, parts))))
    except SiteRefused:
        return []
    return [Finding("E025", text) for text in texts]
