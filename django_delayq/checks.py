"""System checks: every mistake in the configuration, with an id and a way out. `check --deploy` also looks at the server.

| id | about |
|---|---|
| delayq.E001 | unknown setting |
| delayq.E002 | setting of a wrong type or value |
| delayq.E003 | the alias in REDIS is missing, or no Redis cache |
| delayq.E004 | a task names a queue that is not listed |
| delayq.E005 | two tasks of one name |
| delayq.E006 | the database alias is missing |
| delayq.E007 | signing without a SECRET_KEY |
| delayq.E008 | a carrier that is none, or cannot be imported |
| delayq.E065 | a module in TASK_MODULES that does not exist |
| delayq.E060 | OBJECT_URL that is no function, or cannot be imported |
| delayq.E009 | --deploy: jobs run inline |
| delayq.W002 | jobs share a Redis database with a cache |
| delayq.W004 | options of the connection that are not obeyed |
| delayq.W003 | requests run in transactions of another database than the one that rows of jobs are written to |
| delayq.W045 | django-tenants is installed, and keys are not those of a tenant |
| delayq.E038 | a task names a queue of messages |
| delayq.E036 | Django keeps dates without a zone |
| delayq.E010 | --deploy: Redis may evict keys |
| delayq.E011 | --deploy: server too old |
| delayq.E012 | --deploy: the server is a replica |
| delayq.E013 | --deploy: a node of a Redis Cluster |
| delayq.E014 | --deploy: a Sentinel, not a server |
| delayq.E015 | --deploy: a database number that the server does not have |
| delayq.E016 | --deploy: Sentinels that know no such master |
| delayq.E017 | --deploy: the address of a Cluster leads to a server of its own |
| delayq.E018 | --deploy: slots that no node of the Cluster serves |
| delayq.E019 | --deploy: nodes of the Cluster that cannot be reached |
| delayq.E020 | --deploy: an address without TLS leads to a server that speaks TLS |
| delayq.E021 | --deploy --database: Redis refuses a command that the package needs |
| delayq.E022 | --deploy: fewer replicas than REPLICAS of a queue |
| delayq.W010 | --deploy: no persistence |
| delayq.W011 | --deploy: snapshots only |
| delayq.W012 | --deploy: clocks differ |
| delayq.W013 | --deploy: Redis cannot be reached |
| delayq.W014 | --deploy: Redis on another host, without TLS |
| delayq.W015 | --deploy: Redis by network, without a password |
| delayq.W016 | --deploy: TLS that checks no certificate, or no name |
| delayq.W017 | --deploy: Redis by network, and jobs are not signed |
| delayq.W018 | --deploy: the embedded server's directory is not private |
| delayq.W019 | --deploy: workers answer probes on all addresses |
| delayq.W020 | --deploy: a dependency newer than those tested |
| delayq.W022 | --deploy: nobody keeps the records of a queue |
| delayq.W024 | --deploy: slots of the Cluster that are being moved |
| delayq.W025 | --deploy: masters of the Cluster without a replica |
| delayq.W026 | --deploy: one master that is away stops the whole Cluster |
| delayq.W027 | --deploy: partitions of a queue that are on too few masters |
| delayq.W028 | --deploy: partitions that are too large to be moved |
| delayq.W070 | a database pool that is too small for the threads of a worker |
| delayq.W071 | --deploy: pools that may open more connections than the database server allows |
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final

from django.apps import apps
from django.core.checks import CheckMessage, Error, Tags, Warning, register
from django.db import connections

from django_delayq import conf
from django_delayq.console import job_links
from django_delayq.exceptions import ConfigError, DelayqError, StoreUnavailable
from django_delayq.mirror.database_pools import narrow_pools, wide_pools
from django_delayq.mirror.site_findings import UNKNOWN, check_workers, site_findings
from django_delayq.producer import carriers, worker_modules
from django_delayq.producer.task import registry
from django_delayq.setting_readers import is_embedded
from django_delayq.store.address import RedisSpec, address, cache_aliases, not_obeyed
from django_delayq.store.cluster_health import cluster_findings
from django_delayq.store.fitness import (
    NEWEST,
    Finding,
    link_findings,
    probe_findings,
    record_findings,
    server_findings,
    version_findings,
)
from django_delayq.store.inspector import Inspector
from django_delayq.store.partition_health import Divided
from django_delayq.store.places import place
from django_delayq.store.replicas import replica_findings
from django_delayq.store.rights import rights_findings
from django_delayq.store.server_kind import kind_findings
from django_delayq.store.site import SiteRefused
from django_delayq.store.worker_registry import WorkerRegistry

MOST_NAMED: Final = 5  # tasks in a message
LEVELS: Final = {"error": Error, "warning": Warning}


@register(Tags.compatibility)
def check_settings(**_: Any) -> list[CheckMessage]:
    """The settings themselves, and what they refer to."""
    problems = conf.problems()
    if problems:
        return [Error(f"{problem.where} {problem.message}", hint=problem.hint, id=f"delayq.{problem.code}") for problem in problems]
    config = conf.get()
    return [
        *_zones(),
        *_alias(config),
        *_not_obeyed(config),
        *_carriers(config),
        *_object_url(config),
        *_task_modules(config),
        *_database(config),
        *messages(narrow_pools()),
        *_requests(config),
        *_shared_cache(config),
        *_tenants(),
    ]


@register(Tags.compatibility)
def check_tasks(**_: Any) -> list[CheckMessage]:
    """The registered tasks against the queues."""
    if conf.problems():
        return []
    queues = conf.get().queues
    found: list[CheckMessage] = [
        Error(
            f"The task {task.name} names the queue {task.queue!r}, which DELAYQ['QUEUES'] does not list.",
            hint=f"Add it there, or name one of: {', '.join(sorted(queues))}.",
            id="delayq.E004",
        )
        for task in registry
        if task.queue not in queues
    ]
    found += [
        Error(
            f"The task {task.name} names the queue {task.queue!r}, which holds messages: its CONSUMER is 'pull'.",
            hint="Name a queue of workers; what consumers of your own are to get is put in by delayq.push.",
            id="delayq.E038",
        )
        for task in registry
        if task.queue in queues and queues[task.queue].pulled
    ]
    for name, places in registry.duplicates.items():
        found.append(
            Error(
                f"{len(places)} functions are registered as the task {name!r}: {', '.join(places)}.",
                hint="Give one of them another name=. Jobs name their task, so only the first would ever run.",
                id="delayq.E005",
            )
        )
    return found


@register(Tags.security, deploy=True)
def check_inline(**_: Any) -> list[CheckMessage]:
    """Whether production has workers at all."""
    if conf.problems() or not conf.runs_inline_in_production():
        return []
    message = "DELAYQ['INLINE'] is on, and DEBUG is off: jobs run in requests, at once whatever their date, and only once."
    return [Error(message, hint="Take it out of the settings of production, and run workers.", id="delayq.E009")]


@register(Tags.security, deploy=True)
def check_server(**_: Any) -> list[CheckMessage]:
    """The way to the server, the server's settings, and what its workers say; only with --deploy, since it connects."""
    if conf.problems():
        return []
    config = conf.get()
    found = messages(version_findings(installed()))
    for redis in config.servers:
        found += [_named(one, _of(config, redis)) for one in _server(config, redis)]
    return found


