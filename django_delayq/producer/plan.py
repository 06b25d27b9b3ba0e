"""From task, options and arguments to a plan: every check that a job must pass before anything is written, and its record."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from django.db import connections

from django_delayq import clock, codec, ids
from django_delayq.exceptions import ConfigError, PayloadError
from django_delayq.producer import carriers, commit, database
from django_delayq.producer.commit import Plan
from django_delayq.producer.job import Job
from django_delayq.producer.options import Options, Planned, date, duration, moment, moulds
from django_delayq.producer.stores import stores
from django_delayq.record import JobRecord
from django_delayq.states import CARRIED


class Binding(NamedTuple):
    """Task, options and arguments: all that a job is made of. `id`: the job's, if it is drawn already."""

    task: Any
    options: Options
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    id: UUID | None = None


def plan(
    task: Planned, options: Options, args: tuple[Any, ...], kwargs: dict[str, Any], using: str | None, id: UUID | None = None
) -> Plan:
    """Checks a job to be, and makes its record. `using`: database alias unless the options name one. `id`: drawn here unless given.

    Raises:
        PayloadError, PayloadTooLarge, QueueUnknown, ConfigError: see `producer.schedule`.
    """
    mould = moulds.get(task, options, using)
    queue, name, payload = mould.queue, task.name, mould.payload
    task.check_arguments(args, kwargs)
    if mould.durable:
        database.need()
        if not mould.says_using:
            _check_transaction(mould.using, mould.where)
    if not options.key and mould.on_conflict != "keep":
        raise ConfigError(f"{mould.where}: on_conflict={mould.on_conflict!r} is about the holder of a key: give key= as well.")
    delay_ms, due_ms = date(options.delay, options.run_at, mould.where)
    expires_ms = 0 if options.expires is None else _expires(options.expires, delay_ms, due_ms, mould.where)
    meta = None if options.meta is None else _meta(options.meta, mould.where)
    if mould.carriers:
        meta = carriers.pack(meta)
    if meta is not None:
        payload = {**(payload or {}), "meta": meta}
    if id is None:
        id = ids.new()
    record = JobRecord(
        id=id,
        task=name,
        lane=mould.lane,
        durable=mould.durable,
        max_attempts=mould.max_attempts,
        expires_ms=expires_ms,
        key=options.key,
        payload=codec.encode_payload(args, kwargs, payload, limit=queue.max_payload, task=name),
    )
    return Plan(
        record=record,
        due_ms=due_ms if delay_ms is None else None,
        delay_ms=delay_ms,
        on_conflict=mould.on_conflict,
        queue=queue.name,
        priority=mould.priority,
        mould=mould,
        job=Job(id=id, queue=queue.name, task=name, key=options.key, due_ms=due_ms),
        started=clock.monotonic(),
        ground=stores.ground(queue.name) if mould.durable else "",
    )


def _expires(value: Any, delay_ms: int | None, due_ms: int, where: str) -> int:
    """By Redis' clock, which decides; by this host's only if Redis cannot be asked."""
    now_ms = stores.now_ms()
    expires_ms = moment(value, "expires", where) if isinstance(value, datetime) else now_ms + duration(value, "expires", where)
    if expires_ms <= (due_ms if delay_ms is None else now_ms + delay_ms):
        raise ConfigError(
            f"{where}: expires={value!r} is not behind the date of the job, so it could never run. Both count from now: give an "
            "expiry that is longer than the delay, or none."
        )
    return expires_ms


def _meta(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise PayloadError(f"{where}: meta must be a dict with text keys, not {value!r}.")
    if CARRIED in value:
        raise PayloadError(f"{where}: meta has the key {CARRIED!r}, under which carriers pack. Name it otherwise.")
    return dict(value)


def _check_transaction(alias: str, where: str) -> None:
    """Refuses a row that would be committed at once while the caller's own transaction, of another database, may be rolled back."""
    if len(connections.settings) == 1 or commit.is_open(connections[alias]):
        return
    for other in connections.all(initialized_only=True):
        if commit.is_open(other):
            raise ConfigError(
                f"{where}: a transaction is open on the database {other.alias!r}, and the row of the job goes into {alias!r} "
                f"(DELAYQ['DATABASE']): if the transaction is rolled back, the job runs all the same. Open one on {alias!r} "
                f"around both; pass using={alias!r} if the job shall be published whether or not it is rolled back; or, to have it "
                f"published by the commit on {other.alias!r}, using={other.alias!r} and durability='redis'."
            )
