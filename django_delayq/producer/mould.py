"""What a task and its options decide for all jobs that are made with them: found once, and kept."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

from django.db import connections

from django_delayq import conf
from django_delayq.exceptions import ConfigError
from django_delayq.ladder import Ladder
from django_delayq.producer import database
from django_delayq.producer.options import NONE, OWN, POLICIES, Options, duration
from django_delayq.record import Lane, lane_of

MOST_PRIORITY: Final = 2**31 - 1  # what its column holds; beyond it the insert would break the caller's transaction
MOST_MOULDS: Final = 1000
USUAL: Final = NONE[OWN:]


class Planned(Protocol):
    """What a plan needs of a task."""

    name: str
    queue: str
    priority: int
    max_attempts: int | None

    def check_arguments(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """PayloadError unless the function could be called with them."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Mould:
    """What a task and its options decide for all jobs that are made with them. `using`: alias of the database whose transaction they
    belong to; `says_using`: the caller has named it; `payload`: what travels with the arguments; `carriers`: the project has some.
    """

    task: Planned
    where: str  # in errors
    queue: conf.QueueConfig
    using: str
    says_using: bool
    durable: bool
    priority: int
    lane: Lane
    max_attempts: int
    on_conflict: str
    payload: dict[str, Any] | None
    carriers: bool


class Moulds:
    """The moulds made so far under these settings."""

    def __init__(self) -> None:
        self._made: tuple[conf.Config | None, dict[Any, Mould]] = (None, {})

    def get(self, task: Planned, options: Options, using: str | None) -> Mould:
        """The mould of jobs of this task with these options.

        Raises:
            QueueUnknown, ConfigError: see `plan`.
        """
        config, rest = conf.get(), options[OWN:]
        of, made = self._made
        if of is not config:
            made = {}
            self._made = (config, made)
        # With their types: True and 1.0 equal 1, and are refused where that is taken. What the task says may be changed by a test.
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
        except (TypeError, ValueError):  # an option that cannot be compared, or a ladder that cannot be made: mistakes, mostly
            return _mould(task, options, using, config)
        if found is None:
            found = _mould(task, options, using, config)
            if len(made) >= MOST_MOULDS:
                made.clear()
            made[key] = found
        return found


moulds: Final = Moulds()


def _mould(task: Planned, options: Options, using: str | None, config: conf.Config) -> Mould:
    where = f"schedule({task.name})"
    _check_names(options, where)
    queue = config.queue(options.queue or task.queue)
    _check_options(options, where)
    priority = task.priority if options.priority is None else options.priority
    if not -MOST_PRIORITY <= priority <= MOST_PRIORITY:
        raise ConfigError(f"{where}: priority={priority} is out of range; only its sign counts: above 0 high, below 0 low.")
    durable = (options.durability or queue.durability) == "outbox"
    alias = options.using or using or config.database
    if durable:
        _check_outbox(alias, config.database, where)
    elif options.on_conflict == "after":
        raise ConfigError(
            f"{where}: on_conflict='after' needs durability='outbox': what runs behind a running job waits as a row until then."
        )
    return Mould(
        task=task,
        where=where,
        queue=queue,
        using=alias,
        says_using=bool(options.using or using),
        durable=durable,
        priority=priority,
        lane=lane_of(priority),
        max_attempts=options.max_attempts or task.max_attempts or queue.max_attempts,
        on_conflict=options.on_conflict,
        payload=_payload(options, where),
        carriers=bool(config.carriers),
    )


def _payload(options: Options, where: str) -> dict[str, Any] | None:
    found: dict[str, Any] = {}
    if options.backoff is not None:
        try:
            found["backoff"] = str(Ladder.of(options.backoff))
        except (ValueError, TypeError) as error:
            raise ConfigError(f"{where}: backoff is no ladder: {error}. A function belongs to the task: @task(backoff=…).") from None
    if options.timeout is not None:
        found["timeout"] = duration(options.timeout, "timeout", where) / 1000
    return found or None


def _check_names(options: Options, where: str) -> None:
    if options.queue is not None and not isinstance(options.queue, str):
        raise ConfigError(f"{where}: queue={options.queue!r} must be the name of one queue in DELAYQ['QUEUES'].")
    if options.using is not None and options.using not in list(connections):
        raise ConfigError(f"{where}: using={options.using!r} is no database of this project. DATABASES has {', '.join(connections)}.")


def _check_options(options: Options, where: str) -> None:
    if options.on_conflict not in POLICIES:
        raise ConfigError(f"{where}: on_conflict={options.on_conflict!r} must be one of {', '.join(POLICIES)}.")
    if options.durability not in (None, "outbox", "redis"):
        raise ConfigError(f"{where}: durability={options.durability!r} must be 'outbox' or 'redis'.")
    if options.priority is not None and (isinstance(options.priority, bool) or not isinstance(options.priority, int)):
        raise ConfigError(f"{where}: priority={options.priority!r} must be a whole number: above 0 high, below 0 low.")
    if options.max_attempts is not None and (type(options.max_attempts) is not int or options.max_attempts < 1):
        raise ConfigError(f"{where}: max_attempts={options.max_attempts!r} must be a whole number of at least 1.")


def _check_outbox(alias: str, rows: str, where: str) -> None:
    database.need()
    if alias != rows:
        raise ConfigError(
            f"{where}: using={alias!r}, but jobs are kept in the database {rows!r} (DELAYQ['DATABASE']). "
            "A row cannot join a transaction of another database: pass durability='redis', or schedule without using."
        )
