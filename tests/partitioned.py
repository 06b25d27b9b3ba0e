"""Queues with several partitions."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

import pytest

from django_delayq import conf, ids
from django_delayq.mirror.mirror_loop import MirrorLoop
from django_delayq.mirror.restore import RestoreLoop
from django_delayq.producer.stores import stores
from django_delayq.store.scripts.queue import Outcome
from django_delayq.store.scripts.record import ClaimedJob

Divide = Callable[..., None]


@pytest.fixture
def divide(settings, delayq_redis) -> Divide:
    """`divide(16, 4, queue="orders")`: PARTITIONS is 16, and FORMER_PARTITIONS has 4."""

    def to(partitions: int, *former: int, queue: str = "orders", **options: Any) -> None:
        queues = settings.DELAYQ["QUEUES"]
        own = {**queues[queue], "PARTITIONS": partitions, "FORMER_PARTITIONS": list(former), **options}
        settings.DELAYQ = {**settings.DELAYQ, "QUEUES": {**queues, queue: own}}

    return to


def fold(queue: str = "orders") -> None:
    """The events that the mirrors of all partitions read."""
    config = conf.get()
    for partition in config.queue(queue).served:
        MirrorLoop(stores.places, config.queue(queue), prefix=config.prefix, partition=partition).drain()


def restores(queue: str = "orders") -> list[RestoreLoop]:
    """The restore loops of all partitions."""
    config = conf.get()
    common: Any = {"prefix": config.prefix}
    return [RestoreLoop(stores.places, config.queue(queue), partition=partition, **common) for partition in config.queue(queue).served]


def claim(queue: str = "orders", want: int = 200) -> list[ClaimedJob]:
    """The due jobs of all partitions."""
    claims = (store.claim("host:1:w", f"p{next(numbers)}", want=want, lease_ms=30_000, max_crashes=3) for store in stores.parts(queue))
    return [job for one in claims for job in one.jobs]


numbers = count()


def succeed(jobs: list[ClaimedJob], queue: str = "orders") -> list[str]:
    """They end well."""
    return [
        str(
            stores.with_job(queue, ids.full(job.id)).settle(
                [Outcome(id=job.id, attempt=job.attempt, fence=job.fence, kind="ack", delay_ms=0, detail=b"{}")],
                worker="host:1:w",
                max_crashes=3,
            )[0]
        )
        for job in jobs
    ]
