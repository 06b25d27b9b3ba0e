"""Partitions with jobs that the settings no longer include. A worker still serves them, so that a number that was removed too early
leaves no job undone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from django.db import DatabaseError
from django.db.models import Count

from django_delayq import conf
from django_delayq.conf import Config, QueueConfig
from django_delayq.exceptions import StoreUnavailable
from django_delayq.models import FAR, Checkpoint, Job
from django_delayq.setting_readers import MOST_PARTITIONS
from django_delayq.states import UNFINISHED
from django_delayq.store.connection.address import RedisSpec
from django_delayq.store.connection.error_replies import StoreRefused
from django_delayq.store.connection.places import Places, by_node
from django_delayq.store.keys import Keys

MOST_FAR: Final = 10_000  # far rows of a queue that are read


def left_partitions(places: Places, queue: QueueConfig, *, sparing: bool = False) -> dict[int, int]:
    """The number of jobs in each such partition, in Redis and as rows: some are far, unpublished, or lost by Redis.

    Args:
        sparing: query the database only if Redis has data of such a partition, or no data of the queue.

    Raises:
        StoreUnavailable, StoreError: a server cannot be reached.
    """
    prefix = conf.get().prefix
    unnamed = [Keys.of(prefix, queue.name, partition) for partition in range(queue.served[-1] + 1, MOST_PARTITIONS)]
    first, *noted = _counts(places, "meta", [Keys.of(prefix, queue.name, 0), *unnamed])
    traces = [keys for keys, fields in zip(unnamed, noted, strict=True) if fields]
    jobs = {keys.partition: count for keys, count in zip(traces, _counts(places, "jobs", traces), strict=True)}
    rows = _rows(queue) if traces or not first or not sparing else {}
    found = {partition: max(jobs.get(partition, 0), rows.get(partition, 0)) for partition in jobs.keys() | rows.keys()}
    return {partition: count for partition, count in sorted(found.items()) if count}


def serving_what_is_left(places: Places, config: Config, queues: Iterable[str]) -> Config:
    """The settings for a worker of these queues that also serves such partitions. If Redis cannot be reached, these are the partitions
    that a mirror has served. Waits for an unreachable server once, and not once for each queue.
    """
    found, silent = dict(config.queues), list[RedisSpec]()
    for name in queues:
        queue = found[name]
        try:
            left = _mirrored(queue) if queue.redis in silent else list(left_partitions(places, queue, sparing=True))
        except StoreUnavailable as error:
            if not isinstance(error, StoreRefused):
                silent.append(queue.redis)
            left = _mirrored(queue)
        if left:
            found[name] = replace(queue, left=max(left) + 1)
    return replace(config, queues=found)


def _counts(places: Places, what: str, parts: Sequence[Keys]) -> list[int]:
    """The number of fields of this hash in each partition."""
    found: dict[int, int] = {}
    for link, there in by_node(places, parts).items():
        for keys, reply in zip(there, link.ask(*(("HLEN", keys[what]) for keys in there)), strict=True):
            found[keys.partition] = int(reply)
    return [found[keys.partition] for keys in parts]


def _rows(queue: QueueConfig) -> dict[int, int]:
    """The unfinished rows of these partitions. No index has partitions, so all rows are read if a mirror has served them, or else the
    far rows that are due first. The latter are enough, because all others are in Redis.
    """
    mine = Job.objects.filter(queue=queue.name)
    try:
        if _mirrored(queue):
            there = mine.filter(state__in=UNFINISHED, durable=True, partition__gt=queue.served[-1]).order_by()
            return dict(there.values_list("partition").annotate(Count("pk")))
        first = mine.filter(FAR).order_by("run_at").values_list("partition", flat=True)[:MOST_FAR]
        return Counter(partition for partition in first if partition > queue.served[-1])
    except DatabaseError:
        return {}


def _mirrored(queue: QueueConfig) -> list[int]:
    known = Checkpoint.objects.filter(queue=queue.name, partition__gt=queue.served[-1])
    try:
        return list(known.values_list("partition", flat=True))
    except DatabaseError:  # D003 reports it
        return []
