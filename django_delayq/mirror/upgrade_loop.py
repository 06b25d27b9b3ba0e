"""Raises the format of a queue by itself, once no process of an older release has been there for an hour. From format 0 to 1 only
`delayq upgrade` does, since web processes of that release leave no word.
"""

from __future__ import annotations

from typing import Final

from django_delayq.conf import QueueConfig
from django_delayq.failpoints import failpoint
from django_delayq.logger import Logger
from django_delayq.store import formats
from django_delayq.store.format_store import FormatStore
from django_delayq.store.places import Places
from django_delayq.store.queue import QueueStore
from django_delayq.store.worker_registry import WorkerRegistry

logger = Logger("django_delayq.mirror")

EVERY: Final = 60.0
TELLING: Final = 1  # from this format on every process leaves word


class UpgradeLoop:
    """Looks once a minute whether the queue may have the newest format."""

    def __init__(self, places: Places, queue: QueueConfig, *, prefix: str, partition: int = 0) -> None:
        self.queue = queue
        self.store = FormatStore(QueueStore(places, prefix=prefix, queue=queue.name, partition=partition))
        self._workers = WorkerRegistry(places, prefix=prefix)

    def poll(self) -> float:
        """One look. Returns seconds to sleep.

        Raises:
            StoreUnavailable, StoreError: call again later.
        """
        shown = [worker for worker in self._workers.all(silent_ms=formats.QUIET_MS) if not worker["silent"]]
        if formats.older(shown):
            return EVERY
        failpoint("mirror.upgrade")
        done = self.store.upgrade(quiet_ms=formats.QUIET_MS, least=TELLING, actor="mirror")
        failpoint("mirror.upgraded")
        if done.after > done.before:
            logger.warning("the queue %s has format %d now, and had %d", self.queue.name, done.after, done.before)
        return EVERY