@register(Tags.database, deploy=True)
def check_rights(databases: Collection[str] | None = None, **_: Any) -> list[CheckMessage]:
    """The rights of the Redis user: `check --deploy --database default`. The probe writes keys, so it has to be asked for."""
    if not databases or conf.problems():
        return []
    config = conf.get()
    found: list[CheckMessage] = []
    for redis in config.servers:
        with suppress(DelayqError):  # check_server tells that
            if is_embedded(redis) or not kind_findings(redis):
                there = place(redis, name="delayq:check")
                try:
                    found += [
                        _named(one, _of(config, redis))
                        for one in messages(rights_findings(there, config.prefix, probed_on(config, redis)))
                    ]
                finally:
                    there.close()
    return found


def _named(message: CheckMessage, whose: str) -> CheckMessage:
    message.msg = f"{whose}{message.msg}"
    return message


def _server(config: conf.Config, redis: RedisSpec) -> list[CheckMessage]:
    try:
        # Before anything connects, which starts an embedded server, and mends its directory.
        found = messages(link_findings(redis, signed=bool(config.signer)))
        unfit = kind_findings(redis)
    except ConfigError:
        return []  # told by E003
    if unfit:
        return [*found, *messages(unfit)]
    try:
        found += messages(cluster_findings(redis, config.prefix, divided(config, redis)))
        there = place(redis, name="delayq:check")
        try:
            inspector = Inspector(there, prefix=config.prefix)
            facts = [inspector.server(link=link) for link in there.nodes()]
            found += messages(dict.fromkeys(one for of_server in facts for one in server_findings(of_server)))
            found += messages(replica_findings(there, replicas_wanted(config, redis)))
            found += messages(site_findings(there, config.prefix, parts_on(config, redis)))
            if all(one.role in ("", "master") for one in facts) and redis == config.redis:
                check_workers(there, config.prefix)
                workers = WorkerRegistry(there, prefix=config.prefix).all()
                found += messages(probe_findings(workers))
                found += messages(wide_pools(workers))
                pulled = [queue.name for queue in config.queues.values() if queue.pulled]
                found += messages(record_findings(list(config.queues), workers, pulled=pulled))
        finally:
            there.close()
    except StoreUnavailable as error:
        found.append(Warning(str(error), hint="Check DELAYQ['REDIS'], and that the server runs.", id="delayq.W013"))
    except SiteRefused as error:
        if error.code != UNKNOWN:  # a check may run where no database is
            found.append(Error(str(error), id="delayq.E025"))
    except DelayqError as error:
        found.append(Warning(str(error), hint="See delayq.E003.", id="delayq.W013"))
    return found


