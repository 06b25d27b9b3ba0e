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

from django_delayq import conf, ids
from django_delayq.conf import QueueConfig
from django_delayq.exceptions import ConfigError, StoreUnavailable
from django_delayq.producer import database
from django_delayq.producer.options import Mould, Options, Planned, moulds
from django_delayq.producer.stores import stores
from django_delayq.shared_name import SharedName


def anywhere(queue: QueueConfig) -> int:
    """A partition for jobs that have no home."""
    return random.randrange(queue.partitions) if queue.partitions > 1 else 0


def of(mould: Mould, key: str, name: SharedName | None) -> int | None:
    """Where a job of that key and that name is to be; None for one that has no home.

    Raises:
        ConfigError: it has two.
    """
    queue = mould.queue
    if name is not None and key and name.text != key and queue.divided:
        raise ConfigError(
            f"{mould.where}: key={key!r} and the name {name.text!r} are each counted in one partition, and the queue {queue.name!r} "
            "has several. Give both the same text, or only one of them; or schedule into a queue whose PARTITIONS is 1."
        )
    if name is not None:
        text = name.text
        return _settled(queue, text, lambda partition: stores.inspector().names(queue.name, partition, text))
    if key:
        return _settled(queue, key, lambda partition: _holds(queue, key, partition))
    return None


def _settled(queue: QueueConfig, text: str, lives: Callable[[int], bool]) -> int:
    home, *former = queue.homes(text)
    return next((partition for partition in former if lives(partition)), home)


def _holds(queue: QueueConfig, key: str, partition: int) -> bool:
    """Whether an unfinished job has that key there: by Redis, or by a row that Redis does not have yet. Where Redis cannot be asked,
    by its row alone.
    """
    found, using = database.installed(), conf.get().database
    try:
        with stores.guarded(queue.name, partition, schedules=True):
            if stores.inspector().find(queue.name, key, [partition]) is not None:
                return True
        rows = [] if found is None else [id for id, _ in found.waiting(queue.name, [key], using)]
    except StoreUnavailable:
        rows = [] if found is None else found.keyed(queue.name, key, using)
    return any(ids.partition(id) == partition for id in rows)


def placed(mould: Mould, key: str, name: SharedName | None, id: UUID | None, turn: int | None) -> UUID:
    """The id of a job of a queue with several partitions, see `plan`. Raises: as `of`."""
    home = of(mould, key, name)
    if home is None and turn is not None:
        home = turn % mould.queue.partitions
    if id is not None:
        return id if home is None else ids.placed(id, home)
    return ids.new(anywhere(mould.queue) if home is None else home)


def drawn(task: Planned, options: Options, args: tuple[Any, ...], kwargs: dict[str, Any]) -> UUID:
    """An id for a job to be, for who must know it before `plan` is called. Nobody is asked for it, so while PARTITIONS changes
    `plan` may give another one to a job that has a key or a name.

    Raises:
        QueueUnknown, ConfigError, PayloadError: see `plan`.
    """
    mould = moulds.get(task, options, None)
    if not mould.queue.divided:
        return ids.new()
    name = None if mould.named is None else mould.named.name(args, kwargs, mould.where)
    text = name.text if name else options.key
    return ids.new(mould.queue.homes(text)[0] if text else anywhere(mould.queue))
