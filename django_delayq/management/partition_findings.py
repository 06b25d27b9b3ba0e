"""What `delayq doctor` finds about the partitions of queues: what is left of a former number of them."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from django.db import DatabaseError

from django_delayq import conf, ids
from django_delayq.conf import QueueConfig
from django_delayq.console import keyset
from django_delayq.exceptions import StoreUnavailable
from django_delayq.findings import Finding
from django_delayq.management.left_partitions import left_partitions
from django_delayq.models import Job
from django_delayq.producer.stores import stores
from django_delayq.shared_name import in_meta
from django_delayq.states import State

CHUNK: Final = 1000


def partition_findings(queue: QueueConfig, there: Collection[int]) -> list[Finding]:
    """`there`: of its partitions those that answer. Raises: StoreUnavailable, StoreError: one of them does not any more."""
    return [*_unserved(queue), *_former(queue, there)]


def _unserved(queue: QueueConfig) -> list[Finding]:
    """Partitions that have jobs and that the settings do not name."""
    try:
        held = left_partitions(stores.places, queue)
    except StoreUnavailable:  # of which others tell
        return []
    count, last = sum(held.values()), max(held, default=0)
    if not count:
        return []
    return [
        Finding(
            code="D026",
            message=f"Jobs of {queue.name!r} are in partitions that PARTITIONS and FORMER_PARTITIONS do not include: "
            f"{count:,}. Only workers "
            "that start from now on run them.",
            hint=f"Add {last + 1} to FORMER_PARTITIONS of this queue and deploy. Keep it until delayq doctor reports "
            f"that you can remove it.",
        )
    ]


def _former(queue: QueueConfig, there: Collection[int]) -> list[Finding]:
    """Whether FORMER_PARTITIONS may go. Nothing where that is not known."""
    if not queue.former_partitions:
        return []
    away = sum(_away_from_home(queue, partition) for partition in there)
    left = sum(_jobs(queue, partition) for partition in there if partition >= queue.partitions)
    try:
        rows = _rows_away_from_home(queue)
    except DatabaseError:  # of which others tell
        rows = None
    if away or left or rows:
        return [
            Finding(
                code="D028",
                message=f"FORMER_PARTITIONS of {queue.name!r} is still needed. Keys and names in former partitions: "
                f"{away:,}. Jobs in former "
                f"partitions: {left:,}." + (f" Unpublished and far jobs that go to former partitions: {rows:,}." if rows else ""),
            )
        ]
    if rows is None or len(there) < len(queue.served):
        return []
    return [
        Finding(
            code="D027",
            message=f"You can remove FORMER_PARTITIONS of {queue.name!r}: no keys, names or jobs are left in former partitions.",
        )
    ]


def _jobs(queue: QueueConfig, partition: int) -> int:
    store = stores.queue(queue.name, partition)
    return int(store.link.execute("HLEN", store.keys["jobs"]))


def _rows_away_from_home(queue: QueueConfig) -> int:
    """How many jobs that Redis may not have yet, far ones among them, will come into a partition that is not their home now."""
    waiting = Job.objects.using(conf.get().database).filter(state=State.SCHEDULED.value, published__isnull=True, queue=queue.name)
    found = 0
    for job in keyset.through(waiting.order_by("id").only("id", "key", "options"), ("id",), CHUNK):
        name = in_meta(job.options.get("meta")) if isinstance(job.options, dict) else None
        text, partition = name.text if name else job.key, ids.partition(job.id)
        found += partition >= queue.partitions or (bool(text) and queue.homes(text)[0] != partition)
    return found


def _away_from_home(queue: QueueConfig, partition: int) -> int:
    """How many keys and names of a partition have another home now."""
    store, found = stores.queue(queue.name, partition), 0
    for name in ("keys", "names"):
        cursor = b"0"
        while True:
            cursor, flat = store.link.execute("HSCAN", store.keys[name], cursor, "COUNT", CHUNK)
            texts = flat[::2] if name == "keys" else [value.split(b":", 3)[-1] for value in flat[1::2]]
            found += sum(queue.homes(text.decode("utf-8", "replace"))[0] != partition for text in texts)
            if cursor == b"0":
                break
    return found
