"""System checks: each mistake in the configuration has an id and a hint. `check --deploy` also checks the server."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import closing, suppress
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final

from django.apps import apps
from django.core.cache import DEFAULT_CACHE_ALIAS
from django.core.checks import CheckMessage
from django.db import connections
from django.db.migrations.executor import MigrationExecutor

from django_delayq import conf
from django_delayq.console import archive, job_links
from django_delayq.exceptions import ConfigError, DelayqError, StoreUnavailable
from django_delayq.findings import Finding, check_message
from django_delayq.job_meta import Quota
from django_delayq.mirror.adoption import UNKNOWN, check_workers, site_findings
from django_delayq.mirror.database_connections import narrow_pools, wide_pools
from django_delayq.models import database
from django_delayq.producer import carriers, scopes, worker_modules
from django_delayq.producer.task import registry
from django_delayq.setting_readers import is_embedded
from django_delayq.store.connection.address import RedisSpec, address, cache_aliases, not_obeyed
from django_delayq.store.connection.places import place
from django_delayq.store.reads.fitness import (
    NEWEST,
    link_findings,
    probe_findings,
    record_findings,
    rights_findings,
    server_findings,
    version_findings,
)
from django_delayq.store.reads.inspector import Inspector
from django_delayq.store.reads.topology import Divided, cluster_findings, kind_findings
from django_delayq.store.scripts.replicas import replica_findings
from django_delayq.store.scripts.site import SiteRefused
from django_delayq.store.scripts.worker_registry import WorkerRegistry

MOST_NAMED: Final = 5  # tasks in a message


def check_settings(**_: Any) -> list[CheckMessage]:
    """Checks the settings, and the modules, databases and servers that they name. Connects to nothing."""
    problems = conf.problems()
    if problems:
        return [check_message(problem.code, f"{problem.where} {problem.message}", problem.hint) for problem in problems]
    config = conf.get()
    return [
        *([] if conf.has_timezones() else [check_message("E036")]),
        *_servers(config),
        *_loadable("E008", carriers.load, config.carriers),
        *_loadable("E066", _scope, config),
        *_loadable("E060", job_links.load, config.object_url or ""),
        *_loadable("E061", archive.load, config.archive or ""),
        *_audit(config),
        *_task_modules(config),
        *_database(config),
        *messages(narrow_pools()),
        *_requests(config),
        *_shared_cache(config),
        *_tenants(config),
    ]


def check_tasks(**_: Any) -> list[CheckMessage]:
    """Checks that the queues of all registered tasks exist."""
    if conf.problems():
        return []
    queues = conf.get().queues
    found: list[CheckMessage] = []
    for task in registry:
        uses = f"The task {task.name} uses the queue {task.queue!r}, which is"
        if task.queue not in queues:
            hint = f"Add the queue, or use one of these: {', '.join(sorted(queues))}."
            found.append(check_message("E004", f"{uses} not listed in DELAYQ['QUEUES'].", hint))
        elif queues[task.queue].pulled:
            found.append(check_message("E038", f"{uses} a queue of messages (its CONSUMER is 'pull')."))
    rated: dict[tuple[str, str], tuple[str, Quota]] = {}
    for task in registry:
        if task.rated is not None:
            name, quota = task.rated.format.text, task.rated.pace
            first, other = rated.setdefault((task.queue, name), (task.name, quota))
            if other != quota:
                text = f"{first} says {other}, burst {other.burst}; {task.name} says {quota}, burst {quota.burst}"
                found.append(check_message("E039", f"Tasks declare different rates for the name {name!r}: {text}."))
    for name, places in registry.duplicates.items():
        found.append(check_message("E005", f"{len(places)} functions are registered as the task {name!r}: {', '.join(places)}."))
    return found


def check_inline(**_: Any) -> list[CheckMessage]:
    """Checks that production does not run jobs inline."""
    if conf.problems() or conf.is_debug() or not conf.get().inline:
        return []
    return [check_message("E009")]


def check_server(**_: Any) -> list[CheckMessage]:
    """Checks the connection, the server and its workers. It connects, so it runs only with --deploy."""
    if conf.problems():
        return []
    config = conf.get()
    found = [*messages(version_findings(installed())), *messages(archive_findings(config))]
    for redis in config.servers:
        found += messages(_server(config, redis), _of(config, redis))
    return found


def check_rights(databases: Collection[str] | None = None, **_: Any) -> list[CheckMessage]:
    """Checks the migrations, and the rights of the Redis user. It writes keys, so it runs only with
    `check --deploy --database default`.
    """
    if not databases or conf.problems():
        return []
    config = conf.get()
    found = messages(missing_migrations()) if config.database in databases else []
    for redis in config.servers:
        with suppress(DelayqError):  # check_server reports it
            if is_embedded(redis) or not kind_findings(redis):
                with closing(place(redis, name="delayq:check")) as there:
                    found += messages(rights_findings(there, config.prefix, probed_on(config, redis)), _of(config, redis))
    return found


def archive_findings(config: conf.Config) -> list[Finding]:
    """E062 if ARCHIVE is a directory that this process cannot write to."""
    where = config.archive or ""
    wrong = archive.unusable(where) if where.startswith("/") else ""
    return (
        [Finding("E062", f"DELAYQ['ARCHIVE']: this process cannot write to {where}, so no jobs are deleted: {wrong}.")] if wrong else []
    )


def missing_migrations() -> list[Finding]:
    """D001 if the database does not have all migrations of this package.

    Raises:
        DatabaseError: the database cannot be read.
    """
    executor = MigrationExecutor(database.connection())
    plan = executor.migration_plan([node for node in executor.loader.graph.leaf_nodes() if node[0] == "delayq"])
    said = f"The database {database.alias()!r} has unapplied migrations of delayq: {len(plan)}."
    return [Finding("D001", said)] if plan else []


def _server(config: conf.Config, redis: RedisSpec) -> Iterator[Finding]:
    try:
        # Before the first connection, which starts an embedded server and corrects the mode of its directory.
        found = list(link_findings(redis, signed=bool(config.signer)))
        unfit = kind_findings(redis)
    except ConfigError:
        return  # E003 reports it
    yield from (*found, *unfit)
    if unfit:
        return
    try:
        yield from cluster_findings(redis, config.prefix, divided(config, redis))
        with closing(place(redis, name="delayq:check")) as there:
            inspector = Inspector(there, prefix=config.prefix)
            facts = [inspector.server(link=link) for link in there.nodes()]
            yield from dict.fromkeys(one for of_server in facts for one in server_findings(of_server))
            yield from replica_findings(there, replicas_wanted(config, redis))
            yield from site_findings(there, config.prefix, parts_on(config, redis))
            if all(one.role in ("", "master") for one in facts) and redis == config.redis:
                check_workers(there, config.prefix)
                workers = WorkerRegistry(there, prefix=config.prefix).all()
                yield from probe_findings(workers)
                yield from wide_pools(workers)
                pulled = [queue.name for queue in config.queues.values() if queue.pulled]
                yield from record_findings(list(config.queues), workers, pulled=pulled)
    except StoreUnavailable as error:
        yield Finding("W013", str(error))
    except SiteRefused as error:
        if error.code != UNKNOWN:  # a check may run without a database
            yield Finding("E025", str(error))
    except DelayqError as error:
        yield Finding("W013", str(error), "See delayq.E003.")


def replicas_wanted(config: conf.Config, redis: RedisSpec) -> list[tuple[str, int, int]]:
    """The partitions on this server that have `REPLICAS`: queue, partition and number."""
    queues = [queue for queue in config.queues.values() if queue.replicas and queue.redis == redis]
    return [(queue.name, partition, queue.replicas) for queue in queues for partition in queue.served]


def parts_on(config: conf.Config, redis: RedisSpec) -> list[tuple[str, int]]:
    """The partitions on this server: queue and number."""
    return [(queue.name, partition) for queue in config.queues.values() if queue.redis == redis for partition in queue.served]


def probed_on(config: conf.Config, redis: RedisSpec) -> list[tuple[str, int]]:
    """The partitions to probe the server with. If the shared server has no queues, any partition."""
    return parts_on(config, redis) or [(next(iter(config.queues)), 0)]


def divided(config: conf.Config, redis: RedisSpec) -> list[Divided]:
    """The queues on this server that have several partitions."""
    queues = [queue for queue in config.queues.values() if queue.divided and queue.redis == redis]
    return [Divided(queue.name, queue.partitions, len(queue.served)) for queue in queues]


def installed() -> dict[str, str]:
    """The versions of the installed dependencies, by distribution."""
    found = {}
    for name in NEWEST:
        try:
            found[name] = version(name)
        except PackageNotFoundError:  # vendored: its version is unknown
            continue
    return found


def messages(findings: Iterable[Finding], of: str = "") -> list[CheckMessage]:
    """These findings as messages of Django's system checks. `of`: see `_of`."""
    return [check_message(one.code, f"{of}{one.message}", one.hint) for one in findings]


