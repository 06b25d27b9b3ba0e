"""The settings: `DELAYQ` is read and validated once. No other module reads `django.conf.settings`."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple
from zlib import crc32

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed
from django.dispatch import receiver
from django.utils.crypto import salted_hmac

from django_delayq import durations, under_test
from django_delayq import setting_readers as readers
from django_delayq.exceptions import ConfigError, QueueUnknown
from django_delayq.job_meta import Quota
from django_delayq.ladder import Ladder
from django_delayq.setting_readers import SETTING, HttpConfig, Kind, OfferTarget, Problem
from django_delayq.signing import Signer
from django_delayq.text import nearest
from django_delayq.under_test import MAIL, SIGN


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedConfig:
    """The settings that a project and each of its queues have. Durations are in seconds. `retention` maps finished states, and
    "set_aside", to seconds or None (for ever). `horizon`: how far ahead jobs are in Redis; None: all jobs are.
    """

    redis: str | Mapping[str, Any] = field(repr=False)  # it may contain a password
    lease: float
    max_attempts: int
    backoff: Ladder
    timeout: float | None
    max_crashes: int
    max_payload: int
    durability: str
    audit: str
    retention: Mapping[str, float | None]
    horizon: float | None = None
    replicas: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueConfig(SharedConfig):
    """The settings of one queue. `left`: the number of partitions in which a worker has found jobs, if the settings name fewer."""

    name: str
    consumer: str = "worker"
    partitions: int = 1
    former_partitions: tuple[int, ...] = ()
    left: int = 0
    rate: Quota | None = None

    served: range = field(init=False)  # the numbers of all partitions that may have jobs

    def __post_init__(self) -> None:
        object.__setattr__(self, "served", range(max(self.partitions, self.left, *self.former_partitions)))

    @property
    def divided(self) -> bool:
        """Whether it has, or had, more than one partition."""
        return len(self.served) > 1 or bool(self.former_partitions)

    def label(self, partition: int) -> str:
        """Returns the name of a partition for people."""
        return f"{self.name}/{partition}" if self.divided else self.name

    def homes(self, text: str) -> tuple[int, ...]:
        """Returns the partitions of a key or a concurrency name: the current one, and those before PARTITIONS changed."""
        number = crc32(text.encode())
        if not self.former_partitions:
            return (number % self.partitions,)
        return tuple(dict.fromkeys(number % count for count in (self.partitions, *self.former_partitions)))

    @property
    def pulled(self) -> bool:
        """Whether it holds messages, which no worker runs."""
        return self.consumer == "pull"

    @property
    def horizon_ms(self) -> int:
        """The horizon in milliseconds; 0 for none."""
        return 0 if self.horizon is None else durations.milliseconds(self.horizon)

    @property
    def lease_ms(self) -> int:
        """The lease as Redis wants it."""
        return durations.milliseconds(self.lease)


@dataclass(frozen=True, slots=True, kw_only=True)
class Config(SharedConfig):
    """All settings. `signer` is None unless `SIGNING` is on."""

    prefix: str
    database: str
    sensitive: frozenset[str]
    signer: Signer | None
    mirror_max_events: int
    mirror_full: str
    restore: str
    carriers: tuple[str, ...]
    scope: str | None
    scope_only: bool
    task_modules: tuple[str, ...]
    test_redis: str | Mapping[str, Any] | None = field(repr=False)
    inline: bool
    check_types: bool
    metrics_token: str | None = field(repr=False)
    archive: str | None = None
    object_url: str | None = None
    log_url: str | None = None
    http: HttpConfig | None = None
    targets: Mapping[str, OfferTarget] = field(default_factory=dict)
    queues: Mapping[str, QueueConfig] = field(default_factory=dict)

    @property
    def most_events(self) -> int:
        """The number of events of a queue that can wait for the mirror. 0: no limit."""
        return self.mirror_max_events if self.mirror_full == "block" else 0

    def most_events_in(self, queue: str) -> int:
        """Returns the limit for each partition: the limit of a queue is divided, and is at least 1000."""
        most, count = self.most_events, len(self.queue(queue).served)
        return most if count == 1 or not most else max(1000, most // count)

    @property
    def own_servers(self) -> Mapping[str, str | Mapping[str, Any]]:
        """The servers of the queues that do not use the shared server, by queue."""
        return {name: queue.redis for name, queue in self.queues.items() if queue.redis != self.redis}

    @property
    def servers(self) -> list[str | Mapping[str, Any]]:
        """All servers, each once, the shared one first."""
        found = [self.redis]
        for one in self.own_servers.values():
            if one not in found:
                found.append(one)
        return found

    @property
    def partitions(self) -> Mapping[str, int]:
        """The number of partitions of each queue that has more than one."""
        return {name: len(queue.served) for name, queue in self.queues.items() if queue.divided}

    @property
    def usual_queue(self) -> str:
        """The queue of whatever names none: "default", or the first one without it."""
        return "default" if "default" in self.queues else next(iter(self.queues))

    def queue(self, name: str) -> QueueConfig:
        """The queue of that name.

        Raises:
            QueueUnknown: `DELAYQ["QUEUES"]` does not list it.
        """
        try:
            return self.queues[name]
        except KeyError:
            listed = ", ".join(sorted(self.queues))
            if near := nearest(name, self.queues):
                raise QueueUnknown(code="queue_misspelt", name=name, near=near, listed=listed) from None
            raise QueueUnknown(code="queue_unknown", name=name, listed=listed) from None


class SettingRow(NamedTuple):
    """One setting. `scope`: where it can be set: in DELAYQ, in the dict of a queue, or in both."""

    default: Any
    kind: Kind
    meaning: str
    scope: Literal["project", "both", "queue"] = "project"


_in_both: Final = partial(SettingRow, scope="both")
_in_queue: Final = partial(SettingRow, scope="queue")
# Config, `delayq settings`, the pages of the admin and the reference are made from this table.
SETTINGS: Final[Mapping[str, SettingRow]] = {
    "REDIS": _in_both(
        "default",
        readers.REDIS,
        "The Redis server. A queue can have its own server. If you use the alias of a cache, only its address and credentials "
        "are used.",
    ),
    "PREFIX": SettingRow(
        "delayq", readers.TEXT, "The prefix of every key in Redis. Projects that share a Redis database need different prefixes."
    ),
    "DATABASE": SettingRow(
        "default",
        readers.TEXT._replace(accepts="an alias in DATABASES"),
        "The database that stores the rows of jobs. Database routers have no effect on it.",
    ),
    "DURABILITY": _in_both(
        "outbox",
        readers.choice("outbox", "redis"),
        "With outbox, schedule() writes a row in your transaction, and the job is published when the transaction commits. "
        "These jobs survive if Redis is down or loses its data. With redis, the job is stored only in Redis, and the mirror "
        "writes its row later.",
    ),
    "AUDIT": _in_both(
        "full",
        readers.choice("full", "outcomes", "failures"),
        "Which rows are kept. With full, all jobs and attempts are kept. With outcomes, attempts that succeeded are not kept. "
        "With failures, only unfinished and failed jobs are kept.",
    ),
    "LEASE": _in_both(
        30,
        readers.LEASE,
        "How long a worker holds a job without contacting Redis. Workers extend their leases while tasks run, so a task can "
        "run for much longer. If a host is lost, its jobs run again after this time.",
    ),
    "MAX_ATTEMPTS": _in_both(10, readers.whole(1), "The maximum number of attempts before a job fails."),
    "BACKOFF": _in_both(
        "15s 3m 10m 30m 30m 1h 2h 6h 15h",
        Kind("text such as '15s 3m 10m', or a delayq.Ladder", readers.converted(Ladder.of)),
        "The delays between attempts. The last delay is repeated.",
    ),
    "TIMEOUT": _in_both(
        None,
        readers.optional(readers.DURATION),
        "The time limit for an attempt. When it is reached, SoftTimeout is raised in the task. If the task does not end, its "
        "process is replaced. By default, there is no limit.",
    ),
    "MAX_CRASHES": _in_both(
        3,
        readers.whole(0),
        "How many times the worker process can crash while running a job. After the next crash, the job fails as poison.",
    ),
    "MAX_PAYLOAD": _in_both(65536, readers.whole(64), "The maximum number of bytes of a job's arguments, and of its result, as JSON."),
    "RETENTION": _in_both(
        {"succeeded": "7d", "cancelled": "30d", "failed": None, "set_aside": None},
        readers.RETENTION,
        "How long the rows of finished jobs are kept. set_aside applies to rejected events. For states that you omit, the "
        "default applies.",
    ),
    "ARCHIVE": SettingRow(
        None,
        readers.optional(readers.ARCHIVE),
        "What receives jobs before RETENTION deletes them. A directory receives compressed files. A function receives a batch id and a "
        "list of documents. If it raises an exception, the jobs are not deleted, and the batch is passed again later.",
    ),
    "SIGNING": SettingRow(
        False,
        readers.FLAG,
        "Whether jobs in Redis are signed with SECRET_KEY. If enabled, workers only run signed jobs. After you change "
        "SECRET_KEY, run delayq resign.",
    ),
    "SENSITIVE": SettingRow([], readers.NAMES, "Arguments that are displayed as *** in the admin and by commands."),
    "MIRROR_MAX_EVENTS": SettingRow(
        1_000_000, readers.whole(1000), "How many changes to a queue's jobs can wait to be written to the database."
    ),
    "MIRROR_FULL": SettingRow(
        "block",
        readers.choice("block", "grow"),
        "What happens when MIRROR_MAX_EVENTS is reached. With block, no more jobs are published until the mirror has caught "
        "up. With grow, jobs are accepted until Redis has no memory left.",
    ),
    "RESTORE": SettingRow(
        "auto",
        readers.choice("auto", "manual"),
        "What happens after Redis has lost its data. With auto, workers restore the jobs from the database. With manual, the "
        "queues are paused until you run delayq restore.",
    ),
    "CARRIERS": SettingRow([], readers.PATHS, "Classes that store context with each job, such as the tenant or the language."),
    "SCOPE": SettingRow(
        None,
        readers.optional(readers.TEXT._replace(accepts="the name of a class in CARRIERS, or the dotted path to a function")),
        "Separates the jobs of tenants: the dotted path to a function that returns the current tenant, or the name of a carrier that "
        "packs it. Jobs of two scopes can have the same key and the same serial name. By default, there are no scopes.",
    ),
    "SCOPE_ONLY": SettingRow(
        False,
        readers.FLAG,
        "Whether all unfinished jobs with a key have a scope. Until then, delayq also looks for a job that got the key before you set "
        "SCOPE. It takes the scope of such a job from its carriers. D039 tells you when you can set it.",
    ),
    "TASK_MODULES": SettingRow(
        [], readers.MODULES, "Modules that are imported when Django starts, in addition to the tasks modules of installed apps."
    ),
    "TEST_REDIS": SettingRow(
        None,
        readers.optional(readers.REDIS._replace(accepts="the same values as REDIS")),
        "The Redis server for tests. By default, the test kit starts its own server.",
    ),
    "INLINE": SettingRow(
        False,
        readers.FLAG,
        "Whether jobs run without a worker, in the process that schedules them. They run as soon as the transaction commits, "
        "even if they have a delay. Use this only during development.",
    ),
    "CHECK_TYPES": SettingRow(
        None,
        Kind("True, False or None", lambda value: settings.DEBUG if value is None else readers.FLAG.read(value)),
        "Whether schedule() checks the types of arguments against the task's annotations. By default, this is only the case if DEBUG "
        "is on, and in tests.",
    ),
    "HORIZON": _in_both(
        None,
        readers.optional(readers.HORIZON),
        "How far in advance jobs are stored in Redis. Jobs that are due later are stored only in the database, until a worker "
        "with the role relay publishes them. This requires DURABILITY outbox. By default, all jobs are stored in Redis.",
    ),
    "REPLICAS": _in_both(
        0,
        readers.whole(0),
        "How many replicas must confirm that a job was scheduled, cancelled or rescheduled. If fewer replicas confirm this "
        "within a second, the call raises StoreUnavailable. This requires DURABILITY redis.",
    ),
    "METRICS_TOKEN": SettingRow(
        None,
        readers.optional(readers.SECRET),
        "A client that sends this token in the header Authorization: Bearer can read the metrics and the health of the queues. "
        "By default, only staff can read them.",
    ),
    "OBJECT_URL": SettingRow(
        None,
        readers.optional(readers.FUNCTION),
        "A function that takes a job's row and returns the URL of the object that the job is about, or None. The job's admin "
        "page links to it. A task's object_url option takes precedence.",
    ),
    "LOG_URL": SettingRow(
        None,
        readers.optional(readers.LOG_URL),
        "The URL of a job's log lines. The job's admin page links to it. from is one minute before the job was created, and to "
        "is one minute after it ended, both in UTC. To include a literal brace, write it twice.",
    ),
    "HTTP": SettingRow(
        None,
        readers.optional(readers.kind(f"a dict of {', '.join(readers.HTTP)}", readers.is_mapping, shown=False)),
        "Settings for deliver(). To use the defaults, set it to an empty dict. By default, deliver() raises ConfigError.",
    ),
    "TARGETS": SettingRow(
        {},
        readers.kind(f"a dict of names, each with a dict of {', '.join(readers.TARGET)}", readers.is_mapping, shown=False),
        "The lists and streams that delayq.offer() can write to. KEY is the key in Redis, and KIND is 'stream' or 'list'. "
        "MAXLEN is the maximum number of entries, or None. The Redis user needs rights for these keys, which "
        "manage.py delayq doctor lists.",
    ),
    "QUEUES": SettingRow(
        {"default": {}},
        readers.QUEUES,
        "The project's queues. Jobs for other queues are rejected. Each queue can override the settings that can be set per queue.",
    ),
    "CONSUMER": _in_queue(
        "worker",
        readers.choice("worker", "pull"),
        "Who processes the queue. With worker, workers run its jobs. With pull, it contains messages, which your own programs pull.",
    ),
    "RATE": _in_queue(
        None,
        readers.RATE,
        "How many messages with the same rate name consumers can pull in a period, such as '100/m'. With a burst: ('100/m', 10). "
        "push(rate='bank:7') gives a message its name. This requires CONSUMER pull.",
    ),
    "PARTITIONS": _in_queue(
        1,
        readers.PARTITIONS,
        "The number of parts into which the queue is divided. Each part can be on a different master of a Redis Cluster. This "
        "does not work with the embedded server or with CONSUMER pull.",
    ),
    "FORMER_PARTITIONS": _in_queue(
        (), readers.FORMER_PARTITIONS, "Previous values of PARTITIONS. Keep a value here as long as any of its partitions contain jobs."
    ),
}
DEFAULTS: Final = {key: row.default for key, row in SETTINGS.items() if row.scope != "queue"}
IN_PROJECT: Final = {key: row.kind for key, row in SETTINGS.items() if row.scope != "queue"}
PER_QUEUE: Final = tuple(key for key, row in SETTINGS.items() if row.scope == "both")
_IN_QUEUE: Final = {key: row.kind for key, row in SETTINGS.items() if row.scope != "project"}


def get() -> Config:
    """Returns the settings of this project. In tests, they have another server and another prefix; see `under_test`.

    Raises:
        ConfigError: the first mistake found; `manage.py check` lists all.
    """
    global _config, _place
    if _config is None or ((_place or (SIGN in MAIL and under_test.ISOLATES)) and under_test.place(_config.database) != _place):
        given = getattr(settings, SETTING, {})
        _place = under_test.place(given.get("DATABASE", DEFAULTS["DATABASE"])) if isinstance(given, Mapping) else ""
        problems, config = _read({**given, **under_test.own(given, _place)} if _place else given, tests=bool(_place))
        if config is None:
            first = problems[0]
            raise ConfigError(f"{first.where}: {first.message}", hint=first.hint)
        _config = replace(config, targets=_apart(config)) if _place and config.targets else config
    return _config


def is_debug() -> bool:
    """`DEBUG`."""
    return bool(settings.DEBUG)


def has_timezones() -> bool:
    """Returns `USE_TZ`."""
    return bool(settings.USE_TZ)


def redirects_to_tls() -> bool:
    """Returns whether Django redirects plain requests to TLS, or trusts the header of a proxy."""
    return bool(settings.SECURE_SSL_REDIRECT or settings.SECURE_PROXY_SSL_HEADER)


def given(name: str) -> Any:
    """Returns a setting without validation, for code that runs before the settings are read. None if it is missing."""
    ours = getattr(settings, SETTING, {})
    return ours.get(name) if isinstance(ours, Mapping) else None


def project_timezone() -> str:
    """`TIME_ZONE`, the name of a zone."""
    return str(settings.TIME_ZONE)


def task_backends() -> list[str]:
    """The dotted paths of the backends of Django's tasks."""
    given = getattr(settings, "TASKS", {})
    said = given.values() if isinstance(given, Mapping) else ()
    return [str(params.get("BACKEND", "")) for params in said if isinstance(params, Mapping)]


