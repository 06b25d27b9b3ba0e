"""What `delayq doctor` finds about the partitions of queues: what is left of a former number of them."""

from __future__ import annotations

from typing import Final

from django.db import DatabaseError

from django_delayq import conf
from django_delayq.conf import QueueConfig
from django_delayq.models import Checkpoint
from django_delayq.producer.stores import stores
from django_delayq.store.fitness import Finding

CHUNK: Final = 1000


def partition_findings(queue: QueueConfig) -> list[Finding]:
    """Raises: StoreUnavailable, StoreError: Redis cannot be asked."""
    return [*_unserved(queue), *_former(queue)]


def _unserved(queue: QueueConfig) -> list[Finding]:
    """Partitions that were served once, have jobs, and are no more."""
    known = Checkpoint.objects.using(conf.get().database).filter(queue=queue.name, partition__gt=queue.served[-1])
    try:
        partitions = list(known.values_list("partition", flat=True))
    except DatabaseError:  # told of the database already
        return []
    held = {partition: _jobs(queue, partition) for partition in partitions}
    count, last = sum(held.values()), max((partition for partition, jobs in held.items() if jobs), default=0)
    if not count:
        return []
    return [
        Finding(
            code="D026",
            level="error",
            message=f"{count:,} jobs of {queue.name!r} are in partitions that PARTITIONS and FORMER_PARTITIONS do not name: nobody "
            "runs them.",
            hint=f"Add {last + 1} to FORMER_PARTITIONS of this queue, and deploy, until delayq doctor says that it may go.",
        )
    ]


def _former(queue: QueueConfig) -> list[Finding]:
    """Whether FORMER_PARTITIONS may go."""
    if not queue.former_partitions:
        return []
    away = sum(_away_from_home(queue, partition) for partition in queue.served)
    left = sum(_jobs(queue, partition) for partition in queue.served[queue.partitions :])
    if away or left:
        return [
            Finding(
                code="D028",
                level="warning",
                message=f"FORMER_PARTITIONS of {queue.name!r} is still needed: {away:,} keys and names are outside their home, and "
                f"{left:,} jobs are in partitions that get no new ones.",
                hint="Leave it until they have run.",
            )
        ]
    return [
        Finding(
            code="D027",
            level="warning",
            message=f"FORMER_PARTITIONS of {queue.name!r} may go: each key and name is in its home, and no partition is left over.",
            hint="Take it out of the settings, and deploy; until then each job with a key asks two partitions.",
        )
    ]


def _jobs(queue: QueueConfig, partition: int) -> int:
    store = stores.queue(queue.name, partition)
    return int(store.link.execute("HLEN", store.keys["jobs"]))


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