def _loadable(code: str, load: Callable[[Any], object], given: Any) -> Iterator[CheckMessage]:
    try:
        load(given)
    except ConfigError as error:
        yield check_message(code, error.fields["message"], error.fields["hint"])


def _scope(config: conf.Config) -> None:
    if config.scope is not None:
        scopes.load(config.scope, config.carriers)


def _task_modules(config: conf.Config) -> Iterator[CheckMessage]:
    for path, near in worker_modules.missing(config.task_modules):
        yield check_message(
            "E065",
            f"DELAYQ['TASK_MODULES'] contains {path!r}, but there is no such module." + (f" Did you mean {near!r}?" if near else ""),
        )


def _audit(config: conf.Config) -> Iterator[CheckMessage]:
    if lacking := [f"{queue.name} ({queue.audit})" for queue in config.queues.values() if config.archive and queue.audit != "full"]:
        text = "DELAYQ['ARCHIVE'] is set, but AUDIT of these queues is not full, so some of their jobs or runs are never archived: "
        yield check_message("W046", f"{text}{', '.join(lacking)}.")


def _tenants(config: conf.Config) -> Iterator[CheckMessage]:
    """A check cannot see whether keys contain the tenant, so a project without `SCOPE` silences it."""
    if config.scope is not None or not apps.is_installed("django_tenants"):
        return
    formats = [f"{task.named.text!r} of {task.name}" for task in registry if task.named is not None]
    shown = f" Concurrency names of tasks: {', '.join(formats[:MOST_NAMED])}{', …' * (len(formats) > MOST_NAMED)}." if formats else ""
    yield check_message(
        "W045",
        "django-tenants is installed, and all tenants of a queue share keys, concurrency names and locks, so one tenant can delay or "
        f"cancel the jobs of another.{shown}",
    )