def problems() -> list[Problem]:
    """Every mistake in the settings, for the system checks."""
    return _read(getattr(settings, SETTING, {}))[0]


_config: Config | None = None
_place = ""  # where tests have it


@receiver(setting_changed, dispatch_uid="delayq.conf")
def _forget(*, setting: str, **_: Any) -> None:
    global _config
    if setting in (SETTING, "CACHES", "DATABASES", "SECRET_KEY", "SECRET_KEY_FALLBACKS", "DEBUG"):
        _config = None


def _read(given: Any, *, tests: bool = False) -> tuple[list[Problem], Config | None]:
    if not isinstance(given, Mapping):
        return [Problem("E002", SETTING, f"must be a dict, not {type(given).__name__}.", "Write DELAYQ = {…}.")], None
    found: list[Problem] = []
    values = readers.read(given, IN_PROJECT, SETTING, found, usual=DEFAULTS, of_queue=_IN_QUEUE)
    if "RETENTION" in values:
        values["RETENTION"] = MappingProxyType({**readers.RETENTION.read(DEFAULTS["RETENTION"]), **values["RETENTION"]})
    if values.get("HTTP") is not None:
        values["HTTP"] = readers.http(values["HTTP"], found)
    values["TARGETS"] = MappingProxyType(readers.targets(values.get("TARGETS", {}), values.get("PREFIX", ""), found))
    queues_given = values.pop("QUEUES", {})
    found += _twins(queues_given)
    queues: dict[str, Any] = {name: _queue(name, options, values, found, tests=tests) for name, options in queues_given.items()}
    signer = None
    if values.pop("SIGNING", False):
        try:
            signer = _signer(values.get("PREFIX", ""))
        except ImproperlyConfigured as error:
            wrong = f"needs Django's SECRET_KEY: {error}"
            found.append(Problem("E007", f'{SETTING}["SIGNING"]', wrong, "Set SECRET_KEY, or turn SIGNING off."))
    if found:
        return found, None
    fields = {name.lower(): value for name, value in values.items()}
    return [], Config(**fields, signer=signer, queues=MappingProxyType(queues))


