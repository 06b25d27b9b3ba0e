"""The database side of a test: the real mirror updates rows, and the real relay publishes them, on the test's own connection."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Final
from uuid import UUID

from django.db.models import QuerySet

from django_delayq import clock, ids, signals
from django_delayq.conf import Config
from django_delayq.mirror.checkpoint import CheckpointTaken
from django_delayq.mirror.mirror_loop import MirrorLoop
from django_delayq.mirror.relay import CommitRequestLoop, RelayLoop
from django_delayq.models import UNPUBLISHED, Job
from django_delayq.models.database import FixedQuery
from django_delayq.producer.commit import Pending
from django_delayq.producer.task import registry
from django_delayq.testing.jobs_clock import JobsLink
from django_delayq.testing.scheduled_jobs import ScheduledJob

YOUNG: Final = -1.0  # seconds; below zero, so that a row of any age is published: the clock of a test does not run


class RecordKeeper:
    """The mirrors and relays of all queues of one set of settings."""

    def __init__(self, config: Config, link: JobsLink) -> None:
        self._config = config
        self._link = link
        common: Any = {"prefix": config.prefix, "signer": config.signer}
        self._mirrors = [
            MirrorLoop(link, queue, partition=partition, **common) for queue in config.queues.values() for partition in queue.served
        ]
        self._common = common
        self._requests = CommitRequestLoop(young=YOUNG)
        self._unpublished = FixedQuery(self._rows().values_list("id", "queue"))
        self.may_lack = True  # Redis may lack rows: they are older than the test, it was away, or a job waits for another

    def fold(self) -> bool:
        """Updates the rows from the events of Redis. Returns whether there were any events."""
        lengths = self._link.execute_many([("XLEN", mirror.log.keys["events"]) for mirror in self._mirrors])
        for mirror, length in zip(self._mirrors, lengths, strict=True):
            with suppress(CheckpointTaken):  # a mirror in another thread, or a worker of the test, holds it
                while length > 0 and (passed := mirror.fold()).more:
                    length -= len(passed.entries)
                    self.may_lack |= bool(registry.followed)  # a failure may have written the row of another job
        return any(lengths)

    def publish(self) -> bool:
        """Carries out changes that were committed while Redis was away. Then publishes rows that Redis lacks: rows that were
        committed in the meantime, or that wait for a job of their key. Returns whether Redis accepted any.
        """
        if self.may_lack or self._link.lacks_rows:
            self._requests.poll()
        if not self._lacking():
            return False
        self.fold()
        before = set(self._lacking())
        for queue, partition in {(queue, ids.partition(id)) for id, queue in before}:
            relay = RelayLoop(self._link, self._config.queues[queue], partition=partition, young=YOUNG, **self._common)
            while relay.poll() == 0.0:
                pass
        return bool(before - set(self._lacking()))

    def keep(self) -> bool:
        """Updates the rows, then publishes rows that Redis lacks. Returns whether there may be more to run: receivers may have
        scheduled jobs.
        """
        told = self.fold() and signals.job_ended.has_listeners()
        return self.publish() or told

    def unpublished(self) -> list[ScheduledJob]:
        """Committed rows that Redis lacks, as jobs."""
        lacking = [id for id, _ in self._lacking()]
        if not lacking:
            return []
        now = clock.now()
        return [
            ScheduledJob(
                id=row.id,
                task=row.task,
                args=row.args,
                kwargs=row.kwargs,
                key=row.key,
                queue=row.queue,
                run_at=row.run_at,
                delay=row.run_at - now,
                published=False,
            )
            for row in Job.objects.filter(pk__in=lacking)
        ]

    def _lacking(self) -> list[tuple[UUID, str]]:
        if not (self.may_lack or self._link.lacks_rows):
            return []
        self.may_lack = self._link.lacks_rows = False
        found = [(id, queue) for id, queue in self._unpublished.rows() if queue in self._config.queues]
        keys = {(mirror.queue.name, mirror.partition): mirror.log.keys["jobs"] for mirror in self._mirrors}
        found = [(id, queue) for id, queue in found if (queue, ids.partition(id)) in keys]
        there = self._link.execute_many([("HEXISTS", keys[queue, ids.partition(id)], ids.short(id)) for id, queue in found])
        unknown = [job for job, known in zip(found, there, strict=True) if not known]
        self.may_lack = bool(unknown)
        return [job for job in unknown if not Pending.find(job[0])]

    def _rows(self) -> QuerySet[Job]:
        return Job.objects.filter(UNPUBLISHED, durable=True, settled="")
