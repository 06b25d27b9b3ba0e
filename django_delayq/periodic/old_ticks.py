"""Deletes ticks after their jobs are deleted: the history of ticks is as long as that of jobs."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, Final

from django.db.models import Exists, OuterRef

from django_delayq.conf import Config
from django_delayq.models import Job, Tick
from django_delayq.producer.outbox import agreed_clock
from django_delayq.store.connection.places import Places

BATCH: Final = 500
PAUSE: Final = 600.0  # seconds between two rounds
LONG_PAUSE: Final = 3_600.0  # the pause after a round that removed nothing
PACE: Final = 1.0  # seconds between two looks of a round that delete nothing
LEAST: Final = 24 * 3_600.0  # seconds for which a tick is always kept: if a clock is put back, the tick shows that it has had its job


def old_ticks(config: Config, now: datetime) -> Any:
    """Ticks older than the retention of succeeded jobs, without a job or with a job that has no row. Jobs that a queue keeps
    longer, and failed jobs, keep their tick.
    """
    edge, ticks = _edge(config, now), Tick.objects
    if edge is None:
        return ticks.none()
    jobs = Job.objects.filter(pk=OuterRef("job_id"))
    return ticks.filter(written_at__lt=edge).exclude(Exists(jobs))


class OldTicksLoop:
    """Looks at 500 ticks a pass, by primary key, from where the pass before ended. If all were too young, or the last row is reached,
    it starts again from the oldest row. So even millions of rows that stay cost at most one look a second. After each round it pauses
    for minutes.
    """

    def __init__(self, places: Places, config: Config) -> None:
        self.config = config
        self._places = places
        self._seen = 0  # all rows up to this one were checked in this round
        self._gone = 0  # the number of rows that this round has deleted

    def poll(self) -> float:
        """One batch. Returns seconds to sleep: 0 when there may be more to delete.

        Raises:
            StoreUnavailable, DatabaseError, ClocksDiffer: call again later.
        """
        gone = self._step()
        self._gone += gone
        if self._seen:
            return 0.0 if gone else PACE
        rest = PAUSE if self._gone else LONG_PAUSE
        self._gone = 0
        return rest

    def prune(self) -> int:
        """Runs batches until one deletes rows. Returns their number; 0: no rows are left to delete."""
        while not (gone := self._step()):
            if not self._seen:
                return 0
        return gone

    def now(self) -> datetime:
        """By which ticks are old. Raises: see `poll`."""
        return agreed_clock.now([self._places.shared])

    def _step(self) -> int:
        now = self.now()
        edge, ticks = _edge(self.config, now), Tick.objects
        looked = list(ticks.filter(pk__gt=self._seen).order_by("pk").values_list("pk", "written_at")[:BATCH])
        # Not the last one says that the rest is young: a tick that got another job keeps its place.
        over = edge is None or len(looked) < BATCH or all(written_at >= edge for _, written_at in looked)
        self._seen = 0 if over else looked[-1][0]
        gone = list(old_ticks(self.config, now).filter(pk__in=[pk for pk, _ in looked]).values_list("pk", flat=True)) if looked else []
        if gone:
            ticks.filter(pk__in=gone).delete()
        return len(gone)


def _edge(config: Config, now: datetime) -> datetime | None:
    """Ticks that were written before this may go; None: none may."""
    kept = config.retention["succeeded"]
    return None if kept is None else now - timedelta(seconds=max(kept, LEAST))
