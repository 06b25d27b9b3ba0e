"""The options of `schedule`, and the templates that a task and its options make for jobs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from inspect import Signature
from typing import Any, Final, Literal, NamedTuple, Protocol, TypedDict, get_args

from django.db import connections

from django_delayq import clock, codec, conf, durations, setting_readers
from django_delayq.exceptions import ConfigError
from django_delayq.ladder import Ladder
from django_delayq.producer import name_format, outbox, worker_modules
from django_delayq.producer.name_format import NameFormat, Naming, RateFormat
from django_delayq.states import MESSAGE, NO_LIMIT
from django_delayq.store.scripts import record
from django_delayq.store.scripts.record import Band, DebouncePolicy, band_of
from django_delayq.text import did_you_mean

Conflict = Literal["keep", "replace", "earliest", "latest", "after", "error"]
Durability = Literal["outbox", "redis"]
MAX_PRIORITY: Final = 2**31 - 1  # the largest value of its column; a larger one would break the transaction of the caller
MAX_TEMPLATES: Final = 1000
LONGEST_LEASE: Final = 12 * 3600.0  # seconds
PERIODS_MS: Final = (1_000, 366 * 24 * 3_600_000)  # the shortest and the longest `once_for` and `at_most`
POLICIES: Final[tuple[str, ...]] = get_args(Conflict)
DURABILITIES: Final[tuple[str, ...]] = get_args(Durability)


class OptionRow(NamedTuple):
    """One option, as the command line and the gateway offer it. `kind`: how they read the value; None: only Python code can give it.
    `limits`: the limits of a number in the gateway.
    """

    kind: Literal["duration", "date", "expiry", "text", "choice", "integer", "object"] | None = None
    help: str = ""
    choices: Sequence[str] = ()
    limits: tuple[int, int] = (0, 0)
    gateway: bool = True


# The options of schedule(). A task cannot have a parameter with one of these names.
OPTIONS: Final[Mapping[str, OptionRow]] = {
    "delay": OptionRow("duration", "a duration from now"),
    "run_at": OptionRow("date", "a date with a time zone"),
    "key": OptionRow("text", "a key that identifies the job among the queue's unfinished jobs"),
    "on_conflict": OptionRow("choice", "what happens if an unfinished job already has the key", POLICIES),
    "queue": OptionRow("text", "the queue, if it is not the task's own queue"),
    "priority": OptionRow(
        "integer", "a positive number for high priority, or a negative number for low priority", limits=(-MAX_PRIORITY, MAX_PRIORITY)
    ),
    "max_attempts": OptionRow("integer", "the maximum number of attempts, or 0 for no limit if the job expires", limits=(0, 10_000)),
    "backoff": OptionRow("text", "the delays between attempts, such as '15s 3m 10m'", gateway=False),
    "timeout": OptionRow("duration", "the time limit for one attempt", gateway=False),
    "expires": OptionRow("expiry", "a duration or date after which the job does not start"),
    "meta": OptionRow("object", "data that is stored with the job"),
    "then": OptionRow(),
    "using": OptionRow(),
    "durability": OptionRow("choice", "the durability, if it is not that of the queue", DURABILITIES, gateway=False),
    "serial": OptionRow(),
    "concurrency": OptionRow(),
    "once_for": OptionRow("duration", "how long after the job's end its key schedules no other job"),
    "at_most": OptionRow("duration", "with on_conflict latest, how long after the first call the job can be due"),
}


class MessageOptions(TypedDict, total=False):
    """The options of `push`, for type checkers. None: the value of the queue applies."""

    delay: durations.Delay | None
    run_at: datetime | None
    key: str
    on_conflict: Conflict
    priority: int | None
    max_attempts: int | None
    backoff: Ladder | str | None
    expires: durations.Delay | datetime | None
    meta: Mapping[str, Any] | None
    using: str | None
    durability: Durability | None
    once_for: durations.Delay | None
    at_most: durations.Delay | None


class UntimedOptions(MessageOptions, total=False):
    """The options of `deliver`, which has another timeout. None: the value of the task or the queue applies."""

    queue: str | None
    serial: str | None
    concurrency: tuple[str, int] | None
    then: Any  # a Binding


class JobOptions(UntimedOptions, total=False):
    """All options of `schedule`."""

    timeout: durations.Delay | None


class Options(NamedTuple):
    """The options of one job. None: the value of the task or the queue applies. The first `OWN` options differ from job to job. The
    others decide the template.
    """

    delay: durations.Delay | None = None
    run_at: datetime | None = None
    key: str = ""
    expires: durations.Delay | datetime | None = None
    meta: Mapping[str, Any] | None = None
    then: Any = None
    on_conflict: str = "keep"
    queue: str | None = None
    priority: int | None = None
    max_attempts: int | None = None
    backoff: Ladder | str | None = None
    timeout: durations.Delay | None = None
    using: str | None = None
    durability: str | None = None
    serial: str | None = None
    concurrency: tuple[str, int] | None = None
    once_for: durations.Delay | None = None
    at_most: durations.Delay | None = None

    def but(self, given: Mapping[str, Any], task: str) -> Options:
        """Returns these options with others replaced. `task`: its name, for errors.

        Raises:
            ConfigError: an option is unknown. The message suggests the nearest one.
        """
        try:
            return Options(**given) if self is NONE else self._replace(**given)
        except (TypeError, ValueError):
            name = next(name for name in given if name not in OPTIONS)
            meant = hint_of_option(name, OPTIONS)
            raise ConfigError(f"{task}.using(): {name!r} is an unknown option{meant}. The options are: {', '.join(OPTIONS)}.") from None


NONE: Final = Options()
OWN: Final = Options._fields.index("on_conflict")
USUAL: Final = NONE[OWN:]


def date(delay: durations.Delay | None, run_at: datetime | None, where: str) -> tuple[int | None, int]:
    """Returns the delay and the due date in milliseconds. For run_at, the delay is None.

    Raises:
        ConfigError: both are given, or one is not valid.
    """
    if run_at is not None:
        if delay is not None:
            raise ConfigError(f"{where}: pass delay or run_at, not both.")
        return None, moment(run_at, "run_at", where)
    delay_ms = duration(delay, "delay", where) if delay is not None else 0
    return delay_ms, clock.wall_ms() + delay_ms


def moment(value: Any, option: str, where: str) -> int:
    """Returns an aware datetime as milliseconds since 1970, or raises ConfigError."""
    if not isinstance(value, datetime):
        raise ConfigError(f"{where}: {option} must be an aware datetime, not {value!r}. For a duration use delay.")
    try:
        ms = clock.to_ms(value)
    except ValueError:
        raise ConfigError(
            f"{where}: {option}={value!r} is naive, because it has no time zone. Use django.utils.timezone.now() or "
            "timezone.make_aware(value)."
        ) from None
    if not 0 <= ms <= clock.LAST_MS:
        raise ConfigError(
            f"{where}: {option}={value!r} is before 1970, or at the end of the year 9999 or later, which clocks and databases do "
            f"not support. If a job has no date yet, schedule it when the date is known."
        )
    return ms


def duration(value: Any, option: str, where: str) -> int:
    """Returns the milliseconds of a duration, or raises ConfigError."""
    try:
        return durations.milliseconds(value)
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{where}: {option}={error}.") from None


def lease_ms(value: Any, where: str, kept: str) -> int:
    """Returns the milliseconds of a lease, or raises ConfigError. `kept`: the effect of a lost long lease, for the error."""
    ms = duration(value, "lease", where)
    if not setting_readers.SHORTEST_LEASE <= ms / 1000 <= LONGEST_LEASE:
        raise ConfigError(
            f"{where}: lease={value!r} must be from {setting_readers.SHORTEST_LEASE:g} seconds to 12 hours. A shorter "
            f"lease is lost if the host pauses briefly. A longer one {kept}."
        )
    return ms


def integer(option: str, value: Any, where: str) -> int:
    """Returns the value if it is a whole number.

    Raises:
        ConfigError: it is not.
    """
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigError(f"{where}: {option} must be a whole number such as 10, not {value!r}.")
    return value


def attempts(value: Any, where: str) -> int | None:
    """Checks `max_attempts`. 0: no limit, for jobs that expire.

    Raises:
        ConfigError: it is not a whole number, or negative.
    """
    if value is not None and integer("max_attempts", value, where) < 0:
        raise ConfigError(f"{where}: max_attempts must be at least 1, or 0 for no limit if you schedule the job with expires=.")
    return None if value is None else int(value)


class Planned(Protocol):
    """A task, or messages, for which jobs can be planned."""

    name: str
    queue: str
    priority: int
    max_attempts: int | None
    late: bool  # see `worker_modules`
    rate_name: str  # of a message; "" of tasks, whose rates have formats

    @property
    def named(self) -> NameFormat | None:
        """The format of the concurrency name of its jobs."""

    @property
    def rated(self) -> RateFormat | None:
        """The format of the rate of its jobs."""

    @property
    def signature(self) -> Signature | None:
        """The signature of its function. None: it has no function."""

    @property
    def sensitive(self) -> Collection[str]:
        """The parameters whose values are masked."""

    def check_arguments(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Raises PayloadError if the function cannot be called with these arguments."""

    def check_typed(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Also raises PayloadError if an argument does not match its annotation."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class JobTemplate:
    """The values that all jobs of a task with the same options share. `says_using`: the caller named the database. `payload`: options
    that are stored with the arguments. `horizon_ms`: jobs that are due later wait in the database; 0: none do. `check`: raises
    PayloadError for wrong arguments.
    """

    task: Planned
    where: str  # in errors
    queue: conf.QueueConfig
    using: str
    says_using: bool
    durable: bool
    inline: bool
    priority: int
    band: Band
    max_attempts: int
    line: bytes  # the header of a record without an expiry
    on_conflict: str
    payload: dict[str, Any] | None
    carriers: bool
    horizon_ms: int
    divided: bool  # the queue has, or had, several partitions
    once_ms: int  # the period of `once_for`; 0: none
    most_ms: int  # `at_most`; 0: none
    named: Naming | None
    check: Callable[[tuple[Any, ...], Mapping[str, Any]], None]

    def payload_of(self, args: tuple[Any, ...], kwargs: dict[str, Any], meta: dict[str, Any] | None) -> bytes:
        """Encodes the payload of a job.

        Raises:
            PayloadError, PayloadTooLarge: JSON cannot hold the arguments, or the payload is larger than the limit of the queue.
        """
        payload = self.payload if meta is None else {**(self.payload or {}), "meta": meta}
        return codec.encode_payload(args, kwargs, payload, limit=self.queue.max_payload, task=self.task.name)


class JobTemplates:
    """A cache of templates for the current settings."""

    def __init__(self) -> None:
        self._made: tuple[conf.Config | None, dict[Any, JobTemplate]] = (None, {})

    def get(self, task: Planned, options: Options, using: str | None) -> JobTemplate:
        """Returns the template for a task with options.

        Raises:
            QueueUnknown, ConfigError, PayloadError: see `plan`.
        """
        config, rest = conf.get(), options[OWN:]
        of, made = self._made
        if of is not config:
            made = {}
            self._made = (config, made)
        # The key has the types, because True and 1.0 equal 1 but are refused. Tests change attributes of a task.
        key = (
            task,
            task.queue,
            task.priority,
            task.max_attempts,
            using,
            None if rest == USUAL else (rest, *map(type, rest)),
        )
        try:
            found = made.get(key)
        except (TypeError, ValueError):  # an option that cannot be hashed or compared
            return _template(task, options, using, config)
        if found is None:
            found = _template(task, options, using, config)
            if len(made) >= MAX_TEMPLATES:
                made.clear()
            made[key] = found
        return found


templates: Final = JobTemplates()


def _template(task: Planned, options: Options, using: str | None, config: conf.Config) -> JobTemplate:
    is_message = task.name == MESSAGE
    where = f"push({options.queue})" if is_message else f"schedule({task.name})"
    _check_names(options, where)
    queue = config.queue(options.queue or task.queue)
    if queue.pulled != is_message:
        raise ConfigError(_misplaced(queue, where))
    _check_options(options, where)
    worker_modules.check(task)
    priority = task.priority if options.priority is None else options.priority
    if not -MAX_PRIORITY <= priority <= MAX_PRIORITY:
        raise ConfigError(
            f"{where}: priority={priority} is out of range. Only its sign matters. Positive numbers are high, and "
            "negative numbers are low."
        )
    durable = (options.durability or queue.durability) == "outbox"
    alias = options.using or using or config.database
    if durable:
        _check_outbox(alias, config.database, where)
    elif options.on_conflict == "after":
        raise ConfigError(
            f"{where}: on_conflict='after' requires durability='outbox', because the job waits as a row until the running "
            "job has ended."
        )
    durable = durable and (is_message or not config.inline)
    most_ms = 0 if options.at_most is None else _at_most(options, where)
    band, max_attempts = band_of(priority), most_attempts(options.max_attempts, task.max_attempts, queue.max_attempts)
    return JobTemplate(
        task=task,
        where=where,
        queue=queue,
        using=alias,
        says_using=bool(options.using or using),
        durable=durable,
        inline=config.inline and not is_message,
        priority=priority,
        band=band,
        max_attempts=max_attempts,
        line=record.line(task.name, band, durable, max_attempts, 0),
        on_conflict=str(DebouncePolicy(most_ms)) if most_ms else options.on_conflict,
        payload=_payload(options, where),
        carriers=bool(config.carriers),
        horizon_ms=queue.horizon_ms if durable else 0,
        divided=queue.divided,
        once_ms=0 if options.once_for is None else _period(options, alias, config.database, where),
        most_ms=most_ms,
        named=name_format.naming(_named(options, task, where), task.rated),
        check=task.check_typed if config.check_types else task.check_arguments,
    )


def _at_most(options: Options, where: str) -> int:
    """Returns the milliseconds of `at_most`."""
    ms, (least, most) = duration(options.at_most, "at_most", where), PERIODS_MS
    if not least <= ms <= most:
        raise ConfigError(f"{where}: at_most={options.at_most!r} must be from one second to 366 days.")
    if options.on_conflict != "latest":
        raise ConfigError(
            f"{where}: at_most requires on_conflict='latest', because only this policy moves a job to a later date. Pass "
            "on_conflict='latest' as well, or remove at_most."
        )
    return ms


def _period(options: Options, alias: str, rows: str, where: str) -> int:
    """Returns the milliseconds of `once_for`."""
    ms, (least, most) = duration(options.once_for, "once_for", where), PERIODS_MS
    if not least <= ms <= most:
        raise ConfigError(f"{where}: once_for={options.once_for!r} must be from one second to 366 days.")
    if options.on_conflict != "keep":
        raise ConfigError(
            f"{where}: once_for requires on_conflict='keep', because the first job of a period keeps its key. Remove "
            f"on_conflict={options.on_conflict!r}."
        )
    _check_outbox(alias, rows, where, period=True)
    return ms


def _named(options: Options, task: Planned, where: str) -> NameFormat | None:
    if options.serial is None and options.concurrency is None:
        return task.named
    if task.signature is None:
        raise ConfigError(f"{where}: serial and concurrency apply to tasks that workers run; messages are pulled.")
    return name_format.given(options.serial, options.concurrency, task.signature, where, task.sensitive)


def most_attempts(*limits: int | None) -> int:
    """Returns the first limit of attempts that is not None. 0: no limit."""
    return next((most for most in limits if most is not None), 0) or NO_LIMIT


def _misplaced(queue: conf.QueueConfig, where: str) -> str:
    if queue.pulled:
        return (
            f"{where}: the queue {queue.name!r} holds messages (CONSUMER is 'pull'), which workers do not run. Add a message with "
            f"delayq.push({queue.name!r}, …), or schedule into another queue."
        )
    return (
        f"{where}: the queue {queue.name!r} is served by workers, which run tasks. For messages that you pull yourself, set "
        f"DELAYQ['QUEUES'][{queue.name!r}]['CONSUMER'] = 'pull'."
    )


def _payload(options: Options, where: str) -> dict[str, Any] | None:
    found: dict[str, Any] = {}
    if options.backoff is not None:
        try:
            found["backoff"] = str(Ladder.of(options.backoff))
        except (ValueError, TypeError) as error:
            hint = " A function belongs to the task: @task(backoff=…)." if callable(options.backoff) else ""
            raise ConfigError(f"{where}: backoff: {error}.{hint}") from None
    if options.timeout is not None:
        found["timeout"] = duration(options.timeout, "timeout", where) / 1000
    if options.at_most is not None:
        found["at_most"] = duration(options.at_most, "at_most", where) / 1000
    return found or None


def _check_names(options: Options, where: str) -> None:
    if options.queue is not None and not isinstance(options.queue, str):
        raise ConfigError(f"{where}: queue={options.queue!r} must be the name of one queue in DELAYQ['QUEUES'].")
    if options.using is not None and options.using not in list(connections):
        raise ConfigError(f"{where}: using={options.using!r} is not in DATABASES. The aliases are {', '.join(connections)}.")


def _check_options(options: Options, where: str) -> None:
    if options.on_conflict not in POLICIES:
        near = did_you_mean(options.on_conflict, POLICIES)
        raise ConfigError(f"{where}: on_conflict={options.on_conflict!r} must be one of {', '.join(POLICIES)}{near}.")
    if options.durability not in (None, *DURABILITIES):
        raise ConfigError(f"{where}: durability={options.durability!r} must be 'outbox' or 'redis'.")
    if options.priority is not None:
        integer("priority", options.priority, where)
    attempts(options.max_attempts, where)


def _check_outbox(alias: str, rows: str, where: str, *, period: bool = False) -> None:
    outbox.check_installed()
    if alias != rows and period:
        raise ConfigError(
            f"{where}: using={alias!r}, but the database {rows!r} (DELAYQ['DATABASE']) stores the keys of once_for, so they cannot be "
            "part of that transaction. Remove using or once_for."
        )
    if alias != rows:
        raise ConfigError(
            f"{where}: using={alias!r}, but jobs are stored in the database {rows!r} (DELAYQ['DATABASE']), so their rows "
            "cannot be part of that transaction. Pass durability='redis', or remove using."
        )


# Names from other queue libraries and their equivalents, for error messages.
_DELAY: Final = "delay=, such as delay='30s'"
_RUN_AT: Final = "run_at=, an aware datetime"
_BACKOFF: Final = "backoff=, the delays between attempts, such as backoff='15s 3m 10m'"
_ATTEMPTS: Final = "max_attempts=, which includes the first run"
_TIMEOUT: Final = "timeout=, such as timeout='30s'"
_ARGUMENTS: Final = "the arguments themselves, as in a call of the function"
_KEY: Final = "key=, unique among the unfinished jobs of a queue; delayq makes the ids"

# Options in Celery, RQ, Huey, Dramatiq, Procrastinate, django-q2, arq, Oban, Sidekiq and django.tasks.
_EQUIVALENTS: Final[Mapping[str, str]] = {
    "eta": _RUN_AT,
    "run_after": _RUN_AT,
    "schedule_at": _RUN_AT,
    "scheduled_at": _RUN_AT,
    "defer_until": _RUN_AT,
    "_defer_until": _RUN_AT,
    "countdown": _DELAY,
    "defer_by": _DELAY,
    "_defer_by": _DELAY,
    "schedule_in": _DELAY,
    "wait": _DELAY,
    "wait_until": _RUN_AT,
    "args": _ARGUMENTS,
    "kwargs": _ARGUMENTS,
    "retries": _ATTEMPTS,
    "retry": _BACKOFF,
    "max_retries": _ATTEMPTS,
    "attempts": _ATTEMPTS,
    "retry_delay": _BACKOFF,
    "retry_backoff": _BACKOFF,
    "default_retry_delay": _BACKOFF,
    "min_backoff": _BACKOFF,
    "max_backoff": _BACKOFF,
    "retry_when": "backoff=f, where f(attempt, exception) returns None for errors without a retry",
    "autoretry_for": "backoff=f, where f(attempt, exception) returns None for errors without a retry",
    "throws": "backoff=f, where f(attempt, exception) returns None for errors without a retry",
    "bind": "delayq.current() inside the task",
    "context": "delayq.current() inside the task",
    "takes_context": "delayq.current() inside the task",
    "time_limit": _TIMEOUT,
    "soft_time_limit": _TIMEOUT,
    "job_timeout": _TIMEOUT,
    "ttl": "expires=, a duration or an aware datetime",
    "max_age": "expires=, a duration or an aware datetime",
    "queue_name": "queue=",
    "routing_key": "queue=",
    "exchange": "queue=",
    "task_id": _KEY,
    "job_id": _KEY,
    "_job_id": _KEY,
    "lock": _KEY,
    "queueing_lock": _KEY,
    "unique": _KEY,
    "acks_late": "nothing: a job is always settled after its run",
    "ignore_result": "nothing: DELAYQ['RETENTION'] sets how long results are kept",
}

# Methods of tasks in those libraries.
_NOW: Final = ("apply", "async_task", "call_async", "defer", "enqueue", "perform_async", "publish", "push", "send", "submit")
_LATER: Final = ("apply_async", "configure", "options", "perform_at", "perform_in", "schedule_in", "send_with_options", "set")
_AWAITED: Final = ("aapply_async", "adelay", "aenqueue", "defer_async", "kiq")
_BUNDLES: Final = ("message", "message_with_options", "s", "si", "subtask")


def hint_of_method(task: str, name: str) -> str:
    """Returns the equivalent of a method of another library, or ""."""
    if name == "delay" or name in _NOW:
        return f"schedule: {task}.schedule(1), or {task}.using(delay='30m').schedule(1)."
    if name in _LATER:
        return f"schedule: {task}.using(delay='30m').schedule(1), or delayq.schedule({task}, 1, delay='30m')."
    if name in _AWAITED:
        return f"schedule: await {task}.aschedule(1), or await {task}.using(delay='30m').aschedule(1)."
    if name in _BUNDLES:
        return f"bind: delayq.schedule_many([{task}.bind(1), {task}.bind(2)])."
    return ""


def hint_of_option(name: str, options: Collection[str], cutoff: float = 0.6) -> str:
    """Returns a hint for an unknown option: its equivalent, the nearest option, or ""."""
    known = _EQUIVALENTS.get(name)
    return f" (here it is {known})" if known else did_you_mean(name, options, cutoff)


def hint_of_keyword(task: str, name: str, options: Collection[str], cutoff: float = 0.6) -> str:
    """Returns a sentence without a full stop about a keyword that is not a parameter of the task, or ""."""
    if name in options:
        return f"{name!r} is an option: write {task}.using({name}=…).schedule(…), or delayq.schedule({task}, …, {name}=…)"
    meant = hint_of_option(name, options, cutoff)
    return f"{name!r} is an unknown option{meant}" if meant else ""
