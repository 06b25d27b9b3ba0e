"""Findings of `delayq doctor` about servers, queues and their partitions."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any, Final, Literal

from django.db import DatabaseError
from django.template.defaultfilters import pluralize

from django_delayq import conf, ids
from django_delayq.checks import divided, probed_on, replicas_wanted
from django_delayq.conf import QueueConfig
from django_delayq.console import keyset, overview
from django_delayq.console.health import MEASURES
from django_delayq.console.overview import DOWN, QueueView
from django_delayq.exceptions import ConfigError, DelayqError, StoreUnavailable
from django_delayq.findings import Finding, Level
from django_delayq.job_meta import in_meta
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
from django_delayq.store.connection.server_kind import kind_findings
from django_delayq.store.keys import Keys
from django_delayq.store.reads.cluster_health import cluster_findings
from django_delayq.store.reads.fitness import (
    optional_findings,
    probe_findings,
    rights_findings,
    server_findings,
    target_findings,
    unkept,
    unmirrored,
)
from django_delayq.store.reads.inspector import Inspector
from django_delayq.store.scripts import formats
from django_delayq.store.scripts.replicas import replica_findings
from django_delayq.store.scripts.site import SiteRefused
from django_delayq.store.scripts.worker_registry import WorkerRegistry

RISKY: Final = (("FLUSHALL",), ("CONFIG", "SET", "appendonly", "no"))  # delayq never sends these commands
CHUNK: Final = 1000


def finding(code: str, message: str, hint: str = "", level: Level | Literal[""] = "") -> dict[str, str]:
    return asdict(Finding(code, message, hint, level))


def as_documents(findings: Iterable[Finding]) -> list[dict[str, str]]:
    return [asdict(found) for found in findings]


def redis_findings() -> list[dict[str, str]]:
    """All findings. If a server cannot be reached, only that is reported; the other masters of a Cluster are checked."""
    config = conf.get()
    found: list[dict[str, str]] = []
    well: list[RedisSpec] = []
    silent: set[str] = set()  # addresses that do not answer, each reported once

    def away(name: str, error: Exception) -> None:
        place = str(error.fields.get("where", error)) if isinstance(error, DelayqError) else str(error)
        if place not in silent:
            silent.add(place)
            found.append(_away(name, error))

    def of_servers(name: str, redis: RedisSpec) -> list[dict[str, str]]:
        gone: set[Link] = set()
        of_each: list[dict[str, str]] = []
        for link in stores.places.nodes(name):
            try:
                of_each += [one for one in _server_findings(redis, link) if one not in of_each]
            except DOWN as error:
                if not is_cluster(redis):
                    raise
                gone.add(link)
                away(name, error)
        wanted = [one for one in replicas_wanted(config, redis) if not gone or stores.places.of(*one[:2]).server not in gone]
        parts = [one for one in probed_on(config, redis) if not gone or stores.places.of(*one).server not in gone]
        optional = optional_findings(stores.places.of(*parts[0]), stores.queue(*parts[0]).keys) if parts else ()
        rights = rights_findings(stores.places, config.prefix, parts)
        return [*as_documents(rights), *of_each, *as_documents([*replica_findings(stores.places, wanted), *optional])]

    for name, redis in _servers(config):
        try:
            if unfit := kind_findings(redis):
                found += as_documents(unfit)
                continue
            found += as_documents(cluster_findings(redis, config.prefix, divided(config, redis)))
            found += of_servers(name, redis)
            well.append(redis)
        except (*DOWN, ConfigError) as error:  # also an embedded server that does not start
            away(name, error)
    workers: list[dict[str, Any]] | None = None

    def ask(redis: RedisSpec, name: str, read: Callable[[], list[dict[str, str]]]) -> None:
        if redis in well:
            try:
                found.extend(read())
            except DOWN as error:  # it failed in the meantime, or is one of several
                if not is_cluster(redis):
                    well.remove(redis)
                away(name, error)

    def of_workers() -> list[dict[str, str]]:
        nonlocal workers
        try:
            check_workers(stores.places, config.prefix)
        except SiteRefused as error:
            return [] if error.code == UNKNOWN else [finding("E025", str(error))]
        workers = [worker for worker in WorkerRegistry(stores.link, prefix=config.prefix).all() if not worker["silent"]]
        return as_documents([*probe_findings(workers), *wide_pools(workers)])

    ask(config.redis, "", of_workers)
    for name, queue in config.queues.items():
        ask(queue.redis, name if name in config.own_servers else "", partial(_queue_findings, name, queue, workers))
        ask(config.redis, "", partial(_left_behind, name))
    return found


def _servers(config: conf.Config) -> list[tuple[str, RedisSpec]]:
    """Each server once, with one of its queues; "" for the shared server."""
    found: list[tuple[str, RedisSpec]] = [("", config.redis)]
    for name, redis in config.own_servers.items():
        if not any(redis == known for _, known in found):
            found.append((name, redis))
    return found


def _away(name: str, error: Exception) -> dict[str, str]:
    if isinstance(error, DelayqError) and error.code == UNKNOWN:
        return finding("D003", str(error))
    place = f"REDIS of the queue {name!r}" if name else "DELAYQ['REDIS']"
    return finding("D007", str(error), f"Check {place}, and check that the server is running.")


def _server_findings(redis: RedisSpec, link: Link) -> list[dict[str, str]]:
    inspector = stores.inspector()
    found = [
        *as_documents(server_findings(inspector.server(link=link))),
        *_clock_findings(link),
        *_rights_findings(inspector, redis, link),
    ]
    return [*found, *as_documents(target_findings(inspector.targets(conf.get().targets.values(), link=link)))]


def _clock_findings(link: Link) -> list[dict[str, str]]:
    """Whether the clocks of the database and of this server differ so much that no old rows are deleted."""
    try:
        agreed_clock.now([link])
    except agreed_clock.ClocksDiffer as error:
        return [finding("D029", str(error))]
    except DatabaseError:
        pass  # D003 reports it
    return []


def _rights_findings(inspector: Inspector, redis: RedisSpec, link: Link) -> list[dict[str, str]]:
    if is_embedded(redis) or not way(redis).network:
        return []
    names = " and ".join(" ".join(command[:2]) for command in inspector.may(*RISKY, link=link))
    if not names:
        return []
    return [finding("D014", f"The Redis user of this project has permission for {names}, which delayq never uses.")]


def _queue_findings(name: str, queue: conf.QueueConfig, workers: Sequence[dict[str, Any]] | None) -> list[dict[str, str]]:
    """Findings of a queue, from the partitions that can be reached. `workers`: None if they are unknown."""
    formats_there: dict[int, int] = {}

    def look(link: Link, there: list[Keys]) -> None:
        replies = link.ask(*(("HGET", keys["meta"], "format") for keys in there))
        formats_there.update({keys.partition: formats.number(reply) for keys, reply in zip(there, replies, strict=True)})

    stores.from_each([name], lambda reach: reach.each(stores.places, [store.keys for store in stores.parts(name)], look))
    if newer := _newer_findings(name, max(formats_there.values())):
        return newer  # this release cannot read the rest
    config = conf.get()
    if strange := site_findings(stores.places, config.prefix, [(name, partition) for partition in formats_there]):
        return as_documents(strange)
    of_partitions = as_documents(partition_findings(queue, list(formats_there)))
    [view], _ = overview.queue_views([name], workers)
    found = [*([] if workers is None else _worker_findings(view, queue, workers)), *of_partitions]
    if view.depth.paused:
        found.append(
            finding(
                "D005",
                f"The queue {name!r} is {paused(asdict(view.depth))}.",
                f"To resume it, run manage.py delayq resume {name}",
            )
        )
    if MEASURES["backlog"].is_finding(view.backlog):
        text = f"The mirror of {name!r} is {view.depth.untold:,} jobs behind. At {config.most_events:,}, Redis rejects new jobs."
        found.append(finding("D012", text))
    if MEASURES["lag"].is_finding(view.lag.seconds):
        text = f"The mirror of {name!r} is {duration(view.lag.seconds)} behind. Events to write: {view.lag.entries:,}."
        found.append(finding("D006", text))
    return found


def _worker_findings(view: QueueView, queue: conf.QueueConfig, workers: Sequence[dict[str, Any]]) -> list[dict[str, str]]:
    name = queue.name
    start = f"To start one, run manage.py delayq_worker --roles mirror,relay --queues {name}"
    found: list[dict[str, str]] = []
    if view.unserved:
        hint = f"To start one, run manage.py delayq_worker --queues {name}"
        found.append(finding("D004", f"No worker serves the queue {name!r}.", hint))
    elif queue.pulled and unkept([name], workers):
        found.append(finding("D004", f"No worker has the role mirror for the queue {name!r}, from which consumers pull.", start))
    elif not queue.pulled and unmirrored([name], workers):
        text = f"No worker has the role mirror for the queue {name!r}, so the rows of its jobs are not updated."
        found.append(finding("D004", text, start))
    return [*found, *_relay_findings(queue, workers)]


def _left_behind(name: str) -> list[dict[str, str]]:
    """Jobs that are still on the shared server, although their queue has its own server now."""
    parts = stores.parts(name)
    if name not in conf.get().own_servers or any(store.link.home == stores.link.home for store in parts):
        return []
    count = sum(stores.link.execute("HLEN", store.keys["jobs"]) for store in parts)
    if not count:
        return []
    return [
        finding(
            "D025",
            f"The queue {name!r} has its own REDIS, but {count:,} of its jobs {pluralize(count, 'is,are')} on the server of "
            "DELAYQ['REDIS'], where no worker runs them.",
            "Durable jobs run on the new server, from their rows. If there are jobs of redis durability, remove REDIS "
            "from the queue until "
            f"they have run. Then delete {parts[0].keys['jobs']} and all keys with the same prefix from the old server.",
        )
    ]


def _relay_findings(queue: conf.QueueConfig, workers: Sequence[dict[str, Any]]) -> list[dict[str, str]]:
    """Whether a worker moves the far jobs of a queue into Redis."""
    relayed = [worker.get("brings_in") for worker in workers]
    if queue.horizon is None or any(isinstance(names, list) and queue.name in names for names in relayed):
        return []
    return [
        finding(
            "D022",
            f"No worker has the role relay for the queue {queue.name!r}, which has a HORIZON, so its far jobs are not "
            f"moved into Redis.",
            f"To start one, run manage.py delayq_worker --roles mirror,relay --queues {queue.name}",
        )
    ]


def _newer_findings(name: str, format: int) -> list[dict[str, str]]:
    if format <= formats.FORMAT:
        return []
    return [finding("D021", str(formats.FormatNewer(name, format)))]


def partition_findings(queue: QueueConfig, there: Collection[int]) -> list[Finding]:
    """`there`: the partitions that can be reached.

    Raises:
        StoreUnavailable, StoreError: one of them cannot be reached any more.
    """
    return [*_unserved(queue), *_former(queue, there)]


def _unserved(queue: QueueConfig) -> list[Finding]:
    """Partitions with jobs that the settings do not include."""
    try:
        held = left_partitions(stores.places, queue)
    except StoreUnavailable:  # D007 reports it
        return []
    count, last = sum(held.values()), max(held, default=0)
    if not count:
        return []
    return [
        Finding(
            code="D026",
            message=f"Jobs of {queue.name!r} in partitions that PARTITIONS and FORMER_PARTITIONS do not include: {count:,}. Only "
            "workers that start from now on run them.",
            hint=f"Add {last + 1} to FORMER_PARTITIONS of this queue and deploy. Keep it until delayq doctor reports "
            f"that you can remove it.",
        )
    ]


def _former(queue: QueueConfig, there: Collection[int]) -> list[Finding]:
    """Whether FORMER_PARTITIONS can be removed. No finding if that is unknown."""
    if not queue.former_partitions:
        return []
    away = sum(_away_from_home(queue, partition) for partition in there)
    left = sum(_jobs(queue, partition) for partition in there if partition >= queue.partitions)
    try:
        rows = _rows_away_from_home(queue)
    except DatabaseError:  # D003 reports it
        rows = None
    if away or left or rows:
        return [
            Finding(
                code="D028",
                message=f"FORMER_PARTITIONS of {queue.name!r} is still needed. Keys and names in former partitions: "
                f"{away:,}. Jobs in former "
                f"partitions: {left:,}." + (f" Unpublished and far jobs that go to former partitions: {rows:,}." if rows else ""),
            )
        ]
    if rows is None or len(there) < len(queue.served):
        return []
    return [
        Finding(
            code="D027",
            message=f"You can remove FORMER_PARTITIONS of {queue.name!r}: no keys, names or jobs are left in former partitions.",
        )
    ]


def _jobs(queue: QueueConfig, partition: int) -> int:
    store = stores.queue(queue.name, partition)
    return int(store.link.execute("HLEN", store.keys["jobs"]))


def _rows_away_from_home(queue: QueueConfig) -> int:
    """The number of unpublished and far jobs that will go to a partition that is no longer theirs."""
    waiting = Job.objects.filter(state=State.SCHEDULED.value, published__isnull=True, queue=queue.name)
    found = 0
    for job in keyset.through(waiting.order_by("id").only("id", "key", "options"), ("id",), CHUNK):
        name = in_meta(job.options.get("meta")) if isinstance(job.options, dict) else None
        text, partition = name.text if name else job.key, ids.partition(job.id)
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
