"""Checks whether queues in Redis belong to this database, and adopts those that a person chooses."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, Literal

from django_delayq.conf import Config, QueueConfig
from django_delayq.findings import Finding
from django_delayq.models import Attempt, Batch, Checkpoint, Job, Site, UncheckedKey, database
from django_delayq.producer.outbox import rows
from django_delayq.states import UNFINISHED, AttemptOutcome, EventKind, State
from django_delayq.store.connection.link import Link
from django_delayq.store.connection.places import Places
from django_delayq.store.keys import Keys
from django_delayq.store.scripts import decode, loader, site
from django_delayq.store.scripts.events import FIRST
from django_delayq.store.scripts.queue import QueueStore
from django_delayq.store.scripts.recovery import Epoch, EpochStore
from django_delayq.store.scripts.site import SiteRefused

ADOPTED: Final = "adopted"  # the kind of the event for an adopted queue
CHUNK: Final = 500  # rows per transaction
UNKNOWN: Final = "site_unknown"  # the code of an error: the database cannot be asked
REASON: Final = "ended when this database was adopted without its unfinished jobs"

Standing = Literal["own", "new", "moved", "other", "behind"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Adoptable:
    """One partition of a queue, or the workers (`queue` None), as Redis has it. `jobs` counts the unfinished jobs in Redis. `found`:
    the id of the site in Redis. Values of `standing`: "own"; "new", without an id and free to take; "moved", without an id and at
    another address than before; "other", of another site; "behind", recorded by another database.
    """

    queue: QueueConfig | None
    link: Link
    keys: Keys
    found: str
    standing: Standing
    jobs: int = 0

    @property
    def label(self) -> str:
        """The name that people read."""
        return "the workers" if self.queue is None else self.queue.label(self.keys.partition)


def own_id() -> str:
    """The id of this database. If its tables were emptied, it has no id and gets a new one."""
    row, _ = Site.objects.get_or_create(number=1, defaults={"site": secrets.token_hex(8)})
    return row.site


def parts_of(places: Places, config: Config) -> list[Adoptable]:
    """Everything in Redis that has the id of a site.

    Raises:
        StoreUnavailable, StoreError: a server cannot be asked.
    """
    found = [_workers(places, config.prefix)]
    former = Site.objects.values_list("former", flat=True).first()
    for queue in config.queues.values():
        for partition in queue.served:
            part = _part(QueueStore(places, prefix=config.prefix, queue=queue.name, partition=partition), queue)
            # An interrupted adoption has left the former id of this database here. The part does not belong to another site.
            found.append(replace(part, standing="behind") if former and part.found == former else part)
    return found


def _workers(places: Places, prefix: str) -> Adoptable:
    keys = Keys.of(prefix, site.WORKERS, 0, jobs=False)
    found = decode.text(places.shared.execute("HGET", keys["meta"], "site"))
    standing: Standing = "new" if not found else "own" if found == site.of(prefix) else "other"
    return Adoptable(queue=None, link=places.shared, keys=keys, found=found, standing=standing)


def _part(store: QueueStore, queue: QueueConfig) -> Adoptable:
    keys = store.keys
    own, jobs, failed = store.link.ask(("HGET", keys["meta"], "site"), ("HLEN", keys["jobs"]), ("ZCARD", keys["failed"]))
    found = decode.text(own)
    try:
        standing = "own" if check_queue(store).site else "new"
    except SiteRefused as error:
        standing = error.code.removeprefix("site_")
    return Adoptable(queue=queue, link=store.link, keys=keys, found=found, standing=standing, jobs=max(0, jobs - failed))  # type: ignore[arg-type]  # the codes


def unfinished(queues: Sequence[str]) -> Any:
    """The rows of these queues that are not finished."""
    return Job.objects.filter(queue__in=queues, state__in=UNFINISHED)


def end_rows(queues: Sequence[str], actor: str, reason: str) -> Iterator[int]:
    """Cancels these rows in the database alone. Yields the number of rows per step. Redis is not asked: it does not have these jobs,
    or will not have them.
    """
    reason = reason or REASON
    Batch.objects.filter(over_at=None).update(cancelled_at=database.ago(), cancelled_by=actor, cancelled_why=reason)
    while found := list(unfinished(queues).order_by("id").values_list("id", "queue")[:CHUNK]):
        jobs, now = [id for id, _ in found], database.ago()
        with database.atomic():
            there = Job.objects.filter(pk__in=jobs)
            there.filter(published__isnull=True).update(published=now)
            there.update(state=State.CANCELLED.value, finished_at=now, error=rows.clean(reason), far=False, far_key=None)
            running = Attempt.objects.filter(job_id__in=jobs, outcome=AttemptOutcome.RUNNING.value)
            running.update(outcome=AttemptOutcome.CANCELLED.value, finished_at=now)
            UncheckedKey.objects.filter(pk__in=jobs).delete()
            for job, queue in found:
                rows.note(job, queue, EventKind.CANCELLED, actor, reason)
        yield len(found)


def take(parts: Sequence[Adoptable], config: Config, actor: str, reason: str, *, empty: bool) -> None:
    """Makes these parts belong to this database. The database gets a new id if it may be a copy or may have been copied: it is behind
    in a queue, or it owns nothing in Redis. Redis then refuses the other copy. If an adoption was interrupted, the next call
    continues with the new id. The keys of another site are removed. If Redis is ahead of this database, its keys stay, unless
    `empty`.

    Raises:
        StoreUnavailable, StoreError: a server cannot be reached. The parts that were taken stay taken; the same call continues.
        SiteRefused: another site has taken a part since `parts` were read.
    """
    before = site.of(config.prefix)
    row = Site.objects.filter(number=1)
    standings = {part.standing for part in parts}
    if ("behind" in standings or "own" not in standings) and row.filter(former="").update(site=secrets.token_hex(8), former=before):
        site.forget()
    for part in parts:
        if part.standing in ("own", "new") and site.of(config.prefix) == before:
            continue
        behind = part.standing == "behind"
        known = site.partition_facts(part.keys.queue, part.keys.partition) if behind else None
        emptied = "1" if part.standing == "other" or (behind and empty) else ""
        script = loader.load("assign", part.keys)
        last = known.last_event if known else ""
        [now, _] = loader.run(part.link, script, part.keys, "", actor, reason, part.found, last, emptied)
        site.check(config.prefix, part.keys.queue, part.link.home, decode.text(now))
        Checkpoint.objects.filter(queue=part.keys.queue, partition=part.keys.partition).update(mirror_tokens=None)
        if part.queue is not None:
            detail = {"standing": part.standing, "from": part.found, "to": site.of(config.prefix), "partition": part.keys.partition}
            rows.note(None, part.keys.queue, ADOPTED, actor, reason, detail)
    row.update(former="")
    site.forget()


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
        site.verified.add((store.keys.prefix, store.queue, store.partition, store.link.home))
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
    try:
        texts = dict.fromkeys(map(str, refusals(places, prefix, parts)))
    except SiteRefused:
        return []
    return [Finding("E025", text) for text in texts]
