"""`manage.py delayq_worker`: reads options, composes task processes and the mirror's process, and hands them to the supervisor."""

from __future__ import annotations

import logging
import re
import sys
from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from io import StringIO
from typing import Any, Final

from django.core.management.base import BaseCommand, CommandError, OutputWrapper
from django.db import Error
from django.utils.module_loading import import_string

import django_delayq
from django_delayq import clock, conf
from django_delayq.checks import probed_on
from django_delayq.conf import Config
from django_delayq.exceptions import DelayqError, StoreUnavailable
from django_delayq.findings import Finding
from django_delayq.logger import Logger
from django_delayq.management import UsageError, at_least, parse_duration
from django_delayq.management.left_partitions import serving_what_is_left
from django_delayq.mirror.adoption import UNKNOWN, check_workers, refusals
from django_delayq.mirror.checkpoint import note_refused
from django_delayq.mirror.database_connections import THREADS, hooks, narrow_pools
from django_delayq.models import database
from django_delayq.periodic import overlap
from django_delayq.producer import batch, carriers, job  # noqa: F401  # batch: loaded before the fork
from django_delayq.producer.task import registry
from django_delayq.store.connection import cluster  # noqa: F401  # a web process loads it when asked, a worker before it forks
from django_delayq.store.connection.address import RedisSpec
from django_delayq.store.connection.places import Places, place
from django_delayq.store.reads import figures  # noqa: F401  # loaded before the fork, too
from django_delayq.store.reads.fitness import rights_findings, server_findings
from django_delayq.store.reads.inspector import Inspector
from django_delayq.store.reads.topology import kind_findings
from django_delayq.store.scripts import site
from django_delayq.store.scripts.site import SiteRefused
from django_delayq.text import did_you_mean, visible
from django_delayq.worker import logs
from django_delayq.worker.current import CURRENT
from django_delayq.worker.line import lines_of, links_of
from django_delayq.worker.spec import Hooks, WorkerSpec
from django_delayq.worker.supervisor import worker_beat
from django_delayq.worker.supervisor.supervisor import Supervisor

logger = Logger("django_delayq.worker")