def _apart(config: Config) -> Mapping[str, OfferTarget]:
    """Returns the targets with the prefix of the tests."""
    return MappingProxyType({name: replace(target, key=f"{config.prefix}:to:{target.key}") for name, target in config.targets.items()})


def _signer(prefix: str) -> Signer:
    # Derived keys: a key that signs records signs nothing else of the project.
    secrets, salt, value = (settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS), "django_delayq.signing", f"record of {prefix}"
    return Signer(tuple(salted_hmac(salt, value, secret=secret, algorithm="sha256").digest() for secret in secrets))


def _twins(names: Iterable[Any]) -> Iterator[Problem]:
    # MySQL and MariaDB compare text without case and accents: the relay of one queue would publish the rows of the other
    seen: dict[str, str] = {}
    for name in names:
        plain = "".join(c for c in unicodedata.normalize("NFKD", str(name)) if not unicodedata.combining(c)).casefold()
        if plain in seen:
            where = f'{SETTING}["QUEUES"][{name!r}]'.replace("'", '"')
            hint = "Some databases treat the two names as equal. Rename one."
            yield Problem("E002", where, f"differs from {seen[plain]!r} only by case or accents.", hint)
        seen[plain] = str(name)


def _queue(name: Any, options: Any, values: Mapping[str, Any], found: list[Problem], *, tests: bool) -> QueueConfig | None:
    """The settings of a queue. None if there are mistakes, which it adds to `found`."""
    where = f'{SETTING}["QUEUES"][{name!r}]'.replace("'", '"')
    try:
        if "/" in readers.TEXT.read(name) or "," in name or len(name) > 100:
            raise readers.Wrong("must have at most 100 characters, without slashes or commas.")
    except readers.Wrong as error:
        found.append(Problem("E002", where, f"as the name of a queue {error.message}", "Rename it."))
        return None
    if not isinstance(options, Mapping):
        found.append(Problem("E002", where, f"must be a dict, not {options!r}.", "Write {} for the defaults."))
        return None
    own = readers.read(options, _IN_QUEUE, where, found, general=IN_PROJECT)
    if own.keys() != set(options) or not values.keys() >= set(PER_QUEUE):
        return None
    merged: dict[str, Any] = {key: own.get(key, values.get(key, SETTINGS[key].default)) for key in _IN_QUEUE}
    if (conflict := readers.conflict(where, merged, tests=tests)) is not None:
        found.append(conflict)
        return None
    merged["RETENTION"] = MappingProxyType({**values["RETENTION"], **own.get("RETENTION", {})})
    fields: dict[str, Any] = {key.lower(): value for key, value in merged.items()}
    return QueueConfig(name=name, **fields)
