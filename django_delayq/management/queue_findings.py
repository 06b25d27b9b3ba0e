"""Findings of `delayq doctor` about servers, queues and their partitions."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from typing import Any, Final

from django.db import DatabaseError
from django.template.defaultfilters import pluralize

from django_delayq import conf, ids
from django_delayq.checks import divided, probed_on, replicas_wanted
from django_delayq.conf import QueueConfig
from django_delayq.console import keyset, overview
from django_delayq.console.health import MEASURES
from django_delayq.console.overview import DOWN, QueueView
from django_delayq.exceptions import ConfigError, DelayqError, StoreUnavailable
from django_delayq.findings import Finding
from django_delayq.job_meta import in_meta, scoped
from django_delayq.management.left_partitions import left_partitions
from django_delayq.management.look_commands import paused
from django_delayq.management.output import duration
from django_delayq.mirror.adoption import UNKNOWN, check_workers, site_findings
from django_delayq.mirror.database_connections import wide_pools
from django_delayq.models import Job
from django_delayq.producer.outbox import agreed_clock
from django_delayq.producer.stores import stores
from django_delayq.setting_readers import is_embedded
from django_delayq.states import State
from django_delayq.store.connection.address import RedisSpec, is_cluster, way
from django_delayq.store.connection.link import Link
from django_delayq.store.keys import Keys
from django_delayq.store.reads import fitness
from django_delayq.store.reads.topology import cluster_findings, kind_findings
from django_delayq.store.scripts import formats
from django_delayq.store.scripts.replicas import replica_findings
from django_delayq.store.scripts.site import SiteRefused
from django_delayq.store.scripts.worker_registry import WorkerRegistry

RISKY: Final = (("FLUSHALL",), ("CONFIG", "SET", "appendonly", "no"))  # delayq never sends these commands
CHUNK: Final = 1000


def redis_findings() -> list[Finding]:
    """All findings. If a server cannot be reached, only that is reported; the other masters of a Cluster are checked."""
    config = conf.get()
    found: list[Finding] = []
    well: list[RedisSpec] = []
    silent: set[str] = set()  # addresses that do not answer, each reported once

    def away(name: str, error: DelayqError) -> None:
        place = str(error.fields.get("where", error))
        if place in silent:
            return
        silent.add(place)
        setting = f"REDIS of the queue {name!r}" if name else "DELAYQ['REDIS']"
        hint = f"Check {setting}, and check that the server is running."
        found.append(Finding("D003", str(error)) if error.code == UNKNOWN else Finding("D007", str(error), hint))

    def of_servers(name: str, redis: RedisSpec) -> Iterator[Finding]:
        gone: set[Link] = set()
        of_each: list[Finding] = []
        for link in stores.places.nodes(name):
            try:
                of_each += list(_server_findings(redis, link))
            except DOWN as error:
                if not is_cluster(redis):
                    raise
                gone.add(link)
                away(name, error)
        wanted = [one for one in replicas_wanted(config, redis) if not gone or stores.places.of(*one[:2]).server not in gone]
        parts = [one for one in probed_on(config, redis) if not gone or stores.places.of(*one).server not in gone]
        yield from fitness.rights_findings(stores.places, config.prefix, parts)
        yield from dict.fromkeys(of_each)
        yield from replica_findings(stores.places, wanted)
        if parts:
            yield from fitness.optional_findings(stores.places.of(*parts[0]), stores.queue(*parts[0]).keys)

    servers: list[tuple[str, RedisSpec]] = [("", config.redis)]  # each once, with one of its queues
    for name, redis in config.own_servers.items():
        if not any(redis == known for _, known in servers):
            servers.append((name, redis))
    for name, redis in servers:
        try:
            if unfit := kind_findings(redis):
                found += unfit
                continue
            found += cluster_findings(redis, config.prefix, divided(config, redis))
            found += list(of_servers(name, redis))
            well.append(redis)
        except (*DOWN, ConfigError) as error:  # also an embedded server that does not start
            away(name, error)
    workers: list[dict[str, Any]] | None = None

    def ask(redis: RedisSpec, name: str, read: Callable[[], Iterator[Finding]]) -> None:
        if redis in well:
            try:
                found.extend([*read()])  # all of them, or none
            except DOWN as error:  # it failed in the meantime, or is one of several
                if not is_cluster(redis):
                    well.remove(redis)
                away(name, error)

    def of_workers() -> Iterator[Finding]:
        nonlocal workers
        try:
            check_workers(stores.places, config.prefix)
        except SiteRefused as error:
            if error.code != UNKNOWN:
                yield Finding("E025", str(error))
            return
        workers = [worker for worker in WorkerRegistry(stores.link, prefix=config.prefix).all() if not worker["silent"]]
        yield from fitness.probe_findings(workers)
        yield from wide_pools(workers)

    ask(config.redis, "", of_workers)
    for name, queue in config.queues.items():
        ask(queue.redis, name if name in config.own_servers else "", partial(_queue_findings, name, queue, workers))
        ask(config.redis, "", partial(_left_behind, name))
    return found


def _server_findings(redis: RedisSpec, link: Link) -> Iterator[Finding]:
    inspector = stores.inspector()
    yield from fitness.server_findings(inspector.server(link=link))
    try:
        agreed_clock.now([link])  # while the clocks differ, no old rows are deleted
    except agreed_clock.ClocksDiffer as error:
        yield Finding("D029", str(error))
    except DatabaseError:
        pass  # D003 reports it
    risky = inspector.may(*RISKY, link=link) if way(redis).network and not is_embedded(redis) else ()
    if names := " and ".join(" ".join(command[:2]) for command in risky):
        yield Finding("D014", f"The Redis user of this project has permission for {names}, which delayq never uses.")
    yield from fitness.target_findings(inspector.targets(conf.get().targets.values(), link=link))


def _queue_findings(name: str, queue: QueueConfig, workers: Sequence[dict[str, Any]] | None) -> Iterator[Finding]:
    """Findings of a queue, from the partitions that can be reached. `workers`: None if they are unknown."""
    formats_there: dict[int, int] = {}

    def look(link: Link, there: list[Keys]) -> None:
        replies = link.ask(*(("HGET", keys["meta"], "format") for keys in there))
        formats_there.update({keys.partition: formats.number(reply) for keys, reply in zip(there, replies, strict=True)})

    stores.from_each([name], lambda reach: reach.each(stores.places, [store.keys for store in stores.parts(name)], look))
    if (format := max(formats_there.values())) > formats.FORMAT:  # this release cannot read the rest
        yield Finding("D021", str(formats.FormatNewer(name, format)))
        return
    config = conf.get()
    if strange := site_findings(stores.places, config.prefix, [(name, partition) for partition in formats_there]):
        yield from strange
        return
    of_partitions = list(partition_findings(queue, list(formats_there)))
    [view], _ = overview.queue_views([name], workers)
    if workers is not None:
        yield from _worker_findings(view, queue, workers)
    yield from of_partitions
    if view.depth.paused:
        hint = f"To resume it, run manage.py delayq resume {name}"
        yield Finding("D005", f"The queue {name!r} is {paused(asdict(view.depth))}.", hint)
    if MEASURES["backlog"].is_finding(view.backlog):
        text = f"The mirror of {name!r} is {view.depth.untold:,} jobs behind. At {config.most_events:,}, Redis rejects new jobs."
        yield Finding("D012", text)
    if MEASURES["lag"].is_finding(view.lag.seconds):
        text = f"The mirror of {name!r} is {duration(view.lag.seconds)} behind. Events to write: {view.lag.entries:,}."
        yield Finding("D006", text)


def _worker_findings(view: QueueView, queue: QueueConfig, workers: Sequence[dict[str, Any]]) -> Iterator[Finding]:
    name = queue.name
    start = f"To start one, run manage.py delayq_worker --roles mirror,relay --queues {name}"
    if view.unserved:
        hint = f"To start one, run manage.py delayq_worker --queues {name}"
        yield Finding("D004", f"No worker serves the queue {name!r}.", hint)
    elif queue.pulled and fitness.unkept([name], workers):
        yield Finding("D004", f"No worker has the role mirror for the queue {name!r}, from which consumers pull.", start)
    elif not queue.pulled and fitness.unmirrored([name], workers):
        text = f"No worker has the role mirror for the queue {name!r}, so the rows of its jobs are not updated."
        yield Finding("D004", text, start)
    relayed = [worker.get("brings_in") for worker in workers]
    if queue.horizon is not None and not any(isinstance(names, list) and name in names for names in relayed):
        text = f"No worker has the role relay for the queue {name!r}, which has a HORIZON, so its far jobs are not moved into Redis."
        yield Finding("D022", text, start)


def _left_behind(name: str) -> Iterator[Finding]:
    """Jobs that are still on the shared server, although their queue has its own server now."""
    parts = stores.parts(name)
    if name not in conf.get().own_servers or any(store.link.home == stores.link.home for store in parts):
        return
    if count := sum(stores.link.execute("HLEN", store.keys["jobs"]) for store in parts):
        yield Finding(
            "D025",
            f"The queue {name!r} has its own REDIS, but {count:,} of its jobs {pluralize(count, 'is,are')} on the server of "
            "DELAYQ['REDIS'], where no worker runs them.",
            "Durable jobs run on the new server, from their rows. If there are jobs of redis durability, remove REDIS from the queue "
            f"until they have run. Then delete {parts[0].keys['jobs']} and all keys with the same prefix from the old server.",
        )


def partition_findings(queue: QueueConfig, there: Collection[int]) -> Iterator[Finding]:
    """Partitions with jobs that the settings do not include, and whether FORMER_PARTITIONS can be removed, if that is known. `there`:
    the partitions that can be reached.

    Raises:
        StoreUnavailable, StoreError: one of them cannot be reached any more.
    """
    with suppress(StoreUnavailable):  # D007 reports it
        if held := left_partitions(stores.places, queue):
            yield Finding(
                "D026",
                f"Jobs of {queue.name!r} in partitions that PARTITIONS and FORMER_PARTITIONS do not include: {sum(held.values()):,}. "
                "Only workers that start from now on run them.",
                f"Add {max(held) + 1} to its FORMER_PARTITIONS and deploy. Keep it until delayq doctor reports that you can remove it.",
            )
    if not queue.former_partitions:
        return
    away = sum(_away_from_home(queue, partition) for partition in there)
    past = [stores.queue(queue.name, partition) for partition in there if partition >= queue.partitions]
    left = sum(store.link.execute("HLEN", store.keys["jobs"]) for store in past)
    try:
        rows = _rows_away_from_home(queue)
    except DatabaseError:  # D003 reports it
        rows = None
    if away or left or rows:
        text = f"FORMER_PARTITIONS of {queue.name!r} is still needed. Keys and names in former partitions: {away:,}."
        text += f" Jobs in former partitions: {left:,}."
        text += f" Unpublished and far jobs that go to former partitions: {rows:,}." if rows else ""
        yield Finding("D028", text)
    elif rows is not None and len(there) >= len(queue.served):
        text = f"You can remove FORMER_PARTITIONS of {queue.name!r}: no keys, names or jobs are left in former partitions."
        yield Finding("D027", text)


def _rows_away_from_home(queue: QueueConfig) -> int:
    """The number of unpublished and far jobs that will go to a partition that is no longer theirs."""
    waiting = Job.objects.filter(state=State.SCHEDULED.value, published__isnull=True, queue=queue.name)
    found = 0
    for job in keyset.through(waiting.order_by("id").only("id", "key", "scope", "options"), ("id",), CHUNK):
        name = in_meta(job.options.get("meta")) if isinstance(job.options, dict) else None
        text, partition = name.home if name else scoped(job.scope, job.key), ids.partition(job.id)
        found += partition >= queue.partitions or (bool(text) and queue.homes(text)[0] != partition)
    return found


def _away_from_home(queue: QueueConfig, partition: int) -> int:
    """The number of keys and names that now belong to another partition."""
    store, found = stores.queue(queue.name, partition), 0
    for name in ("keys", "names"):
        cursor = b"0"
        while True:
            cursor, flat = store.link.execute("HSCAN", store.keys[name], cursor, "COUNT", CHUNK)
            texts = flat[::2] if name == "keys" else [value.split(b":", 3)[-1] for value in flat[1::2]]
            found += sum(queue.homes(text.decode("utf-8", "replace"))[0] != partition for text in texts)
            if cursor == b"0":
                break
    return found
