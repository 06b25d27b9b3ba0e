"""Chooses the partition of a new job. The id of the job names the partition, and the job never leaves it.

The home of a job is the partition of its concurrency name (serial, concurrency), otherwise of its key. A job without both goes to any
partition. After PARTITIONS was changed, a name or a key stays in its old partition while jobs from before the change are unfinished.
So one partition decides who holds a key, and how many jobs of a name run.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any
from uuid import UUID

from django_delayq import conf, ids
from django_delayq.conf import QueueConfig
from django_delayq.exceptions import ConfigError, StoreUnavailable
from django_delayq.job_meta import SharedName, in_payload, scoped, shown
from django_delayq.producer import outbox, scopes
from django_delayq.producer.options import JobTemplate, Options, Planned, templates
from django_delayq.producer.stores import stores
from django_delayq.store.scripts.queue import holder_of
from django_delayq.store.scripts.record import JobRecord, validate_key


def anywhere(queue: QueueConfig) -> int:
    """A partition for a job without a home."""
    return random.randrange(queue.partitions) if queue.partitions > 1 else 0


def of(template: JobTemplate, key: str, name: SharedName | None) -> int | None:
    """The partition of a job with this key and this name; None if any partition will do.

    Raises:
        ConfigError: the key and the name belong to two partitions.
    """
    queue = template.queue
    name = name if name and name.home else None  # a fair word has no home
    if name is not None and name.rate is not None and name.rate.text != name.home and queue.divided:
        raise ConfigError(
            f"{template.where}: the rate {shown(name.rate.text)!r} and the name {shown(name.text)!r} belong to different "
            f"partitions of the queue {queue.name!r}. Use the same text for both, or use a queue with PARTITIONS 1 for limited work."
        )
    if name is not None and key and name.home != key and queue.divided:
        what = "rate" if name.text == "" else "name"
        raise ConfigError(
            f"{template.where}: key={shown(key)!r} and the {what} {shown(name.home)!r} belong to different partitions of "
            f"the queue {queue.name!r}. Use the same text for both, use only one of them, or use a queue with PARTITIONS 1"
            f"{' for limited work' if name.rate else ''}."
        )
    if name is not None:
        text = name.home
        return _settled(queue, text, lambda partition: _bears(queue, text, partition))
    if key:
        return _settled(queue, key, lambda partition: bool(_holders(queue, key, partition)))
    return None


def key_in(queue: QueueConfig, key: str, scope: str) -> str:
    """The key in this scope. It stays bare while a job of the scope that was scheduled before `SCOPE` was set holds it."""
    config = conf.get()
    if scope and key and config.scope is not None and not config.scope_only:
        for partition in queue.homes(key):
            if any(scopes.has_packed(scope, _payload(queue, id)) for id in _holders(queue, key, partition)):
                return key
    return scoped(scope, key)


def _payload(queue: QueueConfig, job: UUID) -> bytes:
    row = outbox.jobs.read([job]).get(job) if outbox.installed else None
    if row is not None:
        return row.record.payload
    try:
        view = stores.view_of(job, queue.name)
    except StoreUnavailable:
        return b""
    return b"" if view is None or view.record is None else view.record.payload


def _settled(queue: QueueConfig, text: str, lives: Callable[[int], bool]) -> int:
    home, *former = queue.homes(text)
    return next((partition for partition in former if lives(partition)), home)


def _bears(queue: QueueConfig, text: str, partition: int, *, failed: bool = True) -> bool:
    """Whether an unfinished job has this name or rate in the partition. With `failed`, a failed job counts too, since it may be
    requeued. If Redis cannot be reached, the answer is True: the next job then waits there as a row, because in another partition it
    could run at the same time.
    """
    try:
        with stores.guarded(queue.name, partition, schedules=True):
            return stores.inspector().names(queue.name, partition, text, failed=failed)
    except StoreUnavailable:
        return True


def bears_elsewhere(queue: QueueConfig, text: str, partition: int) -> bool:
    """Whether an unfinished job has the name, or may have it, in another home of the name."""
    return any(_bears(queue, text, other, failed=False) for other in queue.homes(text) if other != partition)


def taken_elsewhere(queue: QueueConfig, record: JobRecord) -> bool:
    """Whether an unfinished job has the key or the name of this record in another home partition. A job that is put back stays in the
    partition that its id names, and the script there does not see other partitions.

    Raises:
        StoreUnavailable: a partition cannot be asked.
    """
    name = in_payload(record.payload)
    text, partition = (name.home if name else "") or record.key, ids.partition(record.id)
    for other in queue.homes(text) if text else ():
        if other != partition:
            with stores.guarded(queue.name, other):
                if name and name.home and stores.inspector().names(queue.name, other, text, failed=False):
                    return True
                if record.key and _held(queue, record.key, other):
                    return True
    return False


def _holders(queue: QueueConfig, key: str, partition: int) -> list[UUID]:
    """The unfinished jobs that have the key in that partition. If Redis cannot be reached, only the rows decide."""
    try:
        with stores.guarded(queue.name, partition, schedules=True):
            return _held(queue, key, partition)
    except StoreUnavailable:
        rows = outbox.jobs.keyed(queue.name, [key]) if outbox.installed else []
        return [id for id, _ in rows if ids.partition(id) == partition]


def _held(queue: QueueConfig, key: str, partition: int) -> list[UUID]:
    """The job that holds the key in Redis, or rows that Redis lacks. If Redis has lost its data, and the restore is not complete, only
    the rows decide.
    """
    store = stores.queue(queue.name, partition)
    holder = holder_of(store.link, store.keys, key)
    if holder is not None:
        return [holder]
    epoch = stores.recovery(store).look()
    if not outbox.installed:
        return []
    lacks = epoch.rolled or epoch.confirmed != epoch.server
    rows = outbox.jobs.keyed(queue.name, [key]) if lacks else outbox.jobs.waiting(queue.name, [key])
    return [row[0] for row in rows if ids.partition(row[0]) == partition]


def placed(template: JobTemplate, key: str, name: SharedName | None, id: UUID | None, turn: int | None) -> UUID:
    """The id of a job of a queue with several partitions, see `plan`. Raises: as `of`."""
    home = of(template, key, name)
    if home is None and turn is not None:
        home = turn % template.queue.partitions
    if id is not None:
        return id if home is None else ids.placed(id, home)
    return ids.new(anywhere(template.queue) if home is None else home)


def drawn(task: Planned, options: Options, args: tuple[Any, ...], kwargs: dict[str, Any]) -> UUID:
    """Returns an id for a future job, for a caller that needs the id before `plan` is called. This does not call Redis. While
    PARTITIONS changes, `plan` may therefore choose another id for a job with a key or a name.

    Raises:
        QueueUnknown, ConfigError, PayloadError: see `plan`.
    """
    template = templates.get(task, options, None)
    if not template.queue.divided:
        return ids.new()
    scope = scopes.in_force()
    name = None if template.named is None else template.named.name(args, kwargs, template.where, scope)
    text = (name.home if name else "") or (options.key and scoped(scope, validate_key(options.key)))
    return ids.new(template.queue.homes(text)[0] if text else anywhere(template.queue))
