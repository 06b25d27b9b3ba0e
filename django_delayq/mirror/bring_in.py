"""Brings in far rows in time. Within the horizon of their queue they become near, and go to Redis in the same way as the rows of the
relay.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

from django_delayq import clock, conf, ids
from django_delayq.conf import QueueConfig
from django_delayq.exceptions import StoreUnavailable
from django_delayq.failpoints import failpoint
from django_delayq.logger import Logger
from django_delayq.models import Job, database
from django_delayq.models.database import ExistsQuery
from django_delayq.producer import horizon
from django_delayq.producer.outbox import far_rows
from django_delayq.producer.publish import Publisher
from django_delayq.signing import Signer
from django_delayq.store.connection.link import FanOut
from django_delayq.store.connection.places import Places
from django_delayq.store.scripts.queue import MOST, QueueStore

logger = Logger("django_delayq.relay")

BATCH: Final = 1000  # rows per commit
OFTEN: Final = 20  # looks per horizon,
SHORTEST, LONGEST = 1.0, 30.0  # but one in so many seconds at most, and at least
WITHOUT: Final = 60.0  # seconds between looks for what is left of a horizon that was turned off
MOST_A_SECOND: Final = 5000  # rows without a horizon: all that is far comes in, beside the work of the day
YOUNG: Final = 5.0  # seconds for which a key is left to the process that has written its row


class BringInLoop:
    """1. Asks Redis about the keys of far rows, if their web processes could not.
    2. Makes the rows near that are due within the horizon, oldest first, a thousand per commit, and publishes them.

    The loop may stop at any point: the relay publishes rows that are near and unpublished. Any number of loops may run at once.

    Without a horizon it brings in all rows that are still far. If the server of a partition is unavailable, the rows of that
    partition stay far; the rows of other partitions come in.
    """

    def __init__(self, places: Places, queue: QueueConfig, *, prefix: str, young: float = YOUNG, signer: Signer | None = None) -> None:
        self.queue = queue
        self._young = timedelta(seconds=young)
        most = conf.get().most_events_in(queue.name)
        self._publishers = [
            Publisher(QueueStore(places, prefix=prefix, queue=queue.name, partition=partition, signer=signer), most, actor="relay")
            for partition in queue.served
        ]
        self.idle = min(LONGEST, max(SHORTEST, queue.horizon / OFTEN)) if queue.horizon else WITHOUT
        self._any = ExistsQuery(Job.objects.filter(far=True, queue=queue.name))
        self._late = False

    def poll(self) -> float:
        """One batch. Returns seconds to sleep: 0 when more may be there.

        Raises:
            StoreUnavailable, DatabaseError: nothing is lost; call again later.
        """
        if not self._any.found():
            self._say_late(None)
            return self.idle
        away = self._away()
        now = database.now()
        if self.queue.horizon:
            young = database.written(now - self._young, now)
            waiting = far_rows.unchecked(self.queue.name, self.queue.served, young, MOST, away=away)
            for publisher, jobs in self._dealt(waiting):
                horizon.check(publisher, jobs)
            self._say_late(now)
        began = clock.monotonic()
        brought = self.bring_in(now, away)
        if len(brought) < BATCH:
            return self.idle
        return 0.0 if self.queue.horizon else max(0.0, len(brought) / MOST_A_SECOND - (clock.monotonic() - began))

    def bring_in(self, now: datetime, away: Collection[int] = ()) -> list[UUID]:
        """Brings in the first thousand rows that are due within the horizon of that moment, except those of unavailable partitions.
        Returns their ids.
        """
        before = now + timedelta(seconds=self.queue.horizon) if self.queue.horizon else None
        brought = far_rows.bring_in_due(self.queue.name, self.queue.served, before, BATCH, away=away)
        for publisher, jobs in self._dealt(brought):
            for start in range(0, len(jobs), MOST):
                failpoint("bring_in.publish")
                publisher.publish_rows(jobs[start : start + MOST])
                failpoint("bring_in.published")
        if brought:
            logger.info("queue %s: published far jobs (%d)", self.queue.name, len(brought))
        return brought

    def _away(self) -> list[int]:
        """The partitions that do not answer. While Redis is unavailable, rows stay far and can be changed.

        Raises:
            StoreUnavailable: no partition answers.
        """
        fan_out = FanOut[Publisher]()
        asked = fan_out.each(self._publishers, lambda one: one.store.link, lambda one: one.store.epoch())
        away = [partition for partition, (_, answer) in enumerate(asked) if isinstance(answer, StoreUnavailable)]
        if len(away) == len(self._publishers):
            fan_out.raise_first()
        return away

    def _dealt(self, jobs: Sequence[UUID]) -> list[tuple[Publisher, list[UUID]]]:
        """The jobs grouped by the publisher of their partition."""
        return [(self._publishers[partition], some) for partition, some in ids.by_partition(jobs).items()]

    def _say_late(self, now: datetime | None) -> None:
        """Logs once when far jobs begin to be late, and once when they are in time again."""
        first = None if now is None else far_rows.first_far(self.queue.name)
        late = first is not None and now is not None and far_rows.is_late(first, now, self.queue)
        if late and not self._late and first is not None:
            text = "far jobs of %s reach Redis late: the first is due at %s, and the horizon is %.0f s"
            logger.warning(text, self.queue.name, first.isoformat(), self.queue.horizon or 0)
        elif self._late and not late:
            logger.warning("far jobs of %s are reaching Redis in time again", self.queue.name)
        self._late = late
