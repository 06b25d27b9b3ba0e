"""In which partition of its queue a new job goes. Its id says it from then on, and it never leaves it.

The home of a job is that of its name (serial, concurrency), else of its key; what has neither goes anywhere. While jobs that were
scheduled before PARTITIONS was changed are unfinished, a name and a key stay where these are: so it is one partition that decides who
holds a key, and how many of a name run.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any
from uuid import UUID

from django_delayq import ids
from django_delayq.conf import QueueConfig
from django_delayq.exceptions import ConfigError, StoreUnavailable
from django_delayq.producer import outbox
from django_delayq.producer.options import JobTemplate, Options, Planned, templates
from django_delayq.producer.stores import stores
from django_delayq.shared_name import SharedName, in_payload
from django_delayq.store.scripts.events import FIRST
from django_delayq.store.scripts.record import JobRecord, validate_key
from django_delayq.store.scripts.recovery import EpochStore


def anywhere(queue: QueueConfig) -> int:
    """A partition for jobs that have no home."""
    return random.randrange(queue.partitions) if queue.partitions > 1 else 0


def of(template: JobTemplate, key: str, name: SharedName | None) -> int | None:
    """Where a job of that key and that name is to be; None for one that has no home.

    Raises:
        ConfigError: it has two.
        PayloadError: that is no key.
    """
    queue = template.queue
    if key:
        validate_key(key)  # what is none has no home
    if name is not None and key and name.text != key and queue.divided:
        raise ConfigError(
            f"{template.where}: key={key!r} and the name {name.text!r} are each counted in one partition, and the queue {queue.name!r} "
            "has several. Use the same text for both, or only one of them, or schedule into a queue with PARTITIONS 1."
        )
    if name is not None:
        text = name.text
        return _settled(queue, text, lambda partition: _bears(queue, text, partition))
    if key:
        return _settled(queue, key, lambda partition: _holds(queue, key, partition))
    return None


def _settled(queue: QueueConfig, text: str, lives: Callable[[int], bool]) -> int:
    home, *former = queue.homes(text)
    return next((partition for partition in former if lives(partition)), home)


def _bears(queue: QueueConfig, text: str, partition: int, *, failed: bool = True) -> bool:
    """Whether an unfinished job bears that name there; or one that has `failed`, and may be requeued. Where Redis cannot be asked one
    may: then the next waits there as a row, since elsewhere it might run beside that one.
    """
    try:
        with stores.guarded(queue.name, partition, schedules=True):
            return stores.inspector().names(queue.name, partition, text, failed=failed)
    except StoreUnavailable:
        return True


def bears_elsewhere(queue: QueueConfig, text: str, partition: int) -> bool:
    """Whether an unfinished one does, or may, in another of that name's homes than this."""
    return any(_bears(queue, text, other, failed=False) for other in queue.homes(text) if other != partition)


def taken_elsewhere(queue: QueueConfig, record: JobRecord) -> bool:
    """Whether an unfinished job has the key, or the name, of this one in another home of that: a job that is put back stays where its
    id says, and the script there knows of no other partition.

    Raises:
        StoreUnavailable: nobody knows.
    """
    name = in_payload(record.payload)
    text, partition = name.text if name else record.key, ids.partition(record.id)
    for other in queue.homes(text) if text else ():
        if other != partition:
            with stores.guarded(queue.name, other):
                if name and stores.inspector().names(queue.name, other, text, failed=False):
                    return True
                if record.key and _held(queue, record.key, other):
                    return True
    return False


def _holds(queue: QueueConfig, key: str, partition: int) -> bool:
    """Whether an unfinished job has that key there; where Redis cannot be asked, by its row alone."""
    try:
        with stores.guarded(queue.name, partition, schedules=True):
            return _held(queue, key, partition)
    except StoreUnavailable:
        rows = outbox.jobs.keyed(queue.name, [key]) if outbox.installed else []
        return any(ids.partition(id) == partition for id, _ in rows)


def _held(queue: QueueConfig, key: str, partition: int) -> bool:
    """By Redis, or by a row that Redis does not have yet; by its row alone where Redis has lost what it held, and restore has not
    brought it back.
    """
    if stores.inspector().find(queue.name, key, [partition]) is not None:
        return True
    epoch = EpochStore(stores.queue(queue.name, partition)).look(FIRST)
    if not outbox.installed:
        return False
    lacks = epoch.rolled or epoch.confirmed != epoch.server
    rows = outbox.jobs.keyed(queue.name, [key]) if lacks else outbox.jobs.waiting(queue.name, [key])
    return any(ids.partition(row[0]) == partition for row in rows)


def placed(template: JobTemplate, key: str, name: SharedName | None, id: UUID | None, turn: int | None) -> UUID:
    """The id of a job of a queue with several partitions, see `plan`. Raises: as `of`."""
    home = of(template, key, name)
    if home is None and turn is not None:
        home = turn % template.queue.partitions
    if id is not None:
        return id if home is None else ids.placed(id, home)
    return ids.new(anywhere(template.queue) if home is None else home)


def drawn(task: Planned, options: Options, args: tuple[Any, ...], kwargs: dict[str, Any]) -> UUID:
    """An id for a job to be, for who must know it before `plan` is called. Nobody is asked for it, so while PARTITIONS changes
    `plan` may give another one to a job that has a key or a name.

    Raises:
        QueueUnknown, ConfigError, PayloadError: see `plan`.
    """
    template = templates.get(task, options, None)
    if not template.queue.divided:
        return ids.new()
    name = None if template.named is None else template.named.name(args, kwargs, template.where)
    text = name.text if name else options.key and validate_key(options.key)
    return ids.new(template.queue.homes(text)[0] if text else anywhere(template.queue))