def replicas_wanted(config: conf.Config, redis: RedisSpec) -> list[tuple[str, int, int]]:
    """Queue, partition and `REPLICAS`, of the queues on that server that have it."""
    queues = [queue for queue in config.queues.values() if queue.replicas and queue.redis == redis]
    return [(queue.name, partition, queue.replicas) for queue in queues for partition in queue.served]


def parts_on(config: conf.Config, redis: RedisSpec) -> list[tuple[str, int]]:
    """Queue and number of each partition on that server."""
    return [(queue.name, partition) for queue in config.queues.values() if queue.redis == redis for partition in queue.served]


def probed_on(config: conf.Config, redis: RedisSpec) -> list[tuple[str, int]]:
    """The same, to probe the server with: of the shared one without queues, any partition."""
    return parts_on(config, redis) or [(next(iter(config.queues)), 0)]


def divided(config: conf.Config, redis: RedisSpec) -> list[Divided]:
    """The queues on that server that have several partitions."""
    queues = [queue for queue in config.queues.values() if queue.divided and queue.redis == redis]
    return [Divided(queue.name, queue.partitions, len(queue.served)) for queue in queues]


def installed() -> dict[str, str]:
    """Distribution -> version, of the dependencies that are here."""
    found = {}
    for name in NEWEST:
        try:
            found[name] = version(name)
        except PackageNotFoundError:  # vendored: nobody knows which
            continue
    return found


def messages(findings: Iterable[Finding]) -> list[CheckMessage]:
    """As Django tells them."""
    return [LEVELS[one.level](one.message, hint=one.hint, id=f"delayq.{one.code}") for one in findings]


def _zones() -> Iterator[CheckMessage]:
    if not conf.has_timezones():
        yield Error(
            "USE_TZ is off, and rows of jobs would bear local times: jobs would run early or late by the zone, schedules not at all.",
            hint="Set USE_TZ = True, Django's default.",
            id="delayq.E036",
        )


def _carriers(config: conf.Config) -> Iterator[CheckMessage]:
    try:
        carriers.load(config.carriers)
    except ConfigError as error:
        yield Error(error.fields["message"], hint=error.fields["hint"], id="delayq.E008")