ROLES: Final = ("move", "mirror", "relay")
NO_METRICS: Final = "Metrics need the Prometheus client. Install django-delayq[prometheus]."
MOST_WEIGHT: Final = 100
CIRCUITS: Final = "django_delayq.targets.circuits.circuits"  # a worker without HTTP does not load it
LEVELS: Final = {0: logging.WARNING, 1: logging.INFO}
MOST_LINES: Final = 128  # partitions of one worker: each is asked once a second
UNITS: Final = {"": 1 << 20, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


class Command(BaseCommand):
    """Runs jobs until a signal or a command stops it."""

    help = "Runs jobs, writes their events to the database, and publishes committed jobs."
    _in_json = False

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Adds the options of the worker."""
        parser.add_argument(
            "--queues",
            help="comma-separated queues to serve; with orders=4,mail, orders gets four threads for each thread of mail (default: all)",
        )
        parser.add_argument("--partitions", help="the partitions to serve, such as orders=0-63 (default: all)")
        parser.add_argument("--exclude-queues", metavar="QUEUES", help="a comma-separated list of queues not to serve")
        parser.add_argument("--processes", metavar="N", type=at_least(1), default=1, help="the number of task processes (default: 1)")
        parser.add_argument(
            "--threads",
            metavar="N",
            type=at_least(1),
            default=THREADS,
            help="the number of jobs that each task process runs at the same time (default: 8)",
        )
        parser.add_argument("--burst", action="store_true", help="exit when no more jobs are due")
        parser.add_argument(
            "--grace", metavar="TIME", type=parse_duration, default=30.0, help="how long running jobs have at shutdown (default: 30s)"
        )
        parser.add_argument("--max-jobs", metavar="N", type=at_least(1), default=0, help="replace a task process after this many jobs")
        parser.add_argument(
            "--max-memory",
            metavar="SIZE",
            type=_memory,
            default=0,
            help="replace a task process that uses more than this much memory, such as 512M",
        )
        parser.add_argument("--reload", action="store_true", help="restart when the code changes, for development")
        parser.add_argument("--roles", default=",".join(ROLES), help=f"a comma-separated list of roles (default: {','.join(ROLES)})")
        parser.add_argument("--health-port", metavar="PORT", type=_port, help="serve /health, /ready and /metrics on this port")
        parser.add_argument("--health-host", metavar="ADDRESS", default="", help="the address to listen on (default: all IPv4)")
        parser.add_argument("--metrics-queues", action="store_true", help="also export the queue metrics; one worker is enough")
        parser.add_argument(
            "--log-format",
            choices=("console", "json"),
            default="console",
            help="whether to log text or one JSON object per line (default: console)",
        )

    def execute(self, *args: Any, **options: Any) -> str | None:
        """Sets up the log first: with JSON, all output of the command goes there, also the output of the system checks."""
        ours = logs.set_up(options["log_format"], LEVELS.get(options["verbosity"], logging.DEBUG))
        if options["log_format"] == "json" and ours:  # a project's own log might not show it here
            self._in_json = True
            self.stdout, self.stderr = OutputWrapper(_LogStream(logging.INFO)), OutputWrapper(_LogStream(logging.ERROR))
        return super().execute(*args, **options)

    def check(self, *args: Any, **options: Any) -> None:
        """Runs the system checks. Problems that do not prevent the start are warnings."""
        errors = self.stderr
        if self._in_json:
            self.stderr = OutputWrapper(_LogStream(logging.WARNING))
        try:
            super().check(*args, **options)
        finally:
            self.stderr = errors

    def handle(self, **options: Any) -> None:
        """Composes the worker and runs it; exits with its code."""
        try:
            config = conf.get()
        except DelayqError as error:
            raise CommandError(str(error)) from error
        if options["health_host"] and options["health_port"] is None:
            raise UsageError("--health-host requires --health-port.")
        roles = _words(options["roles"], ROLES, "role")
        _check_metrics(options, roles)
        queues = _queues(config, options["queues"], options["exclude_queues"])
        if roles == ["move"] and all(config.queue(name).pulled for name in queues):
            raise UsageError(f"This worker has nothing to run: your own consumers pull from {', '.join(queues)}. Add the role mirror.")
        own = [config.queue(name).redis for name in queues]
        for redis in [config.redis, *(one for one in config.servers if one in own and one != config.redis)]:
            self._check_server(redis, config, burst=options["burst"])
        with closing(links_of(config, "delayq-check")) as places:
            check_site(places, config, queues, self._warn, burst=options["burst"])
        config = self._serving_what_is_left(config, queues, shared_out=bool(options["partitions"]))
        spec = _spec(config, queues, _shares(config, queues, options["partitions"]), roles, options)
        if spec.processes and options["threads"] != THREADS:  # of the default the system checks speak
            for found in narrow_pools(options["threads"]):
                self._warn(f"delayq.{found.code}: {found}")
        self._banner(config, queues, roles, spec)
        try:
            supervisor = Supervisor(spec)
        except OSError as error:
            raise CommandError(
                f"The worker cannot listen on {spec.health_address}: {error}. Choose another --health-port or --health-host."
            ) from error
        job.know_tasks(lambda: CURRENT.get(None) is not None)  # in the copies of this process, which run them
        code = supervisor.run()
        if code:
            sys.exit(code)

    def _check_server(self, redis: RedisSpec, config: Config, *, burst: bool) -> None:
        try:
            found = kind_findings(redis) or _server_findings(redis, config)
        except StoreUnavailable as error:
            if burst:
                raise CommandError(visible(str(error))) from error
            self._warn(f"{error} The worker starts and waits for the server.")
            return
        except DelayqError as error:
            raise CommandError(visible(str(error))) from error
        for finding in dict.fromkeys(found):
            if finding.level == "error":
                raise CommandError(visible(f"delayq.{finding.code}: {finding} The worker does not start."))
            self._warn(f"delayq.{finding.code}: {finding}")

    def _serving_what_is_left(self, config: Config, queues: Iterable[str], *, shared_out: bool) -> Config:
        with closing(links_of(config, "delayq-check")) as places:
            found = serving_what_is_left(places, config, queues)
        # Partitions of the settings are served in any case, however many others still hold jobs.
        many = not shared_out and _lines(found, queues) > MOST_LINES >= _lines(config, queues)
        for name in queues:
            if left := found.queue(name).left:
                served = (
                    "With these partitions there would be too many, so this worker does not serve them"
                    if many
                    else "This worker serves them"
                )
                self._warn(
                    f"Jobs of {name!r} are in partitions that PARTITIONS and FORMER_PARTITIONS do not include. {served}. "
                    f"Add {left} to FORMER_PARTITIONS and deploy. Keep it until delayq doctor reports that you can remove it."
                )
        return config if many else found

    def _warn(self, text: str) -> None:
        if self._in_json:
            logger.warning("%s", text)
        else:
            self.stderr.write(self.style.WARNING(visible(text)))

    def _banner(self, config: Config, queues: Mapping[str, int], roles: Sequence[str], spec: WorkerSpec) -> None:
        places = links_of(config, "delayq-banner")
        shown = ", ".join(name if weight == 1 else f"{name}={weight}" for name, weight in queues.items())
        lines = [f"django-delayq {spec.version}, worker {spec.worker}", f"  queues     {shown}"]
        if spec.processes:
            lines.append(f"  processes  {spec.processes} with {spec.threads} threads each")
        lines += [
            f"  roles      {', '.join(roles)}",
            f"  store      Redis at {places.shared.where}, prefix {config.prefix}",
            *(f"             {queue}: Redis at {places.of(queue, 0).where}" for queue in queues if places.number(queue)),
            f"  tasks      {len(spec.tasks)} registered",
        ]
        places.close()
        if spec.health_address:
            lines.append(f"  health     {spec.health_address}")
        self.stdout.write("\n".join(lines))


def _server_findings(redis: RedisSpec, config: Config) -> list[Finding]:
    with closing(place(redis, name="delayq-check")) as there:
        if found := list(rights_findings(there, config.prefix, probed_on(config, redis))):
            return found
        inspector = Inspector(there, prefix=config.prefix)
        return [one for link in there.nodes() for one in server_findings(inspector.server(link=link))]


WAIT: Final = 1.0  # seconds between queries to a database that does not answer


def check_site(places: Places, config: Config, queues: Iterable[str], warn: Callable[[str], None], *, burst: bool) -> None:
    """Refuses queues of another site. If the database cannot be reached, the worker waits for it, and logs that once. With `burst`, it
    does not wait.

    Raises:
        CommandError: the worker does not start.
    """
    parts = [(name, partition) for name in queues for partition in config.queue(name).served]
    # Includes the other queues: a worker of this prefix also registers, and the site of those queues may not have registered yet.
    parts += [(name, 0) for name in config.queues if (name, 0) not in parts]
    waits = False
    while True:
        try:
            return _refuse(places, config.prefix, parts)
        except SiteRefused as error:
            if burst or error.code != UNKNOWN:
                with suppress(Error):
                    note_refused(error)
                raise CommandError(visible(f"{error} The worker does not start.")) from error
            if not waits:
                warn(f"{error} The worker is waiting for the database.")
            waits = True
            database.connection().close()  # a broken connection stays broken
            clock.sleep(WAIT)


def _refuse(places: Places, prefix: str, parts: list[tuple[str, int]]) -> None:
    site.of(prefix)  # before any fork, even without Redis, because all processes of the worker inherit it
    for part in parts:
        with suppress(StoreUnavailable):  # it has been reported, and the loops wait for the server
            for refusal in refusals(places, prefix, [part]):
                raise refusal
    with suppress(StoreUnavailable):
        check_workers(places, prefix)


class _LogStream(StringIO):
    """Logs the output of a command: one record per line, without the spaces that align it."""

    def __init__(self, level: int) -> None:
        super().__init__()
        self._level = level

    def write(self, text: str, /) -> int:
        """Logs each line."""
        for line in text.splitlines():
            if words := line.split():
                logger.log(self._level, "%s", " ".join(words))
        return len(text)


def _lines(config: Config, queues: Iterable[str]) -> int:
    return sum(len(config.queue(name).served) for name in queues)


def _shares(config: Config, queues: Mapping[str, int], given: str | None) -> dict[str, range]:
    """Which partitions of queues are to be served, of those that do not mean all."""
    found: dict[str, range] = {}
    for part in filter(None, map(str.strip, (given or "").split(","))):
        name, _, numbers = part.partition("=")
        first, _, last = numbers.partition("-")
        if name not in queues:
            raise UsageError(f"--partitions contains {name!r}, which this worker does not serve. Example: orders=0-63.")
        if name in found:
            raise UsageError(f"--partitions contains {name!r} twice. Specify one range, such as {name}=0-63.")
        served = config.queue(name).served
        if not first.isdecimal() or not (last or first).isdecimal() or not int(first) <= int(last or first) < len(served):
            raise UsageError(f"--partitions {part}: use numbers from 0 to {served[-1]}, such as {name}=0-{served[-1]}.")
        found[name] = range(int(first), int(last or first) + 1)
    count = sum(len(found.get(name, config.queue(name).served)) for name in queues)
    if count > MOST_LINES and count > len(queues):
        raise UsageError(
            f"These queues have {count} partitions, but one worker serves at most {MOST_LINES}. Give each worker a range: "
            "--partitions orders=0-63 here, and the rest to other workers."
        )
    return found


def _spec(
    config: Config, queues: Mapping[str, int], shares: Mapping[str, range], roles: Sequence[str], options: dict[str, Any]
) -> WorkerSpec:
    records = [role for role in roles if role != "move"]
    measured = _measured(options)
    if records:  # otherwise these modules are not imported
        from django_delayq.management.record_keepers import record_keepers

        processes = record_keepers(config, queues, shares, records, options, measured)
    else:
        processes = []
    run = {name: weight for name, weight in queues.items() if not config.queue(name).pulled}
    return WorkerSpec(
        worker=worker_beat.new_worker_id(),
        prefix=config.prefix,
        connect=partial(links_of, config),
        lines=lines_of(config, run, shares),
        tasks=registry.names(),
        find_task=registry.get,
        processes=options["processes"] if "move" in roles and run else 0,
        threads=options["threads"],
        burst=options["burst"],
        grace=options["grace"],
        max_jobs=options["max_jobs"],
        max_memory=options["max_memory"],
        reload=options["reload"],
        health_port=options["health_port"],
        health_host=options["health_host"],
        hooks=replace(
            measured,
            missing=carriers.missing,
            wrap=carriers.wrapped if config.carriers else None,
            check_tick=overlap.check,
            watch_circuits=import_string(CIRCUITS).tell_to if config.http is not None else None,
        ),
        loop_processes=[process for process, _ in processes],
        records=sorted(queues) if "mirror" in roles else (),
        brings_in=sorted(queues) if "relay" in roles else (),
        tidy="mirror" not in roles,
        wary="mirror" in roles,
        version=django_delayq.__version__,
        targets=list(config.targets),
        reports=[report for _, report in processes if report is not None],
    )


def _check_metrics(options: Mapping[str, Any], roles: Sequence[str]) -> None:
    if not options["metrics_queues"]:
        return
    if options["health_port"] is None:
        raise UsageError("--metrics-queues requires --health-port.")
    if roles == ["move"]:
        raise UsageError("--metrics-queues requires the role mirror or relay.")
    if _metrics_page() is None:
        raise UsageError(NO_METRICS)


def _measured(options: Mapping[str, Any]) -> Hooks:
    if options["health_port"] is None:
        return hooks()
    if (page := _metrics_page()) is None:
        return replace(hooks(), no_metrics=NO_METRICS)
    return replace(hooks(), metrics=partial(page, with_queues=options["metrics_queues"]))


def _metrics_page() -> Callable[..., bytes] | None:
    """Returns the function that writes the metrics of a worker; None if the Prometheus client is not installed."""
    if find_spec("prometheus_client") is None:
        return None
    page: Callable[..., bytes] = import_string("django_delayq.contrib.prometheus.metrics.worker_page")
    return page


def _queues(config: Config, wanted: str | None, excluded: str | None) -> dict[str, int]:
    """The queues to serve, with their weights."""
    known = list(config.queues)
    given = dict.fromkeys(known, 1) if wanted is None else _weights(_split(wanted), known)
    _known(given, known, "queue")
    left_out = [] if excluded is None else _words(excluded, known, "queue")
    found = {name: weight for name, weight in given.items() if name not in left_out}
    if not found:
        raise UsageError("There are no queues to serve: --exclude-queues excludes all of them.")
    return found


def _weights(words: Iterable[str], known: Sequence[str]) -> dict[str, int]:
    found: dict[str, int] = {}
    for word in words:
        name, equals, weight = word.rpartition("=")
        if not equals or word in known:  # a queue's own name may have one
            name, weight = word, "1"
        if not re.fullmatch("[1-9][0-9]{0,2}", weight) or int(weight) > MOST_WEIGHT:
            raise UsageError(f"{weight!r} is not a valid weight. Use {name}=4, with a whole number from 1 to {MOST_WEIGHT}.")
        if found.setdefault(name, int(weight)) != int(weight):
            raise UsageError(f"{name!r} has two weights: {found[name]} and {weight}.")
    return found


def _words(text: str, known: Sequence[str], what: str) -> list[str]:
    return _known(dict.fromkeys(_split(text)), known, what)


def _split(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _known(given: Iterable[str], known: Sequence[str], what: str) -> list[str]:
    words = list(given)
    for word in words:
        if word not in known:
            raise UsageError(f"Unknown {what} {word!r}{did_you_mean(word, known)}. Choose from: {', '.join(known)}.")
    if not words:
        raise UsageError(f"Specify at least one {what}: {', '.join(known)}.")
    return words


def _port(text: str) -> int:
    if not text.isdigit() or int(text) > 65_535:
        raise ArgumentTypeError(f"{text!r} is not a port")
    return int(text)


def _memory(text: str) -> int:
    found = re.fullmatch(r"(\d+)([KMG]?)B?", text.strip().upper())
    if found is None or not int(found[1]):
        raise ArgumentTypeError(f"{text!r} is not a valid size. Use, for example, 512M or 1G")
    return int(found[1]) * UNITS[found[2]]
