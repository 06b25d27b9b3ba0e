"""From a binding to a plan: every check that a job must pass before anything is written, and the record that it becomes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, NamedTuple, Protocol
from uuid import UUID

from django.db import connections

from django_delayq import clock, codec, conf, ids
from django_delayq.exceptions import ConfigError, PayloadError
from django_delayq.ladder import Ladder
from django_delayq.producer import database
from django_delayq.producer.database import OutboxItem
from django_delayq.producer.options import POLICIES, Options, date, duration, moment
from django_delayq.producer.stores import stores
from django_delayq.record import JobRecord, lane_of
from django_delayq.store.items import ScheduleItem

MOST_PRIORITY: Final = 2**31 - 1  # what its column holds; beyond it the insert would break the caller's transaction


class Planned(Protocol):
    """What a plan needs of a task."""

    name: str
    queue: str
    priority: int
    max_attempts: int | None

    def check_arguments(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """PayloadError unless the function could be called with them."""


class Binding(NamedTuple):
    """Task, options and arguments: all that a job is made of."""

    task: Planned
    options: Options
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


@dataclass(slots=True)
class Plan:
    """A job that has passed every check."""

    task: Planned
    record: JobRecord
    queue: conf.QueueConfig
    id: UUID
    delay_ms: int | None
    due_ms: int
    started: float
    on_conflict: Any
    priority: int
    using: str
    durable: bool
    ground: str  # what was known then of where the queue stands

    def item(self) -> ScheduleItem:
        """What Redis gets: the rest of the delay, so that the transaction's own duration is not added to it."""
        if self.delay_ms is None:
            return ScheduleItem(record=self.record, due_ms=self.due_ms, on_conflict=self.on_conflict)
        passed = clock.monotonic() - self.started
        left = max(0, self.delay_ms - int(passed * 1000))
        return ScheduleItem(record=self.record, delay_ms=left, on_conflict=self.on_conflict)

    def outbox_item(self) -> OutboxItem:
        """What the database gets."""
        return OutboxItem(
            record=self.record,
            queue=self.queue.name,
            run_at_ms=self.due_ms,
            delay_ms=self.delay_ms,
            on_conflict=self.on_conflict,
            priority=self.priority,
        )


def plan(binding: Binding, using: str | None) -> Plan:
    """Checks a binding and makes its record. `using`: database alias unless the options name one.

    Raises:
        PayloadError, PayloadTooLarge, QueueUnknown, ConfigError: see `producer.schedule`.
    """
    if not isinstance(binding, Binding):
        raise ConfigError(
            f"schedule_many() was given {binding!r}, which is no job to be. Pass what bind() makes: task.bind(…), or "
            "task.using(delay=…).bind(…)."
        )
    task, options = binding.task, binding.options
    config = conf.get()
    _check_names(options, f"schedule({task.name})")
    queue = config.queue(options.queue or task.queue)
    where = f"schedule({task.name})"
    task.check_arguments(binding.args, binding.kwargs)
    now_ms = clock.wall_ms()
    delay_ms, due_ms = date(options.delay, options.run_at, now_ms, where)
    priority = task.priority if options.priority is None else options.priority
    durable = (options.durability or queue.durability) == "outbox"
    alias = options.using or using or config.database
    _check_options(options, where)
    if durable:
        _check_outbox(alias, config.database, where)
        if not (options.using or using):
            _check_transaction(alias, where)
    elif options.on_conflict == "after":
        raise ConfigError(
            f"{where}: on_conflict='after' needs durability='outbox': what runs behind a running job waits as a row until then."
        )
    if not -MOST_PRIORITY <= priority <= MOST_PRIORITY:
        raise ConfigError(
            f"{where}: priority={priority} is out of range; only its sign counts: above 0 high, below 0 low."
        )
    id = ids.new()
    expires_ms = 0 if options.expires is None else _expires(options.expires, delay_ms, due_ms, where)
    record = JobRecord(
        id=id,
        task=task.name,
        lane=lane_of(priority),
        durable=durable,
        max_attempts=options.max_attempts or task.max_attempts or queue.max_attempts,
        expires_ms=expires_ms,
        key=options.key,
        payload=codec.encode_payload(
            binding.args, binding.kwargs, _payload_options(options, where), limit=queue.max_payload, task=task.name
        ),
    )
    ground = stores.ground(queue.name) if durable else ""
    started = clock.monotonic()
    return Plan(
        task, record, queue, id, delay_ms, due_ms, started, options.on_conflict, priority, alias, durable, ground
    )


def _expires(value: Any, delay_ms: int | None, due_ms: int, where: str) -> int:
    """By Redis' clock, which decides; by this host's only if Redis cannot be asked."""
    now_ms = stores.now_ms()
    expires_ms = (
        moment(value, "expires", where) if isinstance(value, datetime) else now_ms + duration(value, "expires", where)
    )
    if expires_ms <= (due_ms if delay_ms is None else now_ms + delay_ms):
        raise ConfigError(
            f"{where}: expires={value!r} is not behind the date of the job, so it could never run. Both count from now: give an "
            "expiry that is longer than the delay, or none."
        )
    return expires_ms


def _payload_options(options: Options, where: str) -> dict[str, Any] | None:
    found: dict[str, Any] = {}
    if options.backoff is not None:
        try:
            found["backoff"] = str(Ladder.of(options.backoff))
        except (ValueError, TypeError) as error:
            raise ConfigError(
                f"{where}: backoff is no ladder: {error} A function belongs to the task: @task(backoff=…)."
            ) from None
    if options.timeout is not None:
        found["timeout"] = duration(options.timeout, "timeout", where) / 1000
    if options.meta is not None:
        if not isinstance(options.meta, Mapping):
            raise PayloadError(f"{where}: meta must be a dict with text keys, not {options.meta!r}.")
        found["meta"] = dict(options.meta)
    return found or None


def _check_names(options: Options, where: str) -> None:
    if options.queue is not None and not isinstance(options.queue, str):
        raise ConfigError(f"{where}: queue={options.queue!r} must be the name of one queue in DELAYQ['QUEUES'].")
    if options.using is not None and options.using not in list(connections):
        raise ConfigError(
            f"{where}: using={options.using!r} is no database of this project. DATABASES has {', '.join(connections)}."
        )


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


def _check_transaction(alias: str, where: str) -> None:
    """Refuses a row that would be committed at once while the caller's own transaction, of another database, may be rolled back."""
    if len(connections.settings) == 1 or connections[alias].in_atomic_block:
        return
    for other in connections.all(initialized_only=True):
        if other.in_atomic_block:
            raise ConfigError(
                f"{where}: a transaction is open on the database {other.alias!r}, and the row of the job goes into {alias!r} "
                f"(DELAYQ['DATABASE']): if the transaction is rolled back, the job runs all the same. Open one on {alias!r} "
                f"around both; pass using={alias!r} if the job shall be published whether or not it is rolled back; or, to have it "
                f"published by the commit on {other.alias!r}, using={other.alias!r} and durability='redis'."
            )