def _object_url(config: conf.Config) -> Iterator[CheckMessage]:
    try:
        job_links.load(config.object_url or "")
    except ConfigError as error:
        yield Error(error.fields["message"], hint=error.fields["hint"], id="delayq.E060")


def _task_modules(config: conf.Config) -> Iterator[CheckMessage]:
    for path, near in worker_modules.missing(config.task_modules):
        yield Error(
            f"DELAYQ['TASK_MODULES']: there is no module {path!r}" + (f" (did you mean {near!r}?)." if near else "."),
            hint="Correct the name, or take it out: workers import these modules for the tasks in them.",
            id="delayq.E065",
        )


def _tenants() -> Iterator[CheckMessage]:
    """The keys of a project may have the tenant in them. A check cannot see that, so the project silences it."""
    if not apps.is_installed("django_tenants"):
        return
    formats = [f"{task.named.text!r} of {task.name}" for task in registry if task.named is not None]
    shown = f" Names of tasks: {', '.join(formats[:MOST_NAMED])}{', …' * (len(formats) > MOST_NAMED)}." if formats else ""
    yield Warning(
        "django-tenants is installed, and keys, names of serial and concurrency, and locks are shared by all tenants of a queue: "
        f"one tenant can hold back or cancel the job of another.{shown}",
        hint="Put the tenant into each of them, such as key=f'{schema}:order:{pk}', and add 'delayq.W045' to SILENCED_SYSTEM_CHECKS.",
        id="delayq.W045",
    )


def _alias(config: conf.Config) -> Iterator[CheckMessage]:
    for redis in config.servers:
        try:
            address(redis)
        except ConfigError as error:
            message = error.fields.get("message", str(error))
            hint = error.fields.get("hint", "Write a URL such as 'redis://localhost:6379/1'.")
            yield Error(f"{_of(config, redis)}{message}", hint=hint, id="delayq.E003")


def _not_obeyed(config: conf.Config) -> Iterator[CheckMessage]:
    for redis in config.servers:
        if names := not_obeyed(redis):
            yield Warning(
                f"{_of(config, redis)}DELAYQ['REDIS'] has options that delayq does not obey: {', '.join(names)}.",
                hint="Take them out. Timeouts and decoding are delayq's own, and each process opens as many connections as it needs.",
                id="delayq.W004",
            )


def _of(config: conf.Config, redis: RedisSpec) -> str:
    """Whose server that is, before what is said of it; "" for the shared one."""
    names = [name for name, own in config.own_servers.items() if own == redis]
    return f"QUEUES[{', '.join(map(repr, names))}], REDIS: " if names else ""


def _database(config: conf.Config) -> Iterator[CheckMessage]:
    if config.database not in connections:
        yield Error(
            f'DELAYQ["DATABASE"] is {config.database!r}, which is no alias in DATABASES.',
            hint=f"The aliases are: {', '.join(connections)}.",
            id="delayq.E006",
        )


def _requests(config: conf.Config) -> Iterator[CheckMessage]:
    for alias in connections:
        if alias != config.database and connections[alias].settings_dict.get("ATOMIC_REQUESTS"):
            yield Warning(
                f"Requests run in transactions of the database {alias!r} (ATOMIC_REQUESTS), and rows of jobs are written to "
                f"{config.database!r}: a schedule in such a request is refused, since its row would outlive a rollback.",
                hint=f"Set DELAYQ['DATABASE'] to {alias!r}, or pass using={config.database!r} or durability='redis' to schedule.",
                id="delayq.W003",
            )


def _shared_cache(config: conf.Config) -> Iterator[CheckMessage]:
    mine: list[str] = []
    for redis in config.servers:
        with suppress(ConfigError):
            mine.append(address(redis))
    for alias in cache_aliases():
        try:
            theirs = address(alias)
        except ConfigError:
            continue
        if theirs and theirs in mine:
            yield Warning(
                f"Jobs share the Redis database of the cache {alias!r} ({theirs}): cache.clear() empties all of it, jobs included.",
                hint="Give the jobs another database number, or a server of their own.",
                id="delayq.W002",
            )
