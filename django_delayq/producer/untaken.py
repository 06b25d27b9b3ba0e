"""Errors and log lines about jobs that Redis did not take, or perhaps did not take."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from django_delayq import clock, ids
from django_delayq.exceptions import StoreUnavailable
from django_delayq.logger import Logger
from django_delayq.producer.breaker import COOLDOWN
from django_delayq.producer.commit import Plan
from django_delayq.store.connection.link import Link
from django_delayq.store.scripts.replicas import ReplicasLack
from django_delayq.store.scripts.site import REPEAT, is_refusal

logger = Logger("django_delayq.producer")


class Untaken:
    """Reports committed jobs that Redis did not take: one warning per server in two seconds, however many jobs there are; of another
    site's queue, which a person must look at, one error in a minute.
    """

    def __init__(self) -> None:
        self._servers: dict[Link, tuple[float, int]] = {}  # when it was reported last, and how many jobs have come since

    def note(self, server: Link, jobs: int, error: StoreUnavailable) -> None:
        """So many were not taken by that server."""
        told_at, untold = self._servers.get(server, (float("-inf"), 0))
        now = clock.monotonic()
        strange = is_refusal(error)
        if now - told_at < (REPEAT if strange else COOLDOWN):
            self._servers[server] = told_at, untold + jobs
            return
        self._servers[server] = now, 0
        # The relay has published the jobs of a former outage by now.
        since = untold if now - told_at < 2 * COOLDOWN else 0
        level = logging.ERROR if strange else logging.WARNING
        logger.log(level, "Redis did not accept committed jobs (%d); the relay publishes them: %s", jobs + since, error)


def told(error: StoreUnavailable, batch: Sequence[Plan]) -> StoreUnavailable:
    """The same error, which says what is known of these jobs; `jobs` has their ids."""
    jobs = tuple(plan.id for plan in batch)
    which, is_, was = (f"the job {ids.short(jobs[0])}", "is", "was") if len(jobs) == 1 else (f"{len(jobs)} jobs", "are", "were")
    then = "`jobs` of this error has the ids, for delayq.get(id, queue=…). Calling schedule() again makes another job."
    if isinstance(error, ReplicasLack):
        where, found, wanted = (error.fields[name] for name in ("where", "found", "wanted"))
        said = f"Now {which} {is_} in Redis and on {found} of {wanted} replicas. If Redis at {where} fails now, this may be lost. "
        return ReplicasLack(f"{said}Check that its replicas run. {then}", jobs=jobs, code=error.code, **error.fields)
    if not error.nothing_done:
        return StoreUnavailable(f"{error} Whether {which} {is_} in Redis is not known: {then}", jobs=jobs)
    told = type(error)(f"{error} {which[0].upper()}{which[1:]} {was} not accepted.", jobs=jobs, code=error.code, **error.fields)
    told.nothing_done = True
    return told