def _servers(config: conf.Config) -> Iterator[CheckMessage]:
    for redis in config.servers:
        of = _of(config, redis)
        try:
            address(redis)
        except ConfigError as error:
            message = error.fields.get("message", str(error))
            hint = error.fields.get("hint", "")
            yield check_message("E003", f"{of}{message}", hint)
        if names := not_obeyed(redis):
            yield check_message("W004", f"{of}DELAYQ['REDIS'] contains options that have no effect: {', '.join(names)}.")


def _of(config: conf.Config, redis: RedisSpec) -> str:
    """The owner of a server, as a prefix of a message; "" for the shared server."""
    names = [name for name, own in config.own_servers.items() if own == redis]
    return f"QUEUES[{', '.join(map(repr, names))}], REDIS: " if names else ""


def _database(config: conf.Config) -> Iterator[CheckMessage]:
    if config.database not in connections:
        yield check_message(
            "E006",
            f'DELAYQ["DATABASE"] is {config.database!r}, which is not an alias in DATABASES.',
            f"Use one of these aliases: {', '.join(connections)}.",
        )


def _requests(config: conf.Config) -> Iterator[CheckMessage]:
    for alias in connections:
        if alias != config.database and connections[alias].settings_dict.get("ATOMIC_REQUESTS"):
            yield check_message(
                "W003",
                f"Requests run in transactions of the database {alias!r} (ATOMIC_REQUESTS), but rows of jobs are written to "
                f"{config.database!r}. In these requests, schedule() raises an error, because a rollback would not remove the row.",
                f"Set DELAYQ['DATABASE'] to {alias!r}, or pass using={config.database!r} or durability='redis' to schedule().",
            )


def _shared_cache(config: conf.Config) -> Iterator[CheckMessage]:
    mine: list[str] = []
    for redis in config.servers:
        with suppress(ConfigError):
            mine.append(address(redis))
    for alias in cache_aliases():
        if alias in config.servers and alias != DEFAULT_CACHE_ALIAS:
            continue  # an alias for the jobs, which nothing uses as a cache
        try:
            theirs = address(alias)
        except ConfigError:
            continue
        if theirs and theirs in mine:
            yield check_message(
                "W002",
                f"Jobs use the same Redis database as the cache {alias!r} ({theirs}). cache.clear() deletes everything in it, "
                f"including jobs.",
            )
